//! `ledger campaign`: runs that are compared, with all of their denominators.

mod add;
mod audit;
mod freeze;
mod list;

pub(crate) use list::{CAMPAIGN_HINT, purpose_name};

use crate::campaign_arguments::CampaignCommand;
use crate::failure::Failure;

pub(crate) fn run(command: &CampaignCommand) -> Result<u8, Failure> {
    match command {
        CampaignCommand::Freeze(arguments) => freeze::run(arguments),
        CampaignCommand::Add(arguments) => add::run(arguments),
        CampaignCommand::List(arguments) => list::run(arguments),
        CampaignCommand::Audit(arguments) => audit::run(arguments),
    }
}
