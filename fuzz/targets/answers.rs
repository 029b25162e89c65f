//! Memcached's answers: any bytes are read as what they are, never past their end, and alike however they are cut.

#![no_main]
#![allow(dead_code, reason = "what is written to Memcached comes along")]

use libfuzzer_sys::fuzz_target;

#[path = "../../src/store/memcached/wire.rs"]
mod wire;

fuzz_target!(|input: &[u8]| {
    let mut rest = input;
    while let Ok(Some((answer, length))) = wire::answer(rest) {
        assert!(0 < length && length <= rest.len());
        // What came in full is the same whatever follows, and nothing while a byte is missing.
        assert_eq!(wire::answer(&rest[..length]), Ok(Some((answer, length))));
        assert!(!matches!(wire::answer(&rest[..length - 1]), Ok(Some(_))));
        if let wire::Answer::Value(value, _) = answer {
            assert!(value.len() < length);
        }
        let _ = answer.count();
        rest = &rest[length..];
    }
});
