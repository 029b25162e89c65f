//! A hash of 128 bits that represents a client's key. It is the same on every machine and does not reveal the key.

use std::fmt;

/// The first half of a BLAKE3 hash. It is cryptographic, so that clients cannot find two keys that share a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(u128);

/// Keeps the keys of different limits apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain([u8; 32]);

impl Domain {
    /// The domain called `name`.
    pub fn new(name: &str) -> Self {
        Self(*blake3::hash(name.as_bytes()).as_bytes())
    }

    /// The fingerprint of `bytes` in this domain.
    pub fn fingerprint(&self, bytes: &[u8]) -> Fingerprint {
        Fingerprint::cut(&blake3::keyed_hash(&self.0, bytes))
    }
}

impl Fingerprint {
    /// The fingerprint of `bytes` in no domain.
    pub fn of(bytes: &[u8]) -> Self {
        Self::cut(&blake3::hash(bytes))
    }

    /// A combination of both fingerprints.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self(self.0 ^ other.0)
    }

    /// The top 64 bits.
    pub fn high(self) -> u64 {
        (self.0 >> 64) as u64
    }

    /// Its 32 hexadecimal digits.
    pub fn digits(self) -> [u8; 32] {
        let mut digits = [0; 32];
        for (eight, four) in digits.chunks_exact_mut(8).zip(self.0.to_be_bytes().chunks_exact(4)) {
            let half = four.iter().fold(0, |half, byte| half << 8 | u32::from(*byte));
            eight.copy_from_slice(&eight_digits(half));
        }
        digits
    }

    fn cut(hash: &blake3::Hash) -> Self {
        let (half, _) = hash.as_bytes().split_at(16);
        Self(half.iter().fold(0, |bits, byte| bits << 8 | u128::from(*byte)))
    }
}

/// The hexadecimal digits of 32 bits, all at once: they are written for every decision that asks Memcached.
fn eight_digits(bits: u32) -> [u8; 8] {
    // Spreads the bits so that each byte has four of them.
    let bits = u64::from(bits);
    let bits = (bits | bits << 16) & 0x0000_ffff_0000_ffff;
    let bits = (bits | bits << 8) & 0x00ff_00ff_00ff_00ff;
    let bits = (bits | bits << 4) & 0x0f0f_0f0f_0f0f_0f0f;
    // A value of 10 or more carries into the upper half when 6 is added: its digit is a letter.
    let letters = (bits + 0x0606_0606_0606_0606) >> 4 & 0x0101_0101_0101_0101;
    (bits + 0x3030_3030_3030_3030 + letters * u64::from(b'a' - b'9' - 1)).to_be_bytes()
}

/// 32 hexadecimal digits.
impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn digits_are_what_is_displayed(bits: u128) {
            let fingerprint = Fingerprint(bits);
            prop_assert_eq!(fingerprint.digits().to_vec(), fingerprint.to_string().into_bytes());
        }
    }
}
