//! The evidence profile `external-loop`: whose code a contract names, and what
//! the recorder for other loops can keep.
//!
//! The profile and the code belong together, so that no contract can call the
//! one the other: `external-loop` needs the files of a loop, whose digests give
//! `code.digest`, and `native` may not name the package of other loops. What
//! the recorder does not do yet (several workers, saves beside training,
//! pruning, patience, states that frameworks keep for themselves) is refused
//! here, before there is a run that could not be kept.

use schemas::contract::{
    Contract, DropoutDraws, EXTERNAL_CODE_DOMAIN, EXTERNAL_NONCLAIM, EXTERNAL_PACKAGE, EvidenceProfile,
    KeepPolicy, MidAccumulation, OrderPolicy, Recovery, SaveMode, ScheduleShape, StoppingRule,
};
use schemas::digest::Digest;
use schemas::state::StateClass;
use sha2::{Digest as _, Sha256};

use super::files::{Folder, bind, read_small};
use super::problem::Problems;
use super::{FrozenArtifact, Inputs, data};

/// Largest file of a loop: source, not data.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Most files of a loop.
const MAX_FILES: usize = 256;

/// Classes that the recorder captures; the loop gives it the first two.
const CAPTURED: [StateClass; 5] = [
    StateClass::Model,
    StateClass::Optimizer,
    StateClass::DataCursor,
    StateClass::Topology,
    StateClass::CompilerPlan,
];

/// What stands for the code of an external loop: SHA-256 over a fixed text and,
/// for each file in order, its path, a zero byte and the 32 bytes of its BLAKE3
/// (`docs/FORMAT.md`, "External loops").
#[must_use]
pub fn external_code_digest<'a>(files: impl IntoIterator<Item = (&'a str, Digest)>) -> Digest {
    let mut hasher = Sha256::new();
    hasher.update(EXTERNAL_CODE_DOMAIN);
    for (path, digest) in files {
        hasher.update(path.as_bytes());
        hasher.update([0]);
        hasher.update(digest.bytes);
    }
    Digest::sha256(hasher.finalize().into())
}

/// Binds and keeps the files of an external loop, and checks what its profile
/// asks for.
pub(super) fn check(contract: &mut Contract, folder: &Folder, inputs: &mut Inputs, problems: &mut Problems) {
    let is_external = contract.ruleset.profile == EvidenceProfile::ExternalLoop;
    let is_package = contract.code.package == EXTERNAL_PACKAGE;
    problems.require(
        is_package == is_external,
        "/code/package",
        format!(
            "is {:?} under the profile {}",
            contract.code.package,
            if is_external { "external-loop" } else { "native" }
        ),
        "the package \"external-loop\" is that of other loops and of no native run; `ledger init --profile` fills it in",
    );
    if contract.external_loop.is_some() != is_external {
        problems.add(
            "/external_loop",
            if is_external { "is left out" } else { "names files, and the profile is native" },
            "under \"external-loop\" it names the files that are the loop; under \"native\" it is left out",
        );
    }
    if !is_external {
        return;
    }
    let digest = bind_files(contract, folder, inputs, problems);
    if let Some(digest) = digest.filter(|digest| *digest != contract.code.digest) {
        problems.add(
            "/code/digest",
            format!("is {}; the files of the loop give {digest}", contract.code.digest),
            "set it to the digest that the message names, or restore the files",
        );
    }
    problems.require(
        contract.nonclaims.iter().any(|nonclaim| nonclaim == EXTERNAL_NONCLAIM),
        "/nonclaims",
        "lacks the sentence that every contract of this profile carries",
        format!("add {EXTERNAL_NONCLAIM:?}"),
    );
    check_terms(contract, problems);
    check_state(contract, problems);
}

/// Reads every file of the loop; the digest of its code where all could be.
fn bind_files(
    contract: &mut Contract,
    folder: &Folder,
    inputs: &mut Inputs,
    problems: &mut Problems,
) -> Option<Digest> {
    let files = &mut contract.external_loop.as_mut()?.files;
    problems.require(
        (1..=MAX_FILES).contains(&files.len()),
        "/external_loop/files",
        format!("has {} files; expected 1 to {MAX_FILES}", files.len()),
        "name the script that trains, and what it imports of your own",
    );
    let is_sorted = files.windows(2).all(|pair| pair[0].path < pair[1].path);
    let hint = "list each file once, in the order of the bytes of their paths";
    problems.require(is_sorted, "/external_loop/files", "are not in order, or one is named twice", hint);
    let mut is_whole = true;
    for (index, binding) in files.iter_mut().enumerate() {
        let pointer = format!("/external_loop/files/{index}");
        let read = folder.resolve(&binding.path).and_then(|path| read_small(&path, MAX_FILE_BYTES));
        let Some((bytes, content)) = data::keep(read, format!("{pointer}/path"), problems) else {
            is_whole = false;
            continue;
        };
        bind(binding, &pointer, content, problems);
        inputs.artifacts.push(FrozenArtifact { pointer, bytes });
    }
    let named = files.iter().filter_map(|file| Some((file.path.as_str(), file.digest?)));
    (is_whole && !files.is_empty()).then(|| external_code_digest(named))
}

/// Terms that the recorder for other loops does not keep yet.
fn check_terms(contract: &Contract, problems: &mut Problems) {
    let hint = "the recorder for other loops does not do that; ask for what the message names";
    let checkpoints = &contract.checkpoints;
    let is_closed = |shape: &ScheduleShape| !matches!(shape, ScheduleShape::Plateau { .. });
    let terms = [
        (contract.topology.workers == 1, "/topology/workers", "expected 1: one process records"),
        (checkpoints.mode == SaveMode::Synchronous, "/checkpoints/mode", "expected \"synchronous\""),
        (
            checkpoints.mid_accumulation == MidAccumulation::RoundToBoundary,
            "/checkpoints/mid_accumulation",
            "expected \"round_to_boundary\"",
        ),
        (checkpoints.keep == KeepPolicy::All, "/checkpoints/keep", "expected {\"kind\": \"all\"}"),
        (!checkpoints.store.contains("://"), "/checkpoints/store", "expected a folder beside the ledger"),
        (contract.state_digest_every_steps.is_none(), "/state_digest_every_steps", "expected null"),
        (contract.state_tree.is_none(), "/state_tree", "expected none"),
        (contract.faults.plan.is_empty(), "/faults/plan", "expected []"),
        (
            contract.faults.recovery == Recovery::RestartFromLastValidated,
            "/faults/recovery",
            "expected \"restart_from_last_validated\"",
        ),
        (
            matches!(contract.stopping, StoppingRule::AtStep { .. }),
            "/stopping/kind",
            "expected \"at_step\": the loop is told its last step by the contract alone",
        ),
        (contract.budget.max_tokens.is_none(), "/budget/max_tokens", "expected null"),
        (contract.budget.max_wall_s.is_none(), "/budget/max_wall_s", "expected null"),
        (
            contract.order == OrderPolicy::KeyedPermutation,
            "/order/scheme",
            "expected \"keyed_permutation/1\"",
        ),
        (
            contract.schedule.iter().all(|group| is_closed(&group.shape)),
            "/schedule",
            "expected rates that are functions of the step",
        ),
        (contract.numerics.loss_scaler.is_none(), "/numerics/loss_scaler", "expected null"),
        (contract.averages.is_none(), "/averages", "expected none"),
        (contract.initialization.is_none(), "/initialization", "expected none: the loop makes its own"),
        (contract.dropout_draws == DropoutDraws::Keyed, "/dropout_draws", "expected none"),
    ];
    for (holds, pointer, message) in terms {
        problems.require(holds, pointer, message, hint);
    }
}

/// State that the recorder does not capture would be lost in a resume.
fn check_state(contract: &Contract, problems: &mut Problems) {
    for (index, declaration) in contract.state_classes.iter().enumerate() {
        problems.require(
            declaration.not_applicable.is_some() || CAPTURED.contains(&declaration.class),
            format!("/state_classes/{index}/not_applicable"),
            format!(
                "{} is declared captured, and the recorder for other loops has no file of it",
                declaration.class
            ),
            "give the reason why it does not apply, or leave out a class that is not required",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes that docs/FORMAT.md names, put together by hand.
    #[test]
    fn the_digest_binds_paths_contents_and_their_order() {
        let (a, b) = (Digest::blake3([1; 32]), Digest::blake3([2; 32]));
        let mut text = b"governed-ledger external-loop/1\0loop.py\0".to_vec();
        text.extend([1; 32]);
        let expected = Digest::sha256(Sha256::digest(&text).into());
        assert_eq!(external_code_digest([("loop.py", a)]), expected);
        assert_ne!(external_code_digest([("loop.py", b)]), expected);
        assert_ne!(external_code_digest([("other.py", a)]), expected);
        assert_ne!(external_code_digest([("a", a), ("b", b)]), external_code_digest([("b", b), ("a", a)]));
    }
}
