//! The frame around a bundle's archive: whatever it says of itself, reading it
//! takes no more memory than a window.

use validator::bundle::{Refusal, read_frame};

use super::memory::bounded;
use super::run;

/// What a frame's reader may take: a window of a mebibyte, filled and growing.
const MEMORY_BYTES: usize = 8 << 20;

/// The most that is read of a frame's content.
const MAX_CONTENT_BYTES: u64 = 4 << 20;

/// Other bytes within a block change its checksum and not the frame's form.
fn property(bytes: &[u8]) -> bool {
    let read = bounded(&[0; MEMORY_BYTES >> 8], 1 << 8, || read_frame(bytes, MAX_CONTENT_BYTES));
    match read {
        Ok(_) => true,
        Err(Refusal::Frame(reason)) => reason == "its checksum is another",
        Err(_) => false,
    }
}

#[test]
fn frame() {
    run::target("frame", property);
}
