//! GC109 `runs-bound`.

use schemas::contract::Membership;
use schemas::report::Route;

use super::Ruled;
use crate::campaign::facts::RunFacts;
use crate::campaign::view::{Block, Campaign, Registration, Run};
use crate::ed25519::PublicKey;
use crate::note::Note;
use crate::rule::{At, Outcome, RuleInfo};

/// Text of the rule.
pub(crate) static INFO: RuleInfo = RuleInfo {
    code: "GC109",
    name: "runs-bound",
    what: "The ledger of every bound run lies below the campaign's folder, is of that run and contract, names this campaign with the same arm, trial and rescue level, and has the campaign's owner; every head that the campaign holds of it is signed by the run's keys and is a prefix of its entries; later entries of a run say the same of it, with a larger head, or with the same one where its ledger lies elsewhere now; the last head covers the end of a run that is over; and no ledger of the same run in the campaign's folders says other things, or more.",
    why: "A run could else be exchanged for a better one, cut behind a bad evaluation, or counted for an arm that it does not belong to.",
    remedy: "restore the run's ledger from a copy, or move it to where the campaign says that it is; a run that was bound stays bound",
    reference: "docs/FORMAT.md, \"Campaigns\"",
    gate: Route::RejectIdentity,
};

/// Evaluates the rule.
pub(crate) fn check(campaign: &Campaign, ruled: &mut Ruled<'_>) -> Outcome {
    for run in &campaign.runs {
        match &run.facts {
            Ok(facts) => {
                check_identity(campaign, run, facts, ruled);
                check_heads(run, facts, ruled);
            }
            Err(reason) => report_missing(run, reason, ruled),
        }
        check_later(run, ruled);
        check_end(run, ruled);
    }
    check_copies(campaign, ruled);
    Outcome::Checked(campaign.runs.len() as u64)
}

fn report_missing(run: &Run, reason: &str, ruled: &mut Ruled<'_>) {
    let at = At::entry(run.registrations().last().unwrap_or(&run.first).entry, "/body/obs/path");
    let path = std::path::Path::new(run.path());
    let is_plain = path.components().all(|part| matches!(part, std::path::Component::Normal(_)));
    let message = format!("{} has no ledger that can be read", run.name());
    let expected = "the run's ledger, below the campaign's folder";
    if is_plain {
        ruled.sink.incomplete(at, message, expected, reason);
    } else {
        ruled.sink.rejected(at, message, expected, reason);
    }
    ruled.block(Block::arm(run.arm(), format!("{} has no ledger here", run.name())));
}

fn check_identity(campaign: &Campaign, run: &Run, facts: &RunFacts, ruled: &mut Ruled<'_>) {
    let det = &run.first.det;
    let contract = &facts.frozen.contract;
    let owner = &contract.keys.owner.public;
    let mut members = vec![
        ("run", facts.frozen.run.to_string(), det.run.to_string()),
        ("contract", facts.frozen.digest.to_string(), det.contract.to_string()),
        ("owner", owner.clone(), det.owner.clone()),
        ("owner", campaign.prereg.keys.owner.public.clone(), owner.clone()),
    ];
    match &contract.membership {
        Membership::Campaign { arm, campaign: id, preregistration, rescue_level, trial } => {
            let bound = preregistration.digest.map_or("null".to_owned(), |digest| digest.to_string());
            members.extend([
                ("arm", arm.clone(), det.arm.clone()),
                ("rescue_level", rescue_level.to_string(), det.rescue_level.to_string()),
                ("trial", trial.to_string(), det.trial.to_string()),
                ("campaign", campaign.id.to_string(), id.to_string()),
                ("preregistration", campaign.file_digest.to_string(), bound),
            ]);
        }
        Membership::Standalone => {
            members.push(("campaign", campaign.id.to_string(), "standalone".to_owned()));
        }
    }
    for (member, expected, actual) in members {
        if expected != actual {
            let at = At::entry(run.first.entry, format!("/body/det/{member}"));
            let message =
                format!("{} is not what its own ledger says, or not of this campaign: {member}", run.name());
            ruled.sink.rejected(at, message, expected, actual);
            ruled.block(Block::arm(run.arm(), format!("{} is not the run that was bound", run.name())));
        }
    }
}

fn check_heads(run: &Run, facts: &RunFacts, ruled: &mut Ruled<'_>) {
    let keys = &facts.frozen.contract.keys;
    let origin = format!("governed-ledger/run/{}", facts.frozen.run);
    for registration in run.registrations() {
        let at = || At::entry(registration.entry, "/body/obs/head");
        let name = run.name();
        let Some(note) = parsed(registration, run, ruled) else { continue };
        let before = ruled.sink.num_errors();
        if note.origin != origin {
            ruled.sink.rejected(
                at(),
                format!("the head of {name} is of another ledger"),
                &origin,
                &note.origin,
            );
        }
        let signer = if note.size <= 1 { &keys.owner.public } else { &keys.trainer.public };
        let verified = PublicKey::from_hex(signer).and_then(|key| note.verify(&key));
        if let Err(error) = verified {
            let expected = format!("a signature by {signer} over size {}", note.size);
            ruled.sink.tampered(
                at(),
                format!("the head of {name} is not signed by its contract's key"),
                expected,
                error,
            );
        }
        match facts.roots.get(&note.size) {
            Some(root) if *root == note.root => {}
            Some(root) => ruled.sink.tampered(
                at(),
                format!(
                    "the entries of {name} do not have the root that the campaign holds at size {}",
                    note.size
                ),
                schemas::digest::encode_hex(&note.root),
                schemas::digest::encode_hex(root),
            ),
            None => ruled.sink.tampered(
                at(),
                format!(
                    "the ledger of {name} is behind the head that the campaign holds: entries are missing"
                ),
                format!("{} entries", note.size),
                format!("{} entries", facts.num_entries),
            ),
        }
        if ruled.sink.num_errors() > before {
            ruled.block(Block::arm(
                run.arm(),
                format!("{name} does not agree with the head that the campaign holds"),
            ));
        }
    }
}

fn parsed(registration: &Registration, run: &Run, ruled: &mut Ruled<'_>) -> Option<Note> {
    match Note::parse(registration.obs.head.as_bytes()) {
        Ok(note) => Some(note),
        Err(error) => {
            let at = At::entry(registration.entry, "/body/obs/head");
            let message = format!("what the campaign holds of {} is no tree head", run.name());
            ruled.sink.rejected(at, message, "one signed note", error);
            ruled.block(Block::arm(run.arm(), format!("{} is bound by no head", run.name())));
            None
        }
    }
}

/// Later entries of a run.
fn check_later(run: &Run, ruled: &mut Ruled<'_>) {
    let head =
        |one: &Registration| Note::parse(one.obs.head.as_bytes()).ok().map(|note| (note.size, note.root));
    let before = ruled.sink.num_errors();
    let mut largest = head(&run.first);
    let mut path = &run.first.obs.path;
    for later in &run.later {
        if later.det != run.first.det {
            ruled.sink.rejected(
                At::entry(later.entry, "/body/det"),
                format!("a later entry says other things of {}", run.name()),
                format!("{:?}", run.first.det),
                format!("{:?}", later.det),
            );
        }
        if later.obs.late.is_some() {
            let at = At::entry(later.entry, "/body/obs/late");
            ruled.sink.rejected(at, "only the first entry of a run can be late", "null", "a reason");
        }
        let own = head(later);
        let size = own.map(|(size, _)| size);
        let is_moved = own.is_some() && own == largest && later.obs.path != *path;
        if size <= largest.map(|(size, _)| size) && !is_moved {
            ruled.sink.rejected(
                At::entry(later.entry, "/body/obs/head"),
                format!("a later head of {} covers no more than the one before it", run.name()),
                format!("more than {} entries", largest.map_or(0, |(size, _)| size)),
                size.unwrap_or(0),
            );
        }
        if size > largest.map(|(size, _)| size) {
            largest = own;
        }
        path = &later.obs.path;
    }
    if ruled.sink.num_errors() > before {
        let reason = format!("what the campaign says of {} later does not hold", run.name());
        ruled.block(Block::arm(run.arm(), reason));
    }
}

/// A run that is over is held by a head over its end; else it could be cut back
/// and gone on with until it ends better.
fn check_end(run: &Run, ruled: &mut Ruled<'_>) {
    let Some((index, _)) = run.known().and_then(|facts| facts.ended_at) else { return };
    let sizes = run.registrations().filter_map(|one| Some(Note::parse(one.obs.head.as_bytes()).ok()?.size));
    let largest = sizes.max().unwrap_or(0);
    if largest > index {
        return;
    }
    let at = At::entry(run.registrations().last().unwrap_or(&run.first).entry, "/body/obs/head");
    let message = format!("{} is over, and the campaign holds no head that covers its end", run.name());
    ruled.sink.incomplete(at, message, format!("a head over entry {index}"), format!("size {largest}"));
    ruled.block(Block::arm(run.arm(), format!("the end of {} is not bound", run.name())));
}

/// One run has one history.
fn check_copies(campaign: &Campaign, ruled: &mut Ruled<'_>) {
    for copy in &campaign.copies {
        let Some(run) = campaign.runs.iter().find(|run| run.id == copy.run) else { continue };
        let message = format!("another history of {} lies beside the one that is shown", run.name());
        ruled.sink.rejected(At::place(&copy.path), message, "one history of a run", &copy.what);
        ruled.block(Block::arm(run.arm(), format!("{} has two histories", run.name())));
    }
}
