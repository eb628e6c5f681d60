//! What `scripts/bench-recorders` times of this project's recorder: as much as a loop
//! says of a step.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use serde_json::Value;
use system_tests::dump;
use system_tests::programs::{LEDGER, finish, program};
use system_tests::workspace_root;
use tempfile::TempDir;

use super::pytorch::{package, python};

/// `WARMUP_STEPS` of the bench, which it does not time.
const NUM_WARMUP_STEPS: usize = 10;

#[test]
fn the_bench_of_recorders_times_whole_steps() -> Result<()> {
    let (package, folder) = (package()?, TempDir::new()?);
    let scripts = workspace_root().join("scripts");
    let mut command = python(package.path(), folder.path(), &[]);
    command.arg(scripts.join("bench_recorders.py"));
    command.arg("--plugin").arg(scripts.join("bench_governed_ledger.py"));
    command.args(["--child", "time", "--recorder", "governed_ledger", "--steps", "2", "--step-ms", "0"]);
    command.arg("--folder").arg(folder.path());
    // The plug-in calls `ledger` by its name alone.
    let programs = program(LEDGER).parent().context("a program lies in a folder")?.to_owned();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths([programs].into_iter().chain(std::env::split_paths(&path)))?;
    command.env("PATH", path);
    let _ = finish(command).expect_code(0);

    let entries = dump::entries(&folder.path().join("run/run.db"))?;
    let steps: Vec<&Value> = entries.iter().filter(|entry| entry["kind"] == "step").collect();
    assert_eq!(steps.len(), NUM_WARMUP_STEPS + 2);
    for step in steps {
        let updates = step["body"]["det"]["updates"].as_array().context("a list of updates")?;
        let mut norms = BTreeSet::new();
        for update in updates {
            for (name, value) in update.as_object().context("an update")? {
                assert!(!value.is_null(), "a loop says {name} of {update}");
            }
            norms.extend([update["parameter_norm"].to_string(), update["update_norm"].to_string()]);
        }
        assert_eq!(norms.len(), 2 * updates.len(), "each group has norms of its own: {updates:?}");
        assert_eq!(updates.len(), 3);
    }
    Ok(())
}
