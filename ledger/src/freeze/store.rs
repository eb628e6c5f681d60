//! Where checkpoints go: a folder below the ledger's, or a bucket by URL.
//!
//! Either way the files lie in a folder while they are made, which must not be
//! one that the contract binds files of. A URL is a name and nothing else: what
//! opens the bucket comes from the environment of the process that uses it, and
//! a contract is public.

use schemas::contract::Contract;

use super::files::check_relative;
use super::problem::Problems;

const POINTER: &str = "/checkpoints/store";

/// Folder that is used under a URL (`docs/FORMAT.md`, "Checkpoint stores by URL").
const WORKING_FOLDER: &str = "checkpoints";

/// Longest URL: a key may have 1024 bytes, and run, checkpoint and file follow.
const MAX_URL_BYTES: usize = 512;

/// Shortest and longest name of a bucket (Amazon's rules for general purpose
/// buckets).
const BUCKET_BYTES: std::ops::RangeInclusive<usize> = 3..=63;

pub(super) fn check(contract: &Contract, problems: &mut Problems) {
    let store = &contract.checkpoints.store;
    let folder = if store.contains("://") {
        if let Err((message, hint)) = check_url(store) {
            problems.add(POINTER, message, hint);
            return;
        }
        WORKING_FOLDER
    } else {
        if let Err(refusal) = check_relative(store) {
            let hint = "name a folder below the ledger's, such as `checkpoints`, or s3://bucket/prefix";
            problems.add(POINTER, refusal.message, hint);
            return;
        }
        store
    };
    let named = [
        &contract.data.manifest,
        &contract.data.train_examples,
        &contract.data.val_examples,
        &contract.parameters,
        &contract.qualification.sealed,
        &contract.update.card,
    ];
    for binding in named {
        problems.require(
            binding.path != *folder && !binding.path.starts_with(&format!("{folder}/")),
            POINTER,
            format!("{folder:?} holds {}, which the contract binds", binding.path),
            "give the checkpoints a folder of their own",
        );
    }
}

/// What is wrong with a URL, and what to do. The URL is not repeated: where it
/// is refused it may hold a password.
fn check_url(url: &str) -> Result<(), (String, &'static str)> {
    let wrong = |message: &str, hint: &'static str| Err((message.to_owned(), hint));
    let (scheme, rest) = url.split_once("://").unwrap_or_default();
    if scheme == "file" {
        return wrong(
            "is a file URL",
            "name the folder itself, relative to the ledger's, such as `checkpoints`",
        );
    }
    if scheme != "s3" {
        let message = format!("has the scheme {scheme:?}; only s3 is known");
        return Err((message, "name a folder below the ledger's, or s3://bucket/prefix"));
    }
    if url.len() > MAX_URL_BYTES {
        let message = format!("has {} bytes; at most {MAX_URL_BYTES}", url.len());
        return Err((message, "choose a shorter prefix"));
    }
    if rest.contains('@') {
        return wrong(
            "holds a user or a password, and a contract is public",
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY where the trainer runs",
        );
    }
    if rest.contains(['?', '#']) {
        return wrong(
            "holds a query or a fragment",
            "set AWS_ENDPOINT_URL and AWS_REGION where the trainer runs",
        );
    }
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    if bucket.is_empty() {
        return wrong("names no bucket", "say s3://bucket/prefix");
    }
    let is_end =
        |byte: Option<&u8>| byte.is_some_and(|byte| is_bucket_byte(*byte) && byte.is_ascii_alphanumeric());
    let ends = [bucket.as_bytes().first(), bucket.as_bytes().last()];
    if !BUCKET_BYTES.contains(&bucket.len())
        || !bucket.bytes().all(is_bucket_byte)
        || !ends.into_iter().all(is_end)
    {
        return wrong(
            "names a bucket that cannot be one",
            "a bucket's name has 3 to 63 lower-case letters, digits, dots and hyphens, without a port",
        );
    }
    if rest.ends_with('/') || !prefix.is_empty() && !prefix.split('/').all(is_plain) {
        return wrong(
            "has a prefix that is not plain names between single slashes",
            "use letters, digits, `-`, `_` and dots, and no slash at the end",
        );
    }
    Ok(())
}

const fn is_bucket_byte(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'-')
}

fn is_plain(name: &str) -> bool {
    let is_unreserved = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    !name.is_empty() && name != "." && name != ".." && name.bytes().all(is_unreserved)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_with_or_without_a_prefix_is_taken() {
        for url in ["s3://bucket", "s3://bucket/runs", "s3://my.bucket-2/Team_A/2026.11"] {
            assert_eq!(check_url(url), Ok(()), "{url}");
        }
    }

    #[test]
    fn what_is_wrong_is_said_and_no_password_repeated() {
        let check = |url: &str, expected: &str| {
            let (message, hint) = check_url(url).expect_err(url);
            assert!(message.contains(expected), "{url}: {message}");
            assert!(!message.contains("hidden") && !hint.is_empty(), "{message}");
        };
        check("file:///var/store", "file URL");
        check("https://bucket.s3.amazonaws.com", "\"https\"");
        check("gs://bucket", "\"gs\"");
        check("s3://name:hidden@bucket/x", "password");
        check("s3://bucket/x?endpoint=hidden", "query");
        check("s3://bucket/x#y", "query");
        check("s3://", "no bucket");
        check("s3:///prefix", "no bucket");
        for bucket in ["ab", "Bucket", "bucket:9000", "-bucket", "bucket.", &"b".repeat(64)] {
            check(&format!("s3://{bucket}/x"), "cannot be one");
        }
        for prefix in ["/", "//x", "/x/", "/x//y", "/../x", "/a b", "/%2e"] {
            check(&format!("s3://bucket{prefix}"), "plain names");
        }
        check(&format!("s3://bucket/{}", "x".repeat(600)), "at most 512");
    }
}
