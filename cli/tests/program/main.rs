//! The program `ledger` as a whole: exit code, stdout and stderr.
//!
//! The trainer is replaced by a script that answers with what the real one
//! answered for the preset `tiny`; the freeze derives the parameters again and
//! would refuse an answer that is out of date. Tests of whole runs, with the
//! real trainer and evaluator, are in `tests/`.

#![allow(missing_docs, reason = "a test program")]

mod audit;
mod folder;
mod freeze;
mod init;
mod keys;
mod reading;
mod texts;
