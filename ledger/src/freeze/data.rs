//! The data lease: manifest, shards, tables, and the sealed set.

use std::path::PathBuf;

use schemas::DATA_MANIFEST_FORMAT;
use schemas::contract::{Architecture, Contract};
use schemas::data::{DataManifest, DataShard, Split};
use schemas::digest::{Algorithm, Digest};

use super::date;
use super::document;
use super::files::{Folder, Refusal, bind, compare, digest_file, read_prefix, read_small};
use super::problem::Problems;
use super::tables::{self, TableRead, TableSummary};
use super::{Inputs, MAX_STORED_TABLE_BYTES};
use crate::create::FrozenArtifact;

/// Longest context; a bound on the memory of a window. The corpus has the same.
const MAX_CONTEXT_LENGTH: u32 = 1 << 20;

/// First line of an age file (age-encryption.org/v1).
const AGE_HEADER: &[u8] = b"age-encryption.org/v1\n";

pub(super) fn check(
    contract: &mut Contract,
    folder: &Folder,
    today: &str,
    inputs: &mut Inputs,
    problems: &mut Problems,
) {
    let data = &contract.data;
    problems.require_text(&data.terms, "/data/terms");
    date::check(data.expires.as_deref(), "/data/expires", today, problems);
    let classes = &data.admitted_license_classes;
    problems.require(
        !classes.is_empty(),
        "/data/admitted_license_classes",
        "is empty, so that no shard is admitted",
        "name the license classes that may be trained on: \"green\", \"yellow\", \"red\"",
    );
    let mut sorted = classes.clone();
    sorted.sort_unstable();
    sorted.dedup();
    problems.require(
        sorted.len() == classes.len(),
        "/data/admitted_license_classes",
        "names a class twice",
        "name each class once",
    );
    if let Some((manifest, collector)) = manifest(contract, folder, inputs, problems) {
        shards_and_tables(contract, &manifest, folder, inputs, problems, collector);
    }
    sealed(contract, folder, problems);
}

/// Reads the manifest. Problems in it are collected by a collector of its own,
/// which knows its places.
fn manifest(
    contract: &mut Contract,
    folder: &Folder,
    inputs: &mut Inputs,
    problems: &mut Problems,
) -> Option<(DataManifest, Problems)> {
    let (value, mut collector) =
        super::named_document(&mut contract.data.manifest, "/data/manifest", folder, inputs, problems)?;
    let Some(manifest) = document::typed::<DataManifest>(value, "data-manifest", &mut collector) else {
        problems.extend(collector);
        return None;
    };
    super::require_tag(&manifest.format, DATA_MANIFEST_FORMAT, &mut collector);
    collector.require_text(&manifest.name, "/name");
    collector.require(
        manifest.tokenizer == "bytes",
        "/tokenizer",
        format!("is {:?}; expected \"bytes\"", manifest.tokenizer),
        "this edition knows one tokenizer, one id a byte",
    );
    for (index, shard) in manifest.shards.iter().enumerate() {
        check_shard(contract, &manifest, index, shard, &mut collector);
    }
    for split in [Split::Train, Split::Val] {
        collector.require(
            manifest.shards.iter().any(|shard| shard.split == split),
            "/shards",
            format!("has no shard of the {} split", split.name()),
            "a run needs text to train on and other text to select by",
        );
    }
    Some((manifest, collector))
}

fn check_shard(
    contract: &Contract,
    manifest: &DataManifest,
    index: usize,
    shard: &DataShard,
    collector: &mut Problems,
) {
    let pointer = format!("/shards/{index}");
    collector.require_text(&shard.source, format!("{pointer}/source"));
    collector.require(
        shard.split != Split::Qualification,
        format!("{pointer}/split"),
        "is \"qualification\"; expected \"train\" or \"val\"",
        "the qualification set is sealed and named by the contract alone; take its text out of the data folder",
    );
    collector.require(
        contract.data.admitted_license_classes.contains(&shard.license_class),
        format!("{pointer}/license_class"),
        format!(
            "{:?} is not admitted by /data/admitted_license_classes of the contract",
            shard.license_class
        ),
        "leave the shard out of the build, or admit its class",
    );
    collector.require(
        shard.digest != contract.qualification.plaintext,
        format!("{pointer}/digest"),
        "is the digest of the sealed qualification set, which would be seen in training",
        "seal another text, or leave this shard out",
    );
    for (other_index, other) in manifest.shards[..index].iter().enumerate() {
        collector.require(
            other.path != shard.path,
            format!("{pointer}/path"),
            format!("{} is named by /shards/{other_index} too", shard.path),
            "name each file once",
        );
        collector.require(
            other.split == shard.split || other.digest != shard.digest,
            format!("{pointer}/digest"),
            format!("the same bytes are in /shards/{other_index} for the {} split", other.split.name()),
            "text that is trained on cannot select; give the splits different text",
        );
    }
}

fn shards_and_tables(
    contract: &mut Contract,
    manifest: &DataManifest,
    folder: &Folder,
    inputs: &mut Inputs,
    problems: &mut Problems,
    mut collector: Problems,
) {
    let manifest_folder = folder.below(&contract.data.manifest.path);
    let mut paths = Vec::new();
    for (index, shard) in manifest.shards.iter().enumerate() {
        let path = manifest_folder.resolve(&shard.path);
        paths.push(keep(path, format!("/shards/{index}/path"), &mut collector));
    }
    if let Some(barrier) = &manifest.barrier {
        let content = manifest_folder.resolve(&barrier.path).and_then(|path| digest_file(&path));
        if let Some(content) = keep(content, "/barrier/path".to_owned(), &mut collector) {
            compare((Some(barrier.digest), None), &barrier.path, "/barrier", content, &mut collector);
        }
    }
    let mut seen = vec![false; manifest.shards.len()];
    for split in [Split::Train, Split::Val] {
        if let Some(read) = table(contract, manifest, &paths, split, folder, inputs, problems) {
            for shard in read.shards {
                let declared = &manifest.shards[shard.index];
                let named = (Some(declared.digest), Some(declared.num_bytes));
                compare(
                    named,
                    &declared.path,
                    &format!("/shards/{}", shard.index),
                    shard.content,
                    &mut collector,
                );
                seen[shard.index] = true;
            }
        }
    }
    // A shard whose table could not be read is digested all the same.
    for (index, path) in paths.iter().enumerate().filter(|(index, _)| !seen[*index]) {
        let Some(path) = path else { continue };
        let declared = &manifest.shards[index];
        let pointer = format!("/shards/{index}");
        if let Some(content) = keep(digest_file(path), format!("{pointer}/path"), &mut collector) {
            let named = (Some(declared.digest), Some(declared.num_bytes));
            compare(named, &declared.path, &pointer, content, &mut collector);
        }
    }
    problems.extend(collector);
}

/// Reads the table of a split and binds it.
fn table(
    contract: &mut Contract,
    manifest: &DataManifest,
    shard_paths: &[Option<PathBuf>],
    split: Split,
    folder: &Folder,
    inputs: &mut Inputs,
    problems: &mut Problems,
) -> Option<TableRead> {
    let Architecture::LlamaDecoder(decoder) = &contract.architecture;
    let context_length = decoder.context_length;
    if !(1..=MAX_CONTEXT_LENGTH).contains(&context_length) {
        problems.add(
            "/architecture/context_length",
            format!("is {context_length}; expected 1 to {MAX_CONTEXT_LENGTH}"),
            "a window of the text must fit into memory",
        );
        return None;
    }
    let (binding, pointer) = match split {
        Split::Train => (&mut contract.data.train_examples, "/data/train_examples"),
        _ => (&mut contract.data.val_examples, "/data/val_examples"),
    };
    let read = match tables::read(manifest, shard_paths, split, context_length, (folder, &binding.path)) {
        Ok(read) => read,
        Err((shard, refusal)) => {
            let pointer =
                if shard.is_some() { "/data/manifest".to_owned() } else { format!("{pointer}/path") };
            problems.add(pointer, refusal.message, refusal.hint);
            return None;
        }
    };
    if let Some(difference) = &read.difference {
        problems.add(
            pointer,
            format!("{} is not the table of the {} split: {difference}", binding.path, split.name()),
            "build the table again for this context length and these shards",
        );
    }
    bind(binding, pointer, read.content, problems);
    let TableSummary { num_examples, .. } = read.summary;
    problems.require(
        num_examples > 0,
        pointer,
        format!("the {} split gives no example; each needs two bytes of text", split.name()),
        "give the split more text",
    );
    let path = binding.path.clone();
    store(&path, pointer, &read, folder, inputs, problems);
    match split {
        Split::Train => inputs.train = Some(read.summary),
        _ => inputs.val = Some(read.summary),
    }
    Some(read)
}

/// Keeps a table's bytes for the ledger, so that an audit can recompute data
/// order without the data folder. A larger one is referenced by digest only:
/// a database is no place for it, and it can be derived from the shards.
fn store(
    path: &str,
    pointer: &str,
    read: &TableRead,
    folder: &Folder,
    inputs: &mut Inputs,
    problems: &mut Problems,
) {
    if read.content.num_bytes > MAX_STORED_TABLE_BYTES {
        return;
    }
    let stored = folder.resolve(path).and_then(|path| read_small(&path, MAX_STORED_TABLE_BYTES));
    let Some((bytes, content)) = keep(stored, format!("{pointer}/path"), problems) else { return };
    problems.require(
        content == read.content,
        pointer,
        format!("{path} changed while it was read"),
        "let nothing write to the folder during a freeze",
    );
    inputs.artifacts.push(FrozenArtifact { pointer: pointer.to_owned(), bytes });
}

/// The sealed set: a file of age, whose plaintext is not in the folder.
fn sealed(contract: &mut Contract, folder: &Folder, problems: &mut Problems) {
    let qualification = &mut contract.qualification;
    problems.require(
        qualification.plaintext.algorithm == Algorithm::Blake3,
        "/qualification/plaintext",
        format!("is {}; expected a BLAKE3 digest", qualification.plaintext),
        "take the digest that `ledger seal` prints",
    );
    let pointer = "/qualification/sealed";
    let read = folder.resolve(&qualification.sealed.path).and_then(|path| {
        let is_age = read_prefix(&path, AGE_HEADER.len())? == AGE_HEADER;
        Ok((digest_file(&path)?, is_age, path))
    });
    let Some((content, is_age, path)) = keep(read, format!("{pointer}/path"), problems) else { return };
    bind(&mut qualification.sealed, pointer, content, problems);
    problems.require(
        is_age,
        pointer,
        format!("{} is not a file of age", path.display()),
        "seal the text to the qualifier's key with `ledger seal`",
    );
    let plaintext = qualification.plaintext;
    problems.require(
        content.digest != plaintext,
        pointer,
        "has the digest of its own plaintext: it is not sealed",
        "seal the text to the qualifier's key with `ledger seal`",
    );
    if let Some(open) = find_plaintext(folder, plaintext, content.num_bytes) {
        problems.add(
            "/qualification/plaintext",
            format!("{} is the plaintext of the sealed set, within the trainer's reach", open.display()),
            "move it out of the contract's folder",
        );
    }
}

/// Looks below the contract's folder for the sealed set's plaintext. age adds
/// a header and 16 bytes to every 64 KiB, so only files of a fitting size are
/// read; links are not followed.
fn find_plaintext(folder: &Folder, plaintext: Digest, num_sealed_bytes: u64) -> Option<PathBuf> {
    const MAX_HEADER_BYTES: u64 = 4096;
    const MAX_VISITED: usize = 100_000;
    let smallest = num_sealed_bytes.saturating_sub(num_sealed_bytes / 4096 + MAX_HEADER_BYTES);
    let mut folders = vec![folder.path.clone()];
    let mut num_visited = 0;
    while let Some(next) = folders.pop() {
        // A folder that cannot be listed cannot be searched; the trainer
        // could not read it either.
        let Ok(listing) = std::fs::read_dir(&next) else { continue };
        for item in listing.flatten() {
            num_visited += 1;
            if num_visited > MAX_VISITED {
                return None;
            }
            let Ok(metadata) = item.metadata() else { continue };
            if metadata.is_dir() {
                folders.push(item.path());
            } else if metadata.is_file()
                && (smallest..num_sealed_bytes).contains(&metadata.len())
                && digest_file(&item.path()).is_ok_and(|content| content.digest == plaintext)
            {
                return Some(item.path());
            }
        }
    }
    None
}

/// Adds a refusal at a pointer.
pub(super) fn keep<T>(result: Result<T, Refusal>, pointer: String, problems: &mut Problems) -> Option<T> {
    result.map_err(|refusal| problems.add(pointer, refusal.message, refusal.hint)).ok()
}
