//! `ledger handoff`: one candidate to qualification, after an audit of its own
//! that accepts.
//!
//! Order of effects: the report is signed and written, then the entry
//! `handoff.issued` is durable, then the statement is written. A crash in
//! between leaves an entry without a statement, and the command may be run
//! again. The entry is appended with the trainer's key, because the ledger
//! takes no other after the freeze; the report and the statement are the
//! validator's.

use std::path::Path;

use exports::{ExportError, candidate_files, file_subject};
use ledger::canonical::entry_json;
use ledger::dsse;
use ledger::keys::{KeyPair, Role};
use ledger::reader::Reader;
use ledger::recorder::{Record, Recorder, RecorderError};
use schemas::body::{Body, CheckpointStage, Halves, HandoffIssuedDet, HandoffIssuedObs};
use schemas::contract::Contract;
use schemas::digest::Digest;
use schemas::dsse::{
    HANDOFF_PREDICATE_TYPE, HandoffHead, HandoffPredicate, IN_TOTO_PAYLOAD_TYPE, IN_TOTO_STATEMENT_TYPE,
    Statement,
};
use schemas::entry::LedgerKind;
use schemas::ids::CandidateId;
use schemas::report::{Report, SelectedCandidate, SelectionBasis, Verdict};
use serde_json::json;
use validator::{AuditRequest, render};

use super::audit::{
    audit, handoff_path, refuse_other_kind, report_path, require_signer, sign, validator_key,
};
use crate::arguments::HandoffArguments;
use crate::failure::{FINDINGS, Failure, OrFail};
use crate::key_folder;
use crate::output::{blake3_of, print, print_json, say, write_file};

pub(crate) fn run(arguments: &HandoffArguments) -> Result<u8, Failure> {
    super::require_ledger(&arguments.ledger)?;
    refuse_other_kind(&arguments.ledger, LedgerKind::Run)?;
    let target = handoff_path(&arguments.ledger);
    if target.exists() {
        return Err(Failure::new(
            format!("{} exists: a candidate was handed off already", target.display()),
            format!("evaluator qualify --ledger {}", arguments.ledger.display()),
        ));
    }
    let keys = key_folder::locate(arguments.keys.as_deref(), key_folder::folder_of(&arguments.ledger));
    let signer = validator_key(Some(&keys), &arguments.ledger)?;
    let trainer = key_folder::open(&keys)?.get(Role::Trainer).or_hint(
        "the entry of the handoff is appended with the trainer's key; name its folder with --keys",
    )?;
    let report = audit(&AuditRequest {
        ledger: arguments.ledger.clone(),
        head: arguments.head.clone(),
        trust: arguments.trust.clone(),
        val_numbers: arguments.val.clone(),
        cosigned: None,
        // What is handed off was looked at as a whole.
        since: None,
        threads: None,
    })?;
    if report.verdict != Verdict::Accepted {
        say(render::text(&report).trim_end());
        say(format!(
            "error: {} is {}: nothing is handed off",
            arguments.ledger.display(),
            report.verdict.name()
        ));
        say("hint: resolve the findings above; only an accepted run has a candidate to hand off");
        return Ok(FINDINGS);
    }
    let (selected, contract) = selected(&report, &arguments.ledger)?;
    require_basis(&report, arguments)?;
    require_signer(&signer, &contract, "name the folder with the contract's keys with --keys")?;
    let envelope = sign(&report, &signer)?;
    let statement = statement(&report, &selected, &contract, &arguments.ledger, &blake3_of(&envelope))?;
    write_file(&report_path(&arguments.ledger), &envelope, true)?;
    append(&arguments.ledger, trainer, &report, &selected, blake3_of(&envelope))?;
    let payload = entry_json(&statement)?;
    let handoff = entry_json(&dsse::sign(IN_TOTO_PAYLOAD_TYPE, &payload, &signer))?;
    write_file(&target, &handoff, false)?;
    show(arguments, &statement, &target, &blake3_of(&handoff))?;
    Ok(0)
}

/// The selected candidate, which has reached the stage that the contract asks for.
fn selected(report: &Report, ledger: &Path) -> Result<(SelectedCandidate, Contract), Failure> {
    let selected = report.selected.clone().ok_or_else(|| {
        Failure::findings(
            format!("{}: no candidate was selected", ledger.display()),
            "no evaluation gave a finite value; the run has nothing to hand off",
        )
    })?;
    let reader = super::open_ledger(ledger)?;
    let contract = reader.contract()?.contract;
    let stage = stage_of(&reader, &selected.candidate)?;
    if stage.is_none_or(|stage| stage < contract.checkpoints.candidate_stage) {
        return Err(Failure::findings(
            format!(
                "{}: {} has reached {stage:?}, and the contract asks for {:?}",
                ledger.display(),
                selected.candidate,
                contract.checkpoints.candidate_stage
            ),
            "`trainer probe --ledger run.db --checkpoint ID` shows that a checkpoint resumes, and then says so on record",
        ));
    }
    Ok((selected, contract))
}

/// Whose numbers chose the candidate. An audit accepts the trainer's own, which
/// nothing on record contradicts; whoever opens the sealed set for what they chose
/// has to have decided that.
fn require_basis(report: &Report, arguments: &HandoffArguments) -> Result<(), Failure> {
    if report.selection_basis == SelectionBasis::Evaluator || arguments.on_trainer_numbers {
        return Ok(());
    }
    let ledger = arguments.ledger.display();
    Err(Failure::findings(
        format!("{ledger}: the selection rests on the trainer's own numbers, and nobody else computed them"),
        format!(
            "`evaluator val --ledger {ledger}` does; with --on-trainer-numbers the candidate is handed off \
             without, and the handoff says so"
        ),
    ))
}

/// The strongest stage that a candidate's checkpoint has reached.
fn stage_of(reader: &Reader, candidate: &CandidateId) -> Result<Option<CheckpointStage>, Failure> {
    let checkpoint = candidate.as_str().strip_prefix("candidate-").unwrap_or(candidate.as_str());
    let mut strongest = None;
    for entry in reader.entries(0) {
        let entry = entry?;
        let (found, stage) = match &entry.body {
            Body::CheckpointRequested(body) => (&body.obs.checkpoint, CheckpointStage::Requested),
            Body::CheckpointStaged(body) => (&body.obs.checkpoint, CheckpointStage::Staged),
            Body::CheckpointDurablyCommitted(body) => {
                (&body.obs.checkpoint, CheckpointStage::DurablyCommitted)
            }
            Body::CheckpointValidated(body) => (&body.obs.checkpoint, CheckpointStage::Validated),
            Body::CheckpointResumeQualified(body) => (&body.obs.checkpoint, CheckpointStage::ResumeQualified),
            _ => continue,
        };
        if found.as_str() == checkpoint {
            strongest = strongest.max(Some(stage));
        }
    }
    Ok(strongest)
}

fn statement(
    report: &Report,
    selected: &SelectedCandidate,
    contract: &Contract,
    ledger: &Path,
    report_digest: &Digest,
) -> Result<Statement<HandoffPredicate>, Failure> {
    let (Some(head), Some(digest), Some(run)) = (&report.head, report.contract, &report.run) else {
        return Err(Failure::findings("the report names no head, contract or run", "audit the ledger again"));
    };
    let hint = "restore the checkpoint's files and hand off again";
    let files =
        candidate_files(key_folder::folder_of(ledger), &selected.path, &selected.model, &selected.config);
    let files = files.map_err(|error| match error {
        ExportError::Io { .. } => Failure::from(error).with_hint(hint),
        _ => Failure::findings(error.to_string(), hint),
    })?;
    Ok(Statement {
        statement_type: IN_TOTO_STATEMENT_TYPE.to_owned(),
        predicate: HandoffPredicate {
            candidate: selected.candidate.clone(),
            contract: digest,
            head: HandoffHead { origin: head.origin.clone(), root: head.root.clone(), size: head.size },
            independence: report.independence.clone(),
            non_authorities: contract.purpose.authority.non_authorities.clone(),
            nonclaims: contract.nonclaims.clone(),
            report: *report_digest,
            run: run.clone(),
            selection_basis: report.selection_basis,
            step: selected.step,
        },
        predicate_type: HANDOFF_PREDICATE_TYPE.to_owned(),
        subject: files.iter().map(file_subject).collect(),
    })
}

/// Appends `handoff.issued`, durably.
fn append(
    ledger: &Path,
    trainer: KeyPair,
    report: &Report,
    selected: &SelectedCandidate,
    report_digest: Digest,
) -> Result<(), Failure> {
    let (root, size) = report.head.as_ref().map(|head| (head.root.clone(), head.size)).unwrap_or_default();
    let det = HandoffIssuedDet { model: selected.model, step: selected.step };
    let obs = HandoffIssuedObs { candidate: selected.candidate.clone(), report: report_digest, root, size };
    let record = Record::new(Body::HandoffIssued(Box::new(Halves { det, obs }))).step(selected.step);
    let recorder = Recorder::open(ledger, trainer).map_err(not_recorded)?;
    if recorder.num_entries() != report.num_entries {
        return Err(Failure::new(
            format!(
                "{} grew from {} to {} entries after the audit",
                ledger.display(),
                report.num_entries,
                recorder.num_entries()
            ),
            "hand off when nothing else writes to the ledger",
        ));
    }
    recorder.append_durable(record).map_err(not_recorded)?;
    recorder.close().map_err(not_recorded)?;
    Ok(())
}

/// An entry that could not be appended, with what can be done about it.
fn not_recorded(error: RecorderError) -> Failure {
    let hint = error.hint();
    Failure::from(error).with_hint(hint)
}

fn show(
    arguments: &HandoffArguments,
    statement: &Statement<HandoffPredicate>,
    target: &Path,
    digest: &Digest,
) -> Result<(), Failure> {
    let predicate = &statement.predicate;
    if arguments.json {
        print_json(
            "handoff",
            json!({
                "candidate": predicate.candidate, "handoff": digest, "independence": predicate.independence,
                "path": target, "report": predicate.report, "selection_basis": predicate.selection_basis,
                "step": predicate.step, "subject": statement.subject
            }),
        )?;
    } else {
        print(format!("candidate     {} (step {})", predicate.candidate, predicate.step))?;
        for subject in &statement.subject {
            let digest = subject.digest.get("sha256").map_or("", String::as_str);
            print(format!("subject       {}  sha256:{digest}", subject.name))?;
        }
        print(format!("handoff       {}  {digest}", target.display()))?;
        print(format!("independence  {}: {}", predicate.independence.status, predicate.independence.reason))?;
    }
    if predicate.selection_basis == SelectionBasis::Trainer {
        say("The selection rests on the trainer's own numbers, and the handoff says so.");
    }
    say("A handoff names a candidate for qualification. It grants no quality, readiness or release.");
    say(format!("next: evaluator qualify --ledger {}", arguments.ledger.display()));
    Ok(())
}
