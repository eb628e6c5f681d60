//! stdout for results, stderr for the rest; a closed pipe ends a command
//! quietly, because `ledger list run.db | head` is no mistake.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::time::Instant;

use schemas::digest::Digest;
use serde_json::{Map, Value};

use crate::failure::Failure;

/// Version of the JSON that commands print.
const SCHEMA_VERSION: u64 = 1;

/// Writes a line of results.
pub(crate) fn print(text: impl Display) -> Result<(), Failure> {
    write_out(format!("{text}\n").as_bytes())
}

/// Writes results as they are.
pub(crate) fn write_out(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe => Failure::reader_is_gone(),
        _ => Failure::new(
            format!("cannot write to standard output: {error}"),
            "redirect it to a disk with room",
        ),
    })
}

/// Writes a JSON result with its format and version.
pub(crate) fn print_json(command: &str, members: Value) -> Result<(), Failure> {
    let mut object = Map::new();
    object.insert("format".to_owned(), format!("ledger-{command}/1").into());
    object.insert("schema_version".to_owned(), SCHEMA_VERSION.into());
    if let Value::Object(members) = members {
        object.extend(members);
    }
    print(serde_json::to_string_pretty(&Value::Object(object))?)
}

/// Tells a person something that is no result. Nothing is left to be told to
/// when stderr is closed.
pub(crate) fn say(text: impl Display) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Verb, what, and how long it took: `Froze contract.json in 83ms`.
pub(crate) fn say_done(done: impl Display, since: Instant) {
    let elapsed_ms = since.elapsed().as_millis();
    if elapsed_ms < 10_000 {
        say(format!("{done} in {elapsed_ms}ms"));
    } else {
        say(format!("{done} in {}s", elapsed_ms / 1000));
    }
}

/// A count with thousands separated by commas.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number of things by their name: `1 run`, `2 runs`.
pub(crate) fn counted(number: usize, name: &str) -> String {
    if number == 1 { format!("1 {name}") } else { format!("{number} {name}s") }
}

/// BLAKE3 of some bytes.
pub(crate) fn blake3_of(bytes: &[u8]) -> Digest {
    Digest::blake3(*blake3::hash(bytes).as_bytes())
}

/// Writes a file so that it is there as a whole or not at all. An existing
/// file is refused unless `replace`.
pub(crate) fn write_file(path: &Path, bytes: &[u8], replace: bool) -> Result<(), Failure> {
    let attempt = || -> io::Result<()> {
        let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut file = tempfile::Builder::new().permissions(permissions()).tempfile_in(folder)?;
        file.write_all(bytes)?;
        file.as_file().sync_all()?;
        if replace {
            file.persist(path).map_err(|error| error.error)?;
        } else {
            file.persist_noclobber(path).map_err(|error| error.error)?;
        }
        std::fs::File::open(folder)?.sync_all()
    };
    attempt().map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => Failure::new(
            format!("{} exists and is not overwritten", path.display()),
            "name another file, or move it away",
        ),
        _ => Failure::new(
            format!("cannot write {}: {error}", path.display()),
            "make room, or name a folder that can be written",
        ),
    })
}

/// What a new file of results may be read by: everybody, as far as umask says.
fn permissions() -> std::fs::Permissions {
    use std::os::unix::fs::PermissionsExt;
    std::fs::Permissions::from_mode(0o644)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_separated() {
        for (number, text) in [(0, "0"), (999, "999"), (1204, "1,204"), (1_000_000, "1,000,000")] {
            assert_eq!(count(number), text);
        }
    }

    #[test]
    fn one_thing_is_not_several() {
        assert_eq!([0, 1, 2].map(|number| counted(number, "run")), ["0 runs", "1 run", "2 runs"]);
    }
}
