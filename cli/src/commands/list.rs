//! `ledger list`: entries in order, one a line.

use schemas::body::{Body, Credit};
use schemas::entry::Entry;

use crate::arguments::ListArguments;
use crate::failure::Failure;
use crate::output::{print, write_out};

pub(crate) fn run(arguments: &ListArguments) -> Result<u8, Failure> {
    if let Some(kind) = &arguments.kind {
        let known: Vec<&str> = schemas::body::Kind::ALL.iter().map(|kind| kind.name()).collect();
        if !known.contains(&kind.as_str()) {
            return Err(Failure::new(
                format!("there is no kind {kind:?}"),
                format!("kinds are {}", known.join(", ")),
            ));
        }
    }
    let reader = super::open_ledger(&arguments.ledger)?;
    let mut num_listed = 0;
    for row in reader.rows(arguments.from) {
        if arguments.limit.is_some_and(|limit| num_listed >= limit) {
            break;
        }
        let (index, bytes) = row?;
        let entry = reader_entry(&arguments.ledger, index, &bytes)?;
        if !matches(arguments, &entry) {
            continue;
        }
        num_listed += 1;
        if arguments.json {
            let mut line = bytes;
            line.push(b'\n');
            write_out(&line)?;
        } else {
            print(line(&entry))?;
        }
    }
    Ok(0)
}

/// Reads an entry's bytes, or says which entry is not one.
pub(super) fn reader_entry(ledger: &std::path::Path, index: u64, bytes: &[u8]) -> Result<Entry, Failure> {
    Entry::from_slice(bytes).map_err(|error| {
        Failure::new(
            format!("{}, entry {index}: not an entry of this format: {error}", ledger.display()),
            format!("ledger audit {} says what is wrong with it", ledger.display()),
        )
    })
}

fn matches(arguments: &ListArguments, entry: &Entry) -> bool {
    let header = &entry.header;
    arguments.kind.as_deref().is_none_or(|kind| entry.body.kind().name() == kind)
        && arguments.attempt.is_none_or(|attempt| header.attempt.is_some_and(|found| found.0 == attempt))
        && arguments.step.is_none_or(|step| header.step == Some(step))
}

/// Index, kind, attempt, step and what the entry says in short.
pub(super) fn line(entry: &Entry) -> String {
    let attempt = entry.header.attempt.map_or_else(|| "-".to_owned(), |attempt| attempt.to_string());
    let step = entry.header.step.map_or_else(|| "-".to_owned(), |step| step.to_string());
    format!(
        "{:>7}  {:<28} attempt {attempt:>3}  step {step:>6}  {}",
        entry.index,
        entry.body.kind().name(),
        summary(&entry.body)
    )
}

/// What an entry says, in a few words.
fn summary(body: &Body) -> String {
    match body {
        Body::ContractFrozen(body) => body.det.digest.to_string(),
        Body::CampaignFrozen(body) => body.det.digest.to_string(),
        Body::CampaignRun(body) => format!(
            "{} {} trial {} seed {} {}",
            body.det.arm,
            super::campaign::purpose_name(body.det.purpose),
            body.det.trial,
            body.det.seed.0,
            body.obs.path
        ),
        Body::AttemptStart(body) => format!("{:?} from step {}", body.det.reason, body.det.from_step),
        Body::AttemptEnd(body) => {
            format!("{:?} at step {}: {}", body.det.outcome, body.det.last_step, body.obs.reason)
        }
        Body::RunEnd(body) => {
            format!("{:?} at step {}: {}", body.det.outcome, body.det.last_step, body.det.reason)
        }
        Body::Step(body) => match &body.det.credit {
            Credit::Backpropagation { loss, gradient_norm, .. } => {
                format!("loss {loss} gradient norm {gradient_norm}")
            }
            Credit::Evolution { fitness, .. } => format!("fitness {fitness}"),
        },
        Body::Eval(body) => format!("{} {}", body.det.stream, body.det.value),
        Body::Anomaly(body) => format!("{}: {}", body.det.name, body.obs.description),
        Body::CheckpointRequested(body) | Body::CheckpointStaged(body) | Body::CheckpointValidated(body) => {
            body.obs.checkpoint.to_string()
        }
        Body::CheckpointDurablyCommitted(body) => format!("{} {}", body.obs.checkpoint, body.det.model),
        Body::CheckpointFailed(body) | Body::CheckpointQuarantined(body) => {
            format!("{}: {}", body.obs.checkpoint, body.obs.reason)
        }
        Body::CandidateAdmitted(body) => format!("{} {}", body.obs.candidate, body.det.value),
        Body::CandidateSelected(body) => {
            format!("{} {} of {}", body.obs.candidate, body.det.value, body.det.num_candidates)
        }
        Body::HandoffIssued(body) => body.obs.candidate.to_string(),
        Body::FaultObserved(body) => {
            format!("{:?} of attempt {}: {}", body.det.fault, body.det.attempt, body.obs.description)
        }
        Body::FaultRecovered(body) => format!(
            "attempt {}, from step {}, {} steps again",
            body.det.attempt, body.det.from_step, body.det.num_steps_lost
        ),
        Body::Cost(body) => {
            format!(
                "{} {} charged to {}: {}",
                body.obs.amount, body.obs.unit, body.det.charged_to, body.obs.description
            )
        }
        Body::Intervention(body) => format!("{}: {}", body.det.action, body.obs.reason),
        Body::Amendment(body) => format!("of entry {}: {}", body.det.amends, body.det.statement),
        _ => String::new(),
    }
}
