//! However an audit is made, it says the same: on one thread or several, from
//! pages or through SQLite, from the start or going on from an earlier report.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use schemas::body::{Body, Kind};
use schemas::digest::Digest;
use schemas::dsse::REPORT_PAYLOAD_TYPE;
use schemas::entry::Entry;
use schemas::report::{HeadSeen, HeadSource, Report, RuleStatus, Verdict};

use crate::audit::audit_by_sqlite;
use crate::fixture::{Fixture, RunBuilder, StoredRun, VALIDATOR, honest_run, json, signed_envelope};
use crate::note::Note;
use crate::{AuditError, AuditRequest, audit};

fn on_threads(run: &StoredRun, threads: usize, since: Option<&Path>) -> Result<Report, AuditError> {
    let request = AuditRequest {
        ledger: run.path(),
        since: since.map(Path::to_owned),
        threads: threads.try_into().ok(),
        ..AuditRequest::default()
    };
    audit(&request, &mut |_| {})
}

/// An honest run, what its audit said, and its heads.
struct Earlier {
    entries: Vec<Vec<u8>>,
    heads: Vec<HeadSeen>,
    report: Report,
}

fn earlier() -> &'static Earlier {
    static EARLIER: OnceLock<Earlier> = OnceLock::new();
    EARLIER.get_or_init(|| {
        let run = StoredRun::new(honest_run());
        let head = |(size, note): &(u64, String)| {
            let note = Note::parse(note.as_bytes()).expect("a note");
            HeadSeen {
                origin: note.origin,
                root: schemas::digest::encode_hex(&note.root),
                size: *size,
                source: HeadSource::Beside,
            }
        };
        let heads = run.notes.iter().map(head).collect();
        Earlier { entries: run.entries.clone(), heads, report: run.audit() }
    })
}

impl Earlier {
    /// The report as it would have been at one of the heads.
    fn report_at(&self, head: &HeadSeen) -> Report {
        let mut report = self.report.clone();
        report.num_entries = head.size;
        report.head = Some(head.clone());
        report
    }
}

/// Signs a report with the validator's key and puts it beside the ledger.
fn save(run: &StoredRun, report: &Report) -> PathBuf {
    let path = run.beside("run.db.report.dsse.json");
    fs::write(&path, signed_envelope(REPORT_PAYLOAD_TYPE, &json(report), VALIDATOR)).expect("writable");
    path
}

/// Entries that a table of layout 1 takes.
fn is_storable(entries: &[Entry]) -> bool {
    let mut keys: Vec<&str> = entries.iter().map(|entry| entry.header.idem.as_str()).collect();
    keys.sort_unstable();
    keys.windows(2).all(|pair| pair[0] != pair[1])
        && (0..).zip(entries).all(|(place, entry): (u64, _)| entry.index == place)
        && entries.iter().all(|entry| json(entry).len() <= schemas::MAX_ENTRY_BYTES)
}

/// Audits a run in every way, going on from reports of an honest run with the
/// same beginning too. Returns how many audits went on.
pub(crate) fn check_every_way(name: &str, fixture: Fixture) -> usize {
    if !is_storable(&fixture.entries) {
        return 0;
    }
    let run = StoredRun::new(fixture);
    let expected = on_threads(&run, 1, None).expect("the audit can look");
    // Reading and computing know nothing of rules, so a part of the runs is enough.
    if name.len().is_multiple_of(4) || expected.verdict == Verdict::Accepted {
        assert_eq!(on_threads(&run, 3, None).expect("it can look"), expected, "{name}: on three threads");
        let request = AuditRequest { ledger: run.path(), ..AuditRequest::default() };
        assert_eq!(audit_by_sqlite(&request).expect("it can look"), expected, "{name}: through SQLite");
    }
    let earlier = earlier();
    let pairs = run.entries.iter().zip(&earlier.entries);
    let num_common = pairs.take_while(|(ours, theirs)| ours == theirs).count() as u64;
    let of_both = earlier.heads.iter().rfind(|head| head.size <= num_common);
    let of_another = earlier.heads.iter().find(|head| head.size > num_common);
    let mut num_went_on = 0;
    for head in of_both.into_iter().chain(of_another) {
        let path = save(&run, &earlier.report_at(head));
        let expected = on_threads(&run, 1, None).expect("the audit can look");
        match on_threads(&run, 1, Some(&path)) {
            Ok(mut report) => {
                let since = report.since.take();
                assert_eq!(report, expected, "{name}: going on from size {}", head.size);
                assert_eq!(
                    since.map(|since| (since.size, since.root)),
                    (head.size <= num_common).then(|| (head.size, head.root.clone())),
                    "{name}: a report of other entries is not gone on from"
                );
                num_went_on += usize::from(head.size <= num_common);
            }
            // The run has another contract.
            Err(AuditError::Since { .. }) => assert_ne!(expected.contract, earlier.report.contract, "{name}"),
            Err(error) => panic!("{name}: {error}"),
        }
    }
    num_went_on
}

#[test]
fn honest_runs_are_accepted_in_every_way() {
    assert_eq!(earlier().report.verdict, Verdict::Accepted);
    assert_eq!(check_every_way("honest", honest_run()), 1);
    for step in [0, 5, 6] {
        assert!(check_every_way("with a crash", RunBuilder::new().crash_after_step(step).build()) > 0);
    }
    assert!(check_every_way("interrupted", RunBuilder::new().interrupt_after_step(7).build()) > 0);
}

/// The control: a rule that is said to have passed is indeed not asked again.
#[test]
fn what_an_earlier_audit_settled_is_not_computed_again() {
    let mut fixture = honest_run();
    fixture.change(Kind::Step, 3, |entry| {
        let Body::Step(halves) = &mut entry.body else { panic!("a step") };
        halves.det.draws[0].ids = Digest::blake3([1; 32]);
    });
    let run = StoredRun::new(fixture);
    let report = run.audit();
    let code = |report: &Report, code: &str| report.findings.iter().filter(|one| one.code == code).count();
    assert!(code(&report, "GL303") > 0, "the run has other examples than its seed gives");
    // A validator that lies about what it found deceives itself and nobody else.
    let mut lie = report.clone();
    lie.findings.clear();
    lie.verdict = Verdict::Accepted;
    lie.rules.iter_mut().for_each(|rule| rule.status = RuleStatus::Passed);
    let path = save(&run, &lie);
    let gone_on = on_threads(&run, 1, Some(&path)).expect("it can look");
    assert_eq!(code(&gone_on, "GL303"), 0);
    assert!(gone_on.since.is_some());
    // Where the rule had something to say it is asked again.
    let mut half = report.clone();
    half.verdict = Verdict::Incomplete;
    let path = save(&run, &half);
    let gone_on = on_threads(&run, 1, Some(&path)).expect("it can look");
    assert_eq!(code(&gone_on, "GL303"), code(&report, "GL303"));
    assert_eq!(gone_on.verdict, report.verdict);
}

/// What a step was fed is compared with shards. Where the earlier audit did not
/// find that these are the frozen ones, what it compared may have been others.
#[test]
fn what_was_compared_with_other_shards_is_compared_again() {
    let mut fixture = honest_run();
    fixture.change(Kind::Step, 3, |entry| {
        let Body::Step(halves) = &mut entry.body else { panic!("a step") };
        halves.det.draws[0].inputs = Digest::blake3([1; 32]);
    });
    let run = StoredRun::new(fixture);
    let report = run.audit();
    let count = |report: &Report| report.findings.iter().filter(|one| one.code == "GL304").count();
    assert_eq!(count(&report), 1, "the step was fed other bytes than its examples have");
    let mut lie = report.clone();
    lie.findings.clear();
    lie.verdict = Verdict::NotEvaluated;
    lie.rules.iter_mut().for_each(|rule| rule.status = RuleStatus::Passed);
    let going_on = |report: &Report| {
        let path = save(&run, report);
        let report = on_threads(&run, 1, Some(&path)).expect("it can look");
        assert!(report.since.is_some());
        count(&report)
    };
    assert_eq!(going_on(&lie), 0, "the control: what is settled is not compared again");
    for code in ["GL108", "GL307"] {
        let mut unsure = lie.clone();
        let rule = unsure.rules.iter_mut().find(|rule| rule.code == code).expect("a rule of shards");
        rule.status = RuleStatus::NotEvaluated;
        assert_eq!(going_on(&unsure), 1, "{code} had not passed");
    }
}

#[test]
fn files_that_changed_since_are_found() {
    let run = StoredRun::new(honest_run());
    let path = save(&run, &run.audit());
    for file in ["data/train-0.txt", "checkpoints/step-0/model.safetensors"] {
        let place = find(run.folder(), file);
        let original = fs::read(&place).expect("a file");
        let mut changed = original.clone();
        let middle = changed.len() * 3 / 4;
        changed[middle] ^= 1;
        fs::write(&place, changed).expect("writable");
        let expected = run.audit();
        assert_ne!(expected.verdict, Verdict::Accepted, "{file}");
        let mut report = on_threads(&run, 1, Some(&path)).expect("it can look");
        assert!(report.since.take().is_some());
        assert_eq!(report, expected, "{file}");
        fs::write(&place, original).expect("writable");
    }
    assert_eq!(run.audit().verdict, Verdict::Accepted);
}

/// A file; of a checkpoint the first one.
fn find(folder: &Path, file: &str) -> PathBuf {
    let plain = folder.join(file);
    if plain.is_file() {
        return plain;
    }
    let name = plain.file_name().expect("a name").to_owned();
    let mut checkpoints: Vec<PathBuf> = fs::read_dir(folder.join("checkpoints"))
        .expect("checkpoints")
        .map(|entry| entry.expect("readable").path())
        .collect();
    checkpoints.sort();
    checkpoints.into_iter().map(|path| path.join(&name)).find(|path| path.is_file()).expect("a model")
}

#[test]
fn reports_that_cannot_be_gone_on_from_are_refused() {
    let run = StoredRun::new(honest_run());
    let honest = run.audit();
    let refused = |report: &Report, role: u8, word: &str| {
        let path = run.beside("other.dsse.json");
        fs::write(&path, signed_envelope(REPORT_PAYLOAD_TYPE, &json(report), role)).expect("writable");
        match on_threads(&run, 1, Some(&path)) {
            Err(error @ AuditError::Since { .. }) => {
                assert!(error.to_string().contains(word), "{word}: {error}");
                assert!(error.to_string().contains("hint: "), "{error}");
            }
            other => panic!("{word}: {other:?}"),
        }
    };
    let changed = |change: fn(&mut Report)| {
        let mut report = honest.clone();
        change(&mut report);
        report
    };
    refused(&honest, 3, "not signed by the contract's validator");
    refused(&changed(|report| report.ruleset = "2025.4".to_owned()), VALIDATOR, "edition 2025.4");
    refused(&changed(|report| report.tool = "validator 0.0.0".to_owned()), VALIDATOR, "validator 0.0.0");
    refused(&changed(|report| report.run = None), VALIDATOR, "run none");
    refused(&changed(|report| report.contract = None), VALIDATOR, "contract none");
    refused(&changed(|report| report.head = None), VALIDATOR, "no signed head");
    refused(&changed(|report| report.verdict = Verdict::Rejected), VALIDATOR, "its verdict is rejected");
    refused(&changed(|report| report.verdict = Verdict::Tampered), VALIDATOR, "its verdict is tampered");
    refused(&changed(|report| report.num_entries += 1), VALIDATOR, "of which a head covers");
    let missing = on_threads(&run, 1, Some(&run.beside("none.json")));
    assert!(matches!(missing, Err(AuditError::Named { .. })), "{missing:?}");
}

/// A report that the reviewer kept elsewhere commits the validator as one beside
/// the ledger does.
#[test]
fn a_named_report_of_other_entries_is_a_finding() {
    let run = StoredRun::new(honest_run());
    let mut report = run.audit();
    report.head.as_mut().expect("a head").root = "00".repeat(32);
    let path = run.beside("kept.dsse.json");
    fs::write(&path, signed_envelope(REPORT_PAYLOAD_TYPE, &json(&report), VALIDATOR)).expect("writable");
    let report = on_threads(&run, 2, Some(&path)).expect("it can look");
    assert_eq!((report.verdict, report.since), (Verdict::Tampered, None));
    assert!(report.findings.iter().any(|finding| finding.code == "GL111"), "{:#?}", report.findings);
}
