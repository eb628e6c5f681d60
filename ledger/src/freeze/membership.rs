//! Whether a run stands alone or is one of a campaign's.
//!
//! A run of a campaign is held to the preregistration when it is frozen, as far
//! as its own contract can show: the arm and the rung are there, the seed is
//! one, the metric is measured, the card is the arm's. What only several runs
//! show together is for the campaign's audit.

use schemas::campaign::{Arm, Claim, ClaimDimension, Preregistration};
use schemas::contract::{Contract, FileBinding, Membership};
use schemas::data::Split;
use schemas::digest::encode_hex;
use schemas::ids::RunId;
use sha2::{Digest as _, Sha256};

use super::files::Folder;
use super::problem::Problems;
use super::{Inputs, document, named_document};
use crate::canonical;

/// Where the preregistration is bound.
const PREREGISTRATION: &str = "/membership/preregistration";

/// Hex digits of the preregistration's SHA-256 in a campaign's identifier.
const DIGEST_CHARS: usize = 16;

/// What a contract says of its campaign.
struct Member<'a> {
    arm: &'a str,
    campaign: &'a RunId,
    rescue_level: u32,
    trial: u32,
}

pub(super) fn check(contract: &mut Contract, folder: &Folder, inputs: &mut Inputs, problems: &mut Problems) {
    let Membership::Campaign { preregistration, .. } = &mut contract.membership else { return };
    let read = read(preregistration, folder, inputs, problems);
    let Membership::Campaign { arm, campaign, rescue_level, trial, .. } = &contract.membership else {
        return;
    };
    let member = Member { arm, campaign, rescue_level: *rescue_level, trial: *trial };
    problems.require_count(u64::from(member.trial), "/membership/trial");
    check_seeds(contract, problems);
    let Some((preregistration, digest)) = read else { return };
    check_campaign(member.campaign, &digest, problems);
    check_owner(contract, &preregistration, problems);
    check_metric(contract, &preregistration, problems);
    let arms = &preregistration.arms;
    let Some(arm) = arms.iter().find(|arm| arm.name == member.arm) else {
        let names: Vec<&str> = arms.iter().map(|arm| arm.name.as_str()).collect();
        let message = format!("{:?} is no arm of the preregistration", member.arm);
        problems.add("/membership/arm", message, format!("arms are {}", names.join(", ")));
        return;
    };
    let num_levels = arm.rescue.len();
    problems.require(
        member.rescue_level as usize <= num_levels,
        "/membership/rescue_level",
        format!("is {}; the arm's rescue ladder has {num_levels} levels", member.rescue_level),
        "a rescue that was not preregistered is a new method; 0 is none",
    );
    if member.rescue_level == 0 {
        check_card(contract, arm, problems);
    }
}

/// The preregistration and the SHA-256 of its bytes, in hex.
fn read(
    binding: &mut FileBinding,
    folder: &Folder,
    inputs: &mut Inputs,
    problems: &mut Problems,
) -> Option<(Preregistration, String)> {
    let (value, mut collector) = named_document(binding, PREREGISTRATION, folder, inputs, problems)?;
    let canonical = canonical::contract_json(&value).unwrap_or_default();
    let stored = inputs.artifacts.last().map(|artifact| artifact.bytes.as_slice()).unwrap_or_default();
    collector.require(
        canonical == stored,
        "",
        "is not in canonical bytes (RFC 8785)",
        "bind the file that `ledger campaign freeze` wrote beside the campaign's ledger, not the one it read",
    );
    let digest = encode_hex(&Sha256::digest(stored));
    let read = document::typed::<Preregistration>(value, "preregistration", &mut collector);
    let written = read.as_ref().and_then(|read| serde_json::to_value(read).ok());
    let is_whole =
        written.is_none_or(|written| canonical::contract_json(&written).is_ok_and(|own| own == stored));
    collector.require(
        is_whole || canonical != stored,
        "",
        "leaves a field out, or has it in another form",
        "bind the file that `ledger campaign freeze` wrote beside the campaign's ledger",
    );
    problems.extend(collector);
    Some((read?, digest))
}

fn check_campaign(campaign: &RunId, digest: &str, problems: &mut Problems) {
    let expected = digest.get(..DIGEST_CHARS).unwrap_or_default();
    let is_nonce = |text: &str| {
        text.len() == DIGEST_CHARS && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    let holds = campaign
        .as_str()
        .split_once('-')
        .is_some_and(|(digest, nonce)| digest == expected && is_nonce(nonce));
    problems.require(
        holds,
        "/membership/campaign",
        format!("is {campaign}; a campaign of this preregistration is {expected}-<16 hex digits>"),
        "take the identifier that `ledger campaign list` shows of the campaign's ledger",
    );
}

/// A campaign holds runs of one owner, so that nobody adds another's.
fn check_owner(contract: &Contract, preregistration: &Preregistration, problems: &mut Problems) {
    let (own, campaign) = (&contract.keys.owner.public, &preregistration.keys.owner.public);
    problems.require(
        own == campaign,
        "/keys/owner/public",
        format!("is {own}; the campaign's owner is {campaign}"),
        "a run of a campaign is owned by who owns the campaign; name its keys with --keys",
    );
}

/// One seed for everything, so that runs of one seed can be paired.
fn check_seeds(contract: &Contract, problems: &mut Problems) {
    let seeds = &contract.seeds;
    problems.require(
        seeds.data_order == seeds.dropout && seeds.dropout == seeds.initialization,
        "/seeds",
        format!(
            "are {}, {} and {}; a run of a campaign has one seed",
            seeds.data_order.0, seeds.dropout.0, seeds.initialization.0
        ),
        "make all three the run's seed; what is drawn for different purposes is unrelated all the same",
    );
}

fn check_metric(contract: &Contract, preregistration: &Preregistration, problems: &mut Problems) {
    let metric = &preregistration.metric;
    let holds = contract.evaluation.streams.iter().any(|stream| {
        stream.name == metric.stream && stream.direction == metric.direction && stream.split == Split::Val
    });
    problems.require(
        holds,
        "/evaluation/streams",
        format!("has no stream {:?} of the val split with the campaign's direction", metric.stream),
        "evaluate what the campaign compares",
    );
    // The evaluator computes the stream that selects. Found only when every run is
    // trained, this would cost them all.
    let is_of_quality = |claim: &Claim| claim.dimension == ClaimDimension::Quality;
    problems.require(
        !preregistration.claims.iter().any(is_of_quality) || contract.selection.stream == metric.stream,
        "/selection/stream",
        format!("is {:?}; the campaign compares the quality of {:?}", contract.selection.stream, metric.stream),
        "select by the campaign's metric: of another stream only the trainer has a value, and no claim rests on that",
    );
}

fn check_card(contract: &Contract, arm: &Arm, problems: &mut Problems) {
    let (Some(expected), Some(actual)) = (arm.card, contract.update.card.digest) else { return };
    problems.require(
        actual == expected,
        "/update/card/digest",
        format!("is {actual}; arm {:?} was preregistered with {expected}", arm.name),
        "use the arm's card; another card is another method, and another arm",
    );
}
