//! Texts of the configuration that are told again and again.

use std::collections::BTreeSet;

use bytes::Bytes;
use http::HeaderValue;
use parking_lot::Mutex;

/// The bytes of texts that are kept at most: reloads may bring new ones without end.
const ROOM: usize = 16 << 20;

static TEXTS: Mutex<Texts> = Mutex::new(Texts { kept: BTreeSet::new(), bytes: 0 });

struct Texts {
    kept: BTreeSet<&'static [u8]>,
    bytes: usize,
}

/// The text, kept for as long as the process runs: then handing it out counts no references, which would take two
/// locked instructions for each answer. The same text is kept once, however often the configuration is read again. Once
/// 16 MiB are kept, references to further texts are counted.
pub fn interned(text: &[u8]) -> Bytes {
    TEXTS.lock().intern(text, ROOM)
}

impl Texts {
    fn intern(&mut self, text: &[u8], room: usize) -> Bytes {
        if let Some(known) = self.kept.get(text) {
            return Bytes::from_static(known);
        }
        if text.len() > room.saturating_sub(self.bytes) {
            return Bytes::copy_from_slice(text);
        }
        let kept: &'static [u8] = Box::leak(text.into());
        self.bytes += kept.len();
        self.kept.insert(kept);
        Bytes::from_static(kept)
    }
}

/// The same for the value of a header.
pub fn interned_value(value: &HeaderValue) -> HeaderValue {
    HeaderValue::from_maybe_shared(interned(value.as_bytes())).unwrap_or_else(|_| value.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_text_is_kept_once() {
        let [first, again, other] = [&b"a text"[..], b"a text", b"another"].map(interned);
        assert_eq!((&first[..], &other[..]), (&b"a text"[..], &b"another"[..]));
        assert_eq!(first.as_ptr(), again.as_ptr());
    }

    #[test]
    fn what_is_kept_for_ever_is_bounded() {
        let mut texts = Texts { kept: BTreeSet::new(), bytes: 0 };
        for number in 0..1000 {
            let text = format!("text {number:04}");
            assert_eq!(texts.intern(text.as_bytes(), 95), text);
        }
        assert_eq!((texts.kept.len(), texts.bytes), (10, 90));
        let [first, again] = [(); 2].map(|()| texts.intern(b"text 0000", 95));
        assert_eq!(first.as_ptr(), again.as_ptr(), "what is known stays");
    }
}
