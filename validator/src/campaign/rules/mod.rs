//! The catalogue of the campaign rules, one file a rule, in the order of their
//! codes.
//!
//! `GC101` to `GC107` and `GC126` look at the campaign's own ledger, the others at
//! what the campaign and the ledgers of its runs say together. A rule tells what it
//! finds and which claims cannot be decided, or do not hold, because of it; it never
//! sees what another one found. A record that is not whole by the former or by
//! `GC108` decides no claim at all.

pub(crate) mod gc101_store;
pub(crate) mod gc102_entries;
pub(crate) mod gc103_signed_heads;
pub(crate) mod gc104_external_head;
pub(crate) mod gc105_head_coverage;
pub(crate) mod gc106_envelope;
pub(crate) mod gc107_preregistration_frozen;
mod gc108_preregistration_content;
pub(crate) mod gc109_runs_bound;
mod gc110_registered_before_outcomes;
mod gc111_run_audits;
mod gc112_run_denominator;
mod gc113_contract_once;
mod gc114_arms_differ;
mod gc115_baseline_tuning;
mod gc116_method_label;
mod gc117_fallback_disclosed;
mod gc118_rescue_ladder;
mod gc119_seeds;
mod gc120_qualification;
mod gc121_cost_totals;
mod gc122_false_negative;
mod gc123_efficiency;
mod gc124_transfer_scope;
mod gc125_quality_basis;
pub(crate) mod gc126_stored_report;

use schemas::finding::{Finding, Severity};
use schemas::policy_card::UpdateRule;

use super::view::{Block, Campaign, Concern};
use crate::assemble::Ruling;
use crate::rule::{Outcome, RuleInfo, Sink};

/// Edition of the rules below; a preregistration names the one it is judged by.
pub const EDITION: &str = "2026.1";

/// Where a rule puts what it says.
pub(crate) struct Ruled<'a> {
    pub(crate) sink: &'a mut Sink,
    blocks: &'a mut Vec<Block>,
}

impl Ruled<'_> {
    /// Keeps claims from being decided by their numbers alone; the same is said
    /// once.
    pub(crate) fn block(&mut self, block: Block) {
        if !self.blocks.contains(&block) {
            self.blocks.push(block);
        }
    }
}

/// How a rule over a whole campaign is evaluated.
type CheckCampaign = fn(&Campaign, &mut Ruled<'_>) -> Outcome;

/// Rules over the campaign and its runs.
static CAMPAIGN_RULES: &[(&RuleInfo, CheckCampaign)] = &[
    (&gc108_preregistration_content::INFO, gc108_preregistration_content::check),
    (&gc109_runs_bound::INFO, gc109_runs_bound::check),
    (&gc110_registered_before_outcomes::INFO, gc110_registered_before_outcomes::check),
    (&gc111_run_audits::INFO, gc111_run_audits::check),
    (&gc112_run_denominator::INFO, gc112_run_denominator::check),
    (&gc113_contract_once::INFO, gc113_contract_once::check),
    (&gc114_arms_differ::INFO, gc114_arms_differ::check),
    (&gc115_baseline_tuning::INFO, gc115_baseline_tuning::check),
    (&gc116_method_label::INFO, gc116_method_label::check),
    (&gc117_fallback_disclosed::INFO, gc117_fallback_disclosed::check),
    (&gc118_rescue_ladder::INFO, gc118_rescue_ladder::check),
    (&gc119_seeds::INFO, gc119_seeds::check),
    (&gc120_qualification::INFO, gc120_qualification::check),
    (&gc121_cost_totals::INFO, gc121_cost_totals::check),
    (&gc122_false_negative::INFO, gc122_false_negative::check),
    (&gc123_efficiency::INFO, gc123_efficiency::check),
    (&gc124_transfer_scope::INFO, gc124_transfer_scope::check),
    (&gc125_quality_basis::INFO, gc125_quality_basis::check),
];

/// Rules over the campaign's own ledger, evaluated while it is read.
static LEDGER_RULES: &[&RuleInfo] = &[
    &gc101_store::INFO,
    &gc102_entries::INFO,
    &gc103_signed_heads::INFO,
    &gc104_external_head::INFO,
    &gc105_head_coverage::INFO,
    &gc106_envelope::INFO,
    &gc107_preregistration_frozen::INFO,
    &gc126_stored_report::INFO,
];

/// The text of every campaign rule, in the order of their codes.
#[must_use]
pub fn catalogue() -> &'static [&'static RuleInfo] {
    static CATALOGUE: std::sync::OnceLock<Vec<&'static RuleInfo>> = std::sync::OnceLock::new();
    CATALOGUE.get_or_init(|| {
        let of_runs = CAMPAIGN_RULES.iter().map(|(info, _)| *info);
        let mut all: Vec<&'static RuleInfo> = LEDGER_RULES.iter().copied().chain(of_runs).collect();
        all.sort_by_key(|info| info.code);
        all
    })
}

/// A campaign rule by its code, in any case: `GC114`.
#[must_use]
pub fn find(code: &str) -> Option<&'static RuleInfo> {
    catalogue().iter().copied().find(|info| info.code.eq_ignore_ascii_case(code))
}

/// Evaluates every rule over the campaign. Without one, none of them can run.
/// `rulings` holds those over the campaign's own ledger already.
pub(crate) fn evaluate(campaign: Option<&Campaign>, rulings: &mut Vec<Ruling>) -> Vec<Block> {
    let mut blocks = Vec::new();
    for (info, check) in CAMPAIGN_RULES {
        let mut sink = Sink::new(info);
        let outcome = match campaign {
            Some(campaign) => check(campaign, &mut Ruled { sink: &mut sink, blocks: &mut blocks }),
            None => Outcome::NotEvaluated("the preregistration could not be read".to_owned()),
        };
        rulings.push(Ruling::new(info, sink, outcome));
    }
    blocks.extend(rulings.iter().filter_map(block_of_record));
    blocks
}

/// What `GC108` alone finds in a preregistration, without its runs.
pub(crate) fn content_findings(campaign: &Campaign) -> Vec<Finding> {
    let (info, mut blocks) = (&gc108_preregistration_content::INFO, Vec::new());
    let mut sink = Sink::new(info);
    gc108_preregistration_content::check(campaign, &mut Ruled { sink: &mut sink, blocks: &mut blocks });
    sink.into_findings()
}

/// Where the campaign's own record is wrong, which is its ledger and what was
/// frozen in it, no claim can be read from it.
fn block_of_record(ruling: &Ruling) -> Option<Block> {
    let info = ruling.info;
    let error = ruling.findings.iter().find(|finding| finding.severity == Severity::Error)?;
    let mut of_record = LEDGER_RULES.iter().copied().chain([&gc108_preregistration_content::INFO]);
    of_record.any(|rule| rule.code == info.code).then(|| Block {
        concern: Concern::All,
        is_refutation: false,
        reason: format!("{} {}: {}", info.code, info.name, error.message),
    })
}

/// A family of update rules by its name in policy cards.
pub(crate) fn family(update: &UpdateRule) -> &'static str {
    match update {
        UpdateRule::Adamw { .. } => "adamw",
    }
}
