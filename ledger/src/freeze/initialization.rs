//! A warm start: the weights that it names are read, digested and compared with
//! the architecture, and its lineage has to name the same bytes.
//!
//! Whether the source's ledger says so is not looked at here: it need not be at
//! hand. What the contract binds are the bytes and the claim.

use std::collections::BTreeMap;

use schemas::contract::{Architecture, Contract, Initialization, Lineage};
use schemas::digest::Algorithm;
use serde::Deserialize;

use super::data::keep;
use super::files::{Folder, Refusal, bind, digest_file, read_prefix};
use super::model::tensors;
use super::problem::Problems;

/// Longest header that is read, in bytes; that of 4,096 layers has 5 MB.
const MAX_HEADER_BYTES: u64 = 16 << 20;

/// dtype of every parameter, as safetensors spells it.
const DTYPE: &str = "F32";

const WEIGHTS: &str = "/initialization/weights";

#[derive(Debug, Deserialize)]
struct HeaderTensor {
    dtype: String,
    shape: Vec<u64>,
}

pub(super) fn check(
    contract: &mut Contract,
    is_shape_possible: bool,
    num_frozen: u64,
    folder: &Folder,
    problems: &mut Problems,
) {
    let Some(Initialization::WarmStart(warm_start)) = &mut contract.initialization else { return };
    // What is frozen is derived from the seed, by trainer and validator alike.
    problems.require(
        num_frozen == 0,
        "/parameters",
        format!("freezes {num_frozen} elements, and the run starts from another run's weights"),
        "this edition freezes parameters at their drawn values only: train all of them, or leave out /initialization",
    );
    check_lineage(&warm_start.lineage, problems);
    let read = folder.resolve(&warm_start.weights.path).and_then(|path| {
        let content = digest_file(&path)?;
        Ok((header(&path, content.num_bytes), content))
    });
    let Some((header, content)) = keep(read, format!("{WEIGHTS}/path"), problems) else { return };
    bind(&mut warm_start.weights, WEIGHTS, content, problems);
    problems.require(
        warm_start.lineage.model == content.digest,
        "/initialization/lineage/model",
        format!("is {}; {} has digest {}", warm_start.lineage.model, warm_start.weights.path, content.digest),
        "the weights have to be the model shard that the lineage names; `trainer init-from` copies it",
    );
    match header {
        Ok(found) if is_shape_possible => {
            let Architecture::LlamaDecoder(decoder) = &contract.architecture;
            compare(&tensors(decoder), &found, problems);
        }
        Ok(_) => {}
        Err(refusal) => problems.add(format!("{WEIGHTS}/path"), refusal.message, refusal.hint),
    }
}

fn check_lineage(lineage: &Lineage, problems: &mut Problems) {
    let at = |field: &str| format!("/initialization/lineage/{field}");
    for (field, digest, algorithm) in [
        ("contract", lineage.contract, Algorithm::Sha256),
        ("head/root", lineage.head.root, Algorithm::Sha256),
        ("model", lineage.model, Algorithm::Blake3),
    ] {
        problems.require(
            digest.algorithm == algorithm,
            at(field),
            format!("is {digest}; expected a digest by another algorithm"),
            "contracts and tree nodes are named by sha256, files by blake3",
        );
    }
    problems.require_text(lineage.checkpoint.as_str(), at("checkpoint"));
    problems.require_text(lineage.run.as_str(), at("run"));
    problems.require(
        lineage
            .run
            .as_str()
            .starts_with(&format!("{}-", lineage.contract.hex().get(..16).unwrap_or_default())),
        at("run"),
        format!("is {}, which the source's contract {} does not give", lineage.run, lineage.contract),
        "a run's name begins with the first 16 hex digits of its contract; `trainer init-from` fills both in",
    );
    problems.require_count(lineage.head.size, at("head/size"));
}

/// Tensors of a safetensors file by name.
fn header(path: &std::path::Path, num_bytes: u64) -> Result<BTreeMap<String, HeaderTensor>, Refusal> {
    let refuse = |what: String| Refusal {
        message: format!("{} is no safetensors file: {what}", path.display()),
        hint: "name the model shard of a checkpoint; `trainer init-from` copies it".to_owned(),
    };
    let prefix = read_prefix(path, 8)?;
    let length: [u8; 8] =
        prefix.try_into().map_err(|_| refuse("it is shorter than its length field".to_owned()))?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER_BYTES.min(num_bytes.saturating_sub(8)) {
        return Err(refuse(format!("it announces a header of {length} bytes")));
    }
    let length = usize::try_from(length).map_err(|_| refuse("its header is too long".to_owned()))?;
    let bytes = read_prefix(path, length.saturating_add(8))?;
    let json = bytes.get(8..).unwrap_or_default();
    let mut members: BTreeMap<String, serde_json::Value> =
        serde_json::from_slice(json).map_err(|error| refuse(error.to_string()))?;
    members.remove("__metadata__");
    let tensor = |(name, value)| {
        let tensor = serde_json::from_value(value).map_err(|error| refuse(format!("{name}: {error}")))?;
        Ok((name, tensor))
    };
    members.into_iter().map(tensor).collect()
}

fn compare(wanted: &[(String, Vec<u64>)], found: &BTreeMap<String, HeaderTensor>, problems: &mut Problems) {
    let hint = "a warm start has the source's /architecture; choose another source, or draw initial values";
    let mut add = |message: String| problems.add(WEIGHTS, message, hint);
    for (name, shape) in wanted {
        match found.get(name) {
            None => add(format!("has no {name} {shape:?}")),
            Some(tensor) if tensor.dtype != DTYPE || tensor.shape != *shape => add(format!(
                "{name} is {} {:?}; the architecture has {DTYPE} {shape:?}",
                tensor.dtype, tensor.shape
            )),
            Some(_) => {}
        }
    }
    for (name, tensor) in found.iter().filter(|(name, _)| wanted.iter().all(|(wanted, _)| wanted != *name)) {
        add(format!("{name} {:?} is no parameter of the architecture", tensor.shape));
    }
}
