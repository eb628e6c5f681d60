//! Processor time of an audit over that of its parts: reading the rows, hashing
//! (SHA-256 over each row; BLAKE3 over what each step drew and was fed, whose
//! digests the rows state), parsing the rows, and the tree. Prints JSON.
//!
//! `cargo run -p validator --features fixture --example bench_audit -- [STEPS] [ROUNDS]`
//!
//! Every round runs each part and the audit once, so that all see the same
//! state of the machine; medians are compared. The audit runs on one thread, so
//! that its processor time is all of it; its wall time is that of every round on
//! one, two and four threads. `audit_since` is that of an audit that goes on from
//! the report of an earlier one (`--since`) where nothing was recorded since, which
//! is the most that can be gained.
//!
//! `... bench_audit -- STEPS write EVERY` writes a ledger that is saved every so
//! many updates, and prints its folder: for measuring an audit from outside.
//!
//! `... bench_audit -- memory LEDGER` audits a ledger that lies there, in a process
//! that did nothing else, and says how much memory was resident at most.

use std::error::Error;
use std::hint::black_box;
use std::io::Write;

use schemas::body::Body;
use schemas::entry::Entry;
use schemas::finding::Effect;
use schemas::report::{Report, Verdict};
use sha2::{Digest, Sha256};
use validator::bench_support::SyntheticLedger;
use validator::canonical::check_entry_json;
use validator::tree::{Frontier, leaf_hash};
use validator::{AuditRequest, audit};

/// On-CPU nanoseconds of this thread; nothing here uses another.
fn cpu_ns() -> Result<u64, Box<dyn Error>> {
    // The kernel brings the figure up to date when a thread leaves its processor.
    std::thread::sleep(std::time::Duration::from_micros(50));
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    Ok(text.split(' ').next().ok_or("an empty schedstat")?.parse()?)
}

fn timed(work: impl FnOnce() -> Result<(), Box<dyn Error>>) -> Result<u64, Box<dyn Error>> {
    let before = cpu_ns()?;
    work()?;
    Ok(cpu_ns()? - before)
}

fn median(values: &mut [u64]) -> f64 {
    values.sort_unstable();
    let middle = values.len() / 2;
    let value =
        if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2 };
    // Nanoseconds of a bench are far below 2^53.
    value as f64 / 1000.0
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let first = arguments.next();
    if first.as_deref() == Some("memory") {
        return memory(&arguments.next().ok_or("of which ledger?")?);
    }
    let num_steps: u64 = first.map_or(Ok(40_000), |text| text.parse())?;
    let rounds = arguments.next();
    if rounds.as_deref() == Some("write") {
        let every_steps = arguments.next().ok_or("how often is it saved?")?.parse()?;
        let folder = SyntheticLedger::saved_every(num_steps, every_steps).keep();
        writeln!(std::io::stdout(), "{}", folder.display())?;
        return Ok(());
    }
    let rounds: usize = rounds.map_or(Ok(7), |text| text.parse())?;
    let ledger = SyntheticLedger::new(num_steps);
    let on_threads = |threads: usize| AuditRequest {
        ledger: ledger.path(),
        threads: threads.try_into().ok(),
        ..AuditRequest::default()
    };
    let request = on_threads(1);
    let mut wall_us: [Vec<u64>; 3] = Default::default();
    let entries = ledger.entries();
    // Hashing the leaves is the part before; the tree is what comes on top.
    let leaves: Vec<[u8; 32]> = entries.iter().map(|bytes| leaf_hash(bytes)).collect();
    let report = audit(&request, &mut |_| {})?;
    let since = AuditRequest { since: Some(ledger.save_report(&report)), ..on_threads(1) };
    require_stated(&ledger)?;
    let mut times: [Vec<u64>; 8] = Default::default();
    for _ in 0..rounds {
        times[0].push(timed(|| read(&ledger))?);
        times[1].push(timed(|| {
            for bytes in entries {
                black_box(Sha256::digest(bytes));
            }
            Ok(())
        })?);
        times[2].push(timed(|| {
            for bytes in entries {
                black_box(Entry::from_slice(bytes)?);
            }
            Ok(())
        })?);
        times[3].push(timed(|| {
            let mut frontier = Frontier::new();
            for leaf in &leaves {
                frontier.append(*leaf);
            }
            black_box(frontier.root());
            Ok(())
        })?);
        times[4].push(timed(|| require_accepted(&audit(&request, &mut |_| {})?))?);
        // Not one of the parts that the ratio compares with.
        times[5].push(timed(|| {
            for bytes in entries {
                black_box(check_entry_json(bytes)?);
            }
            Ok(())
        })?);
        times[6].push(timed(|| {
            let gone_on = audit(&since, &mut |_| {})?;
            if gone_on.since.is_none() {
                return Err("the audit did not go on from its report".into());
            }
            require_accepted(&gone_on)
        })?);
        times[7].push(timed(|| {
            for bytes in ledger.drawn_and_fed().iter().flatten() {
                black_box(blake3::hash(bytes));
            }
            Ok(())
        })?);
        for (threads, walls) in [1, 2, 4].into_iter().zip(&mut wall_us) {
            let started = std::time::Instant::now();
            black_box(audit(&on_threads(threads), &mut |_| {})?);
            walls.push(u64::try_from(started.elapsed().as_nanos())?);
        }
    }
    let [wall_1_us, wall_2_us, wall_4_us] = wall_us.map(|mut values| median(&mut values));
    let [read_us, rows_us, parse_us, tree_us, audit_us, canonical_us, since_us, drawn_us] =
        times.map(|mut values| median(&mut values));
    let parts_us = read_us + rows_us + drawn_us + parse_us + tree_us;
    let result = serde_json::json!({
        "steps": num_steps,
        "entries": entries.len(),
        "entry_bytes": entries.iter().map(Vec::len).sum::<usize>(),
        "rounds": rounds,
        "cpu_us": {
            "read": read_us, "hash_rows": rows_us, "hash_drawn_and_fed": drawn_us, "parse": parse_us,
            "tree": tree_us, "audit": audit_us, "canonical": canonical_us, "audit_since": since_us,
        },
        "ratio": audit_us / parts_us,
        "ratio_rows_alone": audit_us / (parts_us - drawn_us),
        "ratio_since": since_us / audit_us,
        "wall_us": { "threads_1": wall_1_us, "threads_2": wall_2_us, "threads_4": wall_4_us },
    });
    writeln!(std::io::stdout(), "{result}")?;
    Ok(())
}

/// What is hashed as a part is what the entries state the digests of.
fn require_stated(ledger: &SyntheticLedger) -> Result<(), Box<dyn Error>> {
    let mut hashed = ledger.drawn_and_fed().iter();
    for bytes in ledger.entries() {
        if let Body::Step(halves) = Entry::from_slice(bytes)?.body {
            let [ids, inputs] = hashed.next().ok_or("a step too many")?;
            let stated = halves.det.draws.first().ok_or("a step that drew nothing")?;
            let is_so = |digest: &schemas::digest::Digest, bytes: &[u8]| {
                digest.bytes == *blake3::hash(bytes).as_bytes()
            };
            if !is_so(&stated.ids, ids) || !is_so(&stated.inputs, inputs) {
                return Err("a step states other digests than those that are timed".into());
            }
        }
    }
    match hashed.next() {
        Some(_) => Err("fewer steps than there are updates".into()),
        None => Ok(()),
    }
}

/// Prints the peak of resident memory (`VmHWM` of proc(5)) of an audit that
/// accepts.
fn memory(ledger: &str) -> Result<(), Box<dyn Error>> {
    let request = AuditRequest { ledger: ledger.into(), ..AuditRequest::default() };
    require_accepted(&audit(&request, &mut |_| {})?)?;
    let status = std::fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.strip_suffix("kB"));
    let peak_kib: u64 = peak.ok_or("no peak in /proc/self/status")?.trim().parse()?;
    writeln!(std::io::stdout(), "{}", serde_json::json!({ "peak_kib": peak_kib }))?;
    Ok(())
}

/// An honest run is accepted, or what was measured was no audit of one.
fn require_accepted(report: &Report) -> Result<(), Box<dyn Error>> {
    match report.verdict {
        Verdict::Accepted => Ok(()),
        other => {
            let errors = report.findings.iter().filter(|finding| finding.effect != Effect::None);
            let errors: Vec<_> = errors.take(3).collect();
            Err(format!("the synthetic run is {}: {errors:#?}", other.name()).into())
        }
    }
}

fn read(ledger: &SyntheticLedger) -> Result<(), Box<dyn Error>> {
    let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY;
    let connection = rusqlite::Connection::open_with_flags(ledger.path(), flags)?;
    let mut statement = connection.prepare("SELECT seq, idem, entry, leaf FROM entries ORDER BY seq")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        for column in 0..4 {
            black_box(row.get_ref(column)?);
        }
    }
    Ok(())
}
