//! Files of cosigned heads: `ledger witness add` reads them before it appends, and
//! an audit reads them as evidence.

use validator::cosignature::Cosigner;
use validator::fuzzing::CosignedEnd;
use witness::cosignature;
use witness::cosigned_file;
use witness::verifier_key::{SignatureKind, VerifierKey};

use super::memory::bounded;
use super::run;

/// Notes are copied a few times.
const FACTOR: usize = 64;

/// Ledger of the corpus, and a witness that cosigned it.
const ORIGIN: &str = "governed-ledger/run/35dcf1da9cd25cb9-ad0bf4a399ccea21";
const NAME: &str = "witness.example/w1";
const PUBLIC: &str = "9a7b5ef4245c2b741ede7ccfbff6d6d4fe5aeeb93a652d042bfa4f886dece559";

fn property(bytes: &[u8]) -> bool {
    let (notes, end) = bounded(bytes, FACTOR, || validator::fuzzing::cosigned(bytes, ORIGIN));
    let writer = bounded(bytes, FACTOR, || cosigned_file::parse(bytes, ORIGIN));
    // Nothing that an audit calls tampered with is cut off or appended to, and nothing
    // that a power cut leaves keeps anybody from going on.
    assert_eq!(writer.is_ok(), end != CosignedEnd::Strange, "{writer:?} and {end:?}");
    let Ok((own, whole)) = writer else { return false };
    // What counts in an audit is kept, also a note that lacks its empty line.
    assert_eq!(own.len(), notes.len());
    assert_eq!(whole == bytes.len(), end == CosignedEnd::Whole, "{whole} of {} and {end:?}", bytes.len());
    let witness = VerifierKey::from_hex(SignatureKind::Witness, NAME, PUBLIC).expect("a key");
    let cosigner = Cosigner::new(NAME, PUBLIC).expect("a key");
    for (own, note) in own.iter().zip(&notes) {
        let head = &own.head;
        assert_eq!((&head.origin, head.size, head.root), (&note.origin, note.size, note.root));
        let by_writer = cosignature::verify(own, &witness).ok();
        assert_eq!(by_writer, cosigner.verify(note).ok(), "both say when it was cosigned, or not");
    }
    // What is kept is a file again, of the same notes.
    let (again, end) = validator::fuzzing::cosigned(&bytes[..whole], ORIGIN);
    assert_eq!((again.as_slice(), end), (&notes[..], CosignedEnd::Whole));
    true
}

#[test]
fn cosigned() {
    run::target("cosigned", property);
}
