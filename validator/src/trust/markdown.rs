//! The table as the README shows it.

use std::fmt::Write;

use super::{CLASSES, shown_in_words};

/// The table in Markdown, with a line for each way, ending with a newline.
#[must_use]
pub fn markdown() -> String {
    let mut out = String::from("| who | what is done | with | shown by |\n|---|---|---|---|\n");
    for class in CLASSES {
        for way in class.ways {
            let shown = shown_in_words(way);
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
