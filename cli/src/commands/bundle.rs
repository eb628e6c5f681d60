//! `ledger bundle`: a run as one file, and audits and imports of such a file.

use std::path::Path;
use std::time::Instant;

use clap::Args;
use indicatif::{HumanBytes, ProgressBar, ProgressDrawTarget, ProgressStyle};
use ledger::bundle::{BundleProgress, BundleRequest, BundleSummary, bundle};
use schemas::report::Report;
use serde_json::json;
use std::path::PathBuf;
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

/// Whether a path is a bundle; one that cannot be read is left to who reads it.
pub(super) fn is_bundle(path: &Path) -> bool {
    validator::bundle::is_bundle(path).unwrap_or(false)
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
