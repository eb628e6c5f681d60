//! Loops that are not this project's, under the evidence profile `external-loop`:
//! a small one in Rust, which shows what an audit says of each thing that a loop
//! can do wrong, and the PyTorch example through the Python package.

mod arithmetic;
mod pytorch;
