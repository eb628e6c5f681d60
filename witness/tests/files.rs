//! Proofs and tiles of a real ledger, checked by the crate `tlog_tiles`, which
//! shares no code with this project.

#[path = "../../ledger/tests/common/mod.rs"]
mod common;

use std::path::Path;

use common::{Fixture, key, step};
use ledger::keys::Role;
use ledger::note;
use ledger::reader::Reader;
use ledger::tree::Hash;
use tlog_tiles::{Error, Tile, TileHashReader, TileReader, prove_record, prove_tree};
use witness::cosignature;
use witness::cosigned_file::with_cosignature;
use witness::leaves;
use witness::proof::{InclusionProof, ProofError, check_consistency};
use witness::request::AddCheckpoint;
use witness::tiles;
use witness::verifier_key::{SignatureKind, VerifierKey};

/// Entries that make two full tiles, a partial one and a second level.
const NUM_STEPS: u64 = 700;

fn ledger() -> Fixture {
    let fixture = Fixture::new();
    let recorder = fixture.open();
    for number in 0..NUM_STEPS {
        recorder.append(step(number, 1.5)).expect("appended");
    }
    recorder.close().expect("closed");
    fixture
}

/// Reads tiles as a client of a web server would.
struct Folder<'a>(&'a Path);

impl TileReader for Folder<'_> {
    fn height(&self) -> u8 {
        8
    }

    fn read_tiles(&self, tiles: &[Tile]) -> Result<Vec<Vec<u8>>, Error> {
        let read = |tile: &Tile| {
            // Theirs begins with the height, which the specification fixed later.
            let path = self.0.join(tile.path().replacen("tile/8/", "tile/", 1));
            std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        };
        Ok(tiles.iter().map(read).collect())
    }

    fn save_tiles(&self, _: &[Tile], _: &[Vec<u8>]) {}
}

fn foreign(hashes: &[Hash]) -> Vec<tlog_tiles::Hash> {
    hashes.iter().copied().map(tlog_tiles::Hash).collect()
}

#[test]
fn tiles_give_the_proofs_of_the_ledger() {
    let fixture = ledger();
    let folder = fixture.folder.path().join("tiles");
    let written = tiles::write(&fixture.path(), &folder, None).expect("tiles");
    let served = std::fs::read_to_string(folder.join("checkpoint")).expect("a head");
    let head = note::verify(&served, &key(Role::Trainer).public_hex()).expect("the trainer's");
    assert_eq!((written.size, written.num_bundles), (head.size, head.size.div_ceil(256)));
    assert!(head.size > 512 && !head.size.is_multiple_of(256), "full and partial tiles: {}", head.size);
    let reader = Reader::open(&fixture.path()).expect("a ledger");
    let mut all = Vec::new();
    leaves::extend(&mut all, &reader).expect("entries");
    let levels = leaves::tree(&all, &head).expect("the head's tree");
    let (root, source) = (tlog_tiles::Hash(head.root), Folder(&folder));
    let hashes = TileHashReader::new(head.size, root, &source);
    let size = usize::try_from(head.size).expect("small");
    for index in [0u64, 1, 255, 256, 511, 512, head.size - 1] {
        let theirs = prove_record(head.size, index, &hashes).expect("their proof");
        let place = usize::try_from(index).expect("small");
        assert_eq!(Some(theirs), levels.inclusion_proof(place, size).map(|own| foreign(&own)), "{index}");
    }
    for old in [1u64, 2, 255, 256, 257, 600, head.size] {
        let theirs = prove_tree(head.size, old, &hashes).expect("their proof");
        assert_eq!(theirs, foreign(&leaves::consistency(&levels, old, head.size).expect("a proof")), "{old}");
    }
    // The bundles hold the entries, each of the tile's leaf hash.
    let mut index = 0;
    for bundle in ["000", "001", &format!("002.p/{}", head.size % 256)] {
        let bytes = std::fs::read(folder.join("tile/entries").join(bundle)).expect("a bundle");
        let mut rest = &bytes[..];
        while let Some((length, after)) = rest.split_first_chunk::<2>() {
            let (entry, after) = after.split_at(usize::from(u16::from_be_bytes(*length)));
            assert_eq!(entry, reader.entry_bytes(index).expect("an entry"));
            assert_eq!(tlog_tiles::record_hash(entry).0, all[usize::try_from(index).expect("small")]);
            (rest, index) = (after, index + 1);
        }
    }
    assert_eq!(index, head.size);
    assert!(tiles::write(&fixture.path(), &folder, None).is_err(), "a folder is not added to");
}

/// A tree of exactly one full tile has a partial one above it, of width 1, and no
/// empty one beside it.
#[test]
fn a_full_tile_has_no_empty_neighbour() {
    let fixture = Fixture::new();
    let recorder = fixture.open();
    while recorder.num_entries() < 256 {
        recorder.append(step(recorder.num_entries(), 1.5)).expect("appended");
    }
    recorder.close().expect("closed");
    let folder = fixture.folder.path().join("tiles");
    let written = tiles::write(&fixture.path(), &folder, None).expect("tiles");
    assert_eq!((written.size, written.num_tiles, written.num_bundles), (256, 2, 1));
    assert!(folder.join("tile/0/000").is_file() && folder.join("tile/1/000.p/1").is_file());
}

/// The newest head, cosigned, with verifier keys of log and witness.
fn cosigned(fixture: &Fixture) -> (Reader, String, Vec<VerifierKey>) {
    let reader = Reader::open(&fixture.path()).expect("a ledger");
    let signed = note::parse(&leaves::newest_head(&reader).expect("a head")).expect("a note");
    let line = cosignature::sign(&signed.text, "witness.example/w1", &key(Role::Witness), 77);
    let note = with_cosignature(&signed, &key(Role::Trainer).public_hex(), &line);
    let log =
        VerifierKey::from_hex(SignatureKind::Log, &signed.head.origin, &key(Role::Trainer).public_hex());
    let witness =
        VerifierKey::from_hex(SignatureKind::Witness, "witness.example/w1", &key(Role::Witness).public_hex());
    (reader, note, vec![log.expect("a key"), witness.expect("a key")])
}

#[test]
fn inclusion_proofs_hold_and_break_under_any_change() {
    let fixture = ledger();
    let (reader, note, keys) = cosigned(&fixture);
    let head = note::parse(&note).expect("a note").head;
    let mut all = Vec::new();
    leaves::extend(&mut all, &reader).expect("entries");
    let levels = leaves::tree(&all, &head).expect("the head's tree");
    let size = usize::try_from(head.size).expect("small");
    for index in [0usize, 300, size - 1] {
        let entry = reader.entry_bytes(index as u64).expect("an entry");
        let hashes = levels.inclusion_proof(index, size).expect("a proof");
        let root = tlog_tiles::Hash(head.root);
        let leaf = tlog_tiles::record_hash(&entry);
        tlog_tiles::check_record(&foreign(&hashes), head.size, root, index as u64, leaf)
            .expect("their check");
        let proof = InclusionProof { extra: Some(entry), hashes, index: index as u64, note: note.clone() };
        let text = proof.to_text();
        let read = InclusionProof::parse(&text).expect("a proof");
        assert_eq!(read, proof);
        let shown = read.check(&keys, None).expect("it holds");
        assert_eq!(shown.witnesses, [("witness.example/w1".to_owned(), 77)]);
        let without = InclusionProof { extra: None, ..proof.clone() };
        assert!(matches!(without.check(&keys, None), Err(ProofError::NoEntry)));
        without.check(&keys, proof.extra.as_deref()).expect("the entry may come from elsewhere");
        assert!(matches!(read.check(&keys[1..], None), Err(ProofError::NoKey)));
        for position in (0..text.len()).step_by(7) {
            let mut bytes = text.clone().into_bytes();
            bytes[position] ^= 1;
            let held = String::from_utf8(bytes).is_ok_and(|text| {
                InclusionProof::parse(&text).is_ok_and(|proof| proof.check(&keys, None).is_ok())
            });
            assert!(!held, "byte {position} of {index}");
        }
    }
}

#[test]
fn consistency_proofs_hold_between_signed_heads_alone() {
    let fixture = ledger();
    let (reader, note, keys) = cosigned(&fixture);
    let heads = reader.heads().expect("heads");
    let old = heads.iter().find(|head| head.size > 1).expect("the trainer's first");
    let head = note::parse(&note).expect("a note").head;
    let mut all = Vec::new();
    leaves::extend(&mut all, &reader).expect("entries");
    let levels = leaves::tree(&all, &head).expect("the head's tree");
    let proof = leaves::consistency(&levels, old.size, head.size).expect("a proof");
    let body = AddCheckpoint::body(old.size, &proof, &note);
    check_consistency(body.as_bytes(), &old.note, &keys).expect("it holds");
    let old_root = tlog_tiles::Hash(note::parse(&old.note).expect("a note").head.root);
    let root = tlog_tiles::Hash(head.root);
    tlog_tiles::check_tree(&foreign(&proof), head.size, root, old.size, old_root).expect("their check");
    // The head of the freeze is the owner's, of another size.
    assert!(check_consistency(body.as_bytes(), &heads[0].note, &keys).is_err());
    if !proof.is_empty() {
        let cut = AddCheckpoint::body(old.size, &proof[1..], &note);
        assert!(matches!(check_consistency(cut.as_bytes(), &old.note, &keys), Err(ProofError::Consistency)));
    }
}
