//! Where a store by URL is, and what its objects are called.
//!
//! A key is `<prefix>/<run>/<checkpoint>/<file>`. Runs have unique names, so
//! that any number of them share a prefix and none touches another's objects.

use schemas::ids::RunId;

use super::{StoreError, Stored};

/// Bucket and prefix of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    bucket: String,
    /// Without slashes at its ends; empty where there is none.
    prefix: String,
}

/// Whether a contract's store is a URL and not a folder.
#[must_use]
pub fn is_url(store: &str) -> bool {
    store.contains("://")
}

impl Location {
    /// Takes `s3://bucket` or `s3://bucket/prefix` apart. `ledger freeze` checks
    /// the same with more words.
    ///
    /// # Errors
    /// [`StoreError::Url`].
    pub fn parse(url: &str) -> Result<Self, StoreError> {
        let refuse = |reason: &str| StoreError::Url { url: redacted(url), reason: reason.to_owned() };
        let rest = url.strip_prefix("s3://").ok_or_else(|| refuse("only s3:// is known"))?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty() || !bucket.bytes().all(is_of_bucket) {
            return Err(refuse("the bucket is a name of lower-case letters, digits, dots and hyphens"));
        }
        let is_plain =
            |part: &str| !part.is_empty() && part != "." && part != ".." && part.bytes().all(is_unreserved);
        if !prefix.is_empty() && !prefix.split('/').all(is_plain) || rest.ends_with('/') {
            return Err(refuse("the prefix is names of letters, digits, `-`, `_` and dots, between slashes"));
        }
        Ok(Self { bucket: bucket.to_owned(), prefix: prefix.to_owned() })
    }

    /// The bucket.
    #[must_use]
    pub fn bucket(&self) -> &str {
        &self.bucket
    }

    /// Key below which a run's objects lie, without a slash at its end.
    #[must_use]
    pub fn run(&self, run: &RunId) -> String {
        match self.prefix.as_str() {
            "" => run.to_string(),
            prefix => format!("{prefix}/{run}"),
        }
    }

    /// Key below which a checkpoint's objects lie, without a slash at its end.
    #[must_use]
    pub fn folder(&self, stored: Stored<'_>) -> String {
        format!("{}/{}", self.run(stored.run), stored.checkpoint)
    }

    /// Key of a file of a checkpoint.
    #[must_use]
    pub fn file(&self, stored: Stored<'_>, name: &str) -> String {
        format!("{}/{name}", self.folder(stored))
    }

    /// A key as a person reads it.
    #[must_use]
    pub fn url(&self, key: &str) -> String {
        format!("s3://{}/{key}", self.bucket)
    }
}

const fn is_of_bucket(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'-')
}

/// RFC 3986, 2.3, without the tilde, which older signers escape.
const fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.')
}

/// A URL that may be shown: what stands before an `@` may be a password.
fn redacted(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://...@{host}"),
        _ => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use schemas::ids::CheckpointId;

    use super::*;

    #[test]
    fn keys_are_prefix_run_checkpoint_and_file() {
        let run = RunId("0123-abcd".to_owned());
        let checkpoint = CheckpointId::from("s00000000-a1");
        let stored = Stored { checkpoint: &checkpoint, run: &run };
        let location = Location::parse("s3://bucket/team/runs").expect("a store");
        assert_eq!(location.file(stored, "manifest.json"), "team/runs/0123-abcd/s00000000-a1/manifest.json");
        assert_eq!(location.url("x/y"), "s3://bucket/x/y");
        let location = Location::parse("s3://bucket").expect("a bucket alone");
        assert_eq!(location.folder(stored), "0123-abcd/s00000000-a1");
    }

    #[test]
    fn other_urls_are_refused_and_passwords_not_repeated() {
        let urls =
            ["file:///tmp/x", "s3://", "s3:///x", "s3://b/", "s3://b//x", "s3://b/../x", "s3://b/x?y=z"];
        for url in urls {
            assert!(Location::parse(url).is_err(), "{url}");
        }
        let refused = Location::parse("s3://name:secret@bucket/x").expect_err("no user").to_string();
        assert!(!refused.contains("secret") && refused.contains("bucket"), "{refused}");
    }
}
