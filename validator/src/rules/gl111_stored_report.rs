//! GL111 `stored-report`.

use schemas::digest::Digest;
use schemas::dsse::REPORT_PAYLOAD_TYPE;
use schemas::report::{Report, Route};

use crate::canonical::check_entry_json;
use crate::contract::ContractRead;
use crate::rule::{At, Outcome, RuleInfo, Sink};
use crate::stored_report::StoredReport;
use crate::{dsse, form};

/// Text of the rule.
pub(crate) static INFO: RuleInfo = RuleInfo {
    code: "GL111",
    name: "stored-report",
    what: "A report that was saved beside the ledger is signed by the contract's validator, is of this run, and the head that it saw is a prefix of these entries.",
    why: "A report commits the validator to what the ledger held when it looked; a ledger that no longer begins with that was cut or rewritten since.",
    remedy: "restore the ledger that the report saw; a report of another run, or by another key, belongs elsewhere (`ledger audit --save-to FILE`)",
    reference: "DSSE v1; docs/FORMAT.md, \"Handoff\"; schemas::report::Report",
    gate: Route::RejectIdentity,
};

/// Verifies the file's bytes. The outcome where there is nothing to compare with the
/// entries.
pub(crate) fn read(
    file: Option<(&[u8], &str)>,
    read: Option<&ContractRead>,
    sink: &mut Sink,
) -> Result<StoredReport, Outcome> {
    let Some((bytes, place)) = file else {
        return Err(Outcome::NotApplicable("no report was saved beside the ledger".to_owned()));
    };
    let Some((read, key)) = read.and_then(|read| Some((read, read.validator.as_ref()?))) else {
        let reason = "the contract, which names the validator's key, could not be read";
        return Err(Outcome::NotEvaluated(reason.to_owned()));
    };
    let payload = match dsse::verify(bytes, REPORT_PAYLOAD_TYPE, key) {
        Ok(payload) => payload,
        Err(error) => {
            let signer = &read.contract.keys.validator.public;
            let expected = format!("an envelope signed by the validator {signer}");
            let message = "the report beside the ledger is not signed by the contract's validator";
            sink.rejected(At::place(place), message, expected, error);
            return Err(Outcome::Checked(1));
        }
    };
    match parse(&payload, read) {
        Ok(Report { head, num_entries, .. }) => {
            let rewritten = "the ledger was cut or rewritten after this report";
            Ok(StoredReport { head, num_entries, place: place.to_owned(), rewritten })
        }
        Err(reason) => {
            let message = "what lies beside the ledger is signed, but is no report of this run";
            sink.rejected(At::place(place), message, format!("a report of run {}", read.run), reason);
            Err(Outcome::Checked(1))
        }
    }
}

/// The report in a payload whose signature held, where it is one of this run.
pub(crate) fn parse(payload: &[u8], read: &ContractRead) -> Result<Report, String> {
    check_entry_json(payload).map_err(|problem| format!("the payload is not canonical: {problem}"))?;
    let report: Report = serde_json::from_slice(payload).map_err(|error| error.to_string())?;
    if let Some(offset) = form::first_difference(&report, payload) {
        return Err(format!("the payload leaves a field out or has another form at byte {offset}"));
    }
    if report.format != schemas::REPORT_FORMAT {
        return Err(format!("its format is {:?}", report.format));
    }
    let name = |digest: Option<Digest>| digest.map_or("none".to_owned(), |digest| digest.to_string());
    if report.contract != Some(read.digest) || report.run.as_ref() != Some(&read.run) {
        let run = report.run.map_or("none".to_owned(), |run| run.to_string());
        return Err(format!("a report of run {run} under contract {}", name(report.contract)));
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use schemas::digest::encode_hex;
    use schemas::finding::Effect;
    use schemas::report::{RuleStatus, Verdict};

    use super::*;
    use crate::fixture::{StoredRun, VALIDATOR, honest_run, json, signed_envelope};

    fn save(run: &StoredRun, report: &Report, role: u8) {
        let envelope = signed_envelope(REPORT_PAYLOAD_TYPE, &json(report), role);
        fs::write(run.beside("run.db.report.dsse.json"), envelope).expect("writable");
    }

    fn effects(report: &Report) -> Vec<Effect> {
        report
            .findings
            .iter()
            .filter(|finding| finding.code == "GL111")
            .map(|finding| finding.effect)
            .collect()
    }

    fn check(expected: &[Effect], change: impl FnOnce(&StoredRun, Report)) {
        let run = StoredRun::new(honest_run());
        change(&run, run.audit());
        assert_eq!(effects(&run.audit()), expected);
    }

    #[test]
    fn a_report_of_this_ledger_or_an_older_prefix_passes() {
        let run = StoredRun::new(honest_run());
        let mut report = run.audit();
        save(&run, &report, VALIDATOR);
        let again = run.audit();
        assert_eq!(again.verdict, Verdict::Accepted, "{:#?}", again.findings);
        let result = again.rules.iter().find(|rule| rule.code == "GL111").expect("a result");
        assert_eq!((result.status, result.num_checked), (RuleStatus::Passed, 1));
        let note = crate::note::Note::parse(run.notes[3].1.as_bytes()).expect("a note");
        let head = report.head.as_mut().expect("a head");
        (head.size, head.root) = (note.size, encode_hex(&note.root));
        report.num_entries = note.size;
        save(&run, &report, VALIDATOR);
        assert_eq!(run.audit().verdict, Verdict::Accepted);
        save(&run, &Report { head: None, ..report }, VALIDATOR);
        assert_eq!(run.audit().verdict, Verdict::Accepted);
    }

    #[test]
    fn a_ledger_that_was_cut_or_rewritten_after_its_report_is_tampered() {
        check(&[Effect::Tampered], |run, mut report| {
            report.num_entries += 1;
            save(run, &report, VALIDATOR);
        });
        check(&[Effect::Tampered; 2], |run, mut report| {
            report.num_entries += 7;
            report.head.as_mut().expect("a head").size += 7;
            save(run, &report, VALIDATOR);
        });
        check(&[Effect::Tampered], |run, mut report| {
            report.head.as_mut().expect("a head").root = "00".repeat(32);
            save(run, &report, VALIDATOR);
        });
    }

    #[test]
    fn other_keys_runs_and_forms_are_rejected() {
        check(&[Effect::Rejected], |run, report| save(run, &report, 3));
        check(&[Effect::Rejected], |run, report| save(run, &Report { run: None, ..report }, VALIDATOR));
        check(&[Effect::Rejected], |run, mut report| {
            report.head.as_mut().expect("a head").size = 0;
            save(run, &report, VALIDATOR);
        });
        check(&[Effect::Rejected], |run, _| {
            fs::write(run.beside("run.db.report.dsse.json"), b"{\"stale\":true}").expect("writable");
        });
        check(&[Effect::Rejected], |run, report| {
            let text = String::from_utf8(json(&report)).expect("UTF-8");
            let shorter = text.replacen(",\"target_met\":null", "", 1);
            let other = if shorter == text { format!(" {text}") } else { shorter };
            let envelope = signed_envelope(REPORT_PAYLOAD_TYPE, other.as_bytes(), VALIDATOR);
            fs::write(run.beside("run.db.report.dsse.json"), envelope).expect("writable");
        });
    }
}
