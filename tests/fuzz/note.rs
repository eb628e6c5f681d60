//! Tree heads, and the files that hold them.

use ledger::head_file::split_notes;
use validator::note::Note;

use super::memory::bounded;
use super::run;

/// Lines are copied a few times.
const FACTOR: usize = 64;

fn property(bytes: &[u8]) -> bool {
    let validator = bounded(bytes, FACTOR, || Note::parse(bytes));
    let text = std::str::from_utf8(bytes).ok();
    let writer = text.map(|text| bounded(bytes, FACTOR, || ledger::note::parse(text)));
    let writer = writer.and_then(Result::ok);
    assert_eq!(writer.is_some(), validator.is_ok(), "one form of a note: {validator:?}");
    if let (Some(writer), Ok(validator)) = (&writer, &validator) {
        assert_eq!(
            (&writer.head.origin, writer.head.size, writer.head.root),
            (&validator.origin, validator.size, validator.root)
        );
        assert_eq!(writer.text, writer.head.text(), "read and written again");
        let lines = |name: &str, hash: [u8; 4], signature: &[u8]| (name.to_owned(), hash, signature.to_vec());
        let by_writer =
            writer.signatures.iter().map(|line| lines(&line.name, line.key_hash, &line.signature));
        let by_validator =
            validator.signatures.iter().map(|line| lines(&line.name, line.key_hash, &line.signature));
        assert!(by_writer.eq(by_validator), "the same signatures");
    }
    if let Some(text) = text {
        // A head file is its notes and what a power cut left behind them.
        let notes = bounded(bytes, FACTOR, || split_notes(text));
        let rebuilt: String = notes.iter().map(|note| format!("{note}\n")).collect();
        assert!(text.starts_with(&rebuilt), "notes are pieces of the file");
    }
    writer.is_some()
}

#[test]
fn note() {
    run::target("note", property);
}
