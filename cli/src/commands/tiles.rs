//! `ledger export --tiles`: a folder of `c2sp.org/tlog-tiles`.

use std::path::Path;

use serde_json::json;

use crate::failure::{Failure, OrFail};
use crate::output::{count, print, print_json, say};

pub(super) fn run(ledger: &Path, folder: &Path, json: bool) -> Result<u8, Failure> {
    let cosigned = super::proof::newest_cosigned(ledger)?;
    let written = witness::tiles::write(ledger, folder, cosigned.as_deref())
        .or_hint("name a ledger that can be read, and a folder that does not exist")?;
    let (bundles, tiles) = (written.num_bundles, written.num_tiles);
    if json {
        print_json(
            "export-tiles",
            json!({"folder": folder, "num_bundles": bundles, "num_tiles": tiles, "size": written.size}),
        )?;
    } else {
        print(format!("entries  {} in {} bundles", count(written.size), count(bundles)))?;
        print(format!("tiles    {}", count(tiles)))?;
    }
    say(format!("Exported {} to {}; serve the folder as it is.", ledger.display(), folder.display()));
    Ok(0)
}
