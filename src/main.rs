//! The gateway.
fn main() {}
