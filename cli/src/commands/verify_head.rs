//! `ledger verify-head`: does the ledger hold what a head signed?

use std::path::Path;

use ledger::strict::{ParseOptions, parse};
use ledger::verify::{HeadChoice, VerifyHeadError, verify_head};
use schemas::digest::{decode_hex, encode_hex};
use serde_json::json;

use crate::arguments::VerifyHeadArguments;
use crate::failure::{Failure, OrFail};
use crate::output::{count, print, print_json, say};

pub(crate) fn run(arguments: &VerifyHeadArguments) -> Result<u8, Failure> {
    let choice = arguments.head.clone().map_or(HeadChoice::Beside, HeadChoice::File);
    let trusted = arguments.trust.as_deref().map(trusted_keys).transpose()?.unwrap_or_default();
    let verified =
        verify_head(&arguments.ledger, &choice, &trusted).map_err(|error| explain(error, arguments))?;
    let role = verified.role.map(ledger::keys::Role::name);
    if arguments.json {
        print_json(
            "verify-head",
            json!({
                "num_entries": verified.num_entries, "origin": verified.head.origin, "public": verified.public,
                "role": role, "root": encode_hex(&verified.head.root), "size": verified.head.size
            }),
        )?;
    } else {
        print(format!("origin  {}", verified.head.origin))?;
        print(format!("size    {}", verified.head.size))?;
        print(format!("root    {}", encode_hex(&verified.head.root)))?;
        print(format!("key     {} ({})", verified.public, role.unwrap_or("given with --trust")))?;
    }
    say(format!(
        "The first {} of {} entries are those that the head signed.",
        count(verified.head.size),
        count(verified.num_entries)
    ));
    if trusted.is_empty() {
        say("The key is the one that the ledger's own contract names; --trust FILE checks who that is.");
    }
    Ok(0)
}

/// A head that the ledger does not meet is a finding; one that cannot be read
/// is not.
fn explain(error: VerifyHeadError, arguments: &VerifyHeadArguments) -> Failure {
    let hint = match &error {
        VerifyHeadError::Read(_) => "name a ledger and a head file that can be read",
        VerifyHeadError::NoHead(_) => "name a head that was kept with --head FILE",
        VerifyHeadError::NoKey => "name a file of trusted keys with --trust FILE",
        _ => {
            let hint =
                "compare with another copy of the ledger and of the head; `ledger audit` names the entries";
            return Failure::from(error).into_findings(&arguments.ledger, hint);
        }
    };
    Failure::from(error).with_hint(hint)
}

/// Public keys of a trust file: a JSON object of roles and 64 hex digits.
pub(super) fn trusted_keys(path: &Path) -> Result<Vec<String>, Failure> {
    let hint = "write a JSON object such as {\"trainer\": \"<64 hex digits>\"}";
    let attempted = format!("reading the trust file {}", path.display());
    let bytes = std::fs::read(path).or_fail(&attempted, hint)?;
    let value = parse(&bytes, ParseOptions::default()).or_fail(&attempted, hint)?;
    let keys = value.as_object().filter(|keys| !keys.is_empty());
    let keys = keys.ok_or_else(|| Failure::new(format!("{attempted}: it is no object with keys"), hint))?;
    keys.iter()
        .map(|(role, key)| {
            let text = key.as_str().filter(|text| decode_hex(text).is_some_and(|bytes| bytes.len() == 32));
            let wrong =
                || Failure::new(format!("{attempted}: /{role} is not 64 lower-case hex digits"), hint);
            text.map(ToOwned::to_owned).ok_or_else(wrong)
        })
        .collect()
}
