//! See `framing` in src/fuzzing.rs.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| gateway::fuzzing::check("framing", bytes));
