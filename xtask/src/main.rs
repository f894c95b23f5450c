//! Builds and tests.
fn main() {}
