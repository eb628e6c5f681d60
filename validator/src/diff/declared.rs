//! What declares that two contracts may differ: what a file leaves to its
//! freeze, a permitted rewrite, or the arms of a campaign (`docs/FORMAT.md`,
//! "Campaigns").
//!
//! A declaration covers its own place and what lies below it, and nothing that
//! merely goes with it; whoever means more has to have said so before the
//! freeze.

use std::collections::BTreeSet;

use schemas::campaign::{Arm, ContractPointer, Preregistration};
use serde::Deserialize;
use serde_json::Value;

use super::leaves::leaves;
use super::side::Side;

/// Places that another number of workers changes: the shares, not the batch.
const WORKER_PLACES: [&str; 4] =
    ["/batch/accumulation", "/batch/data_parallel", "/topology/collective", "/topology/workers"];

/// Places in which the runs of one campaign differ by their nature.
const CAMPAIGN_PLACES: [&str; 5] =
    ["/membership/arm", "/membership/rescue_level", "/membership/trial", "/name", "/purpose/statement"];

/// A place, and what declares it.
struct Place {
    pointer: ContractPointer,
    why: String,
}

/// Everything that is declared between two sides.
pub(super) struct Declared {
    places: Vec<Place>,
    /// Where a freeze fills in digest and size of a file, if one of the sides was
    /// not frozen.
    bindings: BTreeSet<String>,
    /// Whether one of the sides was not frozen.
    is_open: bool,
    /// Seeds of the campaign that both belong to.
    seeds: Option<Seeds>,
}

struct Seeds {
    confirmation: BTreeSet<String>,
    /// Whether an arm has trials, which may have any seed.
    any: bool,
}

impl Declared {
    pub(super) fn new(a: &Side, b: &Side, preregistration: Option<&Value>) -> Self {
        let is_open = a.frozen.is_none() || b.frozen.is_none();
        let mut bindings = BTreeSet::new();
        for side in [a, b].into_iter().filter(|_| is_open) {
            let places = leaves(&side.contract).into_keys();
            bindings.extend(places.filter_map(|place| place.strip_suffix("/path").map(str::to_owned)));
        }
        let mut this = Self { bindings, is_open, places: Vec::new(), seeds: None };
        this.workers(a, b);
        this.campaign(a, b, preregistration);
        this
    }

    /// Why two values may differ at a place; `None` where nothing says so.
    pub(super) fn covers(&self, place: &str, a: Option<&Value>, b: Option<&Value>) -> Option<String> {
        if self.is_open && self.is_filled(place, a, b) {
            return Some("the contract file leaves it to the freeze".to_owned());
        }
        let (outer, inner) =
            place.split_once('#').map_or((place, None), |(outer, inner)| (outer, Some(inner)));
        let declared = self.places.iter().find(|declared| {
            declared.pointer.covers(outer, inner)
                || (inner.is_none() && names_document(&declared.pointer, outer))
        });
        if let Some(declared) = declared {
            return Some(declared.why.clone());
        }
        self.seed(place, a, b)
    }

    /// Whether a place is one that a freeze fills in, and one side has nothing
    /// there.
    fn is_filled(&self, place: &str, a: Option<&Value>, b: Option<&Value>) -> bool {
        let is_missing = |value: Option<&Value>| value.is_none_or(Value::is_null);
        let binding = place.strip_suffix("/digest").or_else(|| place.strip_suffix("/num_bytes"));
        let is_filled =
            binding.is_some_and(|binding| self.bindings.contains(binding)) || place.starts_with("/keys/");
        // Keys that are null as a whole are a leaf that the other side lacks.
        (is_filled && is_missing(a) != is_missing(b))
            || (place == "/keys" && (is_missing(a) || is_missing(b)))
    }

    fn workers(&mut self, a: &Side, b: &Side) {
        let rewrites = a.contract.pointer("/topology/permitted_rewrites").and_then(Value::as_array);
        let is_permitted =
            rewrites.is_some_and(|rewrites| rewrites.iter().any(|name| name == "worker_count"));
        // The same examples in the same microbatches, or it is another process.
        let is_same_batch = ["/batch/global_examples", "/batch/microbatch_examples"]
            .iter()
            .all(|pointer| a.contract.pointer(pointer) == b.contract.pointer(pointer));
        if is_permitted && is_same_batch {
            self.add(WORKER_PLACES, "A permits the rewrite worker_count");
        }
    }

    fn add(&mut self, places: impl IntoIterator<Item = impl Into<String>>, why: &str) {
        let place = |pointer: String| Place { pointer: ContractPointer(pointer), why: why.to_owned() };
        self.places.extend(places.into_iter().map(|pointer| place(pointer.into())));
    }

    fn campaign(&mut self, a: &Side, b: &Side, preregistration: Option<&Value>) {
        const BINDING: &str = "/membership/preregistration";
        let of = |side: &Side, field: &str| {
            side.contract.pointer(&format!("/membership/{field}")).and_then(Value::as_str).map(str::to_owned)
        };
        let (Some(campaign), other) = (of(a, "campaign"), of(b, "campaign")) else { return };
        if other.as_ref() != Some(&campaign) {
            return;
        }
        let stored =
            preregistration.or_else(|| a.documents.get(BINDING)).or_else(|| b.documents.get(BINDING));
        let Some(frozen) = stored.and_then(|value| Preregistration::deserialize(value).ok()) else { return };
        let arm = |side: &Side| {
            let name = of(side, "arm")?;
            frozen.arms.iter().find(|arm| arm.name == name)
        };
        let (Some(arm_a), Some(arm_b)) = (arm(a), arm(b)) else { return };
        self.add(CAMPAIGN_PLACES, "runs of one campaign differ in it");
        for (side, arm) in [(a, arm_a), (b, arm_b)] {
            self.arm(side, arm);
        }
        self.seeds = Some(Seeds {
            confirmation: frozen.seeds.iter().map(|seed| seed.0.to_string()).collect(),
            any: [arm_a, arm_b].iter().any(|arm| arm.tuning.num_trials > 0 || arm.positive_control.is_some()),
        });
    }

    fn arm(&mut self, side: &Side, arm: &Arm) {
        for declared in &arm.declared {
            let why = format!("arm {:?} declares it: {}", arm.name, declared.why);
            self.places.push(Place { pointer: declared.pointer.clone(), why });
        }
        for pointer in &arm.tuning.pointers {
            let why = format!("the tuning of arm {:?} chooses it", arm.name);
            self.places.push(Place { pointer: pointer.clone(), why });
        }
        let level = side.contract.pointer("/membership/rescue_level").and_then(Value::as_u64).unwrap_or(0);
        for rescue in arm.rescue.iter().filter(|rescue| u64::from(rescue.level) <= level) {
            for pointer in &rescue.pointers {
                let why = format!("rescue level {} of arm {:?} changes it", rescue.level, arm.name);
                self.places.push(Place { pointer: pointer.clone(), why });
            }
        }
    }

    fn seed(&self, place: &str, a: Option<&Value>, b: Option<&Value>) -> Option<String> {
        let seeds = self.seeds.as_ref().filter(|_| place.starts_with("/seeds/"))?;
        let is_known = |value: Option<&Value>| {
            value.and_then(Value::as_str).is_some_and(|seed| seeds.confirmation.contains(seed))
        };
        if is_known(a) && is_known(b) {
            return Some("both are seeds of the campaign".to_owned());
        }
        seeds.any.then(|| "trials and positive controls may have any seed".to_owned())
    }
}

/// Whether a pointer leads into the document whose binding's digest or size this
/// is: both follow what stands in it.
fn names_document(pointer: &ContractPointer, place: &str) -> bool {
    let (binding, inner) = pointer.parts();
    let field = place.strip_prefix(binding);
    inner.is_some() && matches!(field, Some("/digest" | "/num_bytes"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{Status, contracts};
    use super::*;
    use crate::fixture::{StoredRun, honest_run};

    /// A preregistration of two arms: `adamw` is tuned in `/schedule/0/shape/peak`
    /// and the card's decay, `adam` declares `/update/card`.
    const PREREGISTRATION: &str = include_str!("../../../schemas/golden/preregistration.canonical.json");

    fn member(of: &Side, arm: &str, campaign: &str, edit: impl FnOnce(&mut Value)) -> Side {
        let mut side = of.clone();
        side.contract["membership"] = json!({
            "arm": arm, "campaign": campaign, "kind": "campaign",
            "preregistration": {"digest": "blake3:00", "num_bytes": 1, "path": "campaign.preregistration.json"},
            "rescue_level": 0, "trial": 1
        });
        edit(&mut side.contract);
        side
    }

    #[test]
    fn arms_may_differ_where_the_preregistration_says_so() {
        let run = StoredRun::new(honest_run());
        let own = Side::open(&run.path()).expect("a ledger");
        let preregistration: Value = serde_json::from_str(PREREGISTRATION).expect("JSON");
        let seeds = preregistration["seeds"].as_array().expect("seeds").clone();
        let of_arm = |arm: &str, campaign: &str, seed: &Value, edit: fn(&mut Value)| {
            member(&own, arm, campaign, |contract| {
                contract["seeds"]["data_order"] = seed.clone();
                edit(contract);
            })
        };
        let a = of_arm("adamw", "one", &seeds[0], |_| {});
        let check = |b: &Side, given: Option<&Value>, expected: &[(&str, Status)]| {
            let comparison = contracts(&a, b, given);
            let fields = comparison.fields.iter().filter(|field| field.status != Status::Same);
            let found: Vec<(&str, Status)> =
                fields.map(|field| (field.pointer.as_str(), field.status)).collect();
            assert_eq!(found, expected);
        };
        let other: fn(&mut Value) = |contract| {
            contract["batch"]["global_examples"] = json!(77);
            contract["schedule"][0]["shape"]["peak"] = json!(0.5);
            contract["update"]["card"]["digest"] = json!("blake3:11");
        };
        let b = of_arm("adam", "one", &seeds[1], other);
        let declared = [
            ("/batch/global_examples", Status::Undeclared),
            ("/membership/arm", Status::Declared),
            ("/schedule/0/shape/peak", Status::Declared),
            ("/seeds/data_order", Status::Declared),
            ("/update/card/digest", Status::Declared),
        ];
        check(&b, Some(&preregistration), &declared);
        // Without it, or in another campaign, nothing is declared.
        check(&b, None, &declared.map(|(pointer, _)| (pointer, Status::Undeclared)));
        let stranger = of_arm("adamw", "another", &seeds[0], |_| {});
        check(&stranger, Some(&preregistration), &[("/membership/campaign", Status::Undeclared)]);
    }

    #[test]
    fn a_declared_place_in_a_document_lets_its_binding_differ() {
        let pointer = |text: &str| ContractPointer(text.to_owned());
        for (declared, place, expected) in [
            ("/update/card#/groups/0", "/update/card/digest", true),
            ("/update/card#/groups/0", "/update/card/num_bytes", true),
            ("/update/card#/groups/0", "/update/card/path", false),
            ("/update/card", "/update/card/digest", false),
            ("/update/card#/groups/0", "/parameters/digest", false),
        ] {
            assert_eq!(names_document(&pointer(declared), place), expected, "{declared} {place}");
        }
    }
}
