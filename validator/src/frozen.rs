//! What was frozen: the contract and the documents that it binds, read back
//! from the ledger's own bytes.
//!
//! A document that is missing or damaged leaves a reason in its place, so
//! that rules which need it say `not_evaluated` and all others still run.

use schemas::campaign::Preregistration;
use schemas::contract::Contract;
use schemas::data::{DataManifest, EXAMPLE_RECORD_BYTES, EXAMPLE_TABLE_MAGIC, ExampleRecord};
use schemas::digest::Digest;
use schemas::ids::RunId;
use schemas::parameters::ParameterManifest;
use schemas::policy_card::PolicyCard;
use sha2::{Digest as _, Sha256};

use crate::canonical::check_contract_json;
use crate::form;

/// A bound document, or why it cannot be used.
pub type Bound<T> = Result<T, String>;

/// The frozen inputs of a run.
#[derive(Debug)]
pub struct Frozen {
    /// The contract.
    pub contract: Contract,
    /// SHA-256 of its canonical bytes.
    pub digest: Digest,
    /// The run's identifier, derived from the digest and the freeze's nonce.
    pub run: RunId,
    /// `/update/card`.
    pub card: Bound<PolicyCard>,
    /// `/data/manifest`.
    pub data: Bound<DataManifest>,
    /// `/parameters`.
    pub parameters: Bound<ParameterManifest>,
    /// `/membership/preregistration`; `None` where the run stands alone.
    pub preregistration: Option<Bound<FrozenPreregistration>>,
    /// `/data/train_examples`.
    pub train_examples: Bound<ExampleTable>,
    /// `/data/val_examples`.
    pub val_examples: Bound<ExampleTable>,
}

/// The preregistration of the campaign that the run says it belongs to.
#[derive(Debug, Clone, PartialEq)]
pub struct FrozenPreregistration {
    /// Its canonical bytes.
    pub canonical: Vec<u8>,
    /// SHA-256 of them.
    pub digest: Digest,
    /// What they say.
    pub document: Preregistration,
}

impl FrozenPreregistration {
    /// Reads a preregistration from its canonical bytes.
    ///
    /// # Errors
    /// In words, when the bytes are not canonical, or not a preregistration in the
    /// one form of it.
    pub fn parse(canonical: Vec<u8>) -> Bound<Self> {
        check_contract_json(&canonical).map_err(|problem| format!("not canonical (RFC 8785): {problem}"))?;
        let document: Preregistration =
            serde_json::from_slice(&canonical).map_err(|error| error.to_string())?;
        if document.format != schemas::PREREGISTRATION_FORMAT {
            return Err(format!("its format is {:?}", document.format));
        }
        if let Some(place) = form::first_other_place(&document, &canonical) {
            return Err(format!("{place}: a field is left out or has another form"));
        }
        let digest = Digest::sha256(Sha256::digest(&canonical).into());
        Ok(Self { canonical, digest, document })
    }
}

/// Folder beside the ledger in which a run with a store by URL has its
/// checkpoints, or gets them fetched into (`docs/FORMAT.md`).
const WORKING_FOLDER: &str = "checkpoints";

impl Frozen {
    /// Folder of the checkpoints, relative to the ledger's.
    #[must_use]
    pub fn checkpoint_folder(&self) -> &str {
        if self.is_stored_by_url() {
            WORKING_FOLDER
        } else {
            self.contract.checkpoints.store.trim_end_matches('/')
        }
    }

    /// Whether the checkpoints lie in a store by URL, and beside the ledger only
    /// what was made or fetched there. The validator asks no store.
    #[must_use]
    pub fn is_stored_by_url(&self) -> bool {
        self.contract.checkpoints.store.contains("://")
    }
}

/// An example table in memory: 48 bytes an example, random access.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExampleTable {
    bytes: Vec<u8>,
}

/// Bytes before the first record: magic and number of records.
const TABLE_HEADER_BYTES: usize = 16;

impl ExampleTable {
    /// Checks magic and length; the records are read on demand.
    ///
    /// # Errors
    /// In words, when the bytes are not a table.
    pub fn parse(bytes: Vec<u8>) -> Bound<Self> {
        let Some((header, records)) = bytes.split_first_chunk::<TABLE_HEADER_BYTES>() else {
            return Err(format!("example table of {} bytes has no header", bytes.len()));
        };
        if header[..8] != EXAMPLE_TABLE_MAGIC {
            return Err("example table does not begin with GLEXMPL1".to_owned());
        }
        let num_examples = u64::from_le_bytes(array(&header[8..]));
        let expected = num_examples.checked_mul(EXAMPLE_RECORD_BYTES as u64);
        if expected != Some(records.len() as u64) {
            return Err(format!(
                "example table declares {num_examples} records of {EXAMPLE_RECORD_BYTES} bytes and holds {} bytes",
                records.len()
            ));
        }
        Ok(Self { bytes })
    }

    /// The table as stored.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Examples in the table.
    #[must_use]
    pub fn num_examples(&self) -> u64 {
        ((self.bytes.len() - TABLE_HEADER_BYTES) / EXAMPLE_RECORD_BYTES) as u64
    }

    /// One record; `None` beyond the end.
    #[must_use]
    #[inline]
    pub fn get(&self, index: u64) -> Option<ExampleRecord> {
        let start = usize::try_from(index).ok()?.checked_mul(EXAMPLE_RECORD_BYTES)?;
        let start = start.checked_add(TABLE_HEADER_BYTES)?;
        let record = self.bytes.get(start..start.checked_add(EXAMPLE_RECORD_BYTES)?)?;
        Some(ExampleRecord {
            id: array(&record[16..]),
            num_targets: u32::from_le_bytes(array(&record[4..8])),
            offset: u64::from_le_bytes(array(&record[8..16])),
            shard: u32::from_le_bytes(array(&record[..4])),
        })
    }

    /// All records in order.
    pub fn iter(&self) -> impl Iterator<Item = ExampleRecord> + '_ {
        (0..self.num_examples()).filter_map(|index| self.get(index))
    }
}

/// A fixed-size copy of the first `N` bytes of a slice that has at least so many.
fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[..N]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_read_and_a_wrong_length_is_told() {
        let mut bytes = EXAMPLE_TABLE_MAGIC.to_vec();
        bytes.extend(1u64.to_le_bytes());
        bytes.extend(3u32.to_le_bytes());
        bytes.extend(7u32.to_le_bytes());
        bytes.extend(64u64.to_le_bytes());
        bytes.extend([9; 32]);
        let table = ExampleTable::parse(bytes.clone()).expect("a table");
        assert_eq!(table.num_examples(), 1);
        let record = ExampleRecord { id: [9; 32], num_targets: 7, offset: 64, shard: 3 };
        assert_eq!(table.get(0), Some(record));
        assert_eq!(table.get(1), None);
        assert_eq!(table.get(u64::MAX), None);
        bytes.pop();
        assert!(ExampleTable::parse(bytes).is_err());
        assert!(ExampleTable::parse(vec![0; 15]).is_err());
    }
}
