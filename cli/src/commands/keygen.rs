//! `ledger keygen`: role keys.

use std::path::Path;

use ledger::keys::Role;
use serde_json::{Value, json};

use crate::arguments::KeygenArguments;
use crate::failure::Failure;
use crate::key_folder;
use crate::output::{print, print_json};

pub(crate) fn run(arguments: &KeygenArguments) -> Result<u8, Failure> {
    let folder = key_folder::locate(arguments.keys.as_deref(), Path::new("."));
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
