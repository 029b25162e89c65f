//! `[decisions]`: the limits of the gateway for traffic that passes through other proxies.

use std::net::SocketAddr;

use http::StatusCode;
use memchr::memmem;

use super::route::Route;
use super::server::Listener;
use super::tls::Tls;
use crate::net::Traffic;

/// `[decisions]`
#[derive(Clone, Debug, PartialEq)]
pub struct Decisions {
    /// Where other proxies ask.
    pub listen: SocketAddr,
    /// `[decisions.tls]`
    pub tls: Option<Tls>,
    /// The status of the answer about a request that a limit refuses.
    pub refused_status: StatusCode,
    /// `[[decisions.descriptors]]`; the first that fits a descriptor counts.
    pub descriptors: Vec<DescriptorRule>,
}

/// `[[decisions.descriptors]]`: which descriptors it fits, and what limits them.
#[derive(Clone, Debug, PartialEq)]
pub struct DescriptorRule {
    /// The domain of the call.
    pub domain: String,
    /// The entries that a descriptor must have: their keys, and patterns of their values.
    pub entries: Vec<(String, TextPattern)>,
    /// Whether calls report what has been used, instead of asking for it.
    pub reports: bool,
    /// What its limits are compiled as. No request matches it by its path.
    pub route: Route,
}

/// A text in which `*` stands for any text, also an empty one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextPattern(pub String);

impl TextPattern {
    /// Whether the text fits. It may be any bytes.
    pub fn matches(&self, text: &[u8]) -> bool {
        let mut pieces = self.0.as_bytes().split(|byte| *byte == b'*');
        let Some(mut text) = pieces.next().and_then(|start| text.strip_prefix(start)) else { return false };
        let Some(end) = pieces.next_back() else { return text.is_empty() };
        for piece in pieces {
            let Some(place) = memmem::find(text, piece) else { return false };
            text = &text[place + piece.len()..];
        }
        text.ends_with(end)
    }
}

impl Decisions {
    /// Its listener.
    pub fn listener(&self) -> Listener {
        Listener { address: self.listen, tls: self.tls.is_some(), traffic: Traffic::Decisions }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_text() {
        for (pattern, fits, others) in [
            ("a", &["a"][..], &["", "b", "aa", "a*"][..]),
            ("", &[""], &["a"]),
            ("*", &["", "a", "/a/b"], &[]),
            ("**", &["", "a"], &[]),
            ("/v1/*", &["/v1/", "/v1/a/b"], &["/v1", "/v2/v1/"]),
            ("*.png", &[".png", "a.png"], &["a.png?", "png"]),
            ("a*a", &["aa", "aba"], &["a", "ab", ""]),
            ("a*b*c", &["abc", "a-b-c", "abbc", "abcc"], &["ac", "acb", "abca"]),
            ("ab*ba", &["abba", "ab-ba"], &["aba", "ab"]),
            ("a**b", &["ab", "a-b"], &["a", "b"]),
        ] {
            let pattern = TextPattern(pattern.to_owned());
            fits.iter().for_each(|text| assert!(pattern.matches(text.as_bytes()), "{pattern:?} {text:?}"));
            others.iter().for_each(|text| assert!(!pattern.matches(text.as_bytes()), "{pattern:?} {text:?}"));
        }
    }
}
