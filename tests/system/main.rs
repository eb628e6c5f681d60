//! Tests of the programs as a whole, and of the workspace's own rules.

mod anomalies;
mod asynchronous;
mod bad_contracts;
mod bad_ledgers;
mod bad_storage;
mod byte_sweep;
mod clock;
mod crash_trials;
mod crashes;
mod end_to_end;
mod frozen;
mod honest;
mod imports;
mod injected;
mod probes;
mod retention;
mod sources;
mod stateful;
mod statistical;
mod store_s3;
mod warm_start;
mod web;
mod workspace;
