//! Files of any content are read or refused, and nothing panics.

use std::path::Path;

use proptest::prelude::*;
use proptest::sample::Index;

use super::super::parse;
use super::{FULL, LIMITS};

#[test]
fn deep_and_long_files_do_not_panic() {
    for text in [
        "[".repeat(100_000),
        "a = ".to_owned() + &"[".repeat(100_000),
        "a = ".to_owned() + &"{a=".repeat(100_000),
        "a.".repeat(100_000) + "a = 1",
        "=\n".repeat(1_000),
        "[[routes]]\n".repeat(1_000),
    ] {
        assert!(!parse(text.as_bytes(), "f", Path::new("")).unwrap_err().to_string().is_empty());
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        if let Err(problems) = parse(&bytes, "f", Path::new("")) {
            prop_assert!(!problems.to_string().is_empty());
        }
    }

    #[test]
    fn arbitrary_values_do_not_panic(at: Index, value in "\\PC{0,20}") {
        let full = [FULL, LIMITS].concat();
        let lines: Vec<&str> = full.lines().collect();
        let line = at.index(lines.len());
        let changed = lines[line].split_once('=').map_or(value.clone(), |(key, _)| format!("{key}= {value:?}"));
        let text = [&lines[..line], &[changed.as_str()], &lines[line + 1..]].concat().join("\n");
        if let Err(problems) = parse(text.as_bytes(), "f", Path::new("")) {
            prop_assert!(!problems.to_string().is_empty());
        }
    }

    #[test]
    fn mutated_files_do_not_panic(
        edits in prop::collection::vec((any::<Index>(), 0_usize..20, "[ -~\\n]{0,6}"), 1..6),
    ) {
        let mut text = [FULL, LIMITS].concat().into_bytes();
        for (at, gone, new) in edits {
            let start = at.index(text.len());
            let end = (start + gone).min(text.len());
            text.splice(start..end, new.bytes());
        }
        if let Err(problems) = parse(&text, "f", Path::new("")) {
            prop_assert!(!problems.to_string().is_empty());
        }
    }
}
