//! Frames on a local stream: what kind, of which update, how long, and a digest
//! of the content (`docs/FORMAT.md`, "Exchange").
//!
//! A frame that was read is whole and is what was sent. Whether it is the one
//! that was due, the caller decides by its number and kind.

use std::io::{self, Read};

/// First bytes of every frame.
const MAGIC: [u8; 4] = *b"GLW1";
/// Bytes before the content.
pub(super) const HEADER_BYTES: usize = 4 + 4 + 8 + 8 + 32;

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Contract, documents, and which worker; to a worker.
    Setup,
    /// The example table of the train split; to a worker.
    Examples,
    /// Where the run stands, but for tensors; to a worker.
    State,
    /// Parameters and moments; to a worker.
    Replica,
    /// Which microbatches of the next update; to a worker.
    Update,
    /// What a worker's microbatches consumed.
    Consumed,
    /// A worker's sums of gradients.
    Gradients,
    /// The gradient of an update; to a worker.
    Total,
    /// Digest of a worker's replica.
    Digest,
    /// Why a worker cannot go on.
    Failure,
}

impl Kind {
    const ALL: [Self; 10] = [
        Self::Setup,
        Self::Examples,
        Self::State,
        Self::Replica,
        Self::Update,
        Self::Consumed,
        Self::Gradients,
        Self::Total,
        Self::Digest,
        Self::Failure,
    ];

    /// Its number in a header, from 1.
    fn number(self) -> u32 {
        (1..).zip(Self::ALL).find(|(_, kind)| *kind == self).map_or(0, |(number, _)| number)
    }

    fn from_number(number: u32) -> Option<Self> {
        (1..).zip(Self::ALL).find(|(known, _)| *known == number).map(|(_, kind)| kind)
    }
}

/// A frame that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Frame {
    /// BLAKE3 of the content, which was compared.
    pub(super) digest: [u8; 32],
    /// What it is.
    pub(super) kind: Kind,
    /// Its content.
    pub(super) payload: Vec<u8>,
    /// Number of the update that it belongs to.
    pub(super) step: u64,
}

impl Frame {
    /// Bytes that it took on the stream.
    pub(super) const fn num_bytes(&self) -> u64 {
        (HEADER_BYTES + self.payload.len()) as u64
    }
}

/// Why no frame could be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum FrameError {
    /// The other side is gone.
    #[error("the connection was closed")]
    Closed,
    /// The stream failed.
    #[error("the connection failed: {0}")]
    Io(io::Error),
    /// Bytes that are no frame.
    #[error("a frame is not one: {0}")]
    Malformed(String),
}

/// A frame's bytes before its content.
pub(super) fn header(kind: Kind, step: u64, payload: &[u8]) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    let digest = blake3::hash(payload);
    let parts: [&[u8]; 5] = [
        &MAGIC,
        &kind.number().to_le_bytes(),
        &step.to_le_bytes(),
        &(payload.len() as u64).to_le_bytes(),
        digest.as_bytes(),
    ];
    let bytes = parts.into_iter().flatten();
    header.iter_mut().zip(bytes).for_each(|(slot, byte)| *slot = *byte);
    header
}

/// Reads the next frame, of at most so many bytes of content.
pub(super) fn read(stream: &mut impl Read, max_bytes: u64) -> Result<Frame, FrameError> {
    let mut magic = [0; 4];
    exactly(stream, &mut magic)?;
    if magic != MAGIC {
        return Err(FrameError::Malformed(format!("it begins with {magic:?}")));
    }
    let (mut kind, mut step, mut length, mut digest) = ([0; 4], [0; 8], [0; 8], [0; 32]);
    exactly(stream, &mut kind)?;
    exactly(stream, &mut step)?;
    exactly(stream, &mut length)?;
    exactly(stream, &mut digest)?;
    let number = u32::from_le_bytes(kind);
    let kind = Kind::from_number(number);
    let kind = kind.ok_or_else(|| FrameError::Malformed(format!("it is of no kind: {number}")))?;
    let length = u64::from_le_bytes(length);
    if length > max_bytes {
        return Err(FrameError::Malformed(format!("it has {length} bytes, at most {max_bytes} are due")));
    }
    let mut payload = vec![0; usize::try_from(length).unwrap_or(0)];
    exactly(stream, &mut payload)?;
    if *blake3::hash(&payload).as_bytes() != digest {
        return Err(FrameError::Malformed("its content has another digest than it says".to_owned()));
    }
    Ok(Frame { digest, kind, payload, step: u64::from_le_bytes(step) })
}

fn exactly(stream: &mut impl Read, bytes: &mut [u8]) -> Result<(), FrameError> {
    stream.read_exact(bytes).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
            FrameError::Closed
        }
        _ => FrameError::Io(error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(kind: Kind, step: u64, payload: &[u8]) -> Vec<u8> {
        [header(kind, step, payload).as_slice(), payload].concat()
    }

    fn refused(bytes: &[u8]) -> String {
        read(&mut &*bytes, 100).expect_err("it is damaged").to_string()
    }

    #[test]
    fn a_frame_comes_back_as_it_was_sent() {
        for kind in Kind::ALL {
            let sent = bytes(kind, 7, b"content");
            let frame = read(&mut sent.as_slice(), 100).expect("a frame");
            assert_eq!((frame.kind, frame.step, frame.payload.as_slice()), (kind, 7, b"content".as_slice()));
            assert_eq!(frame.num_bytes(), sent.len() as u64);
        }
    }

    #[test]
    fn no_byte_of_a_frame_can_change_unseen() {
        let sent = bytes(Kind::Gradients, 7, b"content");
        let whole = read(&mut sent.as_slice(), 100).expect("a frame");
        for index in 0..sent.len() {
            let mut changed = sent.clone();
            changed[index] ^= 1;
            match read(&mut changed.as_slice(), 100) {
                Err(_) => {}
                // Number and kind are what the caller compares.
                Ok(frame) => assert!(
                    frame.step != whole.step || frame.kind != whole.kind,
                    "byte {index} changed and nobody saw"
                ),
            }
        }
        for length in 0..sent.len() {
            let closed = read(&mut &sent[..length], 100).expect_err("it is cut off");
            assert!(matches!(closed, FrameError::Closed), "{closed}");
        }
        assert!(refused(&bytes(Kind::Total, 1, &[0; 101])).contains("at most 100"), "it would be allocated");
    }
}
