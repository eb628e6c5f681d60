//! How many runs were tried is said to be unknown, or the campaign's to show;
//! a run of a campaign is what the preregistration allows.

use schemas::body::Kind;
use schemas::campaign::Preregistration;
use schemas::contract::{Contract, Membership};
use schemas::entry::Entry;
use schemas::report::Route;

use crate::evidence::Evidence;
use crate::frozen::{Frozen, FrozenPreregistration};
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::declare_rule;

declare_rule!(
    /// `GL709`.
    RunDenominator,
    {
        code: "GL709",
        name: "run-denominator",
        what: "Notes that the number of runs that were tried is not evaluated for a run that stands alone, and is the campaign's to \
               show for a run of one. Of the latter, campaign, arm, rescue level, trial, owner and seed are those that the bound \
               preregistration allows; and no run's ledger holds a campaign's entries.",
        why: "The best of many runs may be luck; one run's ledger does not show how many others there were. A run that names an arm \
              that nobody preregistered would be counted nowhere.",
        remedy: "Say beside the result how many runs were made, or audit the campaign: `ledger campaign audit`. A run that does not \
                 fit its preregistration is frozen again as a run that does. A note changes no verdict.",
        reference: "docs/FORMAT.md, \"Campaigns\"",
        gate: Route::RejectFrozenInputs,
    }
);

/// Hex digits of the preregistration's SHA-256 in a campaign's identifier.
const DIGEST_CHARS: usize = 16;

struct Denominator<'a> {
    frozen: &'a Frozen,
    num_checked: u64,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    Box::new(Denominator { frozen, num_checked: 1 })
}

impl Check for Denominator<'_> {
    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        self.num_checked += 1;
        let kind = entry.body.kind();
        if matches!(kind, Kind::CampaignFrozen | Kind::CampaignRun) {
            let message = "a campaign is recorded in a run's ledger";
            sink.rejected(At::entry(entry.index, "/kind"), message, "the campaign's ledger", kind.name());
        }
    }

    fn finish(&mut self, _: &Evidence, sink: &mut Sink) -> Outcome {
        let contract = &self.frozen.contract;
        match (&contract.membership, &self.frozen.preregistration) {
            (Membership::Standalone, _) => sink.note(
                At::place("contract /membership"),
                "the number of runs that were tried is not evaluated",
                "a campaign with the ledger of every run",
                "standalone",
            ),
            (Membership::Campaign { .. }, Some(Ok(preregistration))) => {
                check_member(contract, preregistration, sink);
            }
            (Membership::Campaign { .. }, Some(Err(reason))) => return Outcome::NotEvaluated(reason.clone()),
            (Membership::Campaign { .. }, None) => {
                return Outcome::NotEvaluated("the preregistration was not read".to_owned());
            }
        }
        Outcome::Checked(self.num_checked)
    }
}

fn check_member(contract: &Contract, preregistration: &FrozenPreregistration, sink: &mut Sink) {
    let Membership::Campaign { arm: name, campaign, rescue_level, trial, .. } = &contract.membership else {
        return;
    };
    let document = &preregistration.document;
    let at = |member: &str| At::place(format!("contract /membership/{member}"));
    sink.note(
        At::place("contract /membership"),
        "the number of runs that were tried is the campaign's to show",
        format!("an audit of campaign {campaign}"),
        format!("trial {trial} of arm {name:?}"),
    );
    let digest = preregistration.digest.hex();
    let expected = digest.get(..DIGEST_CHARS).unwrap_or_default();
    if campaign.as_str().split_once('-').is_none_or(|(digest, nonce)| digest != expected || !is_nonce(nonce))
    {
        sink.rejected(
            at("campaign"),
            "the campaign's identifier is not one of the preregistration that is bound",
            format!("{expected}-<16 hex digits>"),
            campaign,
        );
    }
    if *trial == 0 {
        sink.rejected(at("trial"), "runs of an arm are numbered from 1", "1 or more", trial);
    }
    match document.arms.iter().find(|arm| arm.name == *name) {
        None => sink.rejected(at("arm"), "the preregistration has no such arm", arms(document), name),
        Some(arm) if arm.rescue.iter().all(|rung| rung.level != *rescue_level) && *rescue_level != 0 => sink
            .rejected(
                at("rescue_level"),
                "the arm's rescue ladder has no such level",
                format!("0 to {}", arm.rescue.len()),
                rescue_level,
            ),
        Some(_) => {}
    }
    check_owner_and_seed(contract, document, sink);
}

fn check_owner_and_seed(contract: &Contract, document: &Preregistration, sink: &mut Sink) {
    let (own, campaign) = (&contract.keys.owner.public, &document.keys.owner.public);
    if own != campaign {
        let at = At::place("contract /keys/owner/public");
        sink.rejected(at, "the run's owner is not the campaign's", campaign, own);
    }
    let seeds = &contract.seeds;
    if seeds.data_order != seeds.dropout || seeds.dropout != seeds.initialization {
        sink.rejected(
            At::place("contract /seeds"),
            "a run of a campaign has one seed for everything",
            "three equal seeds",
            format!("{}, {}, {}", seeds.data_order.0, seeds.dropout.0, seeds.initialization.0),
        );
    }
}

fn is_nonce(text: &str) -> bool {
    text.len() == DIGEST_CHARS && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn arms(document: &Preregistration) -> String {
    document.arms.iter().map(|arm| arm.name.as_str()).collect::<Vec<_>>().join(", ")
}
