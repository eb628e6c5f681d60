//! `ledger serve`: read-only pages on loopback.

use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::arguments::ServeArguments;
use crate::failure::{Failure, OrFail};
use crate::output::{print, print_json, say};

pub(crate) fn run(arguments: ServeArguments) -> Result<u8, Failure> {
    for path in &arguments.ledgers {
        if !path.exists() {
            return Err(Failure::new(
                format!("there is no ledger at {}", path.display()),
                "name the file that `ledger freeze` made, by default run.db",
            ));
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
