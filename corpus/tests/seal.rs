//! Sealing: what is sealed opens with the identity and with no other.
#![cfg(feature = "seal")]

use std::fs;
use std::str::FromStr;

use anyhow::{Context, Result};
use corpus::seal::{SealError, check_recipient, generate_identity, recipient_of, seal, seal_file};
use schemas::digest::Digest;

fn open(identity_file: &str, sealed: &[u8]) -> Result<Vec<u8>> {
    let line =
        identity_file.lines().find(|line| line.starts_with("AGE-SECRET-KEY-1")).context("an identity")?;
    let identity = age::x25519::Identity::from_str(line).map_err(anyhow::Error::msg)?;
    Ok(age::decrypt(&identity, sealed)?)
}

#[test]
fn a_sealed_file_opens_with_its_identity_alone() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (plaintext, sealed) = (folder.path().join("q.txt"), folder.path().join("q.age"));
    let text = b"not for the trainer\n".repeat(40_000);
    fs::write(&plaintext, &text)?;
    let identity = generate_identity();
    assert_eq!(recipient_of(&identity.identity_file)?, identity.recipient);
    let report = seal_file(&plaintext, &identity.recipient, &sealed)?;
    let bytes = fs::read(&sealed)?;
    assert_eq!(report.plaintext, Digest::blake3(*blake3::hash(&text).as_bytes()));
    assert_eq!(report.sealed, Digest::blake3(*blake3::hash(&bytes).as_bytes()));
    assert_eq!(
        (report.plaintext_num_bytes, report.sealed_num_bytes),
        (text.len() as u64, bytes.len() as u64)
    );
    assert_eq!(open(&identity.identity_file, &bytes)?, text);
    assert!(open(&generate_identity().identity_file, &bytes).is_err());
    let error = seal_file(&plaintext, &identity.recipient, &sealed).expect_err("the sealed file exists");
    assert!(matches!(error, SealError::Write(corpus::WriteError::Occupied { .. })), "{error}");
    assert_eq!(fs::read(&sealed)?, bytes);
    Ok(())
}

#[test]
fn bytes_seal_and_wrong_recipients_are_refused() -> Result<()> {
    let identity = generate_identity();
    let sealed = seal(b"text", &identity.recipient)?;
    assert_eq!(open(&identity.identity_file, &sealed)?, b"text");
    for wrong in
        ["", "age1", "age1qqqq", &identity.recipient.to_uppercase(), &format!(" {}", identity.recipient)]
    {
        assert!(check_recipient(wrong).is_err(), "{wrong:?}");
        assert!(seal(b"text", wrong).is_err(), "{wrong:?}");
    }
    for wrong in ["", "# only a comment\n", "AGE-SECRET-KEY-1X\n"] {
        assert!(recipient_of(wrong).is_err(), "{wrong:?}");
    }
    Ok(())
}

#[test]
fn an_empty_plaintext_is_refused_and_leaves_nothing() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let plaintext = folder.path().join("empty.txt");
    fs::write(&plaintext, b"")?;
    let sealed = folder.path().join("empty.age");
    let error = seal_file(&plaintext, &generate_identity().recipient, &sealed).expect_err("nothing to seal");
    assert!(matches!(error, SealError::Empty { .. }), "{error}");
    assert_eq!(fs::read_dir(folder.path())?.count(), 1);
    Ok(())
}
