//! A ledger as tiles (`c2sp.org/tlog-tiles`): a folder that any web server can
//! serve, and from which anybody makes every proof.
//!
//! Full tiles and the partial ones of one head, entry bundles, and the head as
//! `checkpoint`. Entries are at most 65,535 bytes, which the bundles' lengths
//! hold. The folder is made anew; an existing one is not added to.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use ledger::note;
use ledger::reader::{ReadError, Reader};
use ledger::tree::{Hash, leaf_hash, root_of};

use crate::leaves::{LeavesError, newest_head, tree};

/// Hashes of a full tile.
const WIDTH: usize = 256;

/// Tiles that could not be written.
#[derive(Debug, thiserror::Error)]
pub enum TilesError {
    /// The ledger cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// There is no head, or not one of these entries.
    #[error(transparent)]
    Leaves(#[from] LeavesError),
    /// The folder exists.
    #[error("{path} exists; tiles are written into a new folder")]
    Exists {
        /// The folder.
        path: PathBuf,
    },
    /// A file cannot be written.
    #[error("cannot write {path}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TilesSummary {
    /// Entry bundles.
    pub num_bundles: u64,
    /// Tiles of hashes.
    pub num_tiles: u64,
    /// Entries that the head covers.
    pub size: u64,
}

/// Writes the tiles of a ledger's newest head into a new folder. `cosigned`: the
/// same head with cosignatures, to be served in its place.
///
/// # Errors
/// When the ledger has no head of its entries, the folder exists, or a file
/// cannot be written.
pub fn write(ledger: &Path, folder: &Path, cosigned: Option<&str>) -> Result<TilesSummary, TilesError> {
    if folder.exists() {
        return Err(TilesError::Exists { path: folder.to_owned() });
    }
    let reader = Reader::open(ledger)?;
    let signed = newest_head(&reader)?;
    let head = note::parse(&signed).map_err(LeavesError::Note)?.head;
    let mut leaves = Vec::new();
    for row in reader.rows(0).take(usize::try_from(head.size).unwrap_or(usize::MAX)) {
        leaves.push(leaf_hash(&row?.1));
    }
    // Only entries that give the head's root are published under it.
    tree(&leaves, &head)?;
    let num_bundles = write_bundles(&reader, folder, leaves.len())?;
    let num_tiles = write_levels(leaves, folder)?;
    let served = cosigned.filter(|note| note::parse(note).is_ok_and(|parsed| parsed.head == head));
    write_file(&folder.join("checkpoint"), served.unwrap_or(&signed).as_bytes())?;
    Ok(TilesSummary { num_bundles, num_tiles, size: head.size })
}

fn write_levels(leaves: Vec<Hash>, folder: &Path) -> Result<u64, TilesError> {
    let (mut hashes, mut level, mut num_tiles) = (leaves, 0u32, 0);
    while !hashes.is_empty() {
        for (index, tile) in hashes.chunks(WIDTH).enumerate() {
            let path = folder.join(path_of(&level.to_string(), index, tile.len()));
            write_file(&path, &tile.concat())?;
            num_tiles += 1;
        }
        // A partial tile has no hash in the level above.
        hashes = hashes.chunks_exact(WIDTH).map(root_of).collect();
        level += 1;
    }
    Ok(num_tiles)
}

fn write_bundles(reader: &Reader, folder: &Path, size: usize) -> Result<u64, TilesError> {
    let mut rows = reader.rows(0).take(size);
    let mut num_bundles = 0;
    for (index, first) in (0..size).step_by(WIDTH).enumerate() {
        let width = WIDTH.min(size - first);
        let path = folder.join(path_of("entries", index, width));
        let mut bundle = Vec::new();
        for row in rows.by_ref().take(width) {
            let (_, bytes) = row?;
            let too_long =
                |_| TilesError::Io { path: path.clone(), source: io::ErrorKind::InvalidData.into() };
            bundle.extend(u16::try_from(bytes.len()).map_err(too_long)?.to_be_bytes());
            bundle.extend(bytes);
        }
        write_file(&path, &bundle)?;
        num_bundles += 1;
    }
    Ok(num_bundles)
}

/// `tile/<level>/<index in groups of three digits>[.p/<width>]`.
fn path_of(level: &str, index: usize, width: usize) -> PathBuf {
    let mut groups = vec![format!("{:03}", index % 1000)];
    let mut rest = index / 1000;
    while rest > 0 {
        groups.push(format!("x{:03}", rest % 1000));
        rest /= 1000;
    }
    groups.reverse();
    let mut text = format!("tile/{level}/{}", groups.join("/"));
    if width < WIDTH {
        text.push_str(&format!(".p/{width}"));
    }
    PathBuf::from(text)
}

fn write_file(path: &Path, bytes: &[u8]) -> Result<(), TilesError> {
    let attempt = || {
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        let mut file = BufWriter::new(File::create_new(path)?);
        file.write_all(bytes)?;
        file.flush()
    };
    attempt().map_err(|source| TilesError::Io { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_of_the_other_implementation() {
        for (level, index, width) in
            [(0u8, 0usize, 256usize), (0, 7, 3), (1, 255, 256), (0, 1_234_067, 256), (2, 1000, 1)]
        {
            let path = path_of(&level.to_string(), index, width);
            let width = u32::try_from(width).expect("small");
            let other = tlog_tiles::Tile::new(8, level, index as u64, width, false).path();
            // Theirs begins with the height, which the specification fixed later.
            assert_eq!(path.to_string_lossy(), other.replacen("tile/8/", "tile/", 1));
        }
        assert_eq!(path_of("entries", 1, 2), Path::new("tile/entries/001.p/2"));
    }
}
