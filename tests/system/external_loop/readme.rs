//! The README's commands for the burn loop, run as they are written there. What they
//! would build is built, and how long the loop trains before it is killed is up to its
//! checkpoints and not to the clock.

use std::collections::BTreeSet;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use system_tests::dump;
use system_tests::graph::{member, metadata};
use system_tests::programs::{LEDGER, example, finish, program};
use system_tests::workspace_root;
use tempfile::TempDir;

/// The section that has the commands, between two headings.
const SECTION: &str = "\n## Your own training loop\n";

/// Keeps what it was asked to build, a word a line.
const CARGO: &str = "#!/bin/sh
printf '%s\\n' \"$@\" >cargo.txt
";

/// In place of some seconds: until there is a checkpoint behind that of step 0. The
/// run has some hundred updates more.
const SLEEP: &str = "#!/bin/sh
checkpoints() { set -- my-burn/checkpoints/s*; echo $#; }
looks=0
while [ \"$(checkpoints)\" -lt 2 ]; do
    looks=$((looks + 1))
    [ \"$looks\" -lt 6000 ] || exit 1
    /bin/sleep 0.05
done
";

/// The README's block of commands for the burn loop.
fn block() -> Result<String> {
    let readme = std::fs::read_to_string(workspace_root().join("README.md"))?;
    let (_, section) = readme.split_once(SECTION).context("the README has no such section")?;
    let section = section.split("\n## ").next().unwrap_or_default();
    let blocks = section.split("\n```\n").skip(1).step_by(2);
    let of_burn: Vec<&str> = blocks.filter(|block| block.contains("burn_loop")).collect();
    ensure!(of_burn.len() == 1, "{} blocks of the section have the burn loop", of_burn.len());
    Ok(of_burn[0].to_owned())
}

/// The commands of a text, each in one line, without comments and indentation.
fn commands(text: &str) -> Vec<String> {
    let text = text.replace("\\\n", " ");
    let lines = text.lines().map(|line| line.split(" #").next().unwrap_or_default());
    let words = lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    words.filter(|line| !line.is_empty()).collect()
}

/// A program of this text, to be found before others of its name.
fn stand_in(folder: &Path, name: &str, text: &str) -> Result<()> {
    let path = folder.join(name);
    std::fs::write(&path, text)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
    Ok(())
}

/// Words that follow an option.
fn named<'a>(words: &[&'a str], option: &str) -> Vec<&'a str> {
    words.windows(2).filter(|pair| pair[0] == option).map(|pair| pair[1]).collect()
}

/// Programs that a cargo command builds, by its words.
fn built(words: &[&str]) -> Result<BTreeSet<String>> {
    let metadata = metadata()?;
    let examples = named(words, "--example");
    let mut programs = BTreeSet::new();
    for name in named(words, "-p") {
        let targets = &member(&metadata, name)?.targets;
        let built = targets.iter().filter(|target| {
            target.is_bin() && words.contains(&"--bins")
                || target.is_example() && examples.contains(&target.name.as_str())
        });
        programs.extend(built.map(|target| target.name.clone()));
    }
    Ok(programs)
}

#[test]
fn the_commands_of_the_burn_loop_work_as_they_are_written() -> Result<()> {
    let folder = TempDir::with_prefix("governed-ledger-readme-")?;
    let at = |name: &str| folder.path().join(name);
    // What the commands read of the checkout, and where they look for what was built.
    for name in ["examples", "loops"] {
        symlink(workspace_root().join(name), at(name))?;
    }
    std::fs::create_dir(at("target"))?;
    symlink(program(LEDGER).parent().context("a program lies in a folder")?, at("target/debug"))?;
    let _ = example("burn_loop");
    std::fs::create_dir(at("bin"))?;
    stand_in(&at("bin"), "cargo", CARGO)?;
    stand_in(&at("bin"), "sleep", SLEEP)?;

    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths([at("bin")].into_iter().chain(std::env::split_paths(&path)))?;
    let mut command = Command::new("bash");
    command.args(["-euo", "pipefail", "-c", &block()?]).current_dir(folder.path()).env("PATH", path);
    command.env("NO_COLOR", "1").env_remove("LEDGER_KEYS").stdin(Stdio::null());
    let finished = finish(command).expect_code(0);
    for said in ["attempt 2 resumes from s0", "finished at step ", "accepted (external-loop): "] {
        assert!(finished.stdout.contains(&format!("\n{said}")), "{said:?} was not said\n{finished}");
    }
    let entries = dump::entries(&at("my-burn/run.db"))?;
    let of_kind = |kind: &str| entries.iter().filter(|entry| entry["kind"] == kind).count();
    assert_eq!((of_kind("attempt.start"), of_kind("attempt.end"), of_kind("run.end")), (2, 1, 1));

    // Cargo would have built every program that they call.
    let words = std::fs::read_to_string(at("cargo.txt"))?;
    let words: Vec<&str> = words.lines().collect();
    assert_eq!(words.first(), Some(&"build"), "{words:?}");
    let built = built(&words)?;
    for name in ["burn_loop", "evaluator", "ledger"] {
        assert!(built.contains(name), "{name} is not among {built:?}");
    }
    Ok(())
}

/// The example's own help says the same, of a smaller run.
#[test]
fn the_help_of_the_burn_loop_has_the_readmes_commands() -> Result<()> {
    let mut command = Command::new(example("burn_loop"));
    command.arg("--help").stdin(Stdio::null());
    let help = finish(command).expect_code(0).stdout;
    let (_, listed) = help.split_once("A run of it, from the checkout:\n").context("the help lists none")?;
    let listed = listed.split("\n\n").next().unwrap_or_default();
    let listed = listed.replace("my-loop", "my-burn").replace("--preset tiny", "--preset demo");
    // It does without the evaluator, so that it builds less.
    let listed: Vec<String> =
        commands(&listed).into_iter().filter(|line| !line.starts_with("cargo ")).collect();
    assert!(listed.len() >= 5, "{listed:#?}");
    let readme = commands(&block()?);
    let mut rest = readme.iter();
    for line in &listed {
        assert!(rest.any(|other| other == line), "{line:?} is not in the README, in this order: {readme:#?}");
    }
    Ok(())
}
