//! Brings a checkpoint that was committed in the working folder into the store.
//!
//! The order is what makes it whole or absent: `writer.json` where none is, so
//! that this process alone writes below the checkpoint's key; every shard,
//! hashed while it is read; the manifest last, where none is. Whoever finds no
//! manifest finds no checkpoint.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use schemas::digest::Digest;
use schemas::state::Shard;

use crate::checkpoint::writer::Committed;
use crate::checkpoint::{CheckpointError, MANIFEST_NAME};
use crate::run::progress::Console;

use super::leftovers::Writer;
use super::session::{PARALLEL_PARTS, PART_BYTES, Session};
use super::{Remote, StoreError, Stored, WRITER_NAME};

/// Longest time that is spent on giving up an upload that failed; the next
/// attempt finds what is left of it.
const ABORT_LIMIT: Duration = Duration::from_secs(5);

/// Uploads a checkpoint, and returns when the store has acknowledged its
/// manifest.
///
/// # Errors
/// [`CheckpointError::Store`], and what differs where a file is not what the
/// manifest says. There is then no manifest of this process in the store, or
/// nobody knows: the store did not answer.
pub fn upload(
    remote: &Remote,
    console: &Console,
    stored: Stored<'_>,
    committed: &Committed,
) -> Result<(), CheckpointError> {
    let session = remote.session(console);
    remote.wait(run(&session, stored, committed))
}

async fn run(
    session: &Session<'_>,
    stored: Stored<'_>,
    committed: &Committed,
) -> Result<(), CheckpointError> {
    let location = &session.remote.location;
    let key = |name: &str| location.file(stored, name);
    session.begin("Uploading", committed.num_bytes);

    // This process, and no other.
    session.put_new(&key(WRITER_NAME), writer(stored)?).await?;
    let manifest = key(MANIFEST_NAME);
    if session.size(&manifest).await?.is_some() {
        return Err(StoreError::Taken { url: location.url(&manifest) }.into());
    }

    // Shards. A file that two classes list goes once.
    let mut done = BTreeSet::new();
    let shards = committed.manifest.classes.iter().flat_map(|captured| &captured.shards);
    for shard in shards.filter(|shard| done.insert(shard.path.as_str())) {
        let file = committed.folder.join(&shard.path);
        upload_shard(session, &key(&shard.path), &file, shard).await?;
    }

    // The manifest.
    let path = committed.folder.join(MANIFEST_NAME);
    let bytes = std::fs::read(&path).map_err(CheckpointError::io("read", &path))?;
    let actual = Digest::blake3(*blake3::hash(&bytes).as_bytes());
    if actual != committed.manifest_digest {
        return Err(CheckpointError::Digest { path, expected: committed.manifest_digest, actual });
    }
    Ok(session.put_new(&manifest, Bytes::from(bytes)).await?)
}

/// Who writes: bytes that no other process would write.
fn writer(stored: Stored<'_>) -> Result<Bytes, CheckpointError> {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let writer = Writer {
        checkpoint: stored.checkpoint.clone(),
        host: ledger::keys::host_identity(),
        process: std::process::id(),
        run: stored.run.clone(),
        time_ns: time.as_nanos().to_string(),
    };
    Ok(Bytes::from(ledger::canonical::entry_json(&writer)?))
}

/// Reads a file part by part, and hashes what it reads.
struct Parts {
    file: File,
    hasher: blake3::Hasher,
    left: u64,
    path: PathBuf,
}

impl Parts {
    fn open(path: &Path, num_bytes: u64) -> Result<Self, CheckpointError> {
        let file = File::open(path).map_err(CheckpointError::io("read", path))?;
        Ok(Self { file, hasher: blake3::Hasher::new(), left: num_bytes, path: path.to_owned() })
    }

    /// The next part: as long as all others but the last.
    fn next(&mut self) -> Result<Bytes, CheckpointError> {
        let wanted = self.left.min(PART_BYTES);
        let mut bytes = Vec::with_capacity(usize::try_from(wanted).unwrap_or(0));
        let read = (&mut self.file).take(wanted).read_to_end(&mut bytes);
        read.map_err(CheckpointError::io("read", &self.path))?;
        self.left -= wanted;
        self.hasher.update(&bytes);
        Ok(Bytes::from(bytes))
    }

    /// Compares what was read with what the manifest says.
    fn check(&self, shard: &Shard) -> Result<(), CheckpointError> {
        let actual = Digest::blake3(*self.hasher.finalize().as_bytes());
        if actual == shard.digest {
            return Ok(());
        }
        Err(CheckpointError::Digest { path: self.path.clone(), expected: shard.digest, actual })
    }
}

async fn upload_shard(
    session: &Session<'_>,
    key: &str,
    path: &Path,
    shard: &Shard,
) -> Result<(), CheckpointError> {
    let mut parts = Parts::open(path, shard.num_bytes)?;
    if shard.num_bytes <= PART_BYTES {
        let bytes = parts.next()?;
        parts.check(shard)?;
        session.put(key, bytes).await?;
        session.moved(shard.num_bytes);
        return Ok(());
    }
    let id = session.begin_parts(key).await?;
    let num_parts = usize::try_from(shard.num_bytes.div_ceil(PART_BYTES)).unwrap_or(usize::MAX);
    let sent = send_parts(session, key, &id, &mut parts, num_parts).await;
    let result = match sent {
        Ok(sent) => match parts.check(shard) {
            Ok(()) => session.finish_parts(key, &id, sent, shard.num_bytes).await.map_err(Into::into),
            Err(error) => Err(error),
        },
        Err(error) => Err(error),
    };
    if result.is_err() {
        let abort = session.abort_parts(key, &id);
        // Where it does not come through, the next attempt lists and aborts it.
        let _ = tokio::time::timeout(ABORT_LIMIT, abort).await;
    }
    result
}

async fn send_parts(
    session: &Session<'_>,
    key: &str,
    id: &String,
    parts: &mut Parts,
    num_parts: usize,
) -> Result<Vec<object_store::multipart::PartId>, CheckpointError> {
    // Parts are read, and hashed, in their order, a few ahead of what is sent.
    let sending = stream::iter(0..num_parts).map(|index| {
        let read = parts.next();
        async move { Ok(session.put_part(key, id, index, read?).await?) }
    });
    sending.buffered(PARALLEL_PARTS).try_collect().await
}
