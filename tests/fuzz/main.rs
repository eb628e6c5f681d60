//! Fuzzing of everything that reads bytes which anybody may have written, on both
//! sides: what the writer reads and what the validator reads.
//!
//! Each target has a committed corpus (`__fuzz__/TARGET/corpus`, real files and
//! what a fuzzer once found) and a property: nothing panics, memory stays within
//! a bound that is linear in the input, what was read and written again is the
//! same bytes, and both sides accept the same. A test replays the corpus and then
//! a fixed number of edits of it, from fixed seeds. `scripts/fuzz` goes on with
//! new seeds for as long as it is told, or lets libFuzzer look for inputs that reach
//! further.

mod bundle;
mod challenge;
mod contract;
mod corpus;
mod cosigned;
mod document;
mod dsse;
mod edit;
mod entry;
mod frame;
mod guided;
mod manifest;
mod memory;
mod note;
mod opening;
mod preregistration;
mod proof;
mod run;
mod safetensors;
mod witness_proof;
mod witness_request;
