//! Binding a run: its contract and the newest head of its ledger go into the
//! campaign's ledger, first when nothing is trained, and again when the run has
//! moved on.

use std::path::{Path, PathBuf};

use schemas::body::{Body, Halves};
use schemas::campaign::{Arm, CampaignRunDet, CampaignRunObs, RunPurpose};
use schemas::contract::Membership;
use schemas::digest::Digest;
use schemas::entry::LedgerKind;
use schemas::ids::RunId;

use super::error::BindError;
use super::state::{BoundRun, CampaignState, read_campaign};
use crate::frozen::FrozenContract;
use crate::keys::{KeyRing, Role};
use crate::note::{self, TreeHead};
use crate::reader::Reader;
use crate::recorder::{Receipt, Record, Recorder};
use crate::verify::{HeadChoice, VerifyHeadError, root_at, verify_head};

/// What to bind.
#[derive(Debug, Clone)]
pub struct BindRequest {
    /// The campaign's ledger.
    pub campaign: PathBuf,
    /// Why the run was trained before it was bound.
    pub late: Option<String>,
    /// What the run is for; needed when it is bound for the first time.
    pub purpose: Option<RunPurpose>,
    /// The run's ledger.
    pub run: PathBuf,
}

/// A run that is bound.
#[derive(Debug, Clone, PartialEq)]
pub struct Bound {
    /// Who it is.
    pub det: CampaignRunDet,
    /// The head that is bound now.
    pub head: TreeHead,
    /// Numbers of the arm that no run has, below this one's. An audit will miss
    /// them until they are bound.
    pub missing_trials: Vec<u32>,
    /// Where its ledger lies, relative to the campaign's folder.
    pub path: String,
    /// What was written; `None` where that head was bound before.
    pub receipt: Option<Receipt>,
}

/// What the run's ledger shows.
struct Seen {
    frozen: FrozenContract,
    head: TreeHead,
    note: String,
    num_entries: u64,
    reader: Reader,
}

/// Binds a run, or the newest head of one that is bound.
///
/// # Errors
/// When the run is refused (see [`BindError::is_refusal`]), or one of the
/// ledgers cannot be used. Nothing is written then.
pub fn bind(request: &BindRequest, keys: &KeyRing) -> Result<Bound, BindError> {
    let owner = keys.get(Role::Owner)?;
    let reader = Reader::open(&request.campaign).map_err(super::CampaignReadError::from)?;
    let expected = read_campaign(&reader)?.contract.preregistration.keys.owner.public;
    drop(reader);
    if owner.public_hex() != expected {
        return Err(BindError::Owner { expected, actual: owner.public_hex() });
    }
    // A refusal touches no file, so it comes before the ledger is opened for
    // writing.
    let (bound, record) = decide(request)?;
    if record.is_none() {
        return Ok(bound);
    }
    // Two that bind at once would each take the last place, so what counts is
    // decided under the writer's lock.
    let recorder = Recorder::open(&request.campaign, owner)?;
    let (bound, record) = decide(request)?;
    let receipt = record.map(|record| recorder.append_durable(record)).transpose()?;
    recorder.close()?;
    Ok(Bound { receipt, ..bound })
}

/// What is to be written, if anything.
fn decide(request: &BindRequest) -> Result<(Bound, Option<Record>), BindError> {
    let reader = Reader::open(&request.campaign).map_err(super::CampaignReadError::from)?;
    let state = read_campaign(&reader)?;
    let path = relative_path(&request.campaign, &request.run)?;
    let seen = look(&request.run)?;
    let known = state.runs.iter().find(|bound| bound.det.run == seen.frozen.run);
    let det = match known {
        Some(known) => follow(request, known, &seen)?,
        None => admit(request, &state, &seen)?,
    };
    let missing_trials =
        (1..det.trial).filter(|trial| state.of_arm(&det.arm).all(|run| run.det.trial != *trial)).collect();
    let bound = Bound {
        det: det.clone(),
        head: seen.head.clone(),
        missing_trials,
        path: path.clone(),
        receipt: None,
    };
    if known.is_some_and(|known| known.head == seen.head && known.path == path) {
        return Ok((bound, None));
    }
    let obs = CampaignRunObs { head: seen.note, late: request.late.clone(), path };
    Ok((bound, Some(Record::new(Body::CampaignRun(Box::new(Halves { det, obs }))))))
}

/// Reads a run's ledger and verifies its newest head.
fn look(path: &Path) -> Result<Seen, BindError> {
    let reader = Reader::open(path)?;
    let frozen = reader.contract()?;
    let head_error = |source| BindError::Head { path: path.to_owned(), source };
    let newest = reader.heads()?.pop();
    let note = newest.map(|head| head.note).ok_or_else(|| head_error(VerifyHeadError::NoKey))?;
    let verified = verify_head(path, &HeadChoice::Note(note.clone()), &[]).map_err(head_error)?;
    let expected = note::origin(LedgerKind::Run, &frozen.run);
    if verified.head.origin != expected {
        return Err(head_error(VerifyHeadError::Origin { expected, actual: verified.head.origin }));
    }
    // A head beside the ledger that is ahead of it means that rows are gone.
    if reader.head_beside().is_some() {
        verify_head(path, &HeadChoice::Beside, &[]).map_err(head_error)?;
    }
    Ok(Seen { frozen, head: verified.head, note, num_entries: reader.num_entries(), reader })
}

/// A run that is bound already: it is the same, and its ledger has only grown.
fn follow(request: &BindRequest, known: &BoundRun, seen: &Seen) -> Result<CampaignRunDet, BindError> {
    let run = || seen.frozen.run.clone();
    if request.purpose.is_some_and(|purpose| purpose != known.det.purpose) {
        return Err(BindError::PurposeChanged { run: run(), was: known.det.purpose });
    }
    if request.late.is_some() {
        return Err(BindError::NotLate { run: run(), what: "it is bound already" });
    }
    let size = known.head.size;
    let is_prefix = size <= seen.head.size && root_at(&seen.reader, size)? == known.head.root;
    if !is_prefix || known.det.contract != seen.frozen.digest {
        return Err(BindError::OtherHistory { run: run(), size });
    }
    Ok(known.det.clone())
}

/// A run that is bound for the first time: it is the campaign's, it has a place
/// in it, and nothing was trained.
fn admit(request: &BindRequest, state: &CampaignState, seen: &Seen) -> Result<CampaignRunDet, BindError> {
    let run = || seen.frozen.run.clone();
    let contract = &seen.frozen.contract;
    let Membership::Campaign { arm, campaign, preregistration, rescue_level, trial } = &contract.membership
    else {
        return Err(BindError::Standalone { run: run() });
    };
    let expected = &state.contract.campaign;
    if campaign != expected {
        return Err(BindError::OtherCampaign {
            run: run(),
            expected: expected.clone(),
            actual: campaign.clone(),
        });
    }
    let purpose = request.purpose.ok_or_else(|| BindError::NoPurpose { run: run() })?;
    let is_trained = seen.num_entries > 1 || seen.head.size > 1;
    match (&request.late, is_trained) {
        (None, true) => return Err(BindError::Late { run: run(), num_entries: seen.num_entries }),
        (Some(_), false) => {
            return Err(BindError::NotLate { run: run(), what: "nothing was trained yet" });
        }
        _ => {}
    }
    let seed = contract.seeds.data_order;
    let det = CampaignRunDet {
        arm: arm.clone(),
        contract: seen.frozen.digest,
        owner: contract.keys.owner.public.clone(),
        purpose,
        rescue_level: *rescue_level,
        run: run(),
        seed,
        trial: *trial,
    };
    let frozen = Digest::blake3(*blake3::hash(&state.contract.canonical).as_bytes());
    let what = if preregistration.digest != Some(frozen) {
        Some("its contract binds another preregistration".to_owned())
    } else if det.owner != state.contract.preregistration.keys.owner.public {
        Some(format!("its owner {} is not the campaign's", det.owner))
    } else if seed != contract.seeds.dropout || seed != contract.seeds.initialization {
        Some("its contract has three different seeds".to_owned())
    } else {
        None
    };
    if let Some(what) = what {
        return Err(BindError::NotPreregistered { run: run(), what });
    }
    let arm = state.contract.preregistration.arms.iter().find(|known| known.name == det.arm);
    let arm = arm.ok_or_else(|| BindError::NotPreregistered {
        run: run(),
        what: format!("{:?} is no arm of the campaign", det.arm),
    })?;
    check_place(state, arm, &det)?;
    if !is_trained {
        // What was trained already is recorded all the same: leaving it out
        // would hide it.
        check_budget(state, arm, &det)?;
    }
    Ok(det)
}

/// The run's number and seed are its own.
fn check_place(state: &CampaignState, arm: &Arm, det: &CampaignRunDet) -> Result<(), BindError> {
    let taken = |what: String, other: &RunId| BindError::PlaceTaken {
        run: det.run.clone(),
        what,
        other: other.clone(),
    };
    let refuse = |what: String| BindError::NotPreregistered { run: det.run.clone(), what };
    if let Some(other) = state.of_arm(&det.arm).find(|other| other.det.trial == det.trial) {
        return Err(taken(
            format!("trial {} of arm {:?} is taken by a run", det.trial, det.arm),
            &other.det.run,
        ));
    }
    if det.rescue_level as usize > arm.rescue.len() {
        return Err(refuse(format!("arm {:?} has no rescue level {}", det.arm, det.rescue_level)));
    }
    if det.purpose != RunPurpose::Confirmation {
        return Ok(());
    }
    if !state.contract.preregistration.seeds.contains(&det.seed) {
        return Err(refuse(format!("{} is no seed of the campaign's confirmation runs", det.seed.0)));
    }
    let same = |other: &&BoundRun| {
        other.det.purpose == det.purpose
            && other.det.seed == det.seed
            && other.det.rescue_level == det.rescue_level
    };
    match state.of_arm(&det.arm).find(same) {
        Some(other) => {
            let what = format!(
                "the confirmation of arm {:?} at seed {} and level {} is taken by a run",
                det.arm, det.seed.0, det.rescue_level
            );
            Err(taken(what, &other.det.run))
        }
        None => Ok(()),
    }
}

/// There is a trial, or a rescue, left.
fn check_budget(state: &CampaignState, arm: &Arm, det: &CampaignRunDet) -> Result<(), BindError> {
    let no_more = |what: String| BindError::NoMoreRuns { run: det.run.clone(), what };
    let count = |holds: &dyn Fn(&CampaignRunDet) -> bool| {
        state.of_arm(&arm.name).filter(|other| holds(&other.det)).count()
    };
    if det.purpose == RunPurpose::Tuning {
        let num_trials = count(&|other| other.purpose == RunPurpose::Tuning);
        if num_trials >= arm.tuning.num_trials as usize {
            return Err(no_more(format!(
                "arm {:?} has had its {} trials of tuning",
                arm.name, arm.tuning.num_trials
            )));
        }
    }
    let rung = arm.rescue.iter().find(|rung| rung.level == det.rescue_level);
    let Some(rung) = rung else { return Ok(()) };
    let num_runs = count(&|other| other.rescue_level == det.rescue_level);
    if num_runs >= rung.max_runs as usize {
        return Err(no_more(format!(
            "arm {:?} has had its {} runs of rescue level {}",
            arm.name, rung.max_runs, rung.level
        )));
    }
    Ok(())
}

/// The run's ledger relative to the campaign's folder.
fn relative_path(campaign: &Path, run: &Path) -> Result<String, BindError> {
    let real =
        |path: &Path| path.canonicalize().map_err(|source| BindError::Io { path: path.to_owned(), source });
    let campaign = real(campaign)?;
    let folder = campaign.parent().unwrap_or(Path::new("/"));
    let run = real(run)?;
    let outside = || BindError::Outside { path: run.clone(), folder: folder.to_owned() };
    let relative = run.strip_prefix(folder).map_err(|_| outside())?;
    relative.to_str().map(ToOwned::to_owned).ok_or_else(outside)
}
