//! Norms that a forger puts on record so that an audit has nothing to say of them.
//!
//! A trainer that lies has the same validator as everybody else, and the norms of
//! a step are its own words: whatever `GL416` derives from forged files can be
//! written where the lie left another number. What cannot be written is left: the
//! norm of a step that was saved is that of its saved parameters. It knows nothing
//! of how norms are derived, and reads what was expected from the findings.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail, ensure};
use schemas::finding::Finding;
use schemas::report::Report;
use serde_json::Value;

/// Most times that the forger asks an audit.
const MAX_AUDITS: usize = 6;

/// Changes entries until an audit has nothing more to say about norms that could
/// be written otherwise. `audit` puts entries together again and looks at them;
/// what it gave at last is returned, with how many numbers were written.
///
/// # Errors
/// When the audit fails, or derives other norms each time.
pub fn fit<T>(
    mut entries: Vec<Value>,
    mut audit: impl FnMut(&[Value]) -> Result<(T, Report)>,
) -> Result<(T, Report, usize)> {
    let mut num_written = 0;
    for _ in 0..MAX_AUDITS {
        let (made, report) = audit(&entries)?;
        let num_now = agree(&mut entries, &report.findings)?;
        if num_now == 0 {
            return Ok((made, report, num_written));
        }
        num_written += num_now;
    }
    bail!("the audit derives other norms each time")
}

/// Says in the place of each finding about norms what was expected there, and
/// returns how many numbers were written. Entries lie at their index.
fn agree(entries: &mut [Value], findings: &[Finding]) -> Result<usize> {
    let committed = entries.iter().filter(|entry| entry["kind"] == "checkpoint.durably_committed");
    let saved: BTreeSet<u64> = committed.filter_map(|entry| entry["step"].as_u64()).collect();
    let mut num_written = 0;
    for finding in findings.iter().filter(|finding| finding.code == "GL416") {
        num_written += usize::from(correct(entries, finding, &saved)?);
    }
    Ok(num_written)
}

/// Whether what a finding is about could be written otherwise.
fn correct(entries: &mut [Value], finding: &Finding, saved: &BTreeSet<u64>) -> Result<bool> {
    let index = usize::try_from(finding.entry.context("an entry")?)?;
    let expected = finding.expected.split(',').next().context("what was expected")?;
    let norm: f64 = expected.parse().with_context(|| format!("{expected:?} is no norm"))?;
    ensure!(norm.is_finite(), "no entry can say {norm}");
    if finding.location.ends_with("_norm") {
        set(entries, index, &finding.location, norm)?;
        return Ok(true);
    }
    // The norm before the update is on record with the update before.
    let step = entries.get(index).and_then(|entry| entry["step"].as_u64()).context("a step")?;
    ensure!(step > 1, "the initial weights are what they are");
    if saved.contains(&(step - 1)) {
        return Ok(false);
    }
    let is_before = |entry: &Value| entry["kind"] == "step" && entry["step"] == step - 1;
    let before = entries[..index].iter().rposition(is_before).context("the update before")?;
    set(entries, before, &format!("{}/parameter_norm", finding.location), norm)?;
    // Far enough that the update could have led there.
    let update = format!("{}/update_norm", finding.location);
    let moved = entries[before].pointer(&update).and_then(Value::as_f64).unwrap_or_default();
    if moved < norm {
        set(entries, before, &update, norm)?;
    }
    Ok(true)
}

fn set(entries: &mut [Value], index: usize, pointer: &str, norm: f64) -> Result<()> {
    let found = entries.get_mut(index).and_then(|entry| entry.pointer_mut(pointer));
    *found.with_context(|| format!("entry {index} has no {pointer}"))? = norm.into();
    Ok(())
}
