//! The keys that exist, for a limit. Any other key was invented by a client, or is no longer in use.
//!
//! There may be a million keys. They are secrets, so only the first half of the SHA-256 digest of each is stored, 16 bytes
//! per key. With 128 bits, nobody can find another key with the same half. Common tools can make SHA-256 digests for a file.

use aws_lc_rs::digest::{SHA256, digest};

use crate::base::hex;

/// In bytes. A longer key is unknown without hashing.
pub const LONGEST: usize = 4096;

/// The first half of a SHA-256 digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Digest(u128);

#[derive(Clone, Debug, Default, PartialEq)]
pub struct KnownKeys {
    /// Sorted, without duplicates.
    digests: Box<[Digest]>,
}

impl Digest {
    pub fn of(key: &[u8]) -> Self {
        let hash = digest(&SHA256, key);
        Self(hash.as_ref().iter().take(16).fold(0, |bits, byte| bits << 8 | u128::from(*byte)))
    }

    /// Parses the 64 hexadecimal digits of a whole digest.
    ///
    /// # Errors
    /// The place, from 0, of the first character that is not such a digit or is too many; if there are too few, the length.
    pub fn parse(digits: &str) -> Result<Self, usize> {
        let wrong = digits.chars().take(64).position(|digit| !digit.is_ascii_hexdigit());
        let length = digits.chars().count();
        if let Some(place) = wrong.or((length != 64).then_some(length.min(64))) {
            return Err(place);
        }
        digits.get(..32).and_then(|half| u128::from_str_radix(half, 16).ok()).map(Self).ok_or(0)
    }
}

/// The whole digest of a key as 64 hexadecimal digits in lower case, by which other systems can look up a key that they do
/// not store.
pub fn whole_digest(key: &[u8]) -> String {
    let digest = digest(&SHA256, key);
    let (parts, _) = digest.as_ref().as_chunks();
    parts.iter().flat_map(|part| hex::digits(u64::from_be_bytes(*part))).map(char::from).collect()
}

impl KnownKeys {
    pub fn new(mut digests: Vec<Digest>) -> Self {
        digests.sort_unstable();
        digests.dedup();
        Self { digests: digests.into() }
    }

    /// Costs one hash, and about 20 comparisons for a million keys.
    pub fn contains(&self, key: &[u8]) -> bool {
        key.len() <= LONGEST && self.digests.binary_search(&Digest::of(key)).is_ok()
    }

    pub fn count(&self) -> usize {
        self.digests.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `printf %s abc | sha256sum` (FIPS 180-4, example).
    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn a_digest_represents_its_key() {
        assert_eq!(Digest::parse(ABC), Ok(Digest::of(b"abc")));
        assert_eq!(Digest::parse(&ABC.to_uppercase()), Ok(Digest::of(b"abc")));
        assert_ne!(Digest::of(b"abc"), Digest::of(b"abd"));
        for (digits, place) in [
            (ABC[1..].to_owned(), 63),
            (format!("{ABC}0"), 64),
            (ABC.replace('8', "g"), 3),
            (ABC.replacen('b', "+", 1), 0),
            ("\u{e4}".to_owned() + ABC, 0),
            (String::new(), 0),
        ] {
            assert_eq!(Digest::parse(&digits), Err(place), "{digits}");
        }
    }

    #[test]
    fn it_knows_its_keys_and_no_others() {
        let long = "k".repeat(LONGEST);
        let known = KnownKeys::new([&b"abc"[..], b"", b"abc", b"\xff", long.as_bytes()].map(Digest::of).to_vec());
        assert_eq!(known.count(), 4);
        for key in [&b"abc"[..], b"", b"\xff", long.as_bytes()] {
            assert!(known.contains(key));
        }
        for key in [&b"ab"[..], b"abcd", b"\xfe", ABC.as_bytes(), (long + "k").as_bytes()] {
            assert!(!known.contains(key));
        }
        assert!(!KnownKeys::default().contains(b""));
    }

    #[test]
    fn a_million_keys_take_16_megabytes() {
        // Slow without optimization, so debug builds use a tenth of the keys.
        let count: usize = if cfg!(debug_assertions) { 100_000 } else { 1_000_000 };
        let known = KnownKeys::new((0..count).map(|number| Digest::of(number.to_string().as_bytes())).collect());
        assert_eq!((known.count(), size_of_val(&*known.digests)), (count, 16 * count));
        assert!((0..count).step_by(997).all(|number| known.contains(number.to_string().as_bytes())));
        assert!(!known.contains(count.to_string().as_bytes()));
    }
}
