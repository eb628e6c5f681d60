//! Data folders: boundaries, equality of digests, refusals.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use corpus::build::{
    Build, BuildError, BuildRequest, Content, ShardSource, build, build_from_text, build_liber_primus,
};
use corpus::examples::{self, ExampleTable, ExamplesError, ShardBytes};
use corpus::ngram::Trigram;
use proptest::prelude::*;
use schemas::data::{DataManifest, LicenseClass, Split};
use schemas::digest::Digest;

fn shard(split: Split, bytes: &[u8]) -> ShardSource {
    ShardSource {
        content: Content::Bytes(bytes.to_vec()),
        license_class: LicenseClass::Green,
        source: "test".to_owned(),
        split,
    }
}

fn request(folder: &Path, shards: Vec<ShardSource>, context_length: u32) -> BuildRequest {
    BuildRequest {
        context_length,
        folder: folder.to_owned(),
        name: "test".to_owned(),
        qualification: None,
        shards,
    }
}

fn blake3_of(path: &Path) -> Result<Digest> {
    Ok(Digest::blake3(*blake3::hash(&fs::read(path)?).as_bytes()))
}

/// Every byte but the first is a target exactly once, in order.
fn check_cover(build: &Build, folder: &Path, split: Split, context: u32, texts: &[&[u8]]) -> Result<()> {
    let table = examples::build(&build.manifest, folder, split, context)?;
    let shards = ShardBytes::load(&build.manifest, folder, split)?;
    let mut targets = Vec::new();
    for index in 0..table.num_examples() {
        let window = shards.window(&table, index)?;
        assert!(window.len() as u64 <= u64::from(context) + 1);
        targets.extend_from_slice(&window[1..]);
    }
    let expected: Vec<u8> = texts.iter().flat_map(|text| text.iter().skip(1).copied()).collect();
    assert_eq!(targets, expected);
    Ok(())
}

#[test]
fn one_byte_shards_and_exact_multiples_are_covered() -> Result<()> {
    let texts: [&[u8]; 6] = [b"", b"a", b"ab", b"abcd", b"abcde", b"abcdefghi"];
    let folder = tempfile::tempdir()?;
    let mut shards: Vec<_> = texts.iter().map(|text| shard(Split::Train, text)).collect();
    shards.push(shard(Split::Val, b"0123456789"));
    let build = build(&request(folder.path(), shards, 4))?;
    assert_eq!(build.num_train_examples, 5);
    assert_eq!(build.num_val_examples, 3);
    check_cover(&build, folder.path(), Split::Train, 4, &texts)?;
    let table = examples::read(&build.train_examples.path)?;
    let sizes: Vec<(u32, u64, u32)> =
        table.records.iter().map(|r| (r.shard, r.offset, r.num_targets)).collect();
    assert_eq!(sizes, [(2, 0, 1), (3, 0, 3), (4, 0, 4), (5, 0, 4), (5, 4, 4)]);
    Ok(())
}

#[test]
fn digests_are_those_of_the_files_and_building_again_changes_nothing() -> Result<()> {
    let root = tempfile::tempdir()?;
    let (folder, qualification) = (root.path().join("data"), root.path().join("sealed/qualification.txt"));
    let first = build_liber_primus(&folder, &qualification, 128)?;
    for shard in &first.manifest.shards {
        assert_eq!(blake3_of(&folder.join(&shard.path))?, shard.digest);
    }
    let sealed = first.qualification.clone().context("liber primus has a qualification part")?;
    for file in [&first.manifest_file, &first.train_examples, &first.val_examples, &sealed] {
        assert_eq!(blake3_of(&file.path)?, file.digest, "{}", file.path.display());
        assert_eq!(fs::metadata(&file.path)?.len(), file.num_bytes);
    }
    let manifest_bytes = fs::read(&first.manifest_file.path)?;
    let manifest: DataManifest = serde_json::from_slice(&manifest_bytes)?;
    assert_eq!(manifest, first.manifest);
    assert_eq!(
        serde_json::to_vec(&serde_json::from_slice::<serde_json::Value>(&manifest_bytes)?)?,
        manifest_bytes
    );
    assert!(manifest.shards.iter().all(|shard| shard.split != Split::Qualification));
    assert_eq!(build_liber_primus(&folder, &qualification, 128)?, first);
    let read = examples::read(&first.val_examples.path)?;
    assert_eq!(read, examples::build(&manifest, &folder, Split::Val, 128)?);
    assert_eq!(read.num_examples() as u64, first.num_val_examples);
    Ok(())
}

#[test]
fn what_cannot_be_built_leaves_no_folder() -> Result<()> {
    let root = tempfile::tempdir()?;
    let folder = root.path().join("data");
    let part = |name: &str, num_bytes: u64| ShardSource {
        content: Content::File { path: root.path().join(name), first: 0, num_bytes },
        ..shard(Split::Val, b"")
    };
    fs::write(root.path().join("short"), b"short")?;
    let refused = |shards: Vec<ShardSource>, qualification: Option<&str>| {
        let request = BuildRequest {
            qualification: qualification.map(|name| root.path().join(name)),
            ..request(&folder, shards, 4)
        };
        let error = request.check().expect_err("it is refused");
        assert_eq!(build(&request).expect_err("it is refused").to_string(), error.to_string());
        assert!(!folder.exists(), "{error}: nothing was begun");
        error
    };
    let train = || shard(Split::Train, b"train text");
    for (shards, split) in [
        (vec![train()], Split::Val),
        (vec![train(), shard(Split::Val, b"v"), shard(Split::Val, b"w")], Split::Val),
        (vec![shard(Split::Train, b""), shard(Split::Val, b"val")], Split::Train),
    ] {
        let error = refused(shards, None);
        assert!(matches!(error, BuildError::EmptySplit { split: found } if found == split), "{error}");
    }
    let error = refused(
        vec![train(), shard(Split::Val, b"val"), shard(Split::Qualification, b"q")],
        Some("qualification.txt"),
    );
    assert!(matches!(error, BuildError::EmptySplit { split: Split::Qualification }), "{error}");
    for missing in [part("none", 5), part("short", 6)] {
        let error = refused(vec![train(), missing], None);
        assert!(matches!(error, BuildError::Io { .. }), "{error}");
    }
    // The control: the file as it is.
    build(&request(&folder, vec![train(), part("short", 5)], 4))?;
    Ok(())
}

#[test]
fn a_file_that_holds_something_else_is_kept() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let shards = vec![shard(Split::Train, b"train text"), shard(Split::Val, b"val text")];
    build(&request(folder.path(), shards, 4))?;
    let other = vec![shard(Split::Train, b"other text"), shard(Split::Val, b"val text")];
    let error = build(&request(folder.path(), other, 4)).expect_err("the shard is occupied");
    assert!(matches!(error, BuildError::Write(corpus::WriteError::Occupied { .. })), "{error}");
    assert_eq!(fs::read(folder.path().join("shards/train-000.txt"))?, b"train text");
    assert_eq!(fs::read_dir(folder.path().join("shards"))?.count(), 2, "no partial file is left");
    Ok(())
}

#[test]
fn changed_or_cut_shards_are_named() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let shards = vec![shard(Split::Train, b"train text"), shard(Split::Val, b"val text")];
    let build = build(&request(folder.path(), shards, 4))?;
    let path = folder.path().join("shards/val-000.txt");
    fs::write(&path, b"vAl text")?;
    let error = examples::build(&build.manifest, folder.path(), Split::Val, 4).expect_err("a byte changed");
    assert!(matches!(error, ExamplesError::ShardDigest { .. }), "{error}");
    fs::write(&path, b"val tex")?;
    let error = ShardBytes::load(&build.manifest, folder.path(), Split::Val).expect_err("a byte is missing");
    assert!(matches!(error, ExamplesError::ShardSize { expected: 8, found: 7, .. }), "{error}");
    Ok(())
}

#[test]
fn windows_of_a_forged_table_are_refused() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let shards = vec![shard(Split::Train, b"train text"), shard(Split::Val, b"val text")];
    let build = build(&request(folder.path(), shards, 4))?;
    let bytes = ShardBytes::load(&build.manifest, folder.path(), Split::Val)?;
    let honest = examples::read(&build.val_examples.path)?;
    let forged = |change: &dyn Fn(&mut schemas::data::ExampleRecord)| {
        let mut table = honest.clone();
        change(&mut table.records[0]);
        bytes.window(&table, 0).map(<[u8]>::len).is_err()
    };
    assert!(!forged(&|_| {}));
    assert!(forged(&|record| record.shard = 0));
    assert!(forged(&|record| record.shard = 9));
    assert!(forged(&|record| record.offset = 5));
    assert!(forged(&|record| record.offset = u64::MAX));
    assert!(forged(&|record| record.num_targets = u32::MAX));
    assert!(forged(&|record| record.id[31] ^= 1));
    assert!(bytes.window(&honest, 2).is_err());
    Ok(())
}

#[test]
fn qualification_text_stays_out_of_the_folder() -> Result<()> {
    let root = tempfile::tempdir()?;
    let folder = root.path().join("data");
    let inside = folder.join("../data/qualification.txt");
    let error = build_liber_primus(&folder, &inside, 64).expect_err("it lies in the folder");
    assert!(matches!(error, BuildError::QualificationInFolder { .. }), "{error}");
    assert!(!inside.exists());
    Ok(())
}

#[test]
fn a_text_is_cut_at_line_breaks_and_nothing_is_lost() -> Result<()> {
    let root = tempfile::tempdir()?;
    let path = root.path().join("own.txt");
    let text: String = (0..400).map(|line| format!("line {line} of the text\n")).collect();
    fs::write(&path, &text)?;
    let (folder, sealed) = (root.path().join("data"), root.path().join("q.txt"));
    let build = build_from_text(&path, &folder, &sealed, "own", LicenseClass::Green, 32)?;
    let mut parts = Vec::new();
    for shard in &build.manifest.shards {
        parts.push(fs::read_to_string(folder.join(&shard.path))?);
    }
    parts.push(fs::read_to_string(&sealed)?);
    assert_eq!(parts.len(), 3);
    assert!(parts.iter().all(|part| part.ends_with('\n')));
    assert_eq!(parts.concat(), text);
    assert!(parts[0].len() >= text.len() * 90 / 100 && parts[0].len() < text.len() * 91 / 100);
    fs::write(&path, "one long line without an end")?;
    let error = build_from_text(&path, &root.path().join("d2"), &sealed, "own", LicenseClass::Green, 32);
    assert!(matches!(error, Err(BuildError::NoLineBreak { .. })));
    Ok(())
}

#[test]
fn the_baseline_on_liber_primus_is_frozen() -> Result<()> {
    let root = tempfile::tempdir()?;
    let build = build_liber_primus(&root.path().join("data"), &root.path().join("q.txt"), 64)?;
    let folder = root.path().join("data");
    let train = ShardBytes::load(&build.manifest, &folder, Split::Train)?;
    let val = ShardBytes::load(&build.manifest, &folder, Split::Val)?;
    let table = examples::build(&build.manifest, &folder, Split::Val, 64)?;
    let model = Trigram::fit(train.shard(0));
    let score = model.score(&table.records, |index| val.shard(index)).context("val has targets")?;
    assert_eq!(score.num_tokens, table.num_targets(usize::MAX));
    assert_eq!(score.num_tokens, val.shard(1).context("val is shard 1")?.len() as u64 - 1);
    let texts = train.shard(0).zip(val.shard(1)).context("train is shard 0, val is shard 1")?;
    assert!((score.total_nats - nats_by_maps(texts.0, texts.1)).abs() < 1e-9, "{}", score.total_nats);
    assert!((score.bits_per_byte - FROZEN_BITS_PER_BYTE).abs() < 1e-12, "{}", score.bits_per_byte);
    Ok(())
}

/// Agrees with `nats_by_maps` below; a change of it would move every quality
/// target that was frozen from this baseline.
const FROZEN_BITS_PER_BYTE: f64 = 2.822162290564615;

/// The same model counted in maps and evaluated by recursion.
fn nats_by_maps(train: &[u8], val: &[u8]) -> f64 {
    type Counts = std::collections::BTreeMap<Vec<u8>, std::collections::BTreeMap<u8, f64>>;
    fn probability(counts: &Counts, history: &[u8], byte: u8) -> f64 {
        let lower =
            history.split_first().map_or(1.0 / 256.0, |(_, shorter)| probability(counts, shorter, byte));
        let Some(row) = counts.get(history) else { return lower };
        let (total, distinct) = (row.values().sum::<f64>(), row.len() as f64);
        (row.get(&byte).copied().unwrap_or(0.0) + distinct * lower) / (total + distinct)
    }
    let mut counts = Counts::new();
    for end in 0..train.len() {
        for length in 0..=end.min(2) {
            let row = counts.entry(train[end - length..end].to_vec()).or_default();
            *row.entry(train[end]).or_default() += 1.0;
        }
    }
    (1..val.len()).map(|at| -probability(&counts, &val[at.saturating_sub(2)..at], val[at]).ln()).sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn tables_read_back(records in prop::collection::vec((any::<u32>(), 1u32.., any::<u64>(), any::<[u8; 32]>()), 0..20)) {
        let records = records.into_iter().map(|(shard, num_targets, offset, id)| schemas::data::ExampleRecord { id, num_targets, offset, shard });
        let table = ExampleTable { records: records.collect() };
        let bytes = table.to_bytes();
        prop_assert_eq!(ExampleTable::from_bytes(&bytes).expect("it reads back"), table);
    }

    #[test]
    fn arbitrary_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..300), magic in any::<bool>()) {
        if magic && bytes.len() >= 8 {
            bytes[..8].copy_from_slice(b"GLEXMPL1");
        }
        if let Ok(table) = ExampleTable::from_bytes(&bytes) {
            prop_assert_eq!(table.to_bytes(), bytes);
        }
    }

    #[test]
    fn every_byte_but_the_first_is_a_target_once(texts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..70), 1..4), context in 1u32..20) {
        let folder = tempfile::tempdir().expect("a folder");
        let mut shards: Vec<_> = texts.iter().map(|text| shard(Split::Train, text)).collect();
        shards.push(shard(Split::Train, b"never empty"));
        shards.push(shard(Split::Val, b"val"));
        let build = build(&request(folder.path(), shards, context)).expect("a build");
        let mut expected: Vec<&[u8]> = texts.iter().map(Vec::as_slice).collect();
        expected.push(b"never empty");
        check_cover(&build, folder.path(), Split::Train, context, &expected).expect("a cover");
        let table = examples::read(&build.train_examples.path).expect("a table");
        let in_memory = examples::build(&build.manifest, folder.path(), Split::Train, context).expect("a table");
        prop_assert_eq!(&table, &in_memory);
        for record in &table.records {
            prop_assert!(record.num_targets >= 1 && record.num_targets <= context);
        }
    }
}
