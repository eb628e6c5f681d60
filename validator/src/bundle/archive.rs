//! The archive, read strictly: one Zstandard frame of ustar members.
//!
//! A header is compared with the one that its name and size give, byte for byte,
//! so that there is one archive for one content: no links, no devices, no
//! extensions, no owner and no time. Memory is that of a window, whatever the
//! archive says.

use std::io::{self, Read};

use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use schemas::bundle::{BUNDLE_MANIFEST, BundleManifest, BundleMember, MAX_BUNDLE_MANIFEST_BYTES};
use schemas::digest::Digest;

use super::error::Refusal;
use super::names::check_name;
use crate::canonical;
use crate::form;

/// Bytes of a header, and what members are filled up to.
pub(super) const BLOCK_BYTES: usize = 512;

/// Largest window of a frame. Bundles are written with 128 KiB.
const MAX_WINDOW_BYTES: u64 = 1 << 20;

/// Bytes that are taken at a time.
const PIECE_BYTES: usize = 1 << 16;

/// Why reading ended.
#[derive(Debug)]
pub(super) enum Fault {
    Refused(Refusal),
    Io(io::Error),
}

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// Where in the archive, and what.
pub(super) type Failed = (String, Fault);

/// Bytes of an archive, one after the other.
pub(super) trait Stream {
    /// Fills the buffer, and less of it only at the end.
    fn fill(&mut self, buffer: &mut [u8]) -> Result<usize, Fault>;

    /// Asserts that nothing follows.
    fn finish(&mut self) -> Result<(), Fault>;
}

/// An archive that is not compressed.
impl Stream for &[u8] {
    fn fill(&mut self, buffer: &mut [u8]) -> Result<usize, Fault> {
        Read::read(self, buffer).map_err(Fault::Io)
    }

    fn finish(&mut self) -> Result<(), Fault> {
        if self.is_empty() { Ok(()) } else { Err(Refusal::TrailingData.into()) }
    }
}

/// The file below a frame; remembers what the decoder would only tell as text.
struct Below<R> {
    inner: R,
    failure: Option<io::Error>,
    is_ended: bool,
}

impl<R: Read> Read for Below<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.inner.read(buffer) {
            Ok(count) => {
                self.is_ended |= count == 0 && !buffer.is_empty();
                Ok(count)
            }
            Err(error) => {
                let kind = error.kind();
                if kind != io::ErrorKind::Interrupted {
                    self.failure = Some(error);
                }
                Err(kind.into())
            }
        }
    }
}

/// One frame, with a checksum behind it.
pub(super) struct Frame<R> {
    below: Below<R>,
    decoder: FrameDecoder,
}

impl<R: Read> Frame<R> {
    /// Reads the frame's header.
    pub(super) fn open(inner: R) -> Result<Self, Fault> {
        let mut below = Below { inner, failure: None, is_ended: false };
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(MAX_WINDOW_BYTES);
        match decoder.init(&mut below) {
            Ok(()) => Ok(Self { below, decoder }),
            Err(error) => Err(below.fault(&error)),
        }
    }
}

impl<R> Below<R> {
    /// What a decoder's error is: the disk's, the file's end, or the frame's.
    fn fault(&mut self, error: &dyn std::error::Error) -> Fault {
        match self.failure.take() {
            Some(failure) => Fault::Io(failure),
            None if self.is_ended => Refusal::Truncated.into(),
            None => Refusal::Frame(error.to_string()).into(),
        }
    }
}

impl<R: Read> Stream for Frame<R> {
    fn fill(&mut self, buffer: &mut [u8]) -> Result<usize, Fault> {
        let mut num_filled = 0;
        while num_filled < buffer.len() {
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                // A block is at most 128 KiB, also unpacked.
                let decoded =
                    self.decoder.decode_blocks(&mut self.below, BlockDecodingStrategy::UptoBlocks(1));
                if let Err(error) = decoded {
                    return Err(self.below.fault(&error));
                }
            }
            let rest = buffer.get_mut(num_filled..).unwrap_or_default();
            match Read::read(&mut self.decoder, rest).map_err(Fault::Io)? {
                0 => break,
                count => num_filled += count,
            }
        }
        Ok(num_filled)
    }

    fn finish(&mut self) -> Result<(), Fault> {
        if self.fill(&mut [0])? > 0 {
            return Err(Refusal::TrailingData.into());
        }
        match (self.decoder.get_checksum_from_data(), self.decoder.get_calculated_checksum()) {
            (Some(stated), Some(actual)) if stated == actual => {}
            (None, _) => return Err(Refusal::Frame("it has no checksum".to_owned()).into()),
            _ => return Err(Refusal::Frame("its checksum is another".to_owned()).into()),
        }
        let mut further = [0];
        let further = loop {
            match self.below.read(&mut further) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.below.failure.take().map_or(Fault::Io(error), Fault::Io)),
                Ok(count) => break count,
            }
        };
        if further == 0 { Ok(()) } else { Err(Refusal::TrailingData.into()) }
    }
}

/// The header that a member of this name and size has; `None` where none can.
pub(super) fn header(name: &str, num_bytes: u64) -> Option<[u8; BLOCK_BYTES]> {
    let (prefix, rest) = match name.len() {
        0..=100 => ("", name),
        length => {
            // The first slash behind which the rest fits.
            let at = (length - 101..length).find(|at| name.as_bytes().get(*at) == Some(&b'/'))?;
            (name.get(..at)?, name.get(at + 1..)?)
        }
    };
    if prefix.len() > 155 || rest.is_empty() || num_bytes >= 1 << 33 {
        return None;
    }
    let fields: [(usize, &[u8]); 10] = [
        (0, rest.as_bytes()),
        (100, b"0000644\0"),
        (108, b"0000000\0"),
        (116, b"0000000\0"),
        (124, &octal(num_bytes)),
        (136, b"00000000000\0"),
        (148, b"        "),
        (156, b"0"),
        (257, b"ustar\x0000"),
        (345, prefix.as_bytes()),
    ];
    let mut block = [0; BLOCK_BYTES];
    for (at, bytes) in fields {
        block.get_mut(at..at + bytes.len())?.copy_from_slice(bytes);
    }
    let sum = checksum(&block);
    block.get_mut(148..156)?.copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    Some(block)
}

/// Eleven octal digits and a zero byte.
fn octal(number: u64) -> Vec<u8> {
    format!("{number:011o}\0").into_bytes()
}

/// Sum of a header's bytes, its checksum counted as spaces.
pub(super) fn checksum(block: &[u8; BLOCK_BYTES]) -> u32 {
    (0..).zip(block).map(|(at, byte)| if (148..156).contains(&at) { 32 } else { u32::from(*byte) }).sum()
}

/// A field up to its first zero byte.
fn field(block: &[u8; BLOCK_BYTES], at: usize, length: usize) -> &[u8] {
    let bytes = block.get(at..at + length).unwrap_or_default();
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// A size as headers write it.
fn size_of(block: &[u8; BLOCK_BYTES]) -> Option<u64> {
    let (digits, end) = block.get(124..136)?.split_at(11);
    let is_octal = digits.iter().all(|digit| (b'0'..=b'7').contains(digit)) && end == [0];
    let text = std::str::from_utf8(digits).ok().filter(|_| is_octal)?;
    u64::from_str_radix(text, 8).ok()
}

/// Name in a header, as far as it is text.
fn name_of(block: &[u8; BLOCK_BYTES]) -> String {
    let (prefix, rest) = (field(block, 345, 155), field(block, 0, 100));
    let bytes = if prefix.is_empty() { rest.to_vec() } else { [prefix, b"/", rest].concat() };
    String::from_utf8_lossy(&bytes).into_owned()
}

/// What a block is that should be the header of a member of `expected`.
fn explain(
    block: &[u8; BLOCK_BYTES],
    expected: Option<(&BundleMember, usize)>,
    all: &[BundleMember],
) -> Refusal {
    if block.iter().all(|byte| *byte == 0) {
        return Refusal::Missing;
    }
    match block.get(257..265) {
        Some(b"ustar\x0000") => {}
        Some([b'u', b's', b't', b'a', b'r', b' ', ..]) => return Refusal::Extension("a header of GNU tar"),
        _ => return Refusal::Extension("no ustar header"),
    }
    let stated = block.get(148..156).unwrap_or_default();
    if stated != format!("{:06o}\0 ", checksum(block)).as_bytes() {
        return Refusal::Header;
    }
    match block.get(156).copied().unwrap_or_default() {
        b'0' => {}
        b'1' | b'2' => return Refusal::Link,
        b'3' | b'4' | b'6' => return Refusal::Device,
        b'5' => return Refusal::Folder,
        b'x' | b'g' => return Refusal::Extension("a pax header"),
        b'L' | b'K' => return Refusal::Extension("a long name of GNU tar"),
        b'S' => return Refusal::Extension("a sparse file"),
        _ => return Refusal::Extension("an unknown kind of member"),
    }
    let name = name_of(block);
    if let Err(refusal) = check_name(&name) {
        return refusal;
    }
    let Some(num_bytes) = size_of(block) else { return Refusal::Header };
    match expected {
        Some((member, _)) if member.name == name => {
            if member.num_bytes == num_bytes {
                Refusal::Metadata
            } else {
                Refusal::Size { expected: member.num_bytes, actual: num_bytes }
            }
        }
        _ => {
            let place = all.iter().position(|member| member.name == name);
            let num_seen = expected.map_or(all.len(), |(_, at)| at);
            match place {
                Some(at) if at < num_seen => Refusal::Duplicate,
                Some(_) => Refusal::Missing,
                None if name == BUNDLE_MANIFEST => Refusal::Duplicate,
                None => Refusal::Unlisted,
            }
        }
    }
}

/// The members of an archive, in the order of its manifest.
pub(super) struct Members<S> {
    stream: S,
}

impl<S: Stream> Members<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream }
    }

    /// Fills a buffer; that the archive ends before is refused.
    fn exactly(&mut self, buffer: &mut [u8]) -> Result<(), Fault> {
        let count = self.stream.fill(buffer)?;
        if count == buffer.len() { Ok(()) } else { Err(Refusal::Truncated.into()) }
    }

    fn block(&mut self) -> Result<[u8; BLOCK_BYTES], Fault> {
        let mut block = [0; BLOCK_BYTES];
        self.exactly(&mut block)?;
        Ok(block)
    }

    /// Zeros up to the next block.
    fn padding(&mut self, num_bytes: u64) -> Result<(), Fault> {
        let rest = usize::try_from(num_bytes % BLOCK_BYTES as u64).unwrap_or(0);
        if rest == 0 {
            return Ok(());
        }
        let mut zeros = vec![0; BLOCK_BYTES - rest];
        self.exactly(&mut zeros)?;
        if zeros.iter().all(|byte| *byte == 0) { Ok(()) } else { Err(Refusal::Metadata.into()) }
    }

    /// The manifest, which comes first.
    pub(super) fn manifest(&mut self) -> Result<BundleManifest, Failed> {
        let failed = |fault| (BUNDLE_MANIFEST.to_owned(), fault);
        let refuse = |what: String| failed(Refusal::Manifest(what).into());
        let no_bundle = |what| -> Failed { ("its beginning".to_owned(), Refusal::NoBundle(what).into()) };
        let mut block = [0; BLOCK_BYTES];
        // A file that was cut is an error of the stream; this one is whole, and short.
        if self.stream.fill(&mut block).map_err(failed)? < BLOCK_BYTES {
            return Err(no_bundle("it holds less than the header of one file"));
        }
        let num_bytes =
            size_of(&block).filter(|num_bytes| header(BUNDLE_MANIFEST, *num_bytes) == Some(block));
        let Some(num_bytes) = num_bytes else {
            // Of what is no header there is no name either.
            if block.get(257..262) != Some(b"ustar".as_slice()) {
                return Err(no_bundle("it holds no archive"));
            }
            let refusal = explain(&block, None, &[]);
            let refusal = match refusal {
                Refusal::Duplicate => Refusal::Metadata,
                Refusal::Unlisted => Refusal::Manifest("it is not the first member".to_owned()),
                other => other,
            };
            return Err((name_of(&block), refusal.into()));
        };
        if num_bytes > MAX_BUNDLE_MANIFEST_BYTES {
            return Err(refuse(format!("larger than {MAX_BUNDLE_MANIFEST_BYTES} bytes")));
        }
        let mut bytes = Vec::new();
        let mut left = usize::try_from(num_bytes).unwrap_or(usize::MAX);
        // Memory grows with what is there, not with what the header says.
        while left > 0 {
            let (at, count) = (bytes.len(), left.min(PIECE_BYTES));
            bytes.resize(at + count, 0);
            self.exactly(bytes.get_mut(at..).unwrap_or_default()).map_err(failed)?;
            left -= count;
        }
        self.padding(num_bytes).map_err(failed)?;
        canonical::check_entry_json(&bytes).map_err(|problem| refuse(problem.to_string()))?;
        let manifest: BundleManifest =
            serde_json::from_slice(&bytes).map_err(|error| refuse(error.to_string()))?;
        if let Some(offset) = form::first_difference(&manifest, &bytes) {
            return Err(refuse(format!("byte {offset}: a field is left out or has another form")));
        }
        if manifest.format != schemas::BUNDLE_FORMAT {
            return Err(refuse(format!("its format is {:?}", manifest.format)));
        }
        Ok(manifest)
    }

    /// The member at a place of the manifest; `take` gets its bytes in pieces.
    pub(super) fn member(
        &mut self,
        manifest: &BundleManifest,
        at: usize,
        take: &mut dyn FnMut(&[u8]) -> Result<(), Fault>,
    ) -> Result<(), Failed> {
        let Some(member) = manifest.members.get(at) else { return Ok(()) };
        let failed = |fault| (member.name.clone(), fault);
        let block = self.block().map_err(failed)?;
        if header(&member.name, member.num_bytes) != Some(block) {
            let refusal = explain(&block, Some((member, at)), &manifest.members);
            let place = if refusal == Refusal::Missing { member.name.clone() } else { name_of(&block) };
            return Err((place, refusal.into()));
        }
        let mut hasher = blake3::Hasher::new();
        let mut piece = vec![0; PIECE_BYTES.min(usize::try_from(member.num_bytes).unwrap_or(PIECE_BYTES))];
        let mut left = member.num_bytes;
        while left > 0 {
            let count = usize::try_from(left).unwrap_or(usize::MAX).min(piece.len());
            let bytes = piece.get_mut(..count).unwrap_or_default();
            self.exactly(bytes).map_err(failed)?;
            hasher.update(bytes);
            take(bytes).map_err(failed)?;
            left -= count as u64;
        }
        self.padding(member.num_bytes).map_err(failed)?;
        let actual = Digest::blake3(*hasher.finalize().as_bytes());
        if actual == member.digest {
            return Ok(());
        }
        let (expected, actual) = (member.digest.to_string(), actual.to_string());
        Err(failed(Refusal::Digest { expected, actual }.into()))
    }

    /// The two blocks of zeros at the end, and nothing behind them.
    pub(super) fn end(&mut self, manifest: &BundleManifest) -> Result<(), Failed> {
        for _ in 0..2 {
            let block = self.block().map_err(|fault| ("its end".to_owned(), fault))?;
            if block.iter().any(|byte| *byte != 0) {
                let refusal = match explain(&block, None, &manifest.members) {
                    // A header like any other, and one too many.
                    Refusal::Missing => Refusal::Duplicate,
                    refusal => refusal,
                };
                return Err((name_of(&block), refusal.into()));
            }
        }
        self.stream.finish().map_err(|fault| ("its end".to_owned(), fault))
    }
}
