//! `ledger seal`: a text to the qualifier's key, with age.

use std::path::Path;

use serde_json::json;

use crate::arguments::SealArguments;
use crate::failure::{Failure, OrFail};
use crate::key_folder;
use crate::output::{print, print_json, say};

pub(crate) fn run(arguments: &SealArguments) -> Result<u8, Failure> {
    if !arguments.plaintext.exists() {
        return Err(Failure::new(
            format!("there is no text at {}", arguments.plaintext.display()),
            "name the text that is to be sealed",
        ));
    }
    let recipient = match &arguments.recipient {
        Some(recipient) => recipient.clone(),
        None => {
            let folder = key_folder::locate(arguments.keys.as_deref(), Path::new("."));
            key_folder::recipient(&key_folder::open(&folder)?)?
        }
    };
    let sealed = corpus::seal::seal_file(&arguments.plaintext, &recipient, &arguments.output)
        .or_hint("name a text that exists and a sealed file that does not")?;
    if arguments.json {
        print_json(
            "seal",
            json!({
                "path": arguments.output, "plaintext": sealed.plaintext,
                "plaintext_num_bytes": sealed.plaintext_num_bytes, "recipient": recipient, "sealed": sealed.sealed,
                "sealed_num_bytes": sealed.sealed_num_bytes
            }),
        )?;
    } else {
        print(format!("sealed     {}  {} bytes", sealed.sealed, sealed.sealed_num_bytes))?;
        print(format!("plaintext  {}  {} bytes", sealed.plaintext, sealed.plaintext_num_bytes))?;
    }
    say(format!(
        "Sealed {} into {}. Put the plaintext's digest into /qualification/plaintext, and keep the plaintext away from the trainer.",
        arguments.plaintext.display(),
        arguments.output.display()
    ));
    Ok(0)
}
