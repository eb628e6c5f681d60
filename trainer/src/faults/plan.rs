//! Where the plan is from, and how a run knows what of it has acted: the
//! contract and the ledger; or, in builds with `failpoints` alone, a file that
//! the environment names and another beside it, so that the record says nothing.

use std::io;
use std::path::PathBuf;

use schemas::contract::{Contract, Detection, PlannedFault};

/// Names the file of a plan that is withheld from the record.
#[cfg(feature = "failpoints")]
const VARIABLE: &str = "LEDGER_FAULT_PLAN";

/// A withheld plan that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// A file cannot be read or written.
    #[error("could not {action} {}", path.display())]
    Io {
        /// `read` or `write`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is not a plan.
    #[error("{}: {reason}; expected {{\"detection\":...,\"plan\":[...]}} as in a contract", path.display())]
    Form {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

/// What is planned, and who looks for it.
#[derive(Debug)]
pub(super) struct Policy {
    pub(super) detection: Detection,
    pub(super) plan: Vec<PlannedFault>,
}

/// A plan, and where what has acted is noted.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) policy: Policy,
    pub(super) journal: Journal,
}

/// Where what has acted is noted.
#[derive(Debug, Clone)]
pub(super) enum Journal {
    /// In the ledger.
    Recorded,
    /// In a file, an index a line.
    #[cfg(feature = "failpoints")]
    Withheld(PathBuf),
}

/// The contract's plan, unless it is withheld.
pub(super) fn source(contract: &Contract) -> Result<Source, PlanError> {
    #[cfg(feature = "failpoints")]
    if let Some(path) = std::env::var_os(VARIABLE).map(PathBuf::from) {
        return withheld::source(&path);
    }
    let policy = Policy { detection: contract.faults.detection, plan: contract.faults.plan.clone() };
    Ok(Source { policy, journal: Journal::Recorded })
}

impl Journal {
    /// Indices that the journal itself holds; those in the ledger are read with
    /// the rest of it.
    pub(super) fn acted(&self) -> Result<Vec<u32>, PlanError> {
        match self {
            Self::Recorded => Ok(Vec::new()),
            #[cfg(feature = "failpoints")]
            Self::Withheld(path) => withheld::acted(path),
        }
    }

    /// Notes that an item is about to act; `None` where an entry says so.
    #[cfg_attr(not(feature = "failpoints"), allow(unused_variables, reason = "the ledger has it"))]
    pub(super) fn note(&self, plan_index: u32) -> Option<Result<(), PlanError>> {
        match self {
            Self::Recorded => None,
            #[cfg(feature = "failpoints")]
            Self::Withheld(path) => Some(withheld::note(path, plan_index)),
        }
    }
}

#[cfg(feature = "failpoints")]
mod withheld {
    use std::fs::{self, OpenOptions};
    use std::io::{self, Write as _};
    use std::path::{Path, PathBuf};

    use schemas::contract::{Detection, PlannedFault};
    use serde::Deserialize;

    use super::{Journal, PlanError, Policy, Source};

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Withheld {
        #[serde(default)]
        detection: Detection,
        plan: Vec<PlannedFault>,
    }

    pub(super) fn source(path: &Path) -> Result<Source, PlanError> {
        let bytes = fs::read(path).map_err(|source| io_error("read", path, source))?;
        let form = |reason| PlanError::Form { path: path.to_owned(), reason };
        let Withheld { detection, plan } =
            serde_json::from_slice(&bytes).map_err(|error| form(error.to_string()))?;
        if let Some(item) = plan.iter().find(|item| !item.fault.phases().contains(&item.phase)) {
            return Err(form(format!("{} has no phase {}", item.fault, item.phase)));
        }
        let mut acted = path.to_owned().into_os_string();
        acted.push(".acted");
        let journal = Journal::Withheld(PathBuf::from(acted));
        Ok(Source { policy: Policy { detection, plan }, journal })
    }

    pub(super) fn acted(path: &Path) -> Result<Vec<u32>, PlanError> {
        let text = match fs::read_to_string(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            read => read.map_err(|source| io_error("read", path, source))?,
        };
        let index = |line: &str| {
            line.parse().map_err(|_| PlanError::Form {
                path: path.to_owned(),
                reason: format!("{line:?} is no index"),
            })
        };
        text.lines().map(index).collect()
    }

    pub(super) fn note(path: &Path, plan_index: u32) -> Result<(), PlanError> {
        let write = |source| io_error("write", path, source);
        let mut file = OpenOptions::new().create(true).append(true).open(path).map_err(write)?;
        writeln!(file, "{plan_index}").and_then(|()| file.sync_all()).map_err(write)
    }

    fn io_error(action: &'static str, path: &Path, source: io::Error) -> PlanError {
        PlanError::Io { action, path: path.to_owned(), source }
    }
}
