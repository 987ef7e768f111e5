//! Benches of the core.

fn main() {}
