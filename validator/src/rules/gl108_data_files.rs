//! GL108 `data-files`.

use std::io::Read;

use schemas::digest::Digest;
use schemas::entry::Entry;
use schemas::report::Route;

use crate::evidence::{Evidence, FileError, MAX_DOCUMENT_BYTES, describe};
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Rule, RuleInfo, Sink, unavailable};

/// Text of the rule.
pub(crate) static INFO: RuleInfo = RuleInfo {
    code: "GL108",
    name: "data-files",
    what: "Every train and val shard, the barrier report and the sealed qualification set have the digest and size that were frozen. Files are looked for where the contract says, relative to the ledger's folder.",
    why: "Example ids are digests of text; only the text itself shows what the model was trained on, and that it has not changed since.",
    remedy: "put the data build back beside the ledger, unchanged since the freeze",
    reference: "docs/FORMAT.md, \"Examples\"; schemas::data::DataManifest",
    gate: Route::RejectFrozenInputs,
};

pub(crate) struct DataFiles;

impl Rule for DataFiles {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn open<'a>(&self, frozen: &'a Frozen) -> Box<dyn Check + 'a> {
        if let Err(reason) = &frozen.data {
            return unavailable(reason.as_str());
        }
        Box::new(State { frozen })
    }
}

struct State<'a> {
    frozen: &'a Frozen,
}

/// One file with what was frozen of it.
struct Expected {
    path: String,
    digest: Digest,
    num_bytes: Option<u64>,
}

impl State<'_> {
    fn files(&self) -> Vec<Expected> {
        let Ok(manifest) = &self.frozen.data else { return Vec::new() };
        let folder = match self.frozen.contract.data.manifest.path.rsplit_once('/') {
            Some((folder, _)) => format!("{folder}/"),
            None => String::new(),
        };
        let shards = manifest.shards.iter().map(|shard| Expected {
            path: format!("{folder}{}", shard.path),
            digest: shard.digest,
            num_bytes: Some(shard.num_bytes),
        });
        let barrier = manifest.barrier.iter().map(|barrier| Expected {
            path: format!("{folder}{}", barrier.path),
            digest: barrier.digest,
            num_bytes: None,
        });
        shards.chain(barrier).collect()
    }
}

impl Check for State<'_> {
    fn ignores_steps(&self) -> bool {
        true
    }

    fn entry(&mut self, _: &Entry, _: &mut Sink) {}

    fn finish(&mut self, evidence: &Evidence, sink: &mut Sink) -> Outcome {
        let mut num_checked = 0;
        let mut missing = Vec::new();
        for file in self.files() {
            num_checked += 1;
            if !check_file(&file, evidence, sink) {
                missing.push(file.path);
            }
        }
        let sealed = &self.frozen.contract.qualification.sealed;
        if let Some(digest) = sealed.digest {
            let file = Expected { path: sealed.path.clone(), digest, num_bytes: sealed.num_bytes };
            if check_file(&file, evidence, sink) {
                num_checked += 1;
            } else {
                sink.note(
                    At::place(&sealed.path),
                    "the sealed qualification set is not beside the ledger; the qualifier checks it",
                    digest,
                    "no file",
                );
            }
        }
        match missing.as_slice() {
            [] => Outcome::Checked(num_checked),
            [first, rest @ ..] => Outcome::NotEvaluated(format!(
                "data files are missing beside the ledger: {first}{}",
                if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) }
            )),
        }
    }
}

/// `false` when the file is missing.
fn check_file(file: &Expected, evidence: &Evidence, sink: &mut Sink) -> bool {
    match measure(&file.path, file.num_bytes, evidence) {
        Err(FileError::Missing { .. }) => return false,
        Err(error) => {
            sink.rejected(At::place(&file.path), "a data file cannot be read", file.digest, describe(&error));
        }
        Ok(actual) => {
            if !actual.is(file.digest, file.num_bytes) {
                sink.tampered(
                    At::place(&file.path),
                    "a data file has changed since the freeze",
                    match file.num_bytes {
                        Some(expected) => format!("{} with {expected} bytes", file.digest),
                        None => file.digest.to_string(),
                    },
                    actual,
                );
            }
        }
    }
    true
}

/// Size of a file, and its digest where the size could be right.
pub(crate) struct Measured {
    digest: Option<Digest>,
    num_bytes: u64,
}

impl Measured {
    /// Whether digest and size are the expected ones.
    pub(crate) fn is(&self, digest: Digest, num_bytes: Option<u64>) -> bool {
        self.digest == Some(digest) && num_bytes.is_none_or(|expected| expected == self.num_bytes)
    }
}

impl std::fmt::Display for Measured {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.digest {
            Some(digest) => write!(formatter, "{digest} with {} bytes", self.num_bytes),
            None => write!(formatter, "{} bytes", self.num_bytes),
        }
    }
}

/// BLAKE3 and size of a file, read in pieces. A file of another size than
/// `expected` is not read: a sparse one may claim terabytes. Without an
/// expected size it is a document.
pub(crate) fn measure(path: &str, expected: Option<u64>, evidence: &Evidence) -> Result<Measured, FileError> {
    let io = |source| FileError::Io { path: path.to_owned(), source };
    let file = evidence.open(path)?;
    let num_bytes = file.metadata().map_err(io)?.len();
    match expected {
        Some(expected) if expected != num_bytes => return Ok(Measured { digest: None, num_bytes }),
        None if num_bytes > MAX_DOCUMENT_BYTES => {
            let path = path.to_owned();
            return Err(FileError::TooLarge { path, actual: num_bytes, limit: MAX_DOCUMENT_BYTES });
        }
        _ => {}
    }
    // One byte more shows a file that grows while it is read.
    let mut file = file.take(num_bytes.saturating_add(1));
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; 128 << 10];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => {
                hasher.update(&buffer[..count]);
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(source) => return Err(io(source)),
        }
    }
    let digest = Digest::blake3(*hasher.finalize().as_bytes());
    Ok(Measured { digest: Some(digest), num_bytes: hasher.count() })
}
