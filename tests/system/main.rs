//! Tests of the programs as a whole, and of the workspace's own rules.

mod sources;
mod workspace;
