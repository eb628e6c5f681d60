//! What is refused, each by its name, and that what is taken is audited as the
//! folder is.

use std::path::Path;

use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use schemas::bundle::{
    BundleManifest, BundleMember, BundledHead, BundledLedger, LedgerForm, LeftOut, MAX_BUNDLE_FOLDERS,
};
use schemas::digest::{Digest, encode_hex};
use schemas::report::{RuleStatus, Verdict};

use super::archive::{BLOCK_BYTES, checksum, header};
use super::*;
use crate::fixture::{StoredRun, honest_run};
use crate::note::Note;

/// An archive before it is compressed, by its parts.
struct Made {
    manifest: BundleManifest,
    members: Vec<(String, Vec<u8>)>,
}

fn digest(bytes: &[u8]) -> Digest {
    Digest::blake3(*blake3::hash(bytes).as_bytes())
}

/// A header, the bytes and zeros behind them.
fn member(name: &str, bytes: &[u8]) -> Vec<u8> {
    let mut archive = header(name, bytes.len() as u64).expect("it fits").to_vec();
    archive.extend_from_slice(bytes);
    archive.resize(archive.len().next_multiple_of(BLOCK_BYTES), 0);
    archive
}

impl Made {
    fn new(ledger: BundledLedger, mut members: Vec<(String, Vec<u8>)>) -> Self {
        members.sort();
        let listed = members.iter().map(|(name, bytes)| BundleMember {
            digest: digest(bytes),
            name: name.clone(),
            num_bytes: bytes.len() as u64,
        });
        let manifest = BundleManifest {
            folders: Vec::new(),
            format: schemas::BUNDLE_FORMAT.to_owned(),
            head: None,
            ledger,
            left_out: Vec::new(),
            members: listed.collect(),
            run: None,
        };
        Self { manifest, members }
    }

    /// Nothing that an audit could read, but a bundle in every respect.
    fn small() -> Self {
        let text = |name: &str, text: &str| (name.to_owned(), text.as_bytes().to_vec());
        let members = vec![
            text("run/data/a.txt", "a text"),
            text("run/run.db", "no database"),
            text("run/run.db.head", "no head"),
        ];
        Self::new(BundledLedger { file: "run.db".to_owned(), form: LedgerForm::Database }, members)
    }

    /// The bundle of a run's folder, with its database.
    fn of_folder(run: &StoredRun) -> Self {
        let mut members = Vec::new();
        collect(run.folder(), "run", &mut members);
        members.retain(|(name, _)| !name.ends_with("-wal") && !name.ends_with("-shm"));
        Self::new(BundledLedger { file: "run.db".to_owned(), form: LedgerForm::Database }, members)
    }

    /// The same with the ledger as an export.
    fn of_export(run: &StoredRun) -> Self {
        let mut made = Self::of_folder(run);
        made.members.retain(|(name, _)| name != "run/run.db");
        let lines: Vec<u8> =
            run.entries.iter().flat_map(|entry| [entry.as_slice(), b"\n"].concat()).collect();
        let notes: String = run.notes.iter().map(|(_, note)| format!("{note}\n")).collect();
        made.members.push(("export/entries.jsonl".to_owned(), lines));
        made.members.push(("export/heads.txt".to_owned(), notes.into_bytes()));
        let mut sink = Sink::new(&rules::gl001_store_layout::INFO);
        let store =
            Store::open(&run.path(), Access::InPlace, &mut sink).expect("readable").expect("a ledger");
        store
            .for_each_artifact(|digest, bytes| {
                let name = format!("export/artifacts/{}", encode_hex(digest));
                made.members.push((name, bytes.to_vec()));
            })
            .expect("artifacts");
        Self::new(BundledLedger { file: "run.db".to_owned(), form: LedgerForm::Export }, made.members)
    }

    fn add(&mut self, name: &str, bytes: &[u8]) {
        let mut members = std::mem::take(&mut self.members);
        members.push((name.to_owned(), bytes.to_vec()));
        let head = self.manifest.head.take();
        *self = Self::new(self.manifest.ledger.clone(), members);
        self.manifest.head = head;
    }

    fn manifest_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(&self.manifest).expect("serialises")
    }

    /// The members without the end.
    fn body(&self) -> Vec<u8> {
        let mut archive = member("manifest.json", &self.manifest_bytes());
        for (name, bytes) in &self.members {
            archive.extend(member(name, bytes));
        }
        archive
    }

    fn archive(&self) -> Vec<u8> {
        ended(self.body())
    }
}

fn ended(mut archive: Vec<u8>) -> Vec<u8> {
    archive.extend([0; 2 * BLOCK_BYTES]);
    archive
}

fn collect(folder: &Path, name: &str, members: &mut Vec<(String, Vec<u8>)>) {
    for item in fs::read_dir(folder).expect("a folder") {
        let item = item.expect("an item");
        let name = format!("{name}/{}", item.file_name().to_string_lossy());
        if item.path().is_dir() {
            collect(&item.path(), &name, members);
        } else {
            members.push((name, fs::read(item.path()).expect("readable")));
        }
    }
}

fn compressed(archive: &[u8]) -> Vec<u8> {
    compress_to_vec(archive, CompressionLevel::Fastest)
}

/// Unpacks a file of these bytes.
fn unpacked(bytes: &[u8]) -> (tempfile::TempDir, Result<Unpacked, BundleError>) {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, scratch) = (folder.path().join("b.tar.zst"), folder.path().join("scratch"));
    fs::write(&path, bytes).expect("writable");
    fs::create_dir(&scratch).expect("writable");
    let result = unpack(&path, &scratch, &mut |_| {});
    (folder, result)
}

#[track_caller]
fn refusal_of(bytes: &[u8]) -> (String, Refusal) {
    match unpacked(bytes).1 {
        Err(BundleError::Refused { place, refusal, .. }) => (place, refusal),
        other => panic!("not refused: {other:?}"),
    }
}

/// The name of the refusal, as the message begins with it, and its place.
#[track_caller]
fn check(archive: &[u8], place: &str, name: &str) {
    let (found, refusal) = refusal_of(&compressed(archive));
    assert!(refusal.to_string().starts_with(&format!("{name}: ")), "{name}: {refusal}");
    assert_eq!(found, place, "{refusal}");
}

/// A header of the first member behind the manifest, edited, with the right sum.
#[track_caller]
fn check_header(edit: impl FnOnce(&mut [u8; BLOCK_BYTES]), place: &str, name: &str) {
    let made = Made::small();
    let mut archive = made.archive();
    let at = member("manifest.json", &made.manifest_bytes()).len();
    let mut block: [u8; BLOCK_BYTES] = archive[at..at + BLOCK_BYTES].try_into().expect("a block");
    edit(&mut block);
    let sum = format!("{:06o}\0 ", checksum(&block));
    block[148..156].copy_from_slice(sum.as_bytes());
    archive[at..at + BLOCK_BYTES].copy_from_slice(&block);
    check(&archive, place, name);
}

fn named(block: &mut [u8; BLOCK_BYTES], name: &str) {
    block[..100].fill(0);
    block[..name.len()].copy_from_slice(name.as_bytes());
}

#[test]
fn a_small_bundle_is_unpacked_and_a_file_of_another_kind_is_none() {
    let (folder, result) = unpacked(&compressed(&Made::small().archive()));
    let unpacked = result.expect("nothing is wrong");
    assert_eq!(fs::read(folder.path().join("scratch/run/data/a.txt")).expect("a file"), b"a text");
    assert_eq!(fs::read(unpacked.ledger()).expect("a file"), b"no database");
    assert!(is_bundle(&folder.path().join("b.tar.zst")).expect("readable"));
    assert!(!is_bundle(&unpacked.ledger()).expect("readable"));
    assert!(!is_bundle(folder.path()).expect("readable"));
}

#[test]
fn a_frame_around_something_else_is_no_bundle() {
    let text = b"a letter\x1b[2J\n".repeat(64);
    for (content, what) in [(&text[..], "no archive"), (&text[..9], "less than")] {
        let (place, refusal) = refusal_of(&compressed(content));
        assert_eq!(place, "its beginning", "{refusal}");
        assert!(matches!(&refusal, Refusal::NoBundle(found) if found.contains(what)), "{refusal}");
        let message = unpacked(&compressed(content)).1.expect_err("refused").to_string();
        assert!(message.contains("first member is manifest.json; hint: "), "{message}");
    }
    // An archive of something else has a first member, and is told by its name.
    check(&ended(member("notes.txt", b"x")), "notes.txt", "manifest");
}

#[test]
fn an_audit_of_a_bundle_is_the_audit_of_its_folder_in_both_forms() {
    let run = StoredRun::new(honest_run());
    let mut expected = run.audit();
    relocate(&mut expected, &format!("{}/", run.folder().display()));
    assert_eq!(expected.verdict, Verdict::Accepted);
    for made in [Made::of_folder(&run), Made::of_export(&run)] {
        let form = made.manifest.ledger.form;
        let (_folder, result) = unpacked(&compressed(&made.archive()));
        let report = result.expect("nothing is wrong").audit(&BundleAudit::default(), &mut |_| {});
        assert_eq!(report.expect("an audit"), expected, "{form:?}");
    }
}

#[test]
fn what_was_left_out_is_not_evaluated_and_never_held_against_the_run() {
    let run = StoredRun::new(honest_run());
    let mut made = Made::of_folder(&run);
    let is_out = |name: &str| {
        name.starts_with("run/checkpoints/") && !name.ends_with("manifest.json") || name.ends_with(".txt")
    };
    let (out, kept): (Vec<_>, Vec<_>) = made.members.into_iter().partition(|(name, _)| is_out(name));
    assert!(out.len() > 3, "{} files", out.len());
    made = Made::new(made.manifest.ledger, kept);
    made.manifest.left_out = out
        .iter()
        .map(|(name, bytes)| LeftOut {
            digest: digest(bytes),
            name: name.clone(),
            num_bytes: bytes.len() as u64,
            reason: "--without-shards".to_owned(),
        })
        .collect();
    let (_folder, result) = unpacked(&compressed(&made.archive()));
    let report =
        result.expect("nothing is wrong").audit(&BundleAudit::default(), &mut |_| {}).expect("an audit");
    assert_eq!(report.verdict, Verdict::NotEvaluated, "{:#?}", report.findings);
    let failed: Vec<_> = report.rules.iter().filter(|rule| rule.status == RuleStatus::Failed).collect();
    assert!(failed.is_empty(), "{failed:#?}");
    let idle = |code: &str| {
        report.rules.iter().any(|rule| rule.code == code && rule.status == RuleStatus::NotEvaluated)
    };
    assert!(idle("GL108") && idle("GL110"), "{:#?}", report.rules);
    // The control: without the list the same files are missing.
    made.manifest.left_out.clear();
    let (_folder, result) = unpacked(&compressed(&made.archive()));
    let report =
        result.expect("nothing is wrong").audit(&BundleAudit::default(), &mut |_| {}).expect("an audit");
    assert_eq!(report.verdict, Verdict::Tampered);
}

#[test]
fn names_that_leave_the_folder_are_refused_in_manifest_and_header() {
    for (name, refusal) in [
        ("run/../x", "path-traversal"),
        ("run/./x", "path-traversal"),
        ("run//x", "path-traversal"),
        ("/etc/passwd", "absolute-path"),
        ("run/a\\b", "name"),
        ("run/caf\u{e9}", "name"),
        ("run/cafe\u{301}", "name"),
        ("run/a\nb", "name"),
        ("other/x", "unlisted"),
        ("manifest.json", "duplicate"),
        ("run/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a", "depth"),
    ] {
        let mut made = Made::small();
        made.add(name, b"x");
        check(&made.archive(), name, refusal);
        check_header(|block| named(block, name), name, refusal);
    }
    let mut made = Made::small();
    made.manifest.ledger.file = "../run.db".to_owned();
    check(&made.archive(), "../run.db", "path-traversal");
    let mut made = Made::small();
    made.manifest.folders = vec!["run/../../x".to_owned()];
    check(&made.archive(), "run/../../x", "path-traversal");
    made.manifest.folders = vec!["elsewhere".to_owned()];
    check(&made.archive(), "elsewhere", "unlisted");
}

#[test]
fn links_devices_and_extensions_are_refused() {
    for (kind, refusal) in [
        (b'1', "link"),
        (b'2', "link"),
        (b'3', "device"),
        (b'4', "device"),
        (b'6', "device"),
        (b'5', "folder"),
        (b'7', "extension"),
        (0, "extension"),
        (b'x', "extension"),
        (b'g', "extension"),
        (b'L', "extension"),
        (b'K', "extension"),
        (b'S', "extension"),
    ] {
        let edit = |block: &mut [u8; BLOCK_BYTES]| {
            block[156] = kind;
            block[157..161].copy_from_slice(b"/etc");
        };
        check_header(edit, "run/data/a.txt", refusal);
    }
    check_header(|block| block[257..265].copy_from_slice(b"ustar  \0"), "run/data/a.txt", "extension");
    check_header(|block| block[257..265].fill(0), "run/data/a.txt", "extension");
}

#[test]
fn a_header_has_one_form() {
    let at: [(usize, &[u8]); 8] = [
        (100, b"0000755\0"),
        (108, b"0001750\0"),
        (116, b"0001750\0"),
        (136, b"14000000000\0"),
        (157, b"x"),
        (265, b"root"),
        (329, b"0000001\0"),
        (500, b"x"),
    ];
    for (at, bytes) in at {
        check_header(
            |block| block[at..at + bytes.len()].copy_from_slice(bytes),
            "run/data/a.txt",
            "metadata",
        );
    }
    check_header(|block| block[124] = b' ', "run/data/a.txt", "header");
    // Binary sizes are an extension of GNU tar's.
    check_header(|block| block[124] = 0x80, "run/data/a.txt", "header");
    let mut archive = Made::small().archive();
    let at = member("manifest.json", &Made::small().manifest_bytes()).len();
    archive[at + 20] ^= 1;
    check(&archive, "run/data/a.txt", "header");
    let mut archive = Made::small().archive();
    archive[at + BLOCK_BYTES + 7] = 1;
    check(&archive, "run/data/a.txt", "metadata");
}

#[test]
fn members_are_those_of_the_manifest_in_its_order() {
    let made = Made::small();
    let front = member("manifest.json", &made.manifest_bytes());
    let [a, db, head] = [0, 1, 2].map(|at| member(&made.members[at].0, &made.members[at].1));
    let of = |parts: &[&[u8]]| ended([&[front.as_slice()], parts].concat().concat());
    let again = of(&[&a, &a, &db, &head]);
    check(&again, "run/data/a.txt", "duplicate");
    check(&of(&[&a, &db, &head, &head]), "run/run.db.head", "duplicate");
    check(&of(&[&a, &db, &head, &front]), "manifest.json", "duplicate");
    check(&of(&[&a, &head]), "run/run.db", "missing");
    check(&of(&[&db, &a, &head]), "run/data/a.txt", "missing");
    check(&of(&[&a, &db]), "run/run.db.head", "missing");
    let extra = member("run/extra", b"x");
    check(&of(&[&a, &extra, &db, &head]), "run/extra", "unlisted");
    check(&of(&[&a, &db, &head, &extra]), "run/extra", "unlisted");
    let longer = member("run/data/a.txt", b"a longer text");
    check(&of(&[&longer, &db, &head]), "run/data/a.txt", "size");
    let other = member("run/data/a.txt", b"A text");
    check(&of(&[&other, &db, &head]), "run/data/a.txt", "digest");
    check(&ended([db, front.clone()].concat()), "run/run.db", "manifest");
    assert!(refusal_of(&compressed(&front)).1 == Refusal::Truncated);
}

#[test]
fn names_that_a_file_system_may_take_for_one_are_refused() {
    for (name, place) in
        [("run/DATA/a.txt", "run/data"), ("run/Run.db", "run/run.db"), ("run/data", "run/data/a.txt")]
    {
        let mut made = Made::small();
        made.add(name, b"x");
        let (_, refusal) = refusal_of(&compressed(&made.archive()));
        assert!(matches!(refusal, Refusal::Case(_)), "{name}, {place}: {refusal}");
    }
    let mut made = Made::small();
    made.manifest.folders = vec!["run/Data".to_owned()];
    check(&made.archive(), "run/Data", "case");
    let mut made = Made::small();
    made.manifest.left_out = vec![LeftOut {
        digest: digest(b""),
        name: "run/data/a.txt".to_owned(),
        num_bytes: 0,
        reason: String::new(),
    }];
    check(&made.archive(), "run/data/a.txt", "duplicate");
    let mut made = Made::small();
    let twice = made.manifest.members[0].clone();
    made.manifest.members.insert(1, twice);
    check(&made.archive(), "run/data/a.txt", "duplicate");
    made.manifest.members.swap(0, 2);
    check(&made.archive(), "run/data/a.txt", "manifest");
}

#[test]
fn the_manifest_has_one_form() {
    let made = Made::small();
    let wrong = |edit: &dyn Fn(String) -> String| {
        let text = String::from_utf8(made.manifest_bytes()).expect("JSON");
        let mut archive = member("manifest.json", edit(text).as_bytes());
        for (name, bytes) in &made.members {
            archive.extend(member(name, bytes));
        }
        ended(archive)
    };
    for edit in [
        |text: String| text.replacen("{", "{ ", 1),
        |text: String| text.replace(",\"run\":null", ""),
        |text: String| text.replace("\"run\":null", "\"run\":null,\"sender\":1"),
        |text: String| text.replace("bundle/1", "bundle/2"),
        |text: String| text + "\n",
    ] {
        check(&wrong(&edit), "manifest.json", "manifest");
    }
}

#[test]
fn a_bomb_is_refused_before_it_is_unpacked() {
    let mut made = Made::small();
    made.manifest.members[0].num_bytes = BUNDLE_SLACK_BYTES * 2;
    let (place, refusal) = refusal_of(&compressed(&made.archive()));
    assert_eq!(place, "manifest.json");
    assert!(matches!(refusal, Refusal::Bomb { .. }), "{refusal}");
    made.manifest.members[0].num_bytes = u64::from(u32::MAX) << 20;
    assert!(matches!(refusal_of(&compressed(&made.archive())).1, Refusal::Bomb { .. }));
    // More in the frame than the manifest names is not read to its end.
    let mut archive = Made::small().archive();
    archive.resize(archive.len() + (8 << 20), 0);
    check(&archive, "its end", "trailing-data");
    // A window of 128 MiB: magic, descriptor of a checksum, window 10 + 17.
    let frame = [0x28, 0xb5, 0x2f, 0xfd, 0x04, 17 << 3, 0x01, 0x00, 0x00];
    assert!(matches!(refusal_of(&frame).1, Refusal::Frame(_)));
}

#[test]
fn folders_are_counted_before_one_is_made() {
    let mut made = Made::small();
    made.add("run/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a", b"as deep as a name may be");
    assert!(unpacked(&compressed(&made.archive())).1.is_ok());
    let mut made = Made::small();
    made.manifest.folders = (0..MAX_BUNDLE_FOLDERS).map(|number| format!("run/{number:05}")).collect();
    let (folder, result) = unpacked(&compressed(&made.archive()));
    let error = result.expect_err("two more than there may be").to_string();
    assert!(error.contains("run/65534: folder-count: "), "{error}");
    assert!(!folder.path().join("scratch/run").exists());
    // A block for each file and folder counts, so that empty ones are no way around.
    let manifest = Made::small().manifest;
    let size = |num_folders| {
        check_size(&manifest, num_folders, 0, folder.path(), &Place { bundle: Path::new("b.tar.zst") })
    };
    assert!(size(2).is_ok());
    let error = size(1 << 14).expect_err("more than the slack");
    assert!(matches!(error, BundleError::Refused { refusal: Refusal::Bomb { .. }, .. }), "{error}");
}

#[test]
fn a_file_that_was_cut_or_goes_on_is_refused() {
    let whole = compressed(&Made::small().archive());
    assert!(unpacked(&whole).1.is_ok());
    for length in 4..whole.len() {
        let (_, refusal) = refusal_of(&whole[..length]);
        assert!(matches!(refusal, Refusal::Truncated | Refusal::Frame(_)), "{length}: {refusal}");
    }
    let skippable = [0x50, 0x2a, 0x4d, 0x18, 1, 0, 0, 0, 0];
    for behind in [&b"x"[..], &whole, &skippable] {
        let (place, refusal) = refusal_of(&[&whole, behind].concat());
        assert_eq!((place.as_str(), refusal), ("its end", Refusal::TrailingData));
    }
    assert!(matches!(refusal_of(&[&skippable[..], &whole].concat()).1, Refusal::Frame(_)));
    // The checksum is the last four bytes.
    let mut other = whole.clone();
    *other.last_mut().expect("a byte") ^= 1;
    assert!(matches!(refusal_of(&other).1, Refusal::Frame(_)));
}

#[test]
fn a_second_subject_is_refused() {
    let second = |made: &Made, place: &str| check(&made.archive(), place, "second-subject");
    for name in ["run/other.db.head", "run/other.db-wal", "run/run.db.report.dsse.json.head"] {
        let mut made = Made::small();
        made.add(name, b"x");
        second(&made, name);
    }
    for name in ["run/other", "run/data/other.db"] {
        let mut made = Made::small();
        made.add(name, b"SQLite format 3\0 and so on");
        second(&made, name);
    }
    let mut made = Made::small();
    made.add("export/entries.jsonl", b"");
    second(&made, "export/entries.jsonl");

    let run = StoredRun::new(honest_run());
    let honest = || Made::of_export(&run);
    let mut made = honest();
    made.add("run/run.db", b"x");
    second(&made, "run/run.db");
    let too_long = [b'x'; (1 << 17) + 5];
    for (name, bytes) in [
        ("export/head-beside.txt", too_long.as_slice()),
        ("export/contract.json", b"{}"),
        ("export/proofs.json", br#"{"num_entries":1,"root":"00"}"#),
        ("export/head-beside.txt", b"another head\n"),
    ] {
        let mut made = honest();
        made.add(name, bytes);
        second(&made, name);
    }
    let head = fs::read(run.path().with_extension("db.head")).expect("a head file");
    let mut made = honest();
    made.add("export/head-beside.txt", &head);
    assert!(unpacked(&compressed(&made.archive())).1.is_ok(), "what the head file ends with");
    let newest = Note::parse(run.notes.last().expect("a head").1.as_bytes()).expect("a note");
    let head = |origin: &str, size: u64| {
        Some(BundledHead { origin: origin.to_owned(), root: encode_hex(&newest.root), size })
    };
    let mut made = honest();
    made.manifest.head = head(&newest.origin, newest.size);
    assert!(unpacked(&compressed(&made.archive())).1.is_ok(), "the ledger's own head");
    made.manifest.head = head("governed-ledger/run/other", newest.size);
    second(&made, "manifest.json");
    made.manifest.head = head(&newest.origin, newest.size - 1);
    second(&made, "manifest.json");
    let mut made = honest();
    made.manifest.run = Some("another".into());
    let (_folder, result) = unpacked(&compressed(&made.archive()));
    let error = result.expect("its form is right").audit(&BundleAudit::default(), &mut |_| {});
    let error = error.expect_err("another run");
    assert!(error.to_string().contains("second-subject"), "{error}");
}

#[test]
fn an_export_that_gives_no_rows_is_refused() {
    let run = StoredRun::new(honest_run());
    let edited = |name: &str, edit: &dyn Fn(&mut Vec<u8>)| {
        let made = Made::of_export(&run);
        let mut members = made.members;
        let member = members.iter_mut().find(|(found, _)| found == name).expect("a member");
        edit(&mut member.1);
        Made::new(made.manifest.ledger, members).archive()
    };
    let entries = "export/entries.jsonl";
    check(&edited(entries, &|bytes| bytes.truncate(bytes.len() - 1)), entries, "export");
    check(&edited(entries, &|bytes| bytes.extend(b"{}\n")), entries, "export");
    check(&edited(entries, &|bytes| bytes.extend(b"{\"idem\":\"00\"}\n")), entries, "export");
    check(&edited(entries, &|bytes| bytes.extend(vec![b' '; 70_000])), entries, "export");
    let heads = "export/heads.txt";
    check(&edited(heads, &|bytes| bytes.truncate(bytes.len() - 1)), heads, "export");
    check(&edited(heads, &|bytes| bytes.extend(b"x")), heads, "export");
    // An entry that says something else is for the audit to find.
    let other = edited(entries, &|bytes| {
        let at = bytes.windows(9).position(|window| window == b"\"time_us\"").expect("a time");
        bytes[at + 12] ^= 1;
    });
    let (_folder, result) = unpacked(&compressed(&other));
    let report =
        result.expect("it gives rows").audit(&BundleAudit::default(), &mut |_| {}).expect("an audit");
    assert_eq!(report.verdict, Verdict::Tampered);
}

#[test]
fn every_byte_of_a_small_bundle_is_guarded_or_says_nothing() {
    let whole = compressed(&Made::small().archive());
    let (mut num_tried, mut num_without_effect) = (0, 0);
    for at in 0..whole.len() {
        for mask in [0x01, 0x5a] {
            num_tried += 1;
            let mut changed = whole.clone();
            changed[at] ^= mask;
            let (folder, result) = unpacked(&changed);
            match result {
                Err(BundleError::Refused { .. }) => {}
                Ok(_) => {
                    // Another spelling of the same archive: every file is as it was.
                    for (name, bytes) in Made::small().members {
                        let path = folder.path().join("scratch").join(name);
                        assert_eq!(fs::read(path).expect("a file"), bytes, "byte {at}");
                    }
                    num_without_effect += 1;
                }
                Err(error) => panic!("byte {at}: {error}"),
            }
        }
    }
    // Frames have bits that mean nothing, and more than one spelling of a table.
    assert!(
        num_tried > 1000 && num_without_effect * 20 < num_tried,
        "{num_without_effect} of {num_tried} said nothing"
    );
}
