//! Tensors that are stored as binary32 hold binary32.

use schemas::contract::FaultKind;
use schemas::entry::Entry;
use schemas::report::Route;
use schemas::state::StateClass;

use super::saves::{Odd, Save, Saves, bf16_only};
use crate::derive::safetensors::Tensor;
use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::declare_rule;
use crate::rules::updates::tensors::TensorFile;

declare_rule!(
    /// `GL641`.
    Bf16Mantissas,
    {
        code: "GL641",
        name: "rounded-mantissas",
        what: "No tensor of dtype F32 holds only what bfloat16 could: the low 16 bits of every element zero, with at least 16 \
               elements that vary and are neither zero nor powers of two. A parameter that updates brought there is rejected; \
               one that is as it was at step 0, and a moment or an average, is a warning.",
        why: "A master that was rounded to bfloat16 on its way loses every update below its last bit, and its dtype says nothing \
              of it.",
        remedy: "Keep masters in binary32 and round copies of them; where a warm start took over weights of another dtype, say so \
                 in a residual.",
        reference: "docs/FORMAT.md, \"Anomalies of saved state\"",
        gate: Route::RejectNumerics,
    }
);

#[derive(Default)]
struct Mantissas {
    saves: Saves,
}

fn open(_: &Frozen) -> Box<dyn Check + '_> {
    Box::new(Mantissas::default())
}

/// Digest of a tensor's elements.
fn elements(file: &mut TensorFile, tensor: &Tensor) -> Result<blake3::Hash, String> {
    let mut hasher = blake3::Hasher::new();
    file.read(tensor, &mut |_, bytes| {
        hasher.update(bytes);
        true
    })?;
    Ok(hasher.finalize())
}

/// Tensors of a model that are not those of the initial one.
fn moved(evidence: &Evidence, initial: Option<&Save>, save: &Save, odd: &[Odd]) -> Result<u64, String> {
    let Some(initial) = initial else { return Ok(0) };
    let mut num_moved = 0;
    for Odd { file, tensor } in odd {
        let mut first = TensorFile::open(evidence, &format!("{}/{file}", initial.path))?;
        let same = first.header.tensors.iter().find(|other| other.info == tensor.info).cloned();
        let before = same.map(|same| elements(&mut first, &same)).transpose()?;
        let mut file = TensorFile::open(evidence, &format!("{}/{file}", save.path))?;
        num_moved += u64::from(before != Some(elements(&mut file, tensor)?));
    }
    Ok(num_moved)
}

impl Check for Mantissas {
    fn entry(&mut self, entry: &Entry, _: &mut Sink) {
        self.saves.entry(entry);
    }

    fn finish(&mut self, evidence: &Evidence, sink: &mut Sink) -> Outcome {
        let initial = self.saves.whole().find(|save| save.step == 0);
        let mut num_checked = 0;
        for save in self.saves.whole() {
            let found = match bf16_only(evidence, save) {
                Ok(found) => found,
                Err(reason) => return Outcome::NotEvaluated(reason),
            };
            num_checked += 1;
            for (class, odd) in found {
                let first = odd.first().map(|odd| format!("/{} {}", odd.file, odd.tensor.info.name));
                let at = || At::place(format!("{}{}", save.path, first.as_deref().unwrap_or_default()));
                let message =
                    format!("{} tensors of {class} hold nothing that bfloat16 could not", odd.len());
                let (expected, actual) =
                    ("significands of 24 bits", "the low 16 bits of every element are zero");
                let num_moved = match class {
                    StateClass::Model => moved(evidence, initial, save, &odd),
                    _ => Ok(0),
                };
                match num_moved {
                    Ok(0) => sink.warning(at(), message, expected, actual),
                    Ok(_) => {
                        let at = at().cause(FaultKind::PrecisionPolicyChange);
                        sink.rejected(at, message, expected, actual);
                    }
                    Err(reason) => return Outcome::NotEvaluated(reason),
                }
            }
        }
        if num_checked == 0 {
            return Outcome::NotEvaluated("no checkpoint was validated and is whole".to_owned());
        }
        Outcome::Checked(num_checked)
    }
}
