//! What an audit could have shown of each class of adversary, as text.

use std::fmt::Write;

use schemas::report::HeadSource;
use schemas::trust::{Reach, TrustScope, WayInReach};

/// The evidence, then the ways by what the audit could have shown of them.
pub(super) fn write_scope(out: &mut String, scope: &TrustScope) -> std::fmt::Result {
    let head = match scope.head_source {
        HeadSource::Named => format!("a head file that was named, over {} entries", scope.head_size),
        HeadSource::Beside => format!("the head file beside the ledger, over {} entries", scope.head_size),
        HeadSource::Database => "no head outside the database".to_owned(),
    };
    let keys = if scope.keys_compared { "public keys that were named" } else { "the contract's own keys" };
    writeln!(out, "\nadversaries:  the evidence was {head}, and {keys} (`ledger trust` explains each)")?;
    for (reach, title) in [
        (Reach::Shown, "would have been shown"),
        (Reach::ShownUnlessHeadFileToo, "would have been shown unless the head file was changed too"),
        (Reach::NotShown, "would not have been shown"),
    ] {
        let names = names(scope, reach);
        if !names.is_empty() {
            writeln!(out, "  {title}: {}", names.join(", "))?;
        }
    }
    Ok(())
}

/// Classes whose every way is within that reach, by their name, and the ways of
/// the others.
fn names(scope: &TrustScope, reach: Reach) -> Vec<String> {
    let mut names = Vec::new();
    for class in &scope.classes {
        let within: Vec<&WayInReach> = class.ways.iter().filter(|way| way.reach == reach).collect();
        if !within.is_empty() && within.len() == class.ways.len() {
            names.push(class.class.clone());
        } else {
            names.extend(within.iter().map(|way| format!("{}/{}", class.class, way.way)));
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use schemas::trust::{ClassInReach, ShownBy};

    use super::*;

    #[test]
    fn a_class_is_named_as_a_whole_or_by_its_ways() {
        let way = |way: &str, reach| WayInReach {
            lacks: None,
            reach,
            shown_by: ShownBy::Alone,
            way: way.to_owned(),
        };
        let class = |class: &str, ways| ClassInReach { class: class.to_owned(), ways };
        let scope = TrustScope {
            classes: vec![
                class("whole", vec![way("a", Reach::Shown), way("b", Reach::Shown)]),
                class("split", vec![way("a", Reach::Shown), way("b", Reach::NotShown)]),
            ],
            head_size: 7,
            head_source: HeadSource::Named,
            keys_compared: true,
        };
        let mut text = String::new();
        write_scope(&mut text, &scope).expect("a string");
        assert!(text.contains("a head file that was named, over 7 entries, and public keys"), "{text}");
        assert!(text.contains("would have been shown: whole, split/a\n"), "{text}");
        assert!(text.contains("would not have been shown: split/b\n"), "{text}");
        assert!(!text.contains("head file was changed"), "{text}");
    }
}
