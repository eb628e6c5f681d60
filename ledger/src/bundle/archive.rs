//! The archive: members as ustar, compressed as one Zstandard frame.
//!
//! Nothing in it depends on the day, the user or the machine: names come in the
//! order in which they are given, mode is 0644, owner and times are zero, and the
//! compressor has one level. A file that is not what was hashed before ends the
//! writing.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use ruzstd::encoding::{CompressionLevel, FrameCompressor};
use schemas::digest::Digest;

use super::BundleError;

/// Bytes of a header, and what members are filled up to.
const BLOCK_BYTES: usize = 512;

/// Longest part of a name behind, and before, the slash at which it is cut.
const NAME_BYTES: usize = 100;
const PREFIX_BYTES: usize = 155;

/// One member, hashed before.
#[derive(Debug, Clone)]
pub(super) struct Source {
    pub(super) digest: Digest,
    pub(super) name: String,
    pub(super) num_bytes: u64,
    pub(super) path: PathBuf,
}

/// The header of a member: ustar (POSIX.1-1988) with fixed mode, and zeros for
/// owner, group and time. `None` where the name or the size does not fit.
#[must_use]
pub fn header(name: &str, num_bytes: u64) -> Option<[u8; BLOCK_BYTES]> {
    let (prefix, rest) = split(name)?;
    if num_bytes > schemas::bundle::MAX_BUNDLE_MEMBER_BYTES {
        return None;
    }
    let mut block = [0; BLOCK_BYTES];
    let mut put = |at: usize, bytes: &[u8]| {
        if let Some(field) = block.get_mut(at..at + bytes.len()) {
            field.copy_from_slice(bytes);
        }
    };
    put(0, rest.as_bytes());
    put(100, b"0000644\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    put(124, format!("{num_bytes:011o}\0").as_bytes());
    put(136, b"00000000000\0");
    // The checksum counts as spaces in its own sum.
    put(148, b"        ");
    put(156, b"0");
    put(257, b"ustar\x0000");
    put(345, prefix.as_bytes());
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    let text = format!("{sum:06o}\0 ");
    block.get_mut(148..156)?.copy_from_slice(text.as_bytes());
    Some(block)
}

/// A name in its two fields: cut at the first slash behind which it fits.
fn split(name: &str) -> Option<(&str, &str)> {
    if name.is_empty() {
        return None;
    }
    if name.len() <= NAME_BYTES {
        return Some(("", name));
    }
    name.match_indices('/')
        .map(|(at, _)| (&name[..at], &name[at + 1..]))
        .find(|(_, rest)| rest.len() <= NAME_BYTES)
        .filter(|(prefix, rest)| (1..=PREFIX_BYTES).contains(&prefix.len()) && !rest.is_empty())
}

/// Zeros that fill a member up.
fn padding(num_bytes: u64) -> usize {
    let rest = usize::try_from(num_bytes % BLOCK_BYTES as u64).unwrap_or(0);
    if rest == 0 { 0 } else { BLOCK_BYTES - rest }
}

/// Bytes of the archive before it is compressed.
pub(super) fn unpacked_bytes(manifest: u64, sources: &[Source]) -> u64 {
    let member = |num_bytes: u64| BLOCK_BYTES as u64 + num_bytes + padding(num_bytes) as u64;
    let members: u64 = sources.iter().map(|source| member(source.num_bytes)).sum();
    member(manifest) + members + 2 * BLOCK_BYTES as u64
}

/// Writes the archive; calls `progress` with the bytes that were read so far.
/// Returns the compressed size.
pub(super) fn write(
    target: &Path,
    manifest: (&str, &[u8]),
    sources: &[Source],
    progress: &mut dyn FnMut(u64),
) -> Result<u64, BundleError> {
    let stream = Stream::new(manifest, sources, progress)?;
    let file =
        File::create_new(target).map_err(|source| BundleError::Write { path: target.to_owned(), source })?;
    let mut compressor = FrameCompressor::new(CompressionLevel::Fastest);
    let _ = compressor.set_source(Until { inner: stream, failure: None });
    let _ = compressor.set_drain(Kept { inner: file, failure: None, num_bytes: 0 });
    compressor.compress();
    if let Some(failure) = compressor.take_source().and_then(|source| source.failure) {
        return Err(failure);
    }
    let written = |source| BundleError::Write { path: target.to_owned(), source };
    match compressor.take_drain() {
        Some(Kept { inner, failure: None, num_bytes }) => {
            inner.sync_all().map(|()| num_bytes).map_err(written)
        }
        Some(Kept { failure: Some(source), .. }) => Err(written(source)),
        None => Err(written(io::Error::other("the compressor kept its target"))),
    }
}

/// The compressor panics where reading or writing fails. So a failure is kept,
/// and it is told that the stream is over.
struct Until<'a> {
    inner: Stream<'a>,
    failure: Option<BundleError>,
}

impl Read for Until<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.failure.is_some() {
            return Ok(0);
        }
        match self.inner.next_bytes(buffer) {
            Ok(count) => Ok(count),
            Err(failure) => {
                self.failure = Some(failure);
                Ok(0)
            }
        }
    }
}

/// The same for the target.
struct Kept {
    inner: File,
    failure: Option<io::Error>,
    num_bytes: u64,
}

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.failure.is_none() {
            match self.inner.write_all(bytes) {
                Ok(()) => self.num_bytes += bytes.len() as u64,
                Err(error) => self.failure = Some(error),
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The archive as bytes, in memory that no member's size changes.
struct Stream<'a> {
    /// What comes next: the manifest and its header, headers, padding.
    ready: Vec<u8>,
    at: usize,
    open: Option<Open<'a>>,
    rest: std::slice::Iter<'a, Source>,
    is_ended: bool,
    num_read: u64,
    progress: &'a mut dyn FnMut(u64),
}

/// A member that is being read.
struct Open<'a> {
    source: &'a Source,
    file: File,
    hasher: blake3::Hasher,
    left: u64,
}

impl<'a> Stream<'a> {
    fn new(
        (name, manifest): (&str, &[u8]),
        sources: &'a [Source],
        progress: &'a mut dyn FnMut(u64),
    ) -> Result<Self, BundleError> {
        let num_bytes = manifest.len() as u64;
        let mut ready = named(name, num_bytes)?.to_vec();
        ready.extend_from_slice(manifest);
        ready.resize(ready.len() + padding(num_bytes), 0);
        let rest = sources.iter();
        Ok(Self { ready, at: 0, open: None, rest, is_ended: false, num_read: 0, progress })
    }

    fn next_bytes(&mut self, buffer: &mut [u8]) -> Result<usize, BundleError> {
        loop {
            let waiting = self.ready.get(self.at..).unwrap_or_default();
            if !waiting.is_empty() {
                let count = waiting.len().min(buffer.len());
                if let (Some(to), Some(from)) = (buffer.get_mut(..count), waiting.get(..count)) {
                    to.copy_from_slice(from);
                }
                self.at += count;
                return Ok(count);
            }
            if let Some(open) = &mut self.open {
                let count = open.read(buffer)?;
                if count > 0 {
                    self.num_read += count as u64;
                    (self.progress)(self.num_read);
                    return Ok(count);
                }
                self.ready = vec![0; padding(open.source.num_bytes)];
                self.at = 0;
                self.open = None;
                continue;
            }
            match self.rest.next() {
                Some(source) => {
                    self.ready = named(&source.name, source.num_bytes)?.to_vec();
                    self.at = 0;
                    self.open = Some(Open::new(source)?);
                }
                None if self.is_ended => return Ok(0),
                None => {
                    self.is_ended = true;
                    self.ready = vec![0; 2 * BLOCK_BYTES];
                    self.at = 0;
                }
            }
        }
    }
}

impl<'a> Open<'a> {
    fn new(source: &'a Source) -> Result<Self, BundleError> {
        let file = File::open(&source.path)
            .map_err(|error| BundleError::Read { path: source.path.clone(), source: error })?;
        Ok(Self { source, file, hasher: blake3::Hasher::new(), left: source.num_bytes })
    }

    /// Reads on; 0 behind the last byte, where digest and size are compared.
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, BundleError> {
        let io = |source| BundleError::Read { path: self.source.path.clone(), source };
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let Some(part) = buffer.get_mut(..most) else { return Ok(0) };
        let count = loop {
            match self.file.read(part) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(io(error)),
                Ok(count) => break count,
            }
        };
        let changed = || BundleError::Changed { path: self.source.path.clone() };
        if count == 0 {
            // What was hashed is what is written, or nothing is.
            let mut further = [0];
            let is_longer = self.left == 0 && self.file.read(&mut further).map_err(io)? > 0;
            let is_same = self.hasher.finalize().as_bytes() == &self.source.digest.bytes;
            return if self.left == 0 && !is_longer && is_same { Ok(0) } else { Err(changed()) };
        }
        self.hasher.update(part.get(..count).unwrap_or_default());
        self.left -= count as u64;
        Ok(count)
    }
}

fn named(name: &str, num_bytes: u64) -> Result<[u8; BLOCK_BYTES], BundleError> {
    header(name, num_bytes).ok_or_else(|| BundleError::DoesNotFit { name: name.to_owned(), num_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_has_the_fields_of_ustar_and_nothing_of_the_day() {
        let block = header("run/data/train-0.txt", 1234).expect("it fits");
        assert!(block.starts_with(b"run/data/train-0.txt\0"));
        assert_eq!(&block[100..124], b"0000644\x000000000\x000000000\0");
        assert_eq!(&block[124..148], b"00000002322\x0000000000000\0");
        assert_eq!((block[156], &block[257..265]), (b'0', b"ustar\x0000".as_slice()));
        let sum: u32 = block
            .iter()
            .enumerate()
            .fold(0, |sum, (at, byte)| sum + if (148..156).contains(&at) { 32 } else { u32::from(*byte) });
        assert_eq!(&block[148..156], format!("{sum:06o}\0 ").as_bytes());
    }

    #[test]
    fn names_are_cut_at_the_first_slash_that_fits_or_not_at_all() {
        let long = format!("{}/{}", "a".repeat(60), "b".repeat(99));
        assert_eq!(split(&long), Some(("a".repeat(60).as_str(), "b".repeat(99).as_str())));
        let three = format!("a/{}/{}", "b".repeat(50), "c".repeat(60));
        assert_eq!(split(&three), Some((format!("a/{}", "b".repeat(50)).as_str(), "c".repeat(60).as_str())));
        for name in
            ["", &"a".repeat(101), &format!("{}/b", "a".repeat(156)), &format!("/{}", "a".repeat(100))]
        {
            assert_eq!(split(name), None, "{name}");
        }
        assert_eq!(header("a", u64::MAX), None);
    }
}
