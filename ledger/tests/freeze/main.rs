//! The freeze: what it accepts, and everything that it refuses.

#![allow(missing_docs, reason = "a test program")]

mod campaign;
mod faults;
mod fixture;
mod honest;
mod initialization;
mod refused_content;
mod refused_equivalence;
mod refused_files;
mod refused_retention;
mod refused_state;
mod refused_text;
mod refused_workers;
