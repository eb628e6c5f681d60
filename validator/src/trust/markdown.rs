//! The table as the README shows it.

use std::fmt::Write;

use super::{CLASSES, shown_by_text};

/// The table in Markdown, with a line for each way, ending with a newline.
#[must_use]
pub fn markdown() -> String {
    let mut out = String::from("| who | what is done | with | shown by |\n|---|---|---|---|\n");
    for class in CLASSES {
        for way in class.ways {
            let mut shown = shown_by_text(way.shown_by).to_owned();
            if way.keys_show_it {
                shown.push_str(", or public keys that came another way");
            }
            if way.is_warning {
                shown.push_str(", as a warning");
            }
            if !way.rules.is_empty() {
                let _ = write!(shown, " ({})", way.rules.join(", "));
            }
            // Writing to a string cannot fail.
            let _ = writeln!(
                out,
                "| `{}/{}` | {}. {}. | {} | {shown} |",
                class.name, way.name, way.what, way.why, way.holds
            );
        }
    }
    out
}
