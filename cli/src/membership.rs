//! `ledger init --campaign`: what makes a contract one of a campaign's.

use ledger::campaign::read_campaign;
use ledger::reader::Reader;
use schemas::contract::{FileBinding, Membership, Seeds};
use schemas::number::DecimalU64;
use serde_json::Value;

use crate::arguments::InitArguments;
use crate::commands::CAMPAIGN_HINT;
use crate::failure::{Failure, OrFail};

/// The preregistration in a run's folder.
pub(crate) const PREREGISTRATION: &str = "preregistration.json";

/// A place in a campaign.
#[derive(Debug)]
pub(crate) struct CampaignMembership {
    membership: Membership,
    /// Canonical bytes of the campaign's preregistration.
    pub(crate) preregistration: Vec<u8>,
    seed: DecimalU64,
}

/// The place that the arguments name; `None` for a run that stands alone.
pub(crate) fn read(arguments: &InitArguments) -> Result<Option<CampaignMembership>, Failure> {
    let (Some(path), Some(arm), Some(seed)) = (&arguments.campaign, &arguments.arm, arguments.seed) else {
        return Ok(None);
    };
    let reader = Reader::open(path).or_hint(CAMPAIGN_HINT)?;
    let state = read_campaign(&reader).or_hint(CAMPAIGN_HINT)?;
    let arms = &state.contract.preregistration.arms;
    if arms.iter().all(|known| known.name != *arm) {
        let names: Vec<&str> = arms.iter().map(|arm| arm.name.as_str()).collect();
        return Err(Failure::new(
            format!("{arm:?} is no arm of {}", path.display()),
            format!("arms are {}", names.join(", ")),
        ));
    }
    let membership = Membership::Campaign {
        arm: arm.clone(),
        campaign: state.contract.campaign.clone(),
        preregistration: FileBinding { digest: None, num_bytes: None, path: PREREGISTRATION.to_owned() },
        rescue_level: arguments.rescue_level,
        trial: arguments.trial.unwrap_or_else(|| state.next_trial(arm)),
    };
    let seed = DecimalU64(seed);
    Ok(Some(CampaignMembership { membership, preregistration: state.contract.canonical, seed }))
}

impl CampaignMembership {
    /// Fills it into a contract. Edits of the command line come after this.
    pub(crate) fn fill(&self, contract: &mut Value) -> Result<(), Failure> {
        let seeds = Seeds { data_order: self.seed, dropout: self.seed, initialization: self.seed };
        contract["membership"] = serde_json::to_value(&self.membership)?;
        contract["seeds"] = serde_json::to_value(seeds)?;
        Ok(())
    }
}
