//! `ledger keygen`: role keys, and the key that signs models for other tools.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use exports::model_signing::{KEY_FILE, ModelKey, PUBLIC_KEY_FILE};
use ledger::keys::Role;
use serde_json::{Value, json};

use crate::arguments::KeygenArguments;
use crate::failure::{Failure, OrFail};
use crate::key_folder;
use crate::output::{print, print_json, say};

pub(crate) fn run(arguments: &KeygenArguments) -> Result<u8, Failure> {
    let folder = key_folder::locate(arguments.keys.as_deref(), Path::new("."));
    if arguments.model_signing {
        return make_model_key(&folder, arguments.json);
    }
    let roles: Vec<Role> = arguments.role.iter().map(|role| Role::from(*role)).collect();
    let made = if roles.is_empty() {
        key_folder::make_missing(&folder)?
    } else {
        for role in &roles {
            key_folder::make(&folder, *role)?;
        }
        roles.clone()
    };
    key_folder::say_made(&folder, &made);
    let ring = key_folder::open(&folder)?;
    let shown = if roles.is_empty() { key_folder::CONTRACT_ROLES.to_vec() } else { roles };
    let mut keys = Vec::new();
    for role in shown {
        let file = ring.public(role)?;
        if !arguments.json {
            let state = if made.contains(&role) { "made" } else { "kept" };
            print(format!("{role:<10} {}  {state}  {}", file.public, ring.public_path(role).display()))?;
        }
        keys.push(json!({
            "host": file.host, "made": made.contains(&role), "path": ring.public_path(role), "public": file.public,
            "recipient": file.recipient, "role": role
        }));
    }
    if arguments.json {
        print_json("keygen", json!({"folder": folder, "keys": Value::Array(keys)}))?;
    }
    Ok(0)
}

/// Makes the key of `ledger export --format model-signing`. It has no role: no
/// contract names it.
fn make_model_key(folder: &Path, json: bool) -> Result<u8, Failure> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.or_fail(format!("making {}", folder.display()), "name a folder that can be written with --keys")?;
    let public = ModelKey::generate(folder)?.public_pem()?;
    let (secret_path, public_path) = (folder.join(KEY_FILE), folder.join(PUBLIC_KEY_FILE));
    if json {
        let members = json!({"path": secret_path, "public": public, "public_path": public_path});
        print_json("keygen-model-signing", members)?;
    } else {
        print(public.trim_end())?;
    }
    say(format!("Made {} (mode 0600) and {}.", secret_path.display(), public_path.display()));
    Ok(0)
}
