//! Patterns with `*` for any text. They are compared byte by byte, because clients may send keys that are not UTF-8.
//!
//! A client chooses its key and may make it long, so all patterns are searched in one pass over the key. The texts before the
//! first star and after the last star are compared directly. The texts between stars, the pieces, are found by one automaton
//! for all patterns (Aho and Corasick, Communications of the ACM 18, 1975). When a piece is found, each pattern that waits
//! for it continues with its next piece. The first occurrence of each piece is enough, because it leaves the longest part of
//! the key for later pieces.

use aho_corasick::{AhoCorasick, BuildError};

use super::Grant;

#[derive(Clone, Debug)]
pub(super) struct Wildcards {
    patterns: Vec<Pattern>,
    /// Finds the pieces, each of which it has once.
    pieces: AhoCorasick,
}

#[derive(Clone, Debug)]
struct Pattern {
    text: String,
    /// The length of the text before the first star.
    head: usize,
    /// Where the text after the last star begins.
    tail: usize,
    /// The pieces between stars, in order, by their numbers in the automaton.
    middle: Vec<usize>,
    grant: Grant,
}

struct Search {
    /// The position of the pattern.
    place: usize,
    /// How many pieces were found.
    found: usize,
    /// The part of the key that is left for the other pieces is `from..until`.
    from: usize,
    until: usize,
    /// Another search that waits for the same piece.
    before: Option<usize>,
}

impl Wildcards {
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, Grant)> {
        self.patterns.iter().map(|pattern| (pattern.text.as_str(), pattern.grant))
    }

    /// Each pattern has at least one star. Fails when they are too large together for an automaton, at about 2^31 bytes.
    pub(super) fn new(patterns: Vec<(String, Grant)>) -> Result<Self, BuildError> {
        let mut pieces: Vec<String> = patterns.iter().flat_map(|(text, _)| between(text).map(str::to_owned)).collect();
        pieces.sort_unstable();
        pieces.dedup();
        let compiled = patterns.into_iter().map(|(text, grant)| Pattern {
            head: text.find('*').unwrap_or_default(),
            tail: text.rfind('*').map_or(0, |star| star + 1),
            middle: between(&text)
                .filter_map(|piece| pieces.binary_search_by(|other| (**other).cmp(piece)).ok())
                .collect(),
            text,
            grant,
        });
        Ok(Self { patterns: compiled.collect(), pieces: AhoCorasick::new(&pieces)? })
    }

    /// The first pattern before `end` that matches the key. Calls `step` for each step of the search: for each pattern, for
    /// each piece at each byte of the key where it ends, and for each pattern that waits for that piece.
    pub(super) fn find(&self, key: &[u8], end: Option<Grant>, mut step: impl FnMut()) -> Option<Grant> {
        let mut first = None;
        let mut searches = Vec::new();
        for (place, pattern) in self.patterns.iter().enumerate() {
            if end.is_some_and(|end| end.place <= pattern.grant.place) {
                break;
            }
            step();
            let Some((from, until)) = pattern.between_ends(key) else { continue };
            if pattern.middle.is_empty() {
                first = Some(place);
                break;
            }
            searches.push(Search { place, found: 0, from, until, before: None });
        }
        if !searches.is_empty() {
            first = self.search(key, searches, step).or(first);
        }
        first.map(|place| self.patterns[place].grant)
    }

    /// The first of the patterns whose pieces are all in the key, in order.
    fn search(&self, key: &[u8], mut searches: Vec<Search>, mut step: impl FnMut()) -> Option<usize> {
        // For each piece, the last search that waits for it; each search links to the one before it.
        let mut waiting: Vec<Option<usize>> = vec![None; self.pieces.patterns_len()];
        let mut left = searches.len();
        for (index, search) in searches.iter_mut().enumerate() {
            search.before = waiting[self.patterns[search.place].middle[0]].replace(index);
        }
        let mut first: Option<usize> = None;
        for found in self.pieces.find_overlapping_iter(key) {
            step();
            let mut next = waiting[found.pattern().as_usize()].take();
            while let Some(index) = next {
                step();
                let search = &mut searches[index];
                next = search.before.take();
                if found.end() > search.until || first.is_some_and(|first| first < search.place) {
                    // Later occurrences of the piece end even later.
                    left -= 1;
                    continue;
                }
                if found.start() >= search.from {
                    (search.from, search.found) = (found.end(), search.found + 1);
                }
                if let Some(piece) = self.patterns[search.place].middle.get(search.found) {
                    search.before = waiting[*piece].replace(index);
                } else {
                    first = Some(search.place);
                    left -= 1;
                }
            }
            if left == 0 {
                break;
            }
        }
        first
    }
}

impl PartialEq for Wildcards {
    fn eq(&self, other: &Self) -> bool {
        let patterns =
            |of: &Self| of.patterns.iter().map(|pattern| (pattern.text.clone(), pattern.grant)).collect::<Vec<_>>();
        patterns(self) == patterns(other)
    }
}

impl Pattern {
    /// The part of a key between the head and the tail of the pattern, if the key has both.
    fn between_ends(&self, key: &[u8]) -> Option<(usize, usize)> {
        let (head, tail) = (&self.text.as_bytes()[..self.head], &self.text.as_bytes()[self.tail..]);
        let until = key.len().checked_sub(tail.len()).filter(|until| *until >= head.len())?;
        (key.starts_with(head) && key.ends_with(tail)).then_some((head.len(), until))
    }
}

/// The pieces between the stars of a pattern.
fn between(text: &str) -> impl Iterator<Item = &str> {
    let inner = text.split_once('*').and_then(|(_, rest)| rest.rsplit_once('*')).map_or("", |(inner, _)| inner);
    inner.split('*').filter(|piece| !piece.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wildcards(patterns: &[&str]) -> Wildcards {
        let grant = |place| Grant { place, allowance: place };
        Wildcards::new(patterns.iter().zip(0..).map(|(text, place)| ((*text).to_owned(), grant(place))).collect())
            .unwrap()
    }

    /// The place of the pattern that is found, and the number of steps.
    fn find(wildcards: &Wildcards, key: &[u8]) -> (Option<u32>, usize) {
        let mut steps = 0;
        let found = wildcards.find(key, None, || steps += 1);
        (found.map(|grant| grant.place), steps)
    }

    #[test]
    fn a_star_is_any_text() {
        for (pattern, text) in [
            ("*", ""),
            ("*", "a"),
            ("a*", "a"),
            ("a*", "ab"),
            ("*a", "a"),
            ("*a", "ba"),
            ("a*b*c", "aXbbYc"),
            ("**", ""),
            ("*aa*a*", "aaa"),
            ("*ab*ab*", "abXab"),
            ("a*b*b", "abb"),
        ] {
            assert_eq!(find(&wildcards(&[pattern]), text.as_bytes()).0, Some(0), "{pattern} {text}");
        }
        for (pattern, text) in [
            ("a*", "b"),
            ("a*", ""),
            ("*a", "ab"),
            ("a*b", "a"),
            ("a*a", "a"),
            ("a*b*c", "acb"),
            ("*aa*a*", "aa"),
            ("*ab*ab*", "abab".get(..3).unwrap()),
            ("a*b*b", "ab"),
        ] {
            assert_eq!(find(&wildcards(&[pattern]), text.as_bytes()).0, None, "{pattern} {text}");
        }
        assert_eq!(find(&wildcards(&["a*"]), b"a\xff\x00").0, Some(0));
        assert_eq!(find(&wildcards(&["*b*"]), b"a\xffb\x00").0, Some(0));
    }

    #[test]
    fn the_first_pattern_is_found_whichever_ends_first() {
        let all = wildcards(&["*late*", "*early*", "x*", "*", "*never*"]);
        for (key, expected) in [("early late", 0), ("x early", 1), ("x", 2), ("y", 3)] {
            assert_eq!(find(&all, key.as_bytes()).0, Some(expected), "{key}");
        }
        let end = Grant { place: 2, allowance: 9 };
        assert_eq!(all.find(b"early", Some(end), || {}).map(|grant| grant.place), Some(1));
        assert_eq!(all.find(b"x", Some(end), || {}), None);
    }

    #[test]
    fn a_long_key_is_passed_over_once_however_many_patterns_there_are() {
        let key = "a".repeat(64 << 10);
        // The worst case for searching one pattern after the other, or starting again at each byte.
        let stubborn: Vec<_> = (0..1000).map(|number| format!("*{}{number}*", "a".repeat(100))).collect();
        let many_stars: Vec<_> = (0..1000).map(|number| format!("a{}*b{number}*a", "*a".repeat(50))).collect();
        for patterns in [stubborn, many_stars] {
            let texts: Vec<_> = patterns.iter().map(String::as_str).collect();
            let (found, steps) = find(&wildcards(&texts), key.as_bytes());
            let most = key.len() + patterns.iter().map(String::len).sum::<usize>();
            println!("{steps} steps of {most}");
            assert!(found.is_none() && steps <= most, "{steps} steps, more than {most}");
        }
    }
}
