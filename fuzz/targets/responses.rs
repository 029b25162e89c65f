//! See `responses` in src/fuzzing/models.rs.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| gateway::fuzzing::check("responses", bytes));
