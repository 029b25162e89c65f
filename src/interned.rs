//! Texts of the configuration that are told again and again.

use std::collections::BTreeSet;

use bytes::Bytes;
use http::HeaderValue;
use parking_lot::Mutex;

static TEXTS: Mutex<BTreeSet<&'static [u8]>> = Mutex::new(BTreeSet::new());

/// The text, kept for as long as the process runs: then handing it out counts no references, which would take two
/// locked instructions for each answer. The same text is kept once, however often the configuration is read again.
pub fn interned(text: &[u8]) -> Bytes {
    let mut texts = TEXTS.lock();
    let known = texts.get(text).copied();
    Bytes::from_static(known.unwrap_or_else(|| {
        let kept: &'static [u8] = Box::leak(text.into());
        texts.insert(kept);
        kept
    }))
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
}
