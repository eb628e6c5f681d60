//! Archives of bundles, before they were compressed. The reader is the validator's
//! alone; what it takes has to be what the writer makes.

use ledger::bundle::archive::header;
use validator::bundle::{Refusal, read_archive};

use super::memory::bounded;
use super::run;

/// Members are kept by the test, and their pieces by the reader.
const FACTOR: usize = 256;

/// Other bytes within a member change its digest and not the archive's form.
fn property(bytes: &[u8]) -> bool {
    let members = match bounded(bytes, FACTOR, || read_archive(bytes)) {
        Ok(members) => members,
        Err(refusal) => return matches!(refusal, Refusal::Digest { .. }),
    };
    // One archive for one content: behind the manifest it is what the writer makes.
    let mut written = Vec::new();
    for (name, content) in &members {
        written.extend(header(name, content.len() as u64).expect("what is read can be written"));
        written.extend_from_slice(content);
        written.resize(written.len().next_multiple_of(512), 0);
    }
    written.resize(written.len() + 1024, 0);
    assert!(bytes.ends_with(&written), "read and written again");
    true
}

#[test]
fn bundle() {
    run::target("bundle", property);
}
