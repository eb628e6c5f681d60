//! `ledger bundle`: a run as one file, and audits and imports of such a file.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use indicatif::{HumanBytes, ProgressBar, ProgressDrawTarget, ProgressStyle};
use ledger::bundle::{BundleProgress, BundleRequest, BundleSummary, bundle};
use schemas::report::Report;
use serde_json::json;
use validator::bundle::{BundleAudit, Unpacked, unpack};

use crate::failure::{Failure, OrFail};
use crate::key_folder;
use crate::output::{count, print, print_json, say, say_done};
use crate::scratch::Scratch;

/// `ledger bundle LEDGER OUTPUT`.
#[derive(Debug, Args)]
pub(crate) struct BundleArguments {
    /// The run's ledger: `run.db`.
    pub(crate) ledger: PathBuf,
    /// The bundle to make, such as `run.tar.zst`.
    pub(crate) output: PathBuf,
    /// Leave out the shards of data and the files of checkpoints: what remains is not enough to accept.
    #[arg(long)]
    pub(crate) without_shards: bool,
    /// Leave out the shards of data; the manifest keeps their digests.
    #[arg(long)]
    pub(crate) without_data: bool,
    /// Leave out the files of checkpoints but their manifests, and the weights of a warm start.
    #[arg(long)]
    pub(crate) without_checkpoints: bool,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(arguments: &BundleArguments) -> Result<u8, Failure> {
    let started = Instant::now();
    let (ledger, output) = (&arguments.ledger, &arguments.output);
    let scratch = Scratch::new_in(key_folder::folder_of(output), ".ledger-bundle-")?;
    let request = BundleRequest {
        ledger: ledger.clone(),
        output: output.clone(),
        scratch: scratch.path().to_owned(),
        without_checkpoints: arguments.without_checkpoints || arguments.without_shards,
        without_data: arguments.without_data || arguments.without_shards,
    };
    let bar = bar("{msg:>8} {bar:30} {bytes}/{total_bytes}");
    let made = bundle(&request, &mut |BundleProgress { phase, done, total }| {
        bar.set_message(phase);
        bar.set_length(total);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    let made = made.or_hint("name a run's ledger that can be read")?;
    show(&made, arguments)?;
    say_done(format!("Bundled {} into {}", ledger.display(), output.display()), started);
    let num_left_out = made.manifest.left_out.len();
    if num_left_out > 0 {
        say(format!(
            "{num_left_out} files were left out, so that an audit of the bundle accepts nothing; a bundle without \
             --without-... has them"
        ));
    }
    say(format!("next: ledger audit {}", output.display()));
    Ok(0)
}

fn show(made: &BundleSummary, arguments: &BundleArguments) -> Result<(), Failure> {
    let manifest = &made.manifest;
    if arguments.json {
        return print_json(
            "bundle",
            json!({
                "bundle": arguments.output, "left_out": manifest.left_out, "ledger": manifest.ledger,
                "num_bytes": made.num_bytes, "num_members": manifest.members.len(),
                "num_unpacked_bytes": made.num_unpacked_bytes, "run": manifest.run, "head": manifest.head
            }),
        );
    }
    let run = manifest.run.as_ref().map_or("unknown", |run| run.as_str());
    print(format!("run      {run}"))?;
    if let Some(head) = &manifest.head {
        print(format!("head     {} entries, root {}", count(head.size), head.root))?;
    }
    print(format!(
        "files    {}, {} of them in {}",
        count(manifest.members.len() as u64),
        HumanBytes(made.num_unpacked_bytes),
        HumanBytes(made.num_bytes)
    ))?;
    print(format!("left out {}", count(manifest.left_out.len() as u64)))
}

fn bar(template: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

/// How the name of a bundle ends.
const SUFFIX: &str = ".tar.zst";

/// What is read of a file to say what it is: a first header of a tar archive.
const NUM_FIRST_BYTES: u64 = 512;

/// Whether a path is a bundle, by its first bytes and under any name; one that
/// cannot be read is left to who reads it. What only has the name of a bundle is
/// refused: an audit of it as a ledger would call it tampered with.
pub(super) fn is_bundle(path: &Path) -> Result<bool, Failure> {
    if validator::bundle::is_bundle(path).unwrap_or(false) {
        return Ok(true);
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    if !name.ends_with(SUFFIX) || !path.is_file() {
        return Ok(false);
    }
    let mut first = Vec::new();
    let file = File::open(path).or_fail(path.display(), "make it readable")?;
    file.take(NUM_FIRST_BYTES).read_to_end(&mut first).or_fail(path.display(), "make it readable")?;
    if first.starts_with(b"SQLite format 3\0") {
        return Ok(false);
    }
    Err(Failure::new(
        format!(
            "{} is no bundle: {}, and a bundle is a tar archive in one Zstandard frame, which begins with 28 b5 2f fd",
            path.display(),
            what_begins(&first)
        ),
        "fetch it again, or make it of the run with `ledger bundle run.db run.tar.zst`; a ledger has another name",
    ))
}

/// What a file is that has the name of a bundle, by its first bytes.
fn what_begins(first: &[u8]) -> String {
    match first {
        [] => "it is empty".to_owned(),
        [0x1f, 0x8b, ..] => "it is compressed with gzip".to_owned(),
        _ if first.get(257..262) == Some(b"ustar".as_slice()) => {
            "it is a tar archive that is not compressed".to_owned()
        }
        _ => {
            let digits: Vec<String> = first.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
            format!("it begins with {}", digits.join(" "))
        }
    }
}

/// The failure of a command that reads a ledger and was given a bundle of one.
pub(super) fn refuse_bundle(path: &Path) -> Result<(), Failure> {
    if !validator::bundle::is_bundle(path).unwrap_or(false) {
        return Ok(());
    }
    let path = path.display();
    Err(Failure::new(
        format!("{path} is a bundle (or another file in a Zstandard frame), and this command reads a ledger"),
        format!(
            "make its ledger with `ledger import {path} -o FILE`, or judge the bundle with `ledger audit {path}`"
        ),
    ))
}

/// Unpacks a bundle, with a progress bar on stderr.
pub(super) fn unpacked(path: &Path, scratch: &Scratch) -> Result<Unpacked, Failure> {
    let bar = bar("{msg:>9} {bar:30} {bytes}/{total_bytes}");
    let unpacked = unpack(path, scratch.path(), &mut |progress| {
        bar.set_message(progress.phase);
        bar.set_length(progress.total);
        bar.set_position(progress.done);
    });
    bar.finish_and_clear();
    unpacked.or_hint("name a file that `ledger bundle` made, and room in TMPDIR")
}

/// Audits a bundle, with progress bars on stderr. Nothing of it is left.
pub(super) fn audit(path: &Path, request: &BundleAudit) -> Result<Report, Failure> {
    let scratch = Scratch::new()?;
    let unpacked = unpacked(path, &scratch)?;
    let bar = bar("{msg:>8} {bar:30} {pos}/{len}");
    let report = unpacked.audit(request, &mut |progress| {
        bar.set_message(progress.phase);
        bar.set_length(progress.total);
        bar.set_position(progress.done);
    });
    bar.finish_and_clear();
    let left_out = &unpacked.manifest().left_out;
    if !left_out.is_empty() {
        say(format!("{} files were left out of the bundle:", left_out.len()));
        for file in left_out {
            say(format!("  {} ({} bytes, {}): {}", file.name, file.num_bytes, file.digest, file.reason));
        }
    }
    report.or_hint("name a bundle of a run, and files that can be read")
}
