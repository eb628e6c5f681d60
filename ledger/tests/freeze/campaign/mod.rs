//! Campaigns: the freeze of a preregistration, of contracts that belong to it,
//! and the binding of their runs.

mod binding;
mod membership;
mod refused;

use std::path::PathBuf;

use ledger::campaign::{CampaignState, FrozenCampaign, freeze_campaign, read_campaign};
use ledger::freeze::{Frozen, PreregistrationRequest, freeze};
use ledger::reader::Reader;
use serde_json::{Value, json};

use crate::fixture::{Fixture, TODAY};

/// A preregistration that can be frozen with the fixture's keys: `plain` is
/// tuned as `decay` is, which differs in its schedule.
fn preregistration(fixture: &Fixture) -> Value {
    let keys = &fixture.contract["keys"];
    let tuning = json!({
        "num_trials": 1, "pointers": ["/schedule/0/shape/peak"], "price_tokens": 640,
        "search_space": "peak of 1e-3 to 1e-2", "unequal_because": null
    });
    let card =
        format!("blake3:{}", blake3::hash(include_bytes!("../../../../policy-cards/adamw.json")).to_hex());
    json!({
        "arms": [
            {
                "card": card, "declared": [], "fallback_groups": [], "family": "adamw", "label": "AdamW",
                "name": "plain", "positive_control": null, "rescue": [], "role": "baseline", "tuning": tuning
            },
            {
                "card": card,
                "declared": [
                    {"pointer": "/architecture/dropout", "why": "it is what is asked"},
                    {"pointer": "/architecture/hidden_size", "why": "the axis"}
                ],
                "fallback_groups": [], "family": "adamw", "label": "AdamW, no dropout", "name": "dry",
                "positive_control": {"threshold": 7.9, "why": "a byte takes 8 bits"},
                "rescue": [
                    {"level": 1, "max_runs": 1, "pointers": ["/schedule"], "when": "the loss is not finite"},
                    {"level": 2, "max_runs": 2, "pointers": ["/batch"], "when": "level 1 failed"}
                ],
                "role": "proposed", "tuning": tuning
            }
        ],
        "authority": {
            "expires": "2027-12-31", "granted_by": "the maintainers", "non_authorities": ["to release"],
            "scope": "to train on this machine"
        },
        "axes": [{"axis": "width", "pointers": ["/architecture/hidden_size"], "points": [[8], [16]]}],
        "claims": [
            {
                "arms": [{"against": "plain", "arm": "dry"}], "dimension": "quality", "id": "better",
                "kind": "better", "margin": 0.0, "min_seeds": 3, "scope": []
            },
            {
                "arms": [{"against": "plain", "arm": "dry"}], "dimension": "quality", "id": "worse",
                "kind": "negative", "margin": 0.01, "min_seeds": 3, "scope": ["width"]
            }
        ],
        "costs": ["bytes", "device_seconds", "evaluations", "examples", "steps", "tokens", "wall_time"],
        "decision": {"confidence": 0.95, "kind": "paired_interval/1"},
        "extensions": [],
        "format": "governed-ledger/preregistration/1",
        "keys": {"owner": keys["owner"], "validator": keys["validator"]},
        "metric": {"direction": "minimize", "stream": "val", "threshold": 7.5},
        "name": "fixture",
        "nonclaims": ["That dropout is of no use elsewhere."],
        "question": "Is this model better without dropout?",
        "reference_arm": "plain",
        "residuals": [{"description": "one host", "owner": "the maintainers"}],
        "ruleset": {"edition": "2026.1"},
        "seeds": ["1", "2", "18446744073709551615"]
    })
}

fn request(fixture: &Fixture, document: &Value) -> PreregistrationRequest {
    fixture.write_json("question.json", document);
    let mut request = PreregistrationRequest::new(&fixture.path("question.json"));
    request.today = Some(TODAY.to_owned());
    request
}

/// A folder with a frozen campaign.
struct Campaign {
    fixture: Fixture,
    frozen: FrozenCampaign,
}

impl Campaign {
    fn new() -> Self {
        let fixture = Fixture::new();
        let document = preregistration(&fixture);
        let request = request(&fixture, &document);
        let frozen =
            freeze_campaign(&request, None, &fixture.key_ring(), "test 0").expect("nothing is wrong");
        Self { fixture, frozen }
    }

    /// The membership of a run.
    fn membership(&self, arm: &str, trial: u32, rescue_level: u32) -> Value {
        json!({
            "kind": "campaign", "arm": arm, "campaign": self.frozen.created.run,
            "preregistration": {"digest": null, "num_bytes": null, "path": "campaign.preregistration.json"},
            "rescue_level": rescue_level, "trial": trial
        })
    }

    /// Makes the fixture's contract a run of the campaign.
    fn join(&mut self, arm: &str, trial: u32, rescue_level: u32, seed: &str) -> &mut Fixture {
        let membership = self.membership(arm, trial, rescue_level);
        self.fixture.set("/membership", membership);
        self.fixture.set("/seeds", json!({"data_order": seed, "dropout": seed, "initialization": seed}));
        &mut self.fixture
    }

    /// Freezes a run of the campaign as `name.db`.
    fn run(&mut self, name: &str, arm: &str, trial: u32, rescue_level: u32, seed: &str) -> Frozen {
        let fixture = self.join(arm, trial, rescue_level, seed);
        fixture.write_json("contract.json", &fixture.contract);
        let output = fixture.path(&format!("{name}.db"));
        std::fs::create_dir_all(output.parent().expect("a parent")).expect("a folder");
        freeze(&fixture.request(), Some(&output), &fixture.key_ring(), "test 0").expect("nothing is wrong")
    }

    fn ledger(&self) -> PathBuf {
        self.frozen.ledger.clone()
    }

    fn state(&self) -> CampaignState {
        read_campaign(&Reader::open(&self.ledger()).expect("readable")).expect("a campaign")
    }
}
