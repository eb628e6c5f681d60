//! `ledger trust`: the classes of adversaries, what each does with which keys,
//! and the least evidence that shows it.
//!
//! The table is the validator's (`validator::trust`); the README's trust
//! statement is this command's `--markdown`.

use clap::Args;
use serde_json::{Value, json};
use validator::trust::{AdversaryClass, CLASSES, Way, find, markdown, shown_in_words};

use crate::failure::Failure;
use crate::output::{print, print_json, write_out};

#[derive(Debug, Args)]
pub(crate) struct TrustArguments {
    /// Only this class, such as tail-cut.
    pub(crate) class: Option<String>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Print the table of the README.
    #[arg(long, conflicts_with_all = ["json", "class"])]
    pub(crate) markdown: bool,
}

pub(crate) fn run(arguments: &TrustArguments) -> Result<u8, Failure> {
    if arguments.markdown {
        write_out(markdown().as_bytes())?;
        return Ok(0);
    }
    let classes: Vec<&AdversaryClass> = match &arguments.class {
        None => CLASSES.iter().collect(),
        Some(name) => vec![find(name).ok_or_else(|| {
            let names: Vec<&str> = CLASSES.iter().map(|class| class.name).collect();
            let hint = format!("name one of {}", names.join(", "));
            Failure::new(format!("there is no class of adversaries {name:?}"), hint)
        })?],
    };
    if arguments.json {
        let classes: Vec<Value> = classes.into_iter().map(class_json).collect();
        print_json("trust", json!({ "classes": classes }))?;
        return Ok(0);
    }
    for (index, class) in classes.into_iter().enumerate() {
        let gap = if index > 0 { "\n" } else { "" };
        print(format!("{gap}{}: {}.", class.name, class.what))?;
        for way in class.ways {
            print_way(way)?;
        }
    }
    Ok(0)
}

fn print_way(way: &Way) -> Result<(), Failure> {
    print(format!("  {}", way.name))?;
    print(format!("    what:     {}.", way.what))?;
    print(format!("    with:     {}", way.holds))?;
    print(format!("    shown by: {}", shown_in_words(way)))?;
    print(format!("    because:  {}.", way.why))
}

fn class_json(class: &AdversaryClass) -> Value {
    let ways: Vec<Value> = class
        .ways
        .iter()
        .map(|way| {
            json!({
                "holds": way.holds, "is_warning": way.is_warning, "keys_show_it": way.keys_show_it,
                "rules": way.rules, "shown_by": way.shown_by, "way": way.name, "what": way.what, "why": way.why
            })
        })
        .collect();
    json!({ "class": class.name, "ways": ways, "what": class.what })
}
