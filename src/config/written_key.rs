//! The text of a key as an operator writes it, in the form in which requests are counted.
//!
//! Requests may spell a host or a path in many ways, and are counted by one of them. A written key in another spelling would
//! match no request, and nobody would notice. So overrides, known keys and the admin API all read keys here.

use std::borrow::Cow;
use std::net::IpAddr;

use http::Method;
use ipnet::IpNet;

use super::key::{Key, Source};
use super::read::Wrong;
use super::report::quoted;
use crate::base::http::path::{self, PathRules};
use crate::base::http::{host, is_method_in_other_case};

const SEGMENT: &str = "a segment of a path is not empty and has no slash";

/// How requests spell the keys of a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyForms {
    pub paths: PathRules,
    /// Whether the limit's routes ignore the case of paths; `None` if they differ.
    pub ignore_case: Option<bool>,
}

/// One part of a key.
#[derive(Clone, Copy)]
pub(super) struct WrittenPart<'k> {
    /// Empty if the key has an error.
    pub(super) sources: &'k [Source],
    pub(super) forms: KeyForms,
}

impl WrittenPart<'_> {
    /// The values by which requests with this text are counted, each once. The sources of the part may count it differently,
    /// and so may routes. If `is_pattern`, each `*` is any text. Fails when no request can have the text.
    pub(super) fn values(self, text: &str, is_pattern: bool) -> Result<Vec<Cow<'_, str>>, Wrong> {
        let (mut values, mut wrong) = (Vec::with_capacity(1), None);
        let is_counted = |ignore_case: &bool| self.forms.ignore_case.is_none_or(|all| all == *ignore_case);
        for source in self.sources {
            for ignore_case in [false, true].into_iter().filter(is_counted) {
                match self.forms.value(source, text, is_pattern, ignore_case) {
                    Ok(value) if values.contains(&value) => {}
                    Ok(value) => values.push(value),
                    Err(help) => {
                        wrong = Some(Wrong::new(format!("no request has {} as its `{source}`", quoted(text)), help));
                    }
                }
            }
        }
        match wrong {
            Some(wrong) if values.is_empty() => Err(wrong),
            _ if self.sources.is_empty() => Ok(vec![Cow::Borrowed(text)]),
            _ => Ok(values),
        }
    }

    /// The network by which clients in this one are counted. An address stands for it. Fails when it has more clients than this
    /// network.
    pub(super) fn counted_network(self, network: IpNet) -> Result<IpNet, Wrong> {
        let of_source = |source: &Source| if let Source::ClientIp { v6 } = source { Some(*v6) } else { None };
        let longest = self.sources.iter().find_map(of_source).filter(|_| network.addr().is_ipv6()).unwrap_or(u8::MAX);
        let Ok(counted) = IpNet::new(network.addr(), longest.min(network.prefix_len())) else { return Ok(network) };
        if network.prefix_len() > longest && network.prefix_len() < network.max_prefix_len() {
            let message = format!("{} is a part of a network that has one counter", quoted(&network.to_string()));
            return Err(Wrong::new(message, format!("write the whole network: \"{}\"", counted.trunc())));
        }
        Ok(counted.trunc())
    }
}

impl KeyForms {
    fn value<'t>(
        self,
        source: &Source,
        text: &'t str,
        is_pattern: bool,
        ignore_case: bool,
    ) -> Result<Cow<'t, str>, String> {
        let begins_with_star = is_pattern && text.starts_with('*');
        match source {
            Source::Host if is_pattern => host_pattern(text),
            Source::Host => {
                let name = host::normal(text).filter(|name| !name.is_empty());
                name.ok_or("a host is a name of letters, digits, `-`, `_` and `.`, or an address".into())
            }
            Source::Method if Method::from_bytes(text.as_bytes()).is_err() || is_method_in_other_case(text) => {
                Err("a method is a word, a standard one in upper case, like GET".into())
            }
            Source::Path if text.contains('?') || !(text.starts_with('/') || text == "*" || begins_with_star) => {
                Err("a path begins with a slash and has no query, like /v1/login".into())
            }
            Source::Path => self.path(text, ignore_case).map(Cow::Owned),
            Source::Capture(_) if text.contains('/') => Err(SEGMENT.into()),
            Source::Capture(_) => {
                let segment = self.path(&format!("/{text}"), ignore_case)?.split_off(1);
                if segment.is_empty() || segment.contains('/') { Err(SEGMENT.into()) } else { Ok(Cow::Owned(segment)) }
            }
            Source::Header(_) | Source::Cookie(_) | Source::Bearer
                if text.trim_matches([' ', '\t']) != text
                    || text.contains(|one: char| one != '\t' && one.is_ascii_control()) =>
            {
                Err("it has no blanks around it and no control characters".into())
            }
            Source::ClientIp { v6 } => address(text, *v6).ok_or("an address is like 192.0.2.7 or 2001:db8::7".into()),
            Source::Global if text != "*" => Err("all requests have the key `*`".into()),
            _ => Ok(Cow::Borrowed(text)),
        }
    }

    fn path(self, text: &str, ignore_case: bool) -> Result<String, String> {
        let path = path::normal(text, self.paths).map_err(|bad| format!("such requests get 400: {}", bad.detail()))?;
        Ok(path::key(&path, self.paths, ignore_case).into_owned())
    }
}

/// A host in which each `*` is any text.
fn host_pattern(text: &str) -> Result<Cow<'_, str>, String> {
    let name = text.replace('*', "x");
    let is_name = text.starts_with('[') || host::normal(&name).is_some_and(|normal| normal.len() == name.len());
    let lower = || Cow::Owned(text.to_ascii_lowercase());
    is_name.then(lower).ok_or("a host with `*` is like *.example.com, without port and final dot".into())
}

/// An address, also written as the network by which it is counted.
fn address(text: &str, v6: u8) -> Option<Cow<'_, str>> {
    let Ok(network) = text.parse::<IpNet>() else {
        return text.parse::<IpAddr>().is_ok().then_some(Cow::Borrowed(text));
    };
    let counted = if network.addr().is_ipv4() { 32 } else { v6 };
    (network.prefix_len() == counted).then(|| Cow::Owned(network.network().to_string()))
}

/// Whether all values of the source are in ASCII.
fn is_ascii(source: &Source) -> bool {
    matches!(source, Source::ClientIp { .. } | Source::Path | Source::Capture(_) | Source::Host | Source::Method)
}

impl Key {
    /// For each part of a written key, the values by which requests with it are counted; none for a missing part. Empty if the
    /// key has another number of parts. Fails when no request can have one of the parts: why, without the end of a sentence.
    pub fn counted_values(&self, parts: &[Vec<u8>], forms: KeyForms) -> Result<Vec<Vec<Vec<u8>>>, String> {
        if parts.len() != self.parts.len() {
            return Ok(Vec::new());
        }
        let values = |(written, sources): (&Vec<u8>, &Vec<Source>)| match str::from_utf8(written) {
            Ok("") => Ok(Vec::new()),
            Ok(text) => {
                let values = WrittenPart { sources, forms }.values(text, false);
                let bytes = |value: Cow<'_, str>| value.into_owned().into_bytes();
                let values = values.map(|values| values.into_iter().map(bytes).collect());
                values.map_err(|wrong| format!("{}: {}", wrong.message, wrong.help))
            }
            Err(_) if sources.iter().all(is_ascii) => Err("the key is not UTF-8".to_owned()),
            Err(_) => Ok(vec![written.clone()]),
        };
        parts.iter().zip(&self.parts).map(values).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::http::path::{EscapedSlashes, PathMatching};

    const FORGIVING: KeyForms = KeyForms {
        paths: PathRules { matching: PathMatching::Forgiving, escaped_slashes: EscapedSlashes::Reject },
        ignore_case: Some(false),
    };
    const EXACT: KeyForms = KeyForms {
        paths: PathRules { matching: PathMatching::Exact, escaped_slashes: EscapedSlashes::Keep },
        ..FORGIVING
    };
    const FOLDED: KeyForms = KeyForms { ignore_case: Some(true), ..FORGIVING };
    const MIXED: KeyForms = KeyForms { ignore_case: None, ..FORGIVING };

    fn capture() -> Source {
        Source::Capture("t".to_owned())
    }

    fn values(forms: KeyForms, sources: &[Source], text: &str, is_pattern: bool) -> Option<Vec<String>> {
        let values = WrittenPart { sources, forms }.values(text, is_pattern).ok()?;
        Some(values.into_iter().map(Cow::into_owned).collect())
    }

    #[test]
    fn a_text_counts_as_the_same_spelling_in_a_request() {
        for (forms, source, text, counted) in [
            (FORGIVING, Source::Host, "EVIL.test", "evil.test"),
            (FORGIVING, Source::Host, "evil.test.:8080", "evil.test"),
            (FORGIVING, Source::Host, "[2001:DB8::A]:443", "[2001:db8::a]"),
            (FORGIVING, Source::Path, "/p//evil;x/", "/p/evil"),
            (FORGIVING, Source::Path, "/p/caf\u{e9} au lait", "/p/caf%C3%A9%20au%20lait"),
            (FORGIVING, Source::Path, "/p/%7euser", "/p/~user"),
            (FORGIVING, Source::Path, "/", "/"),
            (FORGIVING, Source::Path, "*", "*"),
            (EXACT, Source::Path, "/p//evil/;x", "/p/evil/;x"),
            (FOLDED, Source::Path, "/P/Caf%C3%A9", "/p/caf%c3%a9"),
            (FORGIVING, capture(), "a b", "a%20b"),
            (FORGIVING, capture(), "%41%2C?", "A,%3F"),
            (FORGIVING, capture(), "acme;v=1", "acme"),
            (EXACT, capture(), "a%2fb", "a%2Fb"),
            (FOLDED, capture(), "ACME", "acme"),
            (FORGIVING, Source::Method, "purge", "purge"),
            (FORGIVING, Source::ClientIp { v6: 56 }, "2001:db8::/56", "2001:db8::"),
            (FORGIVING, Source::ClientIp { v6: 56 }, "192.0.2.7/32", "192.0.2.7"),
            (FORGIVING, Source::Bearer, "A b/", "A b/"),
        ] {
            for text in [text, counted] {
                let found = values(forms, std::slice::from_ref(&source), text, false);
                assert_eq!(found, Some(vec![counted.to_owned()]), "{source} {text}");
            }
        }
    }

    #[test]
    fn a_text_that_no_request_has_is_refused() {
        for (source, texts) in [
            (
                Source::Host,
                &["https://evil.test/", "evil.test..", "evil.test:99999", "::1", "caf\u{e9}.test", ":80"][..],
            ),
            (Source::Path, &["p", "http://evil.test/p", "/p?x=1", "/100%", "/a/../b", "/a%2Fb", "/a\u{1}", "*p"]),
            (capture(), &["/acme", "acme/", "a/b", "a%2Fb", "100%", "..", ";x"]),
            (Source::Method, &["two words", "get"]),
            (Source::ClientIp { v6: 64 }, &["evil.test", "2001:db8::/56", "192.0.2.0/24"]),
            (Source::Header("x-key".parse().unwrap()), &[" k", "k\n", "k\t", "\0", "\u{7f}"]),
            (Source::Bearer, &["token "]),
            (Source::Global, &["all"]),
        ] {
            for text in texts {
                assert_eq!(values(FORGIVING, std::slice::from_ref(&source), text, false), None, "{source} {text}");
            }
        }
        let wrong = WrittenPart { sources: &[Source::Path], forms: FORGIVING }.values("p", false).unwrap_err();
        assert_eq!(wrong.message, "no request has \"p\" as its `path`");
        assert_eq!(wrong.help, "a path begins with a slash and has no query, like /v1/login");
    }

    #[test]
    fn what_is_around_stars_is_brought_into_the_same_form() {
        for (forms, source, text, counted) in [
            (FORGIVING, Source::Host, "*.EVIL.test", Some("*.evil.test")),
            (FORGIVING, Source::Host, "[2001:DB8:*", Some("[2001:db8:*")),
            (FORGIVING, Source::Host, "*", Some("*")),
            (FORGIVING, Source::Host, "*:8080", None),
            (FORGIVING, Source::Host, "evil.*/", None),
            (FORGIVING, Source::Path, "/p//caf\u{e9}*/", Some("/p/caf%C3%A9*")),
            (FORGIVING, Source::Path, "*evil/", Some("*evil")),
            (FORGIVING, Source::Path, "evil*", None),
            (FOLDED, Source::Path, "/P/*", Some("/p/*")),
            (FORGIVING, capture(), "a b*", Some("a%20b*")),
            (FORGIVING, capture(), "a/*", None),
            (FORGIVING, Source::Bearer, "A b*", Some("A b*")),
        ] {
            let found = values(forms, std::slice::from_ref(&source), text, true);
            assert_eq!(found, counted.map(|counted| vec![counted.to_owned()]), "{source} {text}");
        }
    }

    #[test]
    fn sources_and_routes_may_count_a_text_differently() {
        let own = |texts: &[&str]| Some(texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>());
        let of = |sources: &[Source], text| values(MIXED, sources, text, false);
        assert_eq!(of(&[Source::Host, Source::Bearer], "A.test"), own(&["a.test", "A.test"]));
        assert_eq!(of(&[Source::Host, Source::Bearer], "a.test"), own(&["a.test"]));
        assert_eq!(of(&[capture()], "A b"), own(&["A%20b", "a%20b"]));
        assert_eq!(of(&[Source::Host, Source::Path], "/a/"), own(&["/a"]), "no host has a slash");
        assert_eq!(of(&[Source::Host, Source::Path], "a b"), None);
        assert_eq!(of(&[Source::Host, Source::ClientIp { v6: 64 }], "A"), own(&["a"]));
        assert_eq!(of(&[], "A"), own(&["A"]));
    }

    #[test]
    fn all_parts_of_a_key_are_read() {
        let key = Key { parts: vec![vec![Source::Host], vec![Source::Bearer], vec![capture()]] };
        let counted = |parts: [&[u8]; 3]| key.counted_values(&parts.map(<[u8]>::to_vec), FORGIVING);
        let values = |texts: [&[u8]; 3]| texts.map(|text| vec![text.to_vec()]).to_vec();
        assert_eq!(counted([b"A", b"\xff", b"a b"]), Ok(values([b"a", b"\xff", b"a%20b"])));
        assert_eq!(counted([b"", b"B", b""]), Ok(vec![vec![], vec![b"B".to_vec()], vec![]]));
        assert!(counted([b"A", b"B", b"\xff"]).is_err());
        assert!(counted([b"A", b"B", b"a/b"]).unwrap_err().contains("`path:t`"));
        assert_eq!(key.counted_values(&[b"A".to_vec()], FORGIVING), Ok(vec![]));
    }
}
