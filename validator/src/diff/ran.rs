//! What ran, as entries state it, beside the contract: code, environment and
//! executed plan of every attempt, segments, streams of evaluation, the end, and
//! what was amended or done by hand.
//!
//! A value that many attempts state alike is one field, with the first entry
//! that states it. Memory grows with attempts and with distinct values, and not
//! with steps. Whether a segment is honest is a rule's business (`GL208`); here
//! it is what declares another number of workers.

use std::collections::{BTreeMap, BTreeSet};

use schemas::body::{AttemptStartDet, AttemptStartObs, Body, EvalDet, Outcome, RunEndDet};
use schemas::digest::Digest;
use schemas::entry::Entry;
use serde::Serialize;
use serde_json::{Value, json};

use super::leaves::leaves;
use super::side::{DiffError, Side, open_store};
use super::{Comparison, Field, Status, is_equal};
use crate::reading::EntryReader;
use crate::store::Access;

/// What a segment says where another number of workers begins it.
const WORKER_COUNT: &str = "worker_count: ";

/// Distinct statements that are kept one by one. That a ledger was made to have
/// more is a difference that nothing declares.
const MAX_STATEMENTS: usize = 10_000;

pub(super) fn compare(a: &Side, b: &Side) -> Result<Comparison, DiffError> {
    if b.frozen.is_none() {
        return Err(DiffError::NothingRan { path: b.path.clone() });
    }
    for access in [Access::InPlace, Access::Copy] {
        let store = open_store(&b.path, access)?;
        let (mut stated, mut reader) = (Stated::new(a), EntryReader::new());
        let mut unread = None;
        let end = store.for_each_row(&mut |row| match read(&mut reader, row.entry) {
            Ok(entry) => stated.entry(&entry),
            Err(error) => {
                unread.get_or_insert_with(|| format!("row {}: {error}", row.seq));
            }
        });
        let no_run = |reason: String| DiffError::NoRun { path: b.path.clone(), reason };
        if let Some(reason) = unread {
            return Err(no_run(reason));
        }
        end.whole().map_err(|error| no_run(error.to_string()))?;
        if access == Access::Copy || store.is_unchanged() {
            return Ok(stated.finish());
        }
    }
    Err(DiffError::NoRun { path: b.path.clone(), reason: "it changes while it is read".to_owned() })
}

/// An entry that a person's hand made in another form is still one here.
fn read(reader: &mut EntryReader, bytes: &[u8]) -> Result<Entry, serde_json::Error> {
    reader.read(bytes).map_or_else(|_| Entry::from_slice(bytes), |(entry, _)| Ok(entry))
}

/// An attempt, as far as another number of workers is judged.
struct Attempt {
    entry: u64,
    num_workers: u32,
}

/// A segment that started.
struct Segment {
    entry: u64,
    adjudication: Option<String>,
    identity: Digest,
}

/// What the entries state.
struct Stated<'a> {
    a: &'a Side,
    /// Leaf fields of A's contract.
    contract: BTreeMap<String, Value>,
    attempts: Vec<Attempt>,
    fields: Vec<Field>,
    first_threads: Option<u32>,
    /// More was stated than is kept.
    is_cut: bool,
    seen: BTreeSet<(String, String, Status)>,
    segments: Vec<Segment>,
}

impl<'a> Stated<'a> {
    fn new(a: &'a Side) -> Self {
        Self {
            a,
            contract: leaves(&a.contract),
            attempts: Vec::new(),
            fields: Vec::new(),
            first_threads: None,
            is_cut: false,
            seen: BTreeSet::new(),
            segments: Vec::new(),
        }
    }

    fn entry(&mut self, entry: &Entry) {
        let index = entry.index;
        match &entry.body {
            Body::RunStart(halves) => self.contract_digest(index, halves.det.contract),
            Body::AttemptStart(halves) => self.attempt(index, &halves.det, &halves.obs),
            Body::SegmentStart(_) if self.segments.len() >= MAX_STATEMENTS => self.is_cut = true,
            Body::SegmentStart(halves) => {
                let (adjudication, identity) = (halves.det.adjudication.clone(), halves.det.identity);
                self.segments.push(Segment { entry: index, adjudication, identity });
            }
            Body::Eval(halves) => self.evaluation(index, &halves.det),
            Body::RunEnd(halves) => self.end(index, &halves.det),
            Body::Amendment(halves) => {
                let why = format!("the amendment of entry {}", halves.det.amends);
                self.said(index, "amendment /body/det/statement", json!(halves.det.statement), why);
            }
            Body::Intervention(halves) => {
                let why = format!("a recorded intervention: {}", halves.obs.reason);
                self.said(index, "intervention /body/det/action", json!(halves.det.action), why);
            }
            _ => {}
        }
    }

    /// Adds a field once for each value that is stated of it.
    fn push(&mut self, field: Field) {
        let value = field.b.as_ref().map(Value::to_string).unwrap_or_default();
        if self.seen.contains(&(field.pointer.clone(), value.clone(), field.status)) {
            return;
        }
        if self.fields.len() >= MAX_STATEMENTS {
            self.is_cut = true;
            return;
        }
        self.seen.insert((field.pointer.clone(), value, field.status));
        self.fields.push(field);
    }

    /// What a person declared in words.
    fn said(&mut self, index: u64, pointer: &str, value: Value, why: String) {
        let field = Field::new(pointer, None, Some(value), Status::Declared);
        self.push(Field { entry: Some(index), why: Some(why), ..field });
    }

    /// Compares what ran with the fields of the contract below a pointer.
    fn block(&mut self, index: u64, pointer: &str, ran: &impl Serialize) {
        // A type of `schemas` is always representable.
        let Ok(ran) = serde_json::to_value(ran) else { return };
        let wanted = self.a.contract.pointer(pointer).map(leaves).unwrap_or_default();
        let ran = leaves(&ran);
        let places: BTreeSet<&String> = wanted.keys().chain(ran.keys()).collect();
        for place in places {
            let (a, b) = (wanted.get(place).cloned(), ran.get(place).cloned());
            let status = if is_equal(a.as_ref(), b.as_ref()) { Status::Same } else { Status::Undeclared };
            let field = Field::new(format!("{pointer}{place}"), a, b, status);
            self.push(Field { entry: Some(index), ..field });
        }
    }

    fn contract_digest(&mut self, index: u64, named: Digest) {
        // A file has no digest before it is frozen.
        let Some(frozen) = &self.a.frozen else { return };
        let status = if frozen.digest == named { Status::Same } else { Status::Undeclared };
        let field = Field::new("", Some(json!(frozen.digest)), Some(json!(named)), status);
        self.push(Field { entry: Some(index), why: Some("the contract's digest".to_owned()), ..field });
    }

    fn attempt(&mut self, index: u64, det: &AttemptStartDet, obs: &AttemptStartObs) {
        self.contract_digest(index, det.contract);
        self.block(index, "/code", &det.code);
        self.block(index, "/environment", &obs.environment);
        self.block(index, "/plan", &obs.plan.compiler);
        self.block(index, "/numerics/compute_dtype", &obs.plan.compute_dtype);
        if self.attempts.len() < MAX_STATEMENTS {
            self.attempts.push(Attempt { entry: index, num_workers: obs.plan.num_workers });
        } else {
            self.is_cut = true;
        }
        let first = *self.first_threads.get_or_insert(obs.plan.num_threads);
        let (status, why) = match (obs.plan.num_threads == first, self.permits("thread_count")) {
            (true, _) => (Status::Same, None),
            (false, true) => {
                (Status::Declared, Some("the contract permits the rewrite thread_count".to_owned()))
            }
            (false, false) => {
                (Status::Undeclared, Some("attempts ran with different numbers of threads".to_owned()))
            }
        };
        let threads = |number: u32| Some(json!(number));
        let pointer = "attempt.start /body/obs/plan/num_threads";
        let field = Field::new(pointer, threads(first), threads(obs.plan.num_threads), status);
        self.push(Field { entry: Some(index), why, ..field });
        let instrumentation = &obs.plan.instrumentation;
        let status = if instrumentation.is_empty() { Status::Same } else { Status::Undeclared };
        let pointer = "attempt.start /body/obs/plan/instrumentation";
        let field = Field::new(pointer, Some(json!([])), Some(json!(instrumentation)), status);
        self.push(Field { entry: Some(index), ..field });
    }

    fn permits(&self, rewrite: &str) -> bool {
        let rewrites = self.a.contract.pointer("/topology/permitted_rewrites").and_then(Value::as_array);
        rewrites.is_some_and(|rewrites| rewrites.iter().any(|name| name == rewrite))
    }

    fn evaluation(&mut self, index: u64, det: &EvalDet) {
        let streams = self.a.contract.pointer("/evaluation/streams").and_then(Value::as_array);
        let position = streams.and_then(|streams| {
            streams.iter().position(|stream| stream["name"].as_str() == Some(det.stream.as_str()))
        });
        let Some(position) = position else {
            let field =
                Field::new("eval /body/det/stream", None, Some(json!(det.stream)), Status::Undeclared);
            let why = Some("the contract has no such stream".to_owned());
            self.push(Field { entry: Some(index), why, ..field });
            return;
        };
        let pointer = format!("/evaluation/streams/{position}");
        for (field, ran) in
            [("metric", json!(det.metric)), ("split", json!(det.split)), ("view", json!(det.view))]
        {
            let place = format!("{pointer}/{field}");
            self.block(index, &place, &ran);
        }
        // Null is all of the table, whose length the contract does not state.
        let place = format!("{pointer}/num_examples");
        if self.contract.get(&place).is_some_and(|examples| !examples.is_null()) {
            self.block(index, &place, &json!(det.num_examples));
        }
    }

    fn end(&mut self, index: u64, det: &RunEndDet) {
        let pointer = "/stopping/step";
        let Some(planned) = self.contract.get(pointer).cloned() else { return };
        let ran = json!(det.last_step);
        let (status, why) = match (planned == ran, det.outcome) {
            (true, _) => (Status::Same, None),
            (false, Outcome::Completed) => (Status::Undeclared, None),
            (false, _) => {
                (Status::Declared, Some(format!("the run ended before it, on record: {}", det.reason)))
            }
        };
        let field = Field::new(pointer, Some(planned), Some(ran), status);
        self.push(Field { entry: Some(index), why, ..field });
    }

    /// The number of workers of every attempt, with the segment that it is in.
    fn workers(&mut self) {
        let planned = self.contract.get("/topology/workers").cloned();
        for attempt in &std::mem::take(&mut self.attempts) {
            let ran = Some(json!(attempt.num_workers));
            let (status, why) = if ran == planned {
                (Status::Same, None)
            } else {
                let adjudication = format!("{WORKER_COUNT}{}", attempt.num_workers);
                let segment = self.segment_of(attempt);
                let is_declared =
                    segment.is_some_and(|segment| segment.adjudication.as_ref() == Some(&adjudication));
                match (is_declared, self.permits("worker_count")) {
                    (true, true) => {
                        let entry = segment.map_or(0, |segment| segment.entry);
                        let why = format!("segment.start of entry {entry}, which the contract permits");
                        (Status::Declared, Some(why))
                    }
                    (false, true) => (Status::Undeclared, Some("no segment declares it".to_owned())),
                    (_, false) => {
                        (Status::Undeclared, Some("the contract does not permit worker_count".to_owned()))
                    }
                }
            };
            let field = Field::new("/topology/workers", planned.clone(), ran, status);
            self.push(Field { entry: Some(attempt.entry), why, ..field });
        }
    }

    /// The segment of an attempt: the newest that started before it or, directly
    /// behind its start, with it. There may be two: that of the contract in the
    /// first attempt, and one more.
    fn segment_of(&self, attempt: &Attempt) -> Option<&Segment> {
        self.segments.iter().rev().find(|segment| segment.entry <= attempt.entry.saturating_add(2))
    }

    fn finish(mut self) -> Comparison {
        self.workers();
        if let (Some(first), Some(own)) = (self.segments.first(), &self.a.frozen) {
            // Later segments are judged with their attempts.
            let status = if first.identity == own.digest { Status::Same } else { Status::Undeclared };
            let (a, b) = (json!(own.digest), json!(first.identity));
            let field = Field::new("segment.start /body/det/identity", Some(a), Some(b), status);
            self.push(Field { entry: Some(first.entry), ..field });
        }
        if self.is_cut {
            let what = format!("more than {MAX_STATEMENTS} distinct statements");
            let why = "they are not compared one by one; `ledger audit` judges all of them".to_owned();
            let field = Field::new("entries", None, Some(json!(what)), Status::Undeclared);
            self.fields.push(Field { why: Some(why), ..field });
        }
        let stated: BTreeSet<&str> = self.fields.iter().map(|field| field.pointer.as_str()).collect();
        let is_silent = |pointer: &&String| !stated.contains(pointer.as_str());
        let not_stated = self.contract.keys().filter(is_silent).cloned().collect();
        let mut fields = self.fields;
        fields.sort_by(|left, right| (&left.pointer, left.entry).cmp(&(&right.pointer, right.entry)));
        Comparison { fields, not_stated }
    }
}

#[cfg(test)]
mod tests {
    use schemas::body::Kind;
    use schemas::contract::PermittedRewrite;

    use super::*;
    use crate::fixture::{Fixture, RunBuilder, StoredRun, honest_run};

    fn compared(fixture: Fixture, edit: impl FnOnce(&mut Side)) -> Comparison {
        let run = StoredRun::new(fixture);
        let b = Side::open(&run.path()).expect("a ledger");
        let mut a = b.clone();
        edit(&mut a);
        compare(&a, &b).expect("it can be read")
    }

    fn different(comparison: &Comparison) -> Vec<(&str, Status)> {
        let fields = comparison.fields.iter().filter(|field| field.status != Status::Same);
        fields.map(|field| (field.pointer.as_str(), field.status)).collect()
    }

    #[test]
    fn an_honest_run_ran_as_it_was_frozen() {
        let comparison = compared(honest_run(), |_| {});
        assert_eq!(different(&comparison), []);
        for pointer in ["", "/code/digest", "/environment/rustc", "/plan/backend", "/topology/workers"] {
            assert!(comparison.fields.iter().any(|field| field.pointer == pointer), "{pointer}");
            assert!(!comparison.not_stated.iter().any(|other| other == pointer), "{pointer}");
        }
        assert!(comparison.not_stated.iter().any(|pointer| pointer == "/seeds/data_order"));
    }

    #[test]
    fn what_another_contract_binds_is_undeclared() {
        let comparison = compared(honest_run(), |a| {
            a.contract["code"]["digest"] = json!(Digest::sha256([0xab; 32]));
            a.contract["plan"]["cpu_features"] = json!([]);
            a.contract["numerics"]["compute_dtype"] = json!("f16");
            a.contract["evaluation"]["streams"][0]["name"] = json!("another");
            a.contract["stopping"]["step"] = json!(1_000_000);
            a.frozen = None;
        });
        let found = different(&comparison);
        for pointer in ["/code/digest", "/numerics/compute_dtype", "/stopping/step", "eval /body/det/stream"]
        {
            assert!(found.contains(&(pointer, Status::Undeclared)), "{pointer}: {found:?}");
        }
        assert!(found.iter().any(|(pointer, _)| pointer.starts_with("/plan/cpu_features")), "{found:?}");
    }

    /// Another number of workers is declared by its segment and the contract's
    /// permission together, and by neither alone.
    #[test]
    fn a_segment_declares_another_number_of_workers() {
        let run = || {
            let builder = RunBuilder::new().workers(2).interrupt_after_step(2).then_workers(1);
            builder
                .contract(|contract| {
                    contract.topology.permitted_rewrites = vec![PermittedRewrite::WorkerCount];
                })
                .build()
        };
        let of_workers = |comparison: &Comparison| -> Vec<Status> {
            let fields = comparison.fields.iter().filter(|field| field.pointer == "/topology/workers");
            fields.map(|field| field.status).collect()
        };
        assert_eq!(of_workers(&compared(run(), |_| {})), [Status::Same, Status::Declared]);
        let forbidden = compared(run(), |a| a.contract["topology"]["permitted_rewrites"] = json!([]));
        assert_eq!(of_workers(&forbidden), [Status::Same, Status::Undeclared]);
        let mut silent = run();
        let mut num_segments = 0;
        silent.drop_where(|entry| {
            num_segments += u32::from(entry.body.kind() == Kind::SegmentStart);
            entry.body.kind() == Kind::SegmentStart && num_segments == 2
        });
        assert_eq!(of_workers(&compared(silent, |_| {})), [Status::Same, Status::Undeclared]);
    }

    #[test]
    fn interventions_are_declared_with_their_reason() {
        let comparison = compared(RunBuilder::new().intervention(5).build(), |_| {});
        let found = comparison.fields.iter().find(|field| field.status == Status::Declared);
        let found = found.expect("the intervention");
        assert_eq!(found.pointer, "intervention /body/det/action");
        assert!(found.why.is_some() && found.entry.is_some());
    }

    #[test]
    fn nothing_ran_in_a_contract_file() {
        let run = StoredRun::new(honest_run());
        let a = Side::open(&run.path()).expect("a ledger");
        let file = Side { frozen: None, ..a.clone() };
        assert!(matches!(compare(&a, &file), Err(DiffError::NothingRan { .. })));
        std::fs::write(run.beside("letter.db"), "this is a letter").expect("writable");
        assert!(matches!(Side::open(&run.beside("letter.db")), Err(DiffError::NoRun { .. })));
    }
}
