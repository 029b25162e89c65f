//! Masks of keys, wherever operators see keys of clients: the same in the admin API and in notices.

use blake3::Hash;

use super::fingerprint::Fingerprint;

/// How many characters a masked key shows at its beginning, and at its end.
const SHOWN: usize = 2;
/// Shorter keys show no characters, because the rest could be guessed.
const SHORTEST: usize = 8;
/// The hexadecimal digits that identify a masked key.
const DIGITS: usize = 8;

/// Masks keys: a key has the same mask as long as the process runs, and the mask does not tell the key.
pub struct KeyMask {
    /// Without the secret, an attacker could guess keys and compare the guesses with the masks.
    secret: [u8; 32],
}

impl KeyMask {
    /// Has a new secret. Fails when the system has no random numbers.
    pub fn new() -> Result<Self, getrandom::Error> {
        let mut secret = [0; 32];
        getrandom::fill(&mut secret)?;
        Ok(Self { secret })
    }

    /// The first and last characters of a key, unless the key is short, and digits that identify it.
    pub fn of(&self, key: Fingerprint, text: &str) -> String {
        let digits = self.digits(key);
        let characters: Vec<char> = text.chars().collect();
        match characters.len() {
            // Requests without a key.
            0 => String::new(),
            count if count < SHORTEST => format!("\u{2026}#{digits}"),
            count => {
                let [begin, end] = [&characters[..SHOWN], &characters[count - SHOWN..]].map(String::from_iter);
                format!("{begin}\u{2026}{end}#{digits}")
            }
        }
    }

    /// The text with the digits that identify the key.
    pub fn identified(&self, key: Fingerprint, text: &str) -> String {
        format!("{text}#{}", self.digits(key))
    }

    /// Whether a text has the form of a masked key, whose key only lists know.
    pub fn is_masked(text: &str) -> bool {
        let Some((shown, digits)) = text.rsplit_once('#') else { return false };
        let is_short = shown.contains('\u{2026}') && shown.chars().count() <= 2 * SHOWN + 1;
        is_short && digits.len() == DIGITS && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
    }

    fn digits(&self, key: Fingerprint) -> String {
        let hash: Hash = blake3::keyed_hash(&self.secret, &key.digits());
        hash.to_hex()[..DIGITS].to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masked(mask: &KeyMask, text: &str) -> String {
        mask.of(Fingerprint::of(text.as_bytes()), text)
    }

    #[test]
    fn a_mask_tells_keys_apart_but_not_what_they_are() {
        let mask = KeyMask::new().unwrap();
        let first = masked(&mask, "partner-7");
        assert_eq!(first, masked(&mask, "partner-7"));
        let (shown, digits) = first.split_once('#').unwrap();
        assert_eq!((shown, digits.len()), ("pa\u{2026}-7", DIGITS));
        assert_ne!(first, masked(&mask, "partner-17"));
        assert_ne!(first, masked(&KeyMask::new().unwrap(), "partner-7"), "it cannot be computed from the key");
        assert!(masked(&mask, "secret7").starts_with("\u{2026}#"), "{}", masked(&mask, "secret7"));
        assert!(masked(&mask, "\u{e4}\u{f6}\u{fc}45678").starts_with("\u{e4}\u{f6}\u{2026}78#"));
        assert_eq!(masked(&mask, ""), "");
        for text in ["partner-7", "secret7", "a#\u{2026}#b#\u{2026}c"] {
            assert!(KeyMask::is_masked(&masked(&mask, text)) && !KeyMask::is_masked(text), "{text}");
        }
        assert_eq!(mask.identified(Fingerprint::of(b"partner-7"), "pa"), format!("pa#{digits}"));
    }
}
