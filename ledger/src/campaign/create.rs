//! Creation of a campaign's ledger: the signed preregistration as entry 0, a
//! head by the owner, and the canonical bytes beside it for contracts to bind.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use schemas::MAX_ENTRY_BYTES;
use schemas::body::{Body, Halves};
use schemas::campaign::{CampaignFrozenDet, CampaignFrozenObs};
use schemas::digest::encode_hex;
use schemas::dsse::PREREGISTRATION_PAYLOAD_TYPE;
use schemas::entry::{Entry, Header, LedgerKind};

use crate::canonical;
use crate::create::{CreateError, Created, build, first_header, random};
use crate::dsse;
use crate::freeze::{
    CheckedPreregistration, PreregistrationError, PreregistrationRequest, check_preregistration, refuse_owner,
};
use crate::frozen::run_id;
use crate::keys::{KeyError, KeyPair, KeyRing, Role};
use crate::note;
use crate::store::NewRow;
use crate::tree::leaf_hash;

/// A frozen campaign and where its files lie.
#[derive(Debug, Clone)]
pub struct FrozenCampaign {
    /// The preregistration.
    pub checked: CheckedPreregistration,
    /// Identifier, digest and first head.
    pub created: Created,
    /// The ledger.
    pub ledger: PathBuf,
    /// The canonical bytes, for contracts to bind.
    pub preregistration: PathBuf,
}

/// Why a campaign was not frozen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CampaignFreezeError {
    /// Something is wrong with the preregistration.
    #[error(transparent)]
    Preregistration(#[from] PreregistrationError),
    /// The owner's key could not be read.
    #[error("the owner's key is needed to sign")]
    Key(#[from] KeyError),
    /// The ledger could not be created.
    #[error("the campaign was not frozen")]
    Create(#[from] CreateError),
    /// The canonical bytes could not be written beside it.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another file has that name.
    #[error("{} holds something else, and is never overwritten", path.display())]
    Occupied {
        /// The file.
        path: PathBuf,
    },
}

/// Where the canonical bytes lie: `campaign.preregistration.json` beside
/// `campaign.db`.
#[must_use]
pub fn preregistration_path(ledger: &Path) -> PathBuf {
    ledger.with_extension("preregistration.json")
}

/// Checks a preregistration and, where nothing is wrong, signs it and creates
/// its ledger: `output`, or `campaign.db` beside the file. `tool` is program
/// and version, for the record.
///
/// # Errors
/// When anything is wrong with it, the owner's key is missing or another one,
/// or the ledger exists or cannot be written.
pub fn freeze_campaign(
    request: &PreregistrationRequest,
    output: Option<&Path>,
    keys: &KeyRing,
    tool: &str,
) -> Result<FrozenCampaign, CampaignFreezeError> {
    let source = &request.preregistration;
    let ledger = output.map_or_else(|| source.with_file_name("campaign.db"), Path::to_owned);
    if ledger.exists() {
        return Err(CreateError::Exists { path: ledger }.into());
    }
    let checked = check_preregistration(request)?;
    let owner = keys.get(Role::Owner)?;
    let named = &checked.preregistration.keys.owner.public;
    if owner.public_hex() != *named {
        return Err(refuse_owner(source, named, keys.folder(), &owner.public_hex()).into());
    }
    let preregistration = preregistration_path(&ledger);
    write_once(&preregistration, &checked.canonical)?;
    let created = create_campaign_ledger(&ledger, &checked, &owner, tool)?;
    Ok(FrozenCampaign { checked, created, ledger, preregistration })
}

/// Writes a file that nobody has, or that has these bytes already: a freeze
/// that failed behind this may be repeated.
fn write_once(path: &Path, bytes: &[u8]) -> Result<(), CampaignFreezeError> {
    let failed = |source| CampaignFreezeError::Write { path: path.to_owned(), source };
    match std::fs::OpenOptions::new().write(true).create_new(true).open(path) {
        Ok(mut file) => file.write_all(bytes).and_then(|()| file.sync_all()).map_err(failed),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let has_them = std::fs::read(path).map_err(failed)? == bytes;
            if has_them { Ok(()) } else { Err(CampaignFreezeError::Occupied { path: path.to_owned() }) }
        }
        Err(error) => Err(failed(error)),
    }
}

fn create_campaign_ledger(
    path: &Path,
    checked: &CheckedPreregistration,
    owner: &KeyPair,
    tool: &str,
) -> Result<Created, CreateError> {
    let text = String::from_utf8(checked.canonical.clone()).map_err(|_| CreateError::ContractNotCanonical)?;
    let nonce = encode_hex(&random::<8>()?);
    let run = run_id(&checked.digest, &nonce);
    let det = CampaignFrozenDet {
        digest: checked.digest,
        preregistration: text,
        signature: dsse::sign_detached(PREREGISTRATION_PAYLOAD_TYPE, &checked.canonical, owner),
    };
    let obs = CampaignFrozenObs { nonce, tool: tool.to_owned() };
    let idem = random::<16>()?;
    let entry = Entry {
        body: Body::CampaignFrozen(Box::new(Halves { det, obs })),
        header: Header { ledger: LedgerKind::Campaign, ..first_header(owner, idem, &run) },
        index: 0,
        time_us: crate::recorder::now_us(),
    };
    let entry = canonical::entry_json(&entry)?;
    if entry.len() > MAX_ENTRY_BYTES {
        return Err(CreateError::TooLarge { num_bytes: entry.len() });
    }
    let row = NewRow { index: 0, idem, leaf: leaf_hash(&entry), entry };
    let origin = note::origin(LedgerKind::Campaign, &run);
    let receipt = build(path, &origin, owner, &[], Some(&row))?;
    Ok(Created { run, digest: checked.digest, receipt })
}
