//! The identifier that finds a request in the logs of every system on its way: the client's own if it is safe in any text,
//! else 128 random bits.
//!
//! There is no standard for `X-Request-ID`. nginx makes 32 hexadecimal digits, which is also the form of a trace id. A
//! generator of the worker makes identifiers without a system call.

use http::{HeaderName, HeaderValue};

use super::header_rules;
use crate::base::hex;
use crate::base::random::Random;

/// In requests, forwarded requests and responses.
pub const REQUEST_ID: HeaderName = HeaderName::from_static(header_rules::REQUEST_ID);
/// For identifiers of clients.
const MOST_KEPT: usize = 128;

#[derive(Clone, Debug)]
pub struct RequestId(Text);

#[derive(Clone, Debug)]
enum Text {
    Made([u8; 32]),
    Kept(Box<str>),
}

impl RequestId {
    /// `line` is the single line of [`REQUEST_ID`] in the request.
    pub fn of(line: Option<&HeaderValue>, random: &Random) -> Self {
        line.and_then(kept).map_or_else(|| Self::new(random), |text| Self(Text::Kept(text.into())))
    }

    pub fn new(random: &Random) -> Self {
        let mut digits = [0; 32];
        let (high, low) = digits.split_at_mut(16);
        high.copy_from_slice(&hex::digits(random.bits()));
        low.copy_from_slice(&hex::digits(random.bits()));
        Self(Text::Made(digits))
    }

    /// 1 to 128 characters that need no escape in JSON.
    pub fn as_str(&self) -> &str {
        match &self.0 {
            Text::Made(digits) => std::str::from_utf8(digits).unwrap_or_default(),
            Text::Kept(text) => text,
        }
    }

    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Text::Made(digits) => digits,
            Text::Kept(text) => text.as_bytes(),
        }
    }

    pub fn to_header(&self) -> HeaderValue {
        // All characters are valid in a header.
        HeaderValue::from_bytes(self.as_bytes()).unwrap_or(HeaderValue::from_static(""))
    }
}

/// The identifier of the client, if it is safe in any text.
fn kept(line: &HeaderValue) -> Option<&str> {
    let is_short = (1..=MOST_KEPT).contains(&line.len());
    if !is_short || !line.as_bytes().iter().all(|byte| IS_PLAIN[usize::from(*byte)]) {
        return None;
    }
    line.to_str().ok()
}

/// The characters that neither end nor change a text around them: a JSON string, a line of a log, a command, a list in a
/// header.
static IS_PLAIN: [bool; 256] = {
    let mut plain = [false; 256];
    let mut byte = b'!';
    while byte <= b'~' {
        plain[byte as usize] = !matches!(byte, b'"' | b'\'' | b'`' | b'\\' | b'<' | b'>' | b',');
        byte += 1;
    }
    plain
};

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn of(line: Option<&[u8]>) -> String {
        let line = line.map(|line| HeaderValue::from_bytes(line).unwrap());
        let id = RequestId::of(line.as_ref(), &Random::seeded().unwrap());
        assert_eq!(id.to_header(), id.as_str());
        assert_eq!(serde_json::to_string(id.as_str()).unwrap(), format!("\"{}\"", id.as_str()));
        id.as_str().to_owned()
    }

    fn is_made(id: &str) -> bool {
        id.len() == 32 && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    }

    #[test]
    fn a_plain_one_is_kept() {
        let long = "x".repeat(128);
        for id in ["1", "0199f3a1-7c3e-7b54-8a0e-2f4f5d3c1b2a", "Root=1-67891233-abcdef;Self=1", "a:b/c+d@e", &long] {
            assert_eq!(of(Some(id.as_bytes())), id);
        }
    }

    #[test]
    fn others_are_replaced() {
        let long = "x".repeat(129);
        for line in [
            &b""[..],
            b"a b",
            b"a\tb",
            b"a\"b",
            b"a'b",
            b"a\\b",
            b"<b>",
            b"a,b",
            b"`id`",
            b"\xc3\xa9",
            b"\xff",
            long.as_bytes(),
        ] {
            let id = of(Some(line));
            assert!(is_made(&id), "{line:?}: {id}");
        }
        assert!(is_made(&of(None)));
    }

    #[test]
    fn no_two_are_the_same() {
        let random = Random::seeded().unwrap();
        let made: BTreeSet<_> = (0..10_000).map(|_| RequestId::new(&random).as_str().to_owned()).collect();
        assert_eq!(made.len(), 10_000);
        assert_ne!(of(None), of(None), "and no two generators");
    }
}
