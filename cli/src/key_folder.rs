//! Where keys are, and the making of those that are missing.
//!
//! A key is made once and never replaced. The qualifier has an age identity
//! besides its signing key: what is sealed to it, only it can open.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use ledger::keys::{KeyError, KeyRing, Role};
use schemas::contract::{Keys, PublicKey};

use crate::failure::{Failure, OrFail};

/// The environment variable that names the key folder.
const VARIABLE: &str = "LEDGER_KEYS";

/// File of the qualifier's age identity.
pub(crate) const IDENTITY_FILE: &str = "qualifier.age-identity";

/// The roles that a contract names.
pub(crate) const CONTRACT_ROLES: [Role; 4] = [Role::Owner, Role::Trainer, Role::Validator, Role::Qualifier];

/// `--keys`, else `$LEDGER_KEYS`, else `keys` in `folder`.
pub(crate) fn locate(named: Option<&Path>, folder: &Path) -> PathBuf {
    let variable = || std::env::var_os(VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from);
    named.map(Path::to_owned).or_else(variable).unwrap_or_else(|| folder.join("keys"))
}

/// The folder of a file, `.` for a bare name.
pub(crate) fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Opens a key folder that must be there.
pub(crate) fn open(folder: &Path) -> Result<KeyRing, Failure> {
    KeyRing::open(folder).or_hint("`ledger keygen` makes keys; name their folder with --keys or $LEDGER_KEYS")
}

/// Makes the key of a role. Refuses where there is one.
pub(crate) fn make(folder: &Path, role: Role) -> Result<(), Failure> {
    KeyRing::generate(folder, role)?;
    if role == Role::Qualifier {
        let identity = corpus::seal::generate_identity();
        let path = folder.join(IDENTITY_FILE);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).or_fail(
            format!("making {}", path.display()),
            "an identity is never overwritten; move it away first",
        )?;
        file.write_all(identity.identity_file.as_bytes())
            .and_then(|()| file.sync_all())
            .or_fail(format!("writing {}", path.display()), "make room on the disk")?;
        KeyRing::open(folder)?.set_recipient(&identity.recipient)?;
    }
    Ok(())
}

/// Checks that [`make_missing`] and [`contract_keys`] can work with what a
/// folder holds: keys that are there can be used, and those that are missing
/// are missing altogether. Makes nothing; the folder may be missing too.
pub(crate) fn check(folder: &Path) -> Result<(), Failure> {
    if !folder.exists() {
        return Ok(());
    }
    let ring = open(folder)?;
    for role in CONTRACT_ROLES {
        if ring.public_path(role).exists() {
            ring.public(role).or_hint("move it away, or name another folder with --keys")?;
            if role == Role::Qualifier {
                let hint = "`ledger keygen --role qualifier` in an empty folder makes one";
                corpus::seal::check_recipient(&recipient(&ring)?).or_hint(hint)?;
            }
            continue;
        }
        let mut to_make = vec![ring.secret_path(role)];
        if role == Role::Qualifier {
            to_make.push(folder.join(IDENTITY_FILE));
        }
        if let Some(path) = to_make.into_iter().find(|path| path.exists()) {
            let hint = "put its public key file beside it, or name another folder with --keys";
            return Err(Failure::from(KeyError::Exists { path }).with_hint(hint));
        }
    }
    Ok(())
}

/// Makes the keys of the contract's roles that have no public key file.
/// Returns the roles that were made.
pub(crate) fn make_missing(folder: &Path) -> Result<Vec<Role>, Failure> {
    let mut made = Vec::new();
    for role in CONTRACT_ROLES {
        if !folder.join(format!("{role}.pub")).exists() {
            make(folder, role)?;
            made.push(role);
        }
    }
    Ok(made)
}

/// The `keys` block of a contract, from the public key files of a folder.
pub(crate) fn contract_keys(folder: &Path) -> Result<Keys, Failure> {
    let ring = open(folder)?;
    let public = |role: Role| -> Result<PublicKey, Failure> {
        let file = ring.public(role).or_hint(format!("`ledger keygen --role {role}` makes one"))?;
        Ok(PublicKey { host: file.host, public: file.public })
    };
    Ok(Keys {
        owner: public(Role::Owner)?,
        qualifier: public(Role::Qualifier)?,
        qualifier_recipient: recipient(&ring)?,
        trainer: public(Role::Trainer)?,
        validator: public(Role::Validator)?,
        witness_quorum: 0,
        witnesses: Vec::new(),
    })
}

/// The qualifier's age recipient.
pub(crate) fn recipient(ring: &KeyRing) -> Result<String, Failure> {
    let file = ring.public(Role::Qualifier).or_hint("`ledger keygen --role qualifier` makes one")?;
    file.recipient.ok_or_else(|| {
        Failure::new(
            format!("{} names no age recipient", ring.public_path(Role::Qualifier).display()),
            "make the qualifier's key with `ledger keygen --role qualifier`, or name one with --recipient",
        )
    })
}

/// Says where new keys are and what to do with them.
pub(crate) fn say_made(folder: &Path, made: &[Role]) {
    if made.is_empty() {
        return;
    }
    let names: Vec<&str> = made.iter().map(|role| role.name()).collect();
    crate::output::say(format!(
        "Made keys for {} in {} (mode 0600). Back up the owner's and the qualifier's, apart from the ledger.",
        names.join(", "),
        folder.display()
    ));
}
