//! Retention that promises nothing, or what cannot be.

use serde_json::{Value, json};

use crate::fixture::Fixture;
use crate::refused_content::check_pointers;

/// Saved at every fifth step.
#[test]
fn retention_that_promises_nothing_or_what_cannot_be() {
    let keep = |best: u32, every_steps: Option<u64>, last: u32, pinned: &[u64]| json!({"kind": "chosen", "best": best, "every_steps": every_steps, "last": last, "pinned": pinned});
    let check_keep = |keep: Value, pointers: &[&str]| {
        let pointers: Vec<String> =
            pointers.iter().map(|field| format!("/checkpoints/keep/{field}")).collect();
        let pointers: Vec<&str> = pointers.iter().map(String::as_str).collect();
        check_pointers(&[("/checkpoints/keep", keep)], &pointers);
    };
    let mut fixture = Fixture::new();
    fixture.set("/checkpoints/keep", keep(1, Some(10), 2, &[5]));
    fixture.check().expect("every clause can choose something");
    check_keep(keep(0, None, 0, &[]), &["best", "last"]);
    check_keep(keep(1, Some(7), 1, &[]), &["every_steps"]);
    check_keep(keep(1, Some(5), 1, &[]), &["every_steps"]);
    check_keep(keep(1, None, 1, &[0]), &["pinned/0"]);
    check_keep(keep(1, None, 1, &[5, 6, 5000]), &["pinned/1", "pinned/2"]);
    check_keep(keep(1, None, 1, &[10, 5]), &["pinned"]);
}
