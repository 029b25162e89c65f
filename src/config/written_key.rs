//! The text of a key as an operator writes it, in the form in which requests are counted.
//!
//! Hosts, paths and methods have many spellings, and requests are counted by one of them. A key in another spelling would match
//! no request, and nobody would see why. So overrides, known keys, tiers and the admin API all ask here.

use std::borrow::Cow;
use std::net::Ipv6Addr;

use http::Method;

use super::key::{Key, Source};
use super::report::quoted;
use crate::base::http::path::{self, BadPath, EscapedSlashes, PathRules};
use crate::base::http::{host, standard_method};
use crate::base::percent;

/// What a limit's keys depend on besides their sources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyForms {
    pub paths: PathRules,
    /// Whether all routes of the limit ignore the case of paths.
    pub ignore_case: bool,
}

/// Why no request has a text as its value of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NeverCounted {
    source: String,
    pub why: &'static str,
    nearest: Option<String>,
}

impl NeverCounted {
    pub fn message(&self, text: &str) -> String {
        format!("no request has {} as its `{}`", quoted(text), self.source)
    }

    pub fn help(&self) -> String {
        self.nearest.as_ref().map_or(self.why.to_owned(), |nearest| format!("{}: write {nearest:?}", self.why))
    }
}

struct Wrong {
    why: &'static str,
    nearest: Option<String>,
    /// Whether a part of the text may be valid, such as the rest of a pattern that begins within an escape.
    is_of_whole: bool,
}

impl KeyForms {
    /// The value of the source in requests that spell it like the text.
    ///
    /// # Errors
    /// When no request can have such a value.
    pub fn normal<'t>(self, source: &Source, text: &'t str) -> Result<Cow<'t, str>, NeverCounted> {
        self.read(source, text, false).map_err(|wrong| wrong.of(source))
    }

    /// Like [`Self::normal`], for bytes that may not be UTF-8.
    ///
    /// # Errors
    /// When no request can have such a value.
    pub fn normal_bytes<'t>(self, source: &Source, bytes: &'t [u8]) -> Result<Cow<'t, [u8]>, NeverCounted> {
        let owned = |text: Cow<'_, str>| Cow::Owned(text.into_owned().into_bytes());
        match (std::str::from_utf8(bytes), source) {
            (Ok(text), _) => match self.normal(source, text)? {
                Cow::Borrowed(text) => Ok(Cow::Borrowed(text.as_bytes())),
                text @ Cow::Owned(_) => Ok(owned(text)),
            },
            (Err(_), Source::Path | Source::Capture(_)) => self.normal(source, &escaped(bytes)).map(owned),
            (Err(_), Source::Host | Source::Method) => self.normal(source, &String::from_utf8_lossy(bytes)).map(owned),
            (Err(_), _) => Ok(Cow::Borrowed(bytes)),
        }
    }

    /// Like [`Self::normal`], for a text in which each `*` is any text.
    fn pattern<'t>(self, source: &Source, text: &'t str) -> Result<Cow<'t, str>, NeverCounted> {
        let is_star = |text: &str| text.bytes().all(|byte| byte == b'*');
        match self.read(source, text, true) {
            Ok(pattern) if is_star(&pattern) && !is_star(text) => {
                let why = "without what makes no difference, it is every key";
                Err(Wrong::new(why, Some("*".to_owned())).of(source))
            }
            Ok(pattern) => Ok(pattern),
            Err(wrong) if wrong.is_of_whole => Ok(Cow::Borrowed(text)),
            Err(wrong) => Err(wrong.of(source)),
        }
    }

    fn read<'t>(self, source: &Source, text: &'t str, is_pattern: bool) -> Result<Cow<'t, str>, Wrong> {
        match source {
            Source::Host if is_pattern => Ok(host_pattern(text)),
            Source::Host => match host::normal(text) {
                Some(name) if !name.is_empty() => Ok(name),
                _ => Err(Wrong::new("a host is a name in ASCII or an address", nearest_host(text))),
            },
            Source::Path => self.path(text, is_pattern),
            Source::Capture(_) => self.segment(text),
            Source::Method => match standard_method(text) {
                Some(method) => Ok(Cow::Borrowed(method)),
                None if Method::from_bytes(text.as_bytes()).is_ok() => Ok(Cow::Borrowed(text)),
                None => Err(Wrong::new("a method is a word like GET", None)),
            },
            _ => Ok(Cow::Borrowed(text)),
        }
    }

    fn path<'t>(self, text: &'t str, is_pattern: bool) -> Result<Cow<'t, str>, Wrong> {
        let is_rooted = text.starts_with('/') || text == "*" || (is_pattern && text.starts_with('*'));
        let nearest = |path: &str| self.spelled(path).ok().map(Cow::into_owned);
        if !is_rooted {
            let after_host = text.split_once("://").map(|(_, rest)| rest.find('/').map_or("/", |at| &rest[at..]));
            let rooted = after_host.map_or_else(|| format!("/{}", text.trim()), str::to_owned);
            let path = rooted.split('?').next().unwrap_or_default();
            return Err(Wrong::new("a path begins with a slash", nearest(path)));
        }
        if let Some((path, _)) = text.split_once('?') {
            return Err(Wrong::new("a path has no query, and a `?` in it is written as %3F", nearest(path)));
        }
        self.spelled(text).map_err(|bad| self.wrong(bad, text))
    }

    fn segment<'t>(self, text: &'t str) -> Result<Cow<'t, str>, Wrong> {
        let inner = text.trim_matches('/');
        if inner.len() < text.len() || inner.contains('/') {
            let keeps = self.paths.escaped_slashes == EscapedSlashes::Keep;
            let nearest = match inner.contains('/') {
                true => keeps.then(|| text.replace('/', "%2F")),
                false => Some(inner.to_owned()).filter(|inner| !inner.is_empty()),
            };
            return Err(Wrong::new("one segment of a path has no slash", nearest));
        }
        let path = format!("/{text}");
        let path = self.spelled(&path).map_err(|bad| self.wrong(bad, text))?;
        match path.get(1..) {
            Some(segment) if segment.contains('/') => Err(Wrong::new("an encoded slash ends the segment", None)),
            Some(segment) if segment == text && !text.is_empty() => Ok(Cow::Borrowed(text)),
            Some(segment) if !segment.is_empty() => Ok(Cow::Owned(segment.to_owned())),
            _ => Err(Wrong::new("an empty segment counts as a missing key", None)),
        }
    }

    /// The path by which limits count requests with this path.
    fn spelled(self, path: &str) -> Result<Cow<'_, str>, BadPath> {
        Ok(match path::normal(path, self.paths)? {
            Cow::Borrowed(path) => path::key(path, self.paths, self.ignore_case),
            Cow::Owned(path) => Cow::Owned(path::key(&path, self.paths, self.ignore_case).into_owned()),
        })
    }

    fn wrong(self, bad: BadPath, text: &str) -> Wrong {
        let nearest = (bad == BadPath::BadEscape).then(|| with_escaped_percents(text));
        let nearest = nearest.filter(|text| self.spelled(text).is_ok());
        let why = match bad {
            BadPath::BadEscape => "two hexadecimal digits follow a `%`, and a `%` itself is written as %25",
            BadPath::DotSegment => "requests with dot segments are refused",
            BadPath::Control => "requests with control characters in their path are refused",
            BadPath::EscapedSlash => "`escaped_slashes` refuses requests with encoded slashes or backslashes",
            BadPath::EscapedTwice => "requests with a character that is escaped twice are refused",
            BadPath::Overlong => "requests with overlong UTF-8 are refused",
        };
        Wrong { is_of_whole: true, ..Wrong::new(why, nearest) }
    }
}

impl Wrong {
    fn new(why: &'static str, nearest: Option<String>) -> Self {
        Self { why, nearest, is_of_whole: false }
    }

    fn of(self, source: &Source) -> NeverCounted {
        NeverCounted { source: source.to_string(), why: self.why, nearest: self.nearest }
    }
}

/// One part of a key: its sources, which may count the same text differently.
#[derive(Clone, Copy)]
pub struct WrittenPart<'a> {
    pub sources: &'a [Source],
    pub forms: KeyForms,
}

impl<'a> WrittenPart<'a> {
    pub fn first(key: Option<&'a Key>, forms: KeyForms) -> Self {
        Self { sources: key.and_then(|key| key.parts.first()).map_or(&[], Vec::as_slice), forms }
    }

    /// What the sources count requests with this text by, each value once. The text itself comes first if it is one of them. Sources of
    /// addresses are left out.
    ///
    /// # Errors
    /// When no request can have the text.
    pub fn values(self, text: &str) -> Result<Vec<Cow<'_, str>>, NeverCounted> {
        self.distinct(text, |source| self.forms.normal(source, text))
    }

    /// Like [`Self::values`], for a text in which each `*` is any text.
    ///
    /// # Errors
    /// When no request can have a text that the pattern matches.
    pub fn patterns(self, text: &str) -> Result<Vec<Cow<'_, str>>, NeverCounted> {
        self.distinct(text, |source| self.forms.pattern(source, text))
    }

    fn distinct<'t>(
        self,
        text: &'t str,
        read: impl Fn(&Source) -> Result<Cow<'t, str>, NeverCounted>,
    ) -> Result<Vec<Cow<'t, str>>, NeverCounted> {
        let (mut values, mut why) = (Vec::with_capacity(1), None);
        for source in self.sources.iter().filter(|source| !matches!(source, Source::ClientIp { .. })) {
            match read(source) {
                Ok(value) if values.contains(&value) => {}
                Ok(value) if value == text => values.insert(0, value),
                Ok(value) => values.push(value),
                Err(never) => why = why.or(Some(never)),
            }
        }
        match why.filter(|_| values.is_empty()) {
            Some(why) => Err(why),
            None if values.is_empty() => Ok(vec![Cow::Borrowed(text)]),
            None => Ok(values),
        }
    }
}

impl Key {
    /// The parts of a key, each as requests are counted by it if all its sources agree, otherwise as written.
    ///
    /// # Errors
    /// When no request can have one of the parts: a sentence without its end.
    pub fn normal_parts(&self, parts: &[Vec<u8>], forms: KeyForms) -> Result<Vec<Vec<u8>>, String> {
        if parts.len() != self.parts.len() {
            return Ok(parts.to_vec());
        }
        let normal = |(written, sources): (&Vec<u8>, &Vec<Source>)| {
            if written.is_empty() || sources.iter().any(|source| matches!(source, Source::ClientIp { .. })) {
                return Ok(written.clone());
            }
            let (values, never): (Vec<_>, Vec<_>) =
                sources.iter().map(|source| forms.normal_bytes(source, written)).partition(Result::is_ok);
            let mut values = values.into_iter().flatten();
            match (values.next(), never.into_iter().find_map(Result::err)) {
                (None, Some(never)) => {
                    Err(format!("{}; {}", never.message(&String::from_utf8_lossy(written)), never.help()))
                }
                (Some(first), _) if values.all(|other| other == first) => Ok(first.into_owned()),
                _ => Ok(written.clone()),
            }
        };
        parts.iter().zip(&self.parts).map(normal).collect()
    }
}

/// A host is counted in lower case, without the port and a final dot.
fn host_pattern(text: &str) -> Cow<'_, str> {
    // A letter stands for any text. A name is the beginning of what it is read from.
    let name = host::normal(&text.replace('*', "a")).map_or(text.len(), |name| name.len());
    Cow::Owned(text.get(..name).unwrap_or(text).to_ascii_lowercase())
}

/// The host in a text that is almost one, such as a URL.
fn nearest_host(text: &str) -> Option<String> {
    let text = text.trim();
    let authority = text.split_once("://").map_or(text, |(_, rest)| rest).split(['/', '?', '#']).next()?;
    let name = authority.rsplit_once('@').map_or(authority, |(_, name)| name);
    if name.parse::<Ipv6Addr>().is_ok() {
        return Some(format!("[{}]", name.to_ascii_lowercase()));
    }
    let without_port = name.rsplit_once(':').map_or(name, |(name, _)| name);
    let names = [name, without_port].map(|name| name.trim_end_matches('.'));
    names.into_iter().find_map(host::normal).filter(|name| !name.is_empty()).map(Cow::into_owned)
}

/// The text with escapes for all bytes that are not ASCII.
fn escaped(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() + 8);
    for byte in bytes {
        match byte {
            0..=0x7F => text.push(char::from(*byte)),
            _ => percent::push_escaped(&mut text, *byte),
        }
    }
    text
}

/// The text with `%25` for each `%` that begins no escape.
fn with_escaped_percents(text: &str) -> String {
    let mut pieces = text.split('%');
    let first = pieces.next().unwrap_or_default().to_owned();
    pieces.fold(first, |text, piece| match percent::unescape(piece.as_bytes()) {
        Some(_) => text + "%" + piece,
        None => text + "%25" + piece,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::http::path::PathMatching;

    const FORGIVING: KeyForms = KeyForms {
        paths: PathRules { matching: PathMatching::Forgiving, escaped_slashes: EscapedSlashes::Reject },
        ignore_case: false,
    };
    const EXACT: KeyForms = KeyForms {
        paths: PathRules { matching: PathMatching::Exact, escaped_slashes: EscapedSlashes::Keep },
        ignore_case: false,
    };
    const FOLDED: KeyForms = KeyForms { ignore_case: true, ..FORGIVING };

    fn capture() -> Source {
        Source::Capture("t".to_owned())
    }

    #[test]
    fn a_text_is_counted_like_the_same_spelling_in_a_request() {
        for (forms, source, text, normal) in [
            (FORGIVING, Source::Host, "EVIL.test", "evil.test"),
            (FORGIVING, Source::Host, "evil.test.:8080", "evil.test"),
            (FORGIVING, Source::Host, "[2001:DB8::A]:443", "[2001:db8::a]"),
            (FORGIVING, Source::Path, "/p/evil/", "/p/evil"),
            (FORGIVING, Source::Path, "/p//evil;x", "/p/evil"),
            (FORGIVING, Source::Path, "/p/caf\u{e9} au lait", "/p/caf%C3%A9%20au%20lait"),
            (FORGIVING, Source::Path, "/p/%7euser", "/p/~user"),
            (FORGIVING, Source::Path, "/", "/"),
            (FORGIVING, Source::Path, "*", "*"),
            (EXACT, Source::Path, "/p//evil/;x", "/p/evil/;x"),
            (FOLDED, Source::Path, "/P/Caf%C3%A9", "/p/caf%c3%a9"),
            (FORGIVING, capture(), "a b", "a%20b"),
            (FORGIVING, capture(), "x%2Cy", "x,y"),
            (FORGIVING, capture(), "q%20r?", "q%20r%3F"),
            (FORGIVING, capture(), "acme;v=1", "acme"),
            (FORGIVING, capture(), "a%2Ab", "a*b"),
            (EXACT, capture(), "a%2fb", "a%2Fb"),
            (FOLDED, capture(), "ACME", "acme"),
            (FORGIVING, Source::Method, "get", "GET"),
            (FORGIVING, Source::Method, "purge", "purge"),
            (FORGIVING, Source::Bearer, "A b/", "A b/"),
        ] {
            assert_eq!(forms.normal(&source, text).as_deref(), Ok(normal), "{source} {text}");
            assert_eq!(forms.normal(&source, normal).as_deref(), Ok(normal), "{source} {normal}");
        }
        assert_eq!(FORGIVING.normal_bytes(&capture(), b"\xe9 ").as_deref(), Ok(&b"%E9%20"[..]));
        assert_eq!(FORGIVING.normal_bytes(&Source::Bearer, b"\xe9 ").as_deref(), Ok(&b"\xe9 "[..]));
        assert!(FORGIVING.normal_bytes(&Source::Host, b"\xe9").is_err());
    }

    #[test]
    fn a_text_that_no_request_has_is_refused_with_the_nearest_one() {
        for (source, text, nearest) in [
            (Source::Host, "https://Evil.test/login", Some("evil.test")),
            (Source::Host, "evil.test..", Some("evil.test")),
            (Source::Host, "evil.test:99999", Some("evil.test")),
            (Source::Host, "::1", Some("[::1]")),
            (Source::Host, "caf\u{e9}.test", None),
            (Source::Host, ":80", None),
            (Source::Path, "p//evil/", Some("/p/evil")),
            (Source::Path, "http://evil.test/p/?x", Some("/p")),
            (Source::Path, "/p/?x=1", Some("/p")),
            (Source::Path, "/100%", Some("/100%25")),
            (Source::Path, "/a/../b", None),
            (Source::Path, "/a%2Fb", None),
            (Source::Path, "/a\u{1}", None),
            (capture(), "/acme/", Some("acme")),
            (capture(), "a/b", None),
            (capture(), "100%", Some("100%25")),
            (capture(), "..", None),
            (capture(), ";x", None),
            (Source::Method, "two words", None),
        ] {
            let never = FORGIVING.normal(&source, text).expect_err(text);
            assert_eq!(never.nearest.as_deref(), nearest, "{source} {text}");
            if let Some(nearest) = nearest {
                assert_eq!(FORGIVING.normal(&source, nearest).as_deref(), Ok(nearest));
            }
        }
        assert_eq!(EXACT.normal(&capture(), "a/b").unwrap_err().nearest.as_deref(), Some("a%2Fb"));
        let never = FORGIVING.normal(&Source::Path, "p").unwrap_err();
        assert_eq!(never.message("p"), "no request has \"p\" as its `path`");
        assert_eq!(never.help(), "a path begins with a slash: write \"/p\"");
    }

    #[test]
    fn what_is_around_stars_is_normalized() {
        for (forms, source, text, normal) in [
            (FORGIVING, Source::Host, "*.EVIL.test:80", Some("*.evil.test")),
            (FORGIVING, Source::Host, "E*V", Some("e*v")),
            (FORGIVING, Source::Host, "[2001:DB8:*", Some("[2001:db8:*")),
            (FORGIVING, Source::Host, "*", Some("*")),
            (FORGIVING, Source::Host, "*:8080", None),
            (FORGIVING, Source::Path, "/p//caf\u{e9}*/", Some("/p/caf%C3%A9*")),
            (FORGIVING, Source::Path, "/p/%*", Some("/p/%*")),
            (FORGIVING, Source::Path, "*evil/", Some("*evil")),
            (FORGIVING, Source::Path, "*/", None),
            (FORGIVING, Source::Path, "evil*", None),
            (FOLDED, Source::Path, "/P/*", Some("/p/*")),
            (FORGIVING, capture(), "a b*", Some("a%20b*")),
            (FORGIVING, capture(), "a/*", None),
            (FORGIVING, Source::Bearer, "A b*", Some("A b*")),
        ] {
            assert_eq!(forms.pattern(&source, text).ok().as_deref(), normal, "{source} {text}");
        }
    }

    #[test]
    fn sources_of_one_part_may_count_a_text_differently() {
        let values = |sources: &[Source], text: &str| {
            let values = WrittenPart { sources, forms: FORGIVING }.values(text);
            values.map(|values| values.into_iter().map(Cow::into_owned).collect::<Vec<_>>()).ok()
        };
        let own = |texts: &[&str]| Some(texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>());
        assert_eq!(values(&[Source::Host, Source::Bearer], "A.test"), own(&["A.test", "a.test"]));
        assert_eq!(values(&[Source::Host, Source::Bearer], "a.test"), own(&["a.test"]));
        assert_eq!(values(&[Source::Host, Source::Path], "/a/"), own(&["/a"]), "no host has a slash");
        assert_eq!(values(&[Source::Host, Source::Path], "a b"), None);
        assert_eq!(values(&[Source::Host, Source::ClientIp { v6: 64 }], "A"), own(&["a"]));
        assert_eq!(values(&[], "A"), own(&["A"]));
        let key = Key { parts: vec![vec![Source::Host], vec![Source::Host, Source::Bearer]] };
        let parts = |parts: [&str; 2]| parts.map(|part| part.as_bytes().to_vec()).to_vec();
        assert_eq!(key.normal_parts(&parts(["A", "B"]), FORGIVING), Ok(parts(["a", "B"])));
        assert_eq!(key.normal_parts(&parts(["", "b"]), FORGIVING), Ok(parts(["", "b"])));
        assert!(key.normal_parts(&parts(["a/", "b"]), FORGIVING).is_err());
        assert_eq!(key.normal_parts(&[b"A".to_vec()], FORGIVING), Ok(vec![b"A".to_vec()]), "another number of parts");
    }
}
