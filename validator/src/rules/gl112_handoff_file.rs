//! GL112 `handoff-file`.

use schemas::body::{Body, HandoffIssuedDet, HandoffIssuedObs};
use schemas::contract::Contract;
use schemas::digest::{Digest, encode_hex};
use schemas::dsse::{
    HANDOFF_PREDICATE_TYPE, HandoffPredicate, IN_TOTO_PAYLOAD_TYPE, IN_TOTO_STATEMENT_TYPE, Statement,
};
use schemas::entry::Entry;
use schemas::report::Route;

use crate::assemble::independence;
use crate::canonical::check_entry_json;
use crate::contract::ContractRead;
use crate::roots::{RootAt, Roots};
use crate::rule::{At, Outcome, RuleInfo, Sink};
use crate::{dsse, form};

/// Text of the rule.
pub(crate) static INFO: RuleInfo = RuleInfo {
    code: "GL112",
    name: "handoff-file",
    what: "Every handoff.issued names a size with the root that the entries have there. The handoff beside the ledger is signed by the contract's validator, is of this run, saw a prefix of these entries, has its handoff.issued entry, names the report beside it, and carries the contract's nonclaims and non-authorities and what its keys say of independence.",
    why: "Qualification opens its set for what the handoff names; a handoff that the ledger does not know, or a ledger that was cut behind one, would hide a second attempt.",
    remedy: "restore ledger, report and handoff as `ledger handoff` left them; where only the file is missing, run `ledger handoff` again",
    reference: "DSSE v1; in-toto Statement v1; docs/FORMAT.md, \"Handoff\"",
    gate: Route::RequestQualification,
};

/// Entries that are kept; an honest ledger has one or two.
const MAX_ISSUED: usize = 1024;

struct Issued {
    index: u64,
    det: HandoffIssuedDet,
    obs: HandoffIssuedObs,
}

struct HandoffFile {
    place: String,
    statement: Statement<HandoffPredicate>,
}

/// The file beside the ledger, and the entries that speak of one.
pub(crate) struct Handoffs {
    file: Option<HandoffFile>,
    /// Whether there is a file, usable or not.
    is_there: bool,
    /// The contract could not be read, so the file could not be verified.
    is_unverifiable: bool,
    issued: Vec<Issued>,
    num_issued: u64,
}

impl Handoffs {
    /// Verifies the file's bytes, where there is one.
    pub(crate) fn read(file: Option<(&[u8], &str)>, read: Option<&ContractRead>, sink: &mut Sink) -> Self {
        let mut this = Self {
            file: None,
            is_there: file.is_some(),
            is_unverifiable: false,
            issued: Vec::new(),
            num_issued: 0,
        };
        let Some((bytes, place)) = file else { return this };
        let Some((read, key)) = read.and_then(|read| Some((read, read.validator.as_ref()?))) else {
            this.is_unverifiable = true;
            return this;
        };
        let payload = match dsse::verify(bytes, IN_TOTO_PAYLOAD_TYPE, key) {
            Ok(payload) => payload,
            Err(error) => {
                let signer = &read.contract.keys.validator.public;
                let expected = format!("an envelope signed by the validator {signer}");
                let message = "the handoff beside the ledger is not signed by the contract's validator";
                sink.tampered(At::place(place), message, expected, error);
                return this;
            }
        };
        match parse(&payload, read) {
            Ok(statement) => {
                check_limits(&statement.predicate, &read.contract, place, sink);
                this.file = Some(HandoffFile { place: place.to_owned(), statement });
            }
            Err(reason) => {
                let expected = format!("a statement of type {HANDOFF_PREDICATE_TYPE} for run {}", read.run);
                let message = "the handoff is signed, but is none of this run";
                sink.rejected(At::place(place), message, expected, reason);
            }
        }
        this
    }

    /// Size of the head that the file names.
    pub(crate) fn size(&self) -> Option<u64> {
        self.file.as_ref().map(|file| file.statement.predicate.head.size)
    }

    /// Takes note of `handoff.issued`.
    pub(crate) fn entry(&mut self, entry: &Entry) {
        let Body::HandoffIssued(halves) = &entry.body else { return };
        self.num_issued = self.num_issued.saturating_add(1);
        if self.issued.len() < MAX_ISSUED {
            self.issued.push(Issued { index: entry.index, det: halves.det.clone(), obs: halves.obs.clone() });
        }
    }

    /// Compares file, entries and roots. `report`: BLAKE3 of the stored
    /// report's file, where there is one.
    pub(crate) fn compare(&self, roots: &Roots, report: Option<Digest>, sink: &mut Sink) -> Outcome {
        for issued in &self.issued {
            check_entry(issued, roots, sink);
        }
        if self.num_issued > self.issued.len() as u64 {
            let at = At::place("ledger");
            sink.rejected(at, "more handoffs than one candidate can have", MAX_ISSUED, self.num_issued);
        }
        match (&self.file, self.issued.last()) {
            (Some(file), _) => self.check_file(file, roots, report, sink),
            // `ledger handoff` writes the entry first, so a crash leaves this, and a
            // copy of the ledger alone looks the same. It hides nothing.
            (None, Some(last)) if !self.is_there => sink.warning(
                At::entry(last.index, ""),
                "a candidate was handed off, and the handoff does not lie beside the ledger",
                "<ledger>.handoff.dsse.json",
                "no file",
            ),
            _ => {}
        }
        if self.is_unverifiable {
            let reason = "the contract, which names the validator's key, could not be read";
            return Outcome::NotEvaluated(reason.to_owned());
        }
        match self.num_issued + u64::from(self.is_there) {
            0 => Outcome::NotApplicable("no candidate was handed off yet".to_owned()),
            num_checked => Outcome::Checked(num_checked),
        }
    }

    fn check_file(&self, file: &HandoffFile, roots: &Roots, report: Option<Digest>, sink: &mut Sink) {
        let at = || At::place(&file.place);
        let predicate = &file.statement.predicate;
        let expected = format!("root {} at size {}", predicate.head.root, predicate.head.size);
        let message = "the ledger was cut or rewritten after this handoff";
        match roots.at(predicate.head.size) {
            RootAt::Known(root) if encode_hex(&root) == predicate.head.root => {}
            RootAt::Known(root) => sink.tampered(at(), message, expected, encode_hex(&root)),
            RootAt::Beyond => {
                sink.tampered(at(), message, expected, format!("{} entries", roots.num_entries()));
            }
            RootAt::Unknown => sink.rejected(at(), "the handoff names no signed head", expected, "size 0"),
        }
        if self.issued.is_empty() {
            sink.tampered(
                at(),
                "the ledger holds no entry of this handoff: it was cut after it",
                format!("handoff.issued for {}", predicate.candidate),
                "none",
            );
        } else if !self.issued.iter().any(|issued| is_of(issued, &file.statement)) {
            sink.rejected(
                at(),
                "no entry speaks of this handoff",
                "a handoff.issued with the same candidate, step, weights, report and head",
                format!("{} at step {}, report {}", predicate.candidate, predicate.step, predicate.report),
            );
        }
        match report {
            Some(digest) if digest == predicate.report => {}
            Some(digest) => {
                let message = "the report beside the ledger is not the one that the handoff names";
                sink.rejected(at(), message, predicate.report, digest);
            }
            None => sink.incomplete(
                at(),
                "the report that the handoff rests on does not lie beside the ledger",
                predicate.report,
                "no file",
            ),
        }
    }
}

/// What the run has no authority to do and does not show goes with its candidate,
/// as the contract says it, and so does whether its roles are independent.
fn check_limits(predicate: &HandoffPredicate, contract: &Contract, place: &str, sink: &mut Sink) {
    let granted = &contract.purpose.authority.non_authorities;
    let independence = independence(Some(contract));
    let said = [
        ("/predicate/non_authorities", format!("{granted:?}"), format!("{:?}", predicate.non_authorities)),
        ("/predicate/nonclaims", format!("{:?}", contract.nonclaims), format!("{:?}", predicate.nonclaims)),
        (
            "/predicate/independence",
            format!("{}: {}", independence.status, independence.reason),
            format!("{}: {}", predicate.independence.status, predicate.independence.reason),
        ),
    ];
    for (pointer, expected, actual) in said.into_iter().filter(|(_, expected, actual)| expected != actual) {
        let message = "the handoff says otherwise than the contract what the run may not do or does not show";
        sink.rejected(At::place(format!("{place} {pointer}")), message, expected, actual);
    }
}

fn check_entry(issued: &Issued, roots: &Roots, sink: &mut Sink) {
    let at = |field: &str| At::entry(issued.index, format!("/body/obs/{field}"));
    match roots.at(issued.obs.size) {
        RootAt::Known(root) if encode_hex(&root) == issued.obs.root => {}
        RootAt::Known(root) => sink.tampered(
            at("root"),
            format!("the entries do not have the root that the handoff saw at size {}", issued.obs.size),
            &issued.obs.root,
            encode_hex(&root),
        ),
        RootAt::Beyond | RootAt::Unknown => sink.rejected(
            at("size"),
            "the handoff saw a size at which no head was signed",
            "the size of a signed head",
            issued.obs.size,
        ),
    }
}

fn is_of(issued: &Issued, statement: &Statement<HandoffPredicate>) -> bool {
    let predicate = &statement.predicate;
    let model = issued.det.model.hex();
    let has_model =
        statement.subject.iter().any(|subject| subject.digest.get("blake3").is_some_and(|hex| *hex == model));
    has_model
        && issued.obs.candidate == predicate.candidate
        && issued.det.step == predicate.step
        && issued.obs.report == predicate.report
        && issued.obs.size == predicate.head.size
        && issued.obs.root == predicate.head.root
}

fn parse(payload: &[u8], read: &ContractRead) -> Result<Statement<HandoffPredicate>, String> {
    check_entry_json(payload).map_err(|problem| format!("the payload is not canonical: {problem}"))?;
    let statement: Statement<HandoffPredicate> =
        serde_json::from_slice(payload).map_err(|error| error.to_string())?;
    if let Some(offset) = form::first_difference(&statement, payload) {
        return Err(format!("the payload leaves a field out or has another form at byte {offset}"));
    }
    if statement.statement_type != IN_TOTO_STATEMENT_TYPE
        || statement.predicate_type != HANDOFF_PREDICATE_TYPE
    {
        return Err(format!("a statement of type {}", statement.predicate_type));
    }
    let predicate = &statement.predicate;
    if predicate.contract != read.digest || predicate.run != read.run {
        return Err(format!("a handoff of run {} under contract {}", predicate.run, predicate.contract));
    }
    Ok(statement)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;

    use schemas::body::Halves;
    use schemas::digest::decode_hex;
    use schemas::dsse::{HandoffHead, REPORT_PAYLOAD_TYPE, Subject};
    use schemas::finding::Effect;
    use schemas::report::Report;

    use super::*;
    use crate::fixture::{Fixture, StoredRun, VALIDATOR, honest_run, json, signed_envelope};
    use crate::note::Note;

    const REPORT: &str = "run.db.report.dsse.json";
    const FILE: &str = "run.db.handoff.dsse.json";

    /// A run whose candidate was handed off, with the two files.
    struct HandedOff {
        run: StoredRun,
        report: Vec<u8>,
        statement: Statement<HandoffPredicate>,
    }

    /// As `ledger handoff` does it: audit, report, entry, statement.
    fn handed_off(with_entry: bool, change: impl FnOnce(&mut HandoffIssuedObs)) -> HandedOff {
        let before = StoredRun::new(honest_run());
        let accepted = before.audit();
        let head = accepted.head.clone().expect("a head");
        let report = signed_envelope(REPORT_PAYLOAD_TYPE, &json(&accepted), VALIDATOR);
        let digest = Digest::blake3(*blake3::hash(&report).as_bytes());
        let selected = accepted.selected.clone().expect("a selection");
        let mut fixture: Fixture = honest_run();
        let contract = fixture.frozen.contract.clone();
        let det = HandoffIssuedDet { model: selected.model, step: selected.step };
        let mut obs = HandoffIssuedObs {
            candidate: selected.candidate.clone(),
            report: digest,
            root: head.root.clone(),
            size: head.size,
        };
        change(&mut obs);
        if with_entry {
            let mut entry = fixture.entries.last().expect("run.end").clone();
            entry.header.idem = schemas::ids::IdempotencyKey("f".repeat(32));
            entry.body = Body::HandoffIssued(Box::new(Halves { det, obs }));
            fixture.entries.push(entry);
            fixture.renumber();
        }
        let statement = Statement {
            statement_type: IN_TOTO_STATEMENT_TYPE.to_owned(),
            predicate: HandoffPredicate {
                candidate: selected.candidate,
                contract: accepted.contract.expect("a contract"),
                head: HandoffHead { origin: head.origin, root: head.root, size: head.size },
                independence: accepted.independence.clone(),
                non_authorities: contract.purpose.authority.non_authorities.clone(),
                nonclaims: contract.nonclaims.clone(),
                report: digest,
                run: accepted.run.clone().expect("a run"),
                selection_basis: accepted.selection_basis,
                step: selected.step,
            },
            predicate_type: HANDOFF_PREDICATE_TYPE.to_owned(),
            subject: vec![Subject {
                digest: BTreeMap::from([("blake3".to_owned(), selected.model.hex())]),
                name: format!("{}/model.safetensors", selected.path),
            }],
        };
        let run = StoredRun::new(fixture);
        let this = HandedOff { run, report, statement };
        fs::write(this.run.beside(REPORT), &this.report).expect("writable");
        this.save(VALIDATOR);
        this
    }

    impl HandedOff {
        fn save(&self, role: u8) {
            let envelope = signed_envelope(IN_TOTO_PAYLOAD_TYPE, &json(&self.statement), role);
            fs::write(self.run.beside(FILE), envelope).expect("writable");
        }
    }

    fn effects(report: &Report) -> Vec<Effect> {
        report
            .findings
            .iter()
            .filter(|finding| finding.code == "GL112")
            .map(|finding| finding.effect)
            .collect()
    }

    fn check(expected: &[Effect], change: impl FnOnce(&mut HandedOff)) {
        let mut honest = handed_off(true, |_| {});
        change(&mut honest);
        assert_eq!(effects(&honest.run.audit()), expected);
    }

    #[test]
    fn an_honest_handoff_passes_and_a_missing_file_is_a_warning() {
        let honest = handed_off(true, |_| {});
        let report = honest.run.audit();
        assert_eq!(effects(&report), []);
        let result = report.rules.iter().find(|rule| rule.code == "GL112").expect("a result");
        assert_eq!((result.status, result.num_checked), (schemas::report::RuleStatus::Passed, 2));
        fs::remove_file(honest.run.beside(FILE)).expect("a file");
        assert_eq!(effects(&honest.run.audit()), [Effect::None]);
    }

    #[test]
    fn an_entry_names_a_root_that_the_entries_have() {
        let root_of = |change: fn(&mut HandoffIssuedObs)| {
            let run = handed_off(true, change).run;
            fs::remove_file(run.beside(FILE)).expect("a file");
            effects(&run.audit())
        };
        assert_eq!(root_of(|obs| obs.root = "00".repeat(32)), [Effect::Tampered, Effect::None]);
        assert_eq!(root_of(|obs| obs.size = 0), [Effect::Rejected, Effect::None]);
        assert_eq!(root_of(|obs| obs.size += 100), [Effect::Rejected, Effect::None]);
    }

    #[test]
    fn a_ledger_that_was_cut_or_rewritten_after_the_handoff() {
        assert_eq!(effects(&handed_off(false, |_| {}).run.audit()), [Effect::Tampered]);
        check(&[Effect::Tampered, Effect::Rejected], |this| {
            this.statement.predicate.head.root = "00".repeat(32);
            this.save(VALIDATOR);
        });
        check(&[Effect::Tampered, Effect::Rejected], |this| {
            this.statement.predicate.head.size += 100;
            this.save(VALIDATOR);
        });
    }

    #[test]
    fn other_keys_runs_candidates_and_reports() {
        check(&[Effect::Tampered], |this| this.save(3));
        check(&[Effect::Tampered], |this| fs::write(this.run.beside(FILE), b"{}").expect("writable"));
        check(&[Effect::Rejected], |this| {
            this.statement.predicate.run =
                schemas::ids::RunId("0000000000000000-0000000000000000".to_owned());
            this.save(VALIDATOR);
        });
        check(&[Effect::Rejected; 3], |this| {
            let predicate = &mut this.statement.predicate;
            predicate.nonclaims.clear();
            predicate.non_authorities.push("to be sold".to_owned());
            predicate.independence.status = "declared independent".to_owned();
            this.save(VALIDATOR);
        });
        check(&[Effect::Rejected], |this| {
            this.statement.predicate.step += 1;
            this.save(VALIDATOR);
        });
        check(&[Effect::Rejected], |this| {
            this.statement.subject.clear();
            this.save(VALIDATOR);
        });
        check(&[Effect::Incomplete], |this| fs::remove_file(this.run.beside(REPORT)).expect("a file"));
        check(&[Effect::Rejected], |this| {
            let accepted = this.run.audit();
            let other = signed_envelope(REPORT_PAYLOAD_TYPE, &json(&accepted), VALIDATOR);
            assert_ne!(other, this.report);
            fs::write(this.run.beside(REPORT), other).expect("writable");
        });
        // The head of the statement is one that the run signed.
        let honest = handed_off(true, |_| {});
        let size = honest.statement.predicate.head.size;
        let note = &honest.run.notes.iter().find(|(at, _)| *at == size).expect("a head").1;
        let note = Note::parse(note.as_bytes()).expect("a note");
        assert_eq!(decode_hex(&honest.statement.predicate.head.root), Some(note.root.to_vec()));
    }
}
