//! `ledger serve`: read-only pages on loopback.

use std::path::Path;

use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::arguments::ServeArguments;
use crate::failure::{Failure, OrFail};
use crate::output::{print, print_json, say};

fn has_ledger(folder: &Path) -> Result<bool, Failure> {
    for item in std::fs::read_dir(folder)? {
        if item?.path().extension().is_some_and(|extension| extension == "db") {
            return Ok(true);
        }
    }
    Ok(false)
}

pub(crate) fn run(arguments: ServeArguments) -> Result<u8, Failure> {
    for path in &arguments.ledgers {
        super::require_ledger(path)?;
        // Ledgers may come later: a folder is read again for each page.
        if path.is_dir() && !has_ledger(path)? {
            say(format!("{} holds no ledger yet: no file in it ends in .db", path.display()));
        }
    }
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    std::thread::spawn(move || {
        if signals.forever().next().is_some() {
            // The server may have ended by itself.
            let _ = stop.send(());
        }
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let json = arguments.json;
    let config = web::Config { ledgers: arguments.ledgers };
    let mut printed = Ok(());
    let served = runtime.block_on(web::serve(
        arguments.listen,
        config,
        |address| {
            let url = format!("http://{address}/");
            printed = if json { print_json("serve", json!({"url": url})) } else { print(&url) };
            say("Serving on loopback, read-only. Ctrl-C ends it.");
        },
        async move {
            // A closed channel ends the server too.
            let _ = stopped.await;
        },
    ));
    printed?;
    served.or_hint("name a free loopback address with --listen, such as 127.0.0.1:0")?;
    Ok(0)
}
