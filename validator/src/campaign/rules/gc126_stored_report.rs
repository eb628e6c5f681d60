//! GC126 `stored-campaign-report`.

use schemas::campaign::report::{CAMPAIGN_REPORT_FORMAT, CampaignReport};
use schemas::dsse::CAMPAIGN_REPORT_PAYLOAD_TYPE;
use schemas::report::Route;

use crate::campaign::ledger::Frozen;
use crate::canonical::check_entry_json;
use crate::rule::{At, Outcome, RuleInfo, Sink};
use crate::stored_report::StoredReport;
use crate::{dsse, form};

/// Text of the rule.
pub(crate) static INFO: RuleInfo = RuleInfo {
    code: "GC126",
    name: "stored-campaign-report",
    what: "A report that was saved beside the campaign's ledger is signed by the preregistration's validator, is of this campaign, and the head that it saw is a prefix of these entries.",
    why: "Nothing ends a campaign, so one that was cut behind a run that went wrong looks like one that has not got there yet; a report commits the validator to what was bound when it looked.",
    remedy: "restore the ledger that the report saw; a report of another campaign, or by another key, belongs elsewhere (`ledger campaign audit --save-to FILE`)",
    reference: "docs/FORMAT.md, \"Campaigns\"; schemas::campaign::report::CampaignReport",
    gate: Route::RejectIdentity,
};

/// Bytes of the report beside the ledger, and where they lie.
pub(crate) type ReportFile<'a> = (&'a [u8], &'a str);

/// Verifies the file's bytes. The outcome where there is nothing to compare with the
/// entries.
pub(crate) fn read(
    file: Option<ReportFile<'_>>,
    frozen: Option<&Frozen>,
    sink: &mut Sink,
) -> Result<StoredReport, Outcome> {
    let Some((bytes, place)) = file else {
        return Err(Outcome::NotApplicable("no report was saved beside the ledger".to_owned()));
    };
    let Some((frozen, key)) = frozen.and_then(|frozen| Some((frozen, frozen.validator.as_ref()?))) else {
        let reason = "the preregistration, which names the validator's key, could not be read";
        return Err(Outcome::NotEvaluated(reason.to_owned()));
    };
    let payload = match dsse::verify(bytes, CAMPAIGN_REPORT_PAYLOAD_TYPE, key) {
        Ok(payload) => payload,
        Err(error) => {
            let signer = &frozen.prereg.keys.validator.public;
            let expected = format!("an envelope signed by the validator {signer}");
            let message = "the report beside the ledger is not signed by the preregistration's validator";
            sink.rejected(At::place(place), message, expected, error);
            return Err(Outcome::Checked(1));
        }
    };
    match parse(&payload, frozen) {
        Ok(CampaignReport { head, num_entries, .. }) => {
            let rewritten = "the campaign was cut or rewritten after this report";
            Ok(StoredReport { head, num_entries, place: place.to_owned(), rewritten })
        }
        Err(reason) => {
            let message = "what lies beside the ledger is signed, but is no report of this campaign";
            let expected = format!("a report of campaign {}", frozen.id);
            sink.rejected(At::place(place), message, expected, reason);
            Err(Outcome::Checked(1))
        }
    }
}

/// The report in a payload whose signature held, where it is one of this campaign.
fn parse(payload: &[u8], frozen: &Frozen) -> Result<CampaignReport, String> {
    check_entry_json(payload).map_err(|problem| format!("the payload is not canonical: {problem}"))?;
    let report: CampaignReport = serde_json::from_slice(payload).map_err(|error| error.to_string())?;
    if let Some(offset) = form::first_difference(&report, payload) {
        return Err(format!("the payload leaves a field out or has another form at byte {offset}"));
    }
    if report.format != CAMPAIGN_REPORT_FORMAT {
        return Err(format!("its format is {:?}", report.format));
    }
    if report.campaign.as_ref() != Some(&frozen.id) || report.preregistration != Some(frozen.digest) {
        let campaign = report.campaign.map_or("none".to_owned(), |campaign| campaign.to_string());
        return Err(format!("a report of campaign {campaign}"));
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use schemas::campaign::report::ClaimOutcome;
    use schemas::finding::Effect;
    use schemas::report::{RuleStatus, Verdict};

    use super::*;
    use crate::fixture::{StoredCampaign, VALIDATOR, json, signed_envelope, small_preregistration};

    /// A campaign that was frozen, with its first head.
    fn campaign() -> StoredCampaign {
        let campaign = StoredCampaign::freeze(small_preregistration());
        campaign.write();
        campaign
    }

    fn save(campaign: &StoredCampaign, report: &CampaignReport, role: u8) {
        let envelope = signed_envelope(CAMPAIGN_REPORT_PAYLOAD_TYPE, &json(report), role);
        std::fs::write(campaign.report_path(), envelope).expect("writable");
    }

    /// What the rule finds of a report that was changed before it was saved.
    #[track_caller]
    fn check(expected: &[Effect], change: impl FnOnce(&StoredCampaign, CampaignReport)) {
        let campaign = campaign();
        change(&campaign, campaign.audit());
        let found = campaign.audit();
        let effects: Vec<Effect> = found
            .findings
            .iter()
            .filter(|finding| finding.code == INFO.code)
            .map(|finding| finding.effect)
            .collect();
        assert_eq!(effects, expected, "{:#?}", found.findings);
        // No claim is read from a record that is not the one that was judged.
        let is_said = found.claims.iter().any(|claim| {
            claim.outcome == ClaimOutcome::Blocked
                && claim.reasons.iter().any(|reason| reason.starts_with(INFO.code))
        });
        assert_eq!(is_said, !expected.is_empty(), "{:#?}", found.claims);
    }

    #[test]
    fn a_report_of_this_campaign_passes_and_without_one_the_rule_has_nothing_to_look_at() {
        let status = |campaign: &StoredCampaign| {
            let report = campaign.audit();
            let result = report.rules.iter().find(|rule| rule.code == INFO.code).expect("a result");
            (result.status, result.num_checked)
        };
        let campaign = campaign();
        assert_eq!(status(&campaign), (RuleStatus::NotApplicable, 0));
        let report = campaign.audit();
        save(&campaign, &report, VALIDATOR);
        assert_eq!(status(&campaign), (RuleStatus::Passed, 1));
        // One that saw no head was made all the same.
        save(&campaign, &CampaignReport { head: None, ..report }, VALIDATOR);
        assert_eq!(status(&campaign), (RuleStatus::Passed, 1));
        check(&[], |campaign, report| save(campaign, &report, VALIDATOR));
    }

    #[test]
    fn a_campaign_that_was_cut_or_rewritten_after_its_report_is_tampered() {
        check(&[Effect::Tampered], |campaign, mut report| {
            report.num_entries += 1;
            save(campaign, &report, VALIDATOR);
        });
        check(&[Effect::Tampered; 2], |campaign, mut report| {
            report.num_entries += 7;
            report.head.as_mut().expect("a head").size += 7;
            save(campaign, &report, VALIDATOR);
        });
        check(&[Effect::Tampered], |campaign, mut report| {
            report.head.as_mut().expect("a head").root = "00".repeat(32);
            save(campaign, &report, VALIDATOR);
        });
        let campaign = campaign();
        let mut report = campaign.audit();
        report.num_entries += 1;
        save(&campaign, &report, VALIDATOR);
        assert_eq!(campaign.audit().verdict, Verdict::Tampered);
    }

    #[test]
    fn other_keys_campaigns_and_forms_are_rejected() {
        check(&[Effect::Rejected], |campaign, report| save(campaign, &report, 3));
        check(&[Effect::Rejected], |campaign, report| {
            save(campaign, &CampaignReport { campaign: None, ..report }, VALIDATOR);
        });
        check(&[Effect::Rejected], |campaign, report| {
            save(campaign, &CampaignReport { preregistration: None, ..report }, VALIDATOR);
        });
        check(&[Effect::Rejected], |campaign, mut report| {
            report.head.as_mut().expect("a head").size = 0;
            save(campaign, &report, VALIDATOR);
        });
        check(&[Effect::Rejected], |campaign, _| {
            std::fs::write(campaign.report_path(), b"{\"stale\":true}").expect("writable");
        });
        check(&[Effect::Rejected], |campaign, report| {
            let text = format!(" {}", String::from_utf8(json(&report)).expect("UTF-8"));
            let envelope = signed_envelope(CAMPAIGN_REPORT_PAYLOAD_TYPE, text.as_bytes(), VALIDATOR);
            std::fs::write(campaign.report_path(), envelope).expect("writable");
        });
    }
}
