//! Writes a file whose flush begins before its last byte is there.
//!
//! Left to itself the kernel holds what was written until it is asked, so that
//! the disk idles while a shard is written and the caller idles while it is
//! flushed. Here a second thread asks piece by piece. A failed flush is told
//! once, to whoever asked, so that its error is kept and becomes the write's.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::sync::mpsc::{SyncSender, sync_channel};

use ledger::failpoint;

/// Writes of tensors are gathered to this size; larger ones pass through.
const BUFFER_BYTES: usize = 1 << 20;

/// Bytes after which the disk is set to work: some tens of milliseconds of it,
/// against which a flush of metadata does not count.
const PIECE_BYTES: usize = 32 << 20;

/// A file that tells a thread of every piece.
#[derive(Debug)]
pub(super) struct Pieces<'a> {
    file: &'a File,
    num_bytes: usize,
    written: SyncSender<()>,
}

impl Write for Pieces<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let (mut file, piece) = (self.file, &bytes[..bytes.len().min(PIECE_BYTES)]);
        let num_bytes = file.write(piece)?;
        self.num_bytes += num_bytes;
        if self.num_bytes >= PIECE_BYTES {
            self.num_bytes = 0;
            // A flush that is under way, or has failed, needs no second one now.
            let _ = self.written.try_send(());
        }
        Ok(num_bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Lets `write` fill the file, and flushes all of it.
///
/// # Errors
/// What `write` says; else the first flush that failed.
pub(super) fn write_flushed<T, E: From<io::Error>>(
    file: &File,
    write: impl FnOnce(&mut BufWriter<Pieces<'_>>) -> Result<T, E>,
) -> Result<T, E> {
    let (written, flushed) = std::thread::scope(|scope| {
        let (sender, pieces) = sync_channel(1);
        let flushing = scope.spawn(move || pieces.iter().try_for_each(|()| file.sync_data()));
        let mut out = BufWriter::with_capacity(BUFFER_BYTES, Pieces { file, num_bytes: 0, written: sender });
        let written = write(&mut out).and_then(|written| {
            out.flush()?;
            Ok(written)
        });
        // Ends the thread, which waits for pieces.
        drop(out);
        (written, flushing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    let written = written?;
    flushed?;
    failpoint::pass("shard.filled");
    file.sync_all()?;
    Ok(written)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek};

    use super::*;

    #[test]
    fn every_byte_arrives_in_order_whatever_the_pieces() {
        let mut file = tempfile::tempfile().expect("a file");
        let big: Vec<u8> = (0u8..=250).cycle().take(PIECE_BYTES * 2 + 3).collect();
        let parts: [&[u8]; 3] = [b"head", &big, b"tail"];
        let told = write_flushed::<_, io::Error>(&file, |out| {
            parts.iter().try_for_each(|part| out.write_all(part))?;
            Ok(7)
        });
        assert_eq!(told.expect("written"), 7);
        file.rewind().expect("a file");
        let mut read = Vec::new();
        file.read_to_end(&mut read).expect("readable");
        assert!(read == parts.concat());
    }

    #[test]
    fn what_fails_is_told() {
        let file = tempfile::tempfile().expect("a file");
        let failed = write_flushed::<(), _>(&file, |_| Err(io::Error::other("no such tensor")));
        assert_eq!(failed.expect_err("failed").to_string(), "no such tensor");
        // A device that takes no byte.
        let full = File::options().write(true).open("/dev/full").expect("Linux has it");
        let failed = write_flushed::<(), _>(&full, |out| out.write_all(b"x"));
        assert_eq!(failed.expect_err("full").kind(), io::ErrorKind::StorageFull);
        // A flush that fails while bytes are still written.
        let (reader, pipe) = io::pipe().expect("a pipe");
        let draining = std::thread::spawn(move || io::copy(&mut { reader }, &mut io::sink()));
        let pipe = File::from(std::os::fd::OwnedFd::from(pipe));
        let failed = write_flushed::<(), io::Error>(&pipe, |out| out.write_all(&vec![0; PIECE_BYTES + 1]));
        assert_eq!(failed.expect_err("a pipe is never flushed").kind(), io::ErrorKind::InvalidInput);
        drop(pipe);
        assert!(draining.join().expect("drained").expect("read") > 0);
    }
}
