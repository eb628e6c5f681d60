//! Tests of the programs as a whole, and of the workspace's own rules.

mod asynchronous;
mod bad_contracts;
mod bad_ledgers;
mod bad_storage;
mod byte_sweep;
mod crashes;
mod end_to_end;
mod probes;
mod retention;
mod sources;
mod stateful;
mod statistical;
mod web;
mod workspace;
