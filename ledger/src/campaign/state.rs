//! What a campaign's ledger holds, run by run.

use std::collections::BTreeMap;

use schemas::body::Body;
use schemas::campaign::{CampaignRunDet, RunPurpose};
use schemas::number::DecimalU64;

use super::{CampaignContract, CampaignContractError};
use crate::note::{self, NoteError, TreeHead};
use crate::reader::{ReadError, Reader};

/// A run that the campaign binds, as its newest entry says.
#[derive(Debug, Clone, PartialEq)]
pub struct BoundRun {
    /// Who it is.
    pub det: CampaignRunDet,
    /// Index of the entry that bound it first.
    pub first_entry: u64,
    /// The newest head that was bound.
    pub head: TreeHead,
    /// Why it was bound when it was trained already.
    pub late: Option<String>,
    /// Where its ledger lay, relative to the campaign's folder.
    pub path: String,
}

/// A campaign at the moment of reading.
#[derive(Debug, Clone, PartialEq)]
pub struct CampaignState {
    /// What was frozen.
    pub contract: CampaignContract,
    /// Entries of the ledger.
    pub num_entries: u64,
    /// Runs in the order in which they were bound.
    pub runs: Vec<BoundRun>,
}

/// A campaign that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum CampaignReadError {
    /// The ledger cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// Entry 0 is not a frozen preregistration.
    #[error("{}", path.display())]
    Contract {
        /// The ledger.
        path: std::path::PathBuf,
        /// Why.
        source: CampaignContractError,
    },
    /// A run's head is no signed note.
    #[error("{}, entry {index}: the run's head cannot be read; run `ledger campaign audit`", path.display())]
    Head {
        /// The ledger.
        path: std::path::PathBuf,
        /// The entry.
        index: u64,
        /// Why.
        source: NoteError,
    },
}

/// Reads a campaign's ledger. What contradicts an earlier entry is left to the
/// audit; the newest entry of a run is shown.
///
/// # Errors
/// When the ledger cannot be read or is not a campaign's.
pub fn read_campaign(reader: &Reader) -> Result<CampaignState, CampaignReadError> {
    let path = || reader.path().to_owned();
    let contract = CampaignContract::from_entry(&reader.entry(0)?)
        .map_err(|source| CampaignReadError::Contract { path: path(), source })?;
    let mut runs: Vec<BoundRun> = Vec::new();
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    for entry in reader.entries(1) {
        let entry = entry?;
        let Body::CampaignRun(halves) = entry.body else { continue };
        let head = note::parse(&halves.obs.head)
            .map_err(|source| CampaignReadError::Head { path: path(), index: entry.index, source })?
            .head;
        let place = *places.entry(halves.det.run.0.clone()).or_insert(runs.len());
        match runs.get_mut(place) {
            Some(known) => {
                known.det = halves.det;
                known.head = head;
                known.path = halves.obs.path;
            }
            None => runs.push(BoundRun {
                det: halves.det,
                first_entry: entry.index,
                head,
                late: halves.obs.late,
                path: halves.obs.path,
            }),
        }
    }
    Ok(CampaignState { contract, num_entries: reader.num_entries(), runs })
}

impl CampaignState {
    /// Runs of one arm.
    pub fn of_arm(&self, arm: &str) -> impl Iterator<Item = &BoundRun> {
        self.runs.iter().filter(move |run| run.det.arm == arm)
    }

    /// The number that the next run of an arm gets: one above the largest.
    #[must_use]
    pub fn next_trial(&self, arm: &str) -> u32 {
        self.of_arm(arm).map(|run| run.det.trial).max().unwrap_or(0).saturating_add(1)
    }

    /// Arms and seeds without a confirmation run at level 0, in the order of
    /// the preregistration.
    #[must_use]
    pub fn missing_confirmations(&self) -> Vec<(&str, DecimalU64)> {
        let has = |arm: &str, seed: DecimalU64| {
            self.of_arm(arm).any(|run| {
                run.det.purpose == RunPurpose::Confirmation
                    && run.det.rescue_level == 0
                    && run.det.seed == seed
            })
        };
        let preregistration = &self.contract.preregistration;
        let arms = preregistration.arms.iter().map(|arm| arm.name.as_str());
        let pairs = arms.flat_map(|arm| preregistration.seeds.iter().map(move |seed| (arm, *seed)));
        pairs.filter(|(arm, seed)| !has(arm, *seed)).collect()
    }
}
