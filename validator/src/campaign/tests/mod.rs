//! Every campaign rule passes an honest campaign and catches a false one.
//!
//! `false_campaigns` and `laundered_campaigns` list changes of an honest campaign in memory, which
//! `rules` applies one at a time; `ledgers` writes campaigns and runs to disk and audits
//! them as a reviewer does.

mod false_campaigns;
mod laundered_campaigns;
mod ledgers;
mod rules;
