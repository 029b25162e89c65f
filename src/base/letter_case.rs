//! Compares names without regard to the case of their letters.

/// The same letter for all letters that differ only in case: the lower case of the upper case, each if it is one letter. Java's
/// `equalsIgnoreCase` compares this way, and letters that Unicode's simple folding (Go's `encoding/json`, .NET) takes for the
/// same are the same here, too.
pub fn without_case(letter: char) -> char {
    let upper = only(letter.to_uppercase()).unwrap_or(letter);
    only(upper.to_lowercase()).unwrap_or(upper)
}

fn only(mut letters: impl Iterator<Item = char>) -> Option<char> {
    let first = letters.next()?;
    letters.next().is_none().then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_the_same_in_both_cases() {
        for (one, other) in [('a', 'A'), ('ü', 'Ü'), ('σ', 'ς'), ('k', '\u{212a}'), ('s', 'ſ'), ('i', 'ı'), ('µ', 'μ')]
        {
            assert_eq!(without_case(one), without_case(other), "{one} {other}");
        }
        assert_eq!(['a', '_', 'ß', 'ﬁ'].map(without_case), ['a', '_', 'ß', 'ﬁ']);
    }
}
