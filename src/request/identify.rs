//! Reads the key of a limit from a request and hashes it to a fingerprint.
//!
//! Each value is hashed with its source and its length, so different keys never have the same bytes.

mod pieces;
pub mod ambiguity;
pub mod client;
pub mod body;
pub mod key_text;
pub mod tokens;

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use http::{HeaderMap, Method, header};
use percent_encoding::percent_decode;

use crate::base::fingerprint::{Domain, Fingerprint};
use crate::base::percent;
use crate::config::known_keys::KnownKeys;
use crate::config::{Key, PathPattern, Segment, Source};

use super::descriptors::Descriptor;
use body::InspectedBody;
use tokens::ValidToken;

pub use key_text::WrittenKey;

#[derive(Clone, Copy, Debug)]
pub struct RequestAttributes<'a> {
    pub method: &'a Method,
    /// Lower case, without the port.
    pub host: &'a str,
    /// In normal form, as routes match it.
    pub path: &'a str,
    /// Without the question mark.
    pub query: Option<&'a str>,
    pub headers: &'a HeaderMap,
    pub client: IpAddr,
    /// The two addresses that the headers of a trusted proxy name instead of one, so that the client is unknown.
    pub contradictory: &'a [IpAddr],
    /// The subject of the client's certificate.
    pub client_cert: Option<&'a str>,
    /// The valid ones of the tokens that limits of the route use.
    pub tokens: &'a [ValidToken<'a>],
    pub route: &'a str,
    /// `None` if no limit of the route needs the body, or it was not read yet.
    pub body: Option<&'a InspectedBody<'a>>,
    /// If Envoy asks: what each limit is asked about, by the place of the limit.
    pub descriptors: &'a [Descriptor<'a>],
}

impl RequestAttributes<'_> {
    /// The same request, if it came from this client.
    #[must_use]
    pub fn from_client(self, client: IpAddr) -> Self {
        Self { client, contradictory: &[], ..self }
    }
}

#[derive(Clone)]
pub struct KeyExtractor {
    domain: Domain,
    parts: Vec<Vec<Reader>>,
    /// The key that all requests without a key share.
    pub shared: Fingerprint,
    /// Whether all requests share one counter.
    is_global: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject<'a> {
    Text(&'a [u8]),
    Address(IpAddr),
}

/// The bytes before each value of a key: 8 for its source and 8 for its length.
const VALUE_HEADER: usize = 16;

/// Stands for a missing part of a key. No value is so long that this could be its header.
const ABSENT: [u8; VALUE_HEADER] = [u8::MAX; VALUE_HEADER];

#[derive(Clone)]
struct Reader {
    /// A hash of the source as the configuration spells it.
    tag: [u8; 8],
    source: Source,
    /// The index of the captured segment, of the descriptor, or of the document in an array, if the source is in one.
    place: usize,
    /// The values that count as present; `None` if all do.
    known: Option<Arc<KnownKeys>>,
    /// Whether the value tells the clients of the limit apart.
    identifies: bool,
}

/// The keys of the last request on a connection. The next request mostly has the same keys, and comparing a key is much
/// cheaper than hashing it.
#[derive(Debug, Default)]
pub struct KeyCache {
    bytes: Vec<u8>,
    /// By the index of the limit on its route.
    last: Vec<CachedKey>,
}

#[derive(Debug)]
struct CachedKey {
    domain: Domain,
    bytes: Vec<u8>,
    fingerprint: Fingerprint,
}

impl CachedKey {
    fn empty(domain: &Domain) -> Self {
        Self { domain: domain.clone(), bytes: Vec::new(), fingerprint: domain.fingerprint(b"") }
    }
}

/// The most bytes of a cached key, and the most cached keys of a connection. They bound the memory of connections.
const MAX_CACHED_KEY: usize = 256;
const MAX_CACHED_KEYS: usize = 8;

/// The most bytes that the buffer keeps after a request: enough for most tokens, so few requests allocate.
const MAX_KEPT_BUFFER: usize = 2048;

impl KeyCache {
    /// Frees the buffer if a long key has enlarged it, since the connection may then stay idle for long.
    pub fn shrink(&mut self) {
        if self.bytes.capacity() > MAX_KEPT_BUFFER {
            self.bytes = Vec::new();
        }
    }
}

impl KeyExtractor {
    /// Reads `key` for the limit named `limit` on a route with this path. If there are `known` keys and clients choose the value
    /// of the first part, only these count as present.
    pub fn new(limit: &str, key: &Key, path: &PathPattern, known: Option<&Arc<KnownKeys>>) -> Self {
        let reader = |part: usize, source: &Source| {
            let segment = path.segments.iter().position(|segment| match (segment, source) {
                (Segment::Capture(name), Source::Capture(wanted)) => name == wanted,
                _ => false,
            });
            let tag = Fingerprint::of(source.to_string().as_bytes()).high().to_be_bytes();
            let place = match source {
                Source::Descriptor(_) | Source::Json(_) => 0,
                _ => segment.unwrap_or(usize::MAX),
            };
            let identifies = key.identifies(part, source, known.is_some());
            let known = known.filter(|_| part == 0 && source.is_chosen_by_clients()).cloned();
            Reader { tag, source: source.clone(), place, known, identifies }
        };
        let readers = |(at, part): (usize, &Vec<Source>)| part.iter().map(|source| reader(at, source)).collect();
        let parts = key.parts.iter().enumerate().map(readers).collect();
        let domain = Domain::new(limit);
        let is_global = key.parts.iter().flatten().all(|source| *source == Source::Global);
        Self { shared: domain.fingerprint(b""), domain, parts, is_global }
    }

    /// See [`crate::config::Limit::tells_clients_apart`].
    pub fn tells_clients_apart(&self) -> bool {
        self.parts.iter().flatten().any(|reader| reader.source.identifies_clients())
    }

    pub fn is_in_body(&self) -> bool {
        self.parts.iter().flatten().any(|reader| reader.source.is_in_body())
    }

    /// Reads the document with this index if the body of a request is an array, and the descriptor with this index if Envoy
    /// asks.
    pub fn set_place(&mut self, index: usize) {
        let is_placed = |source: &Source| source.is_in_body() || matches!(source, Source::Descriptor(_));
        let readers = self.parts.iter_mut().flatten();
        readers.filter(|reader| is_placed(&reader.source)).for_each(|reader| reader.place = index);
    }

    /// The key of a request for the limit at this place on its route; `None` if all parts of the key are missing.
    pub fn extract(
        &self,
        attributes: &RequestAttributes<'_>,
        place: usize,
        key_cache: &mut KeyCache,
    ) -> Option<Fingerprint> {
        let KeyCache { bytes, last } = key_cache;
        bytes.clear();
        let mut is_present = false;
        for part in &self.parts {
            if part.iter().any(|reader| reader.read(attributes, bytes).is_some()) {
                is_present = true;
            } else {
                bytes.extend_from_slice(&ABSENT);
            }
        }
        if !is_present {
            return None;
        }
        if let Some(entry) = last.get(place).filter(|entry| entry.domain == self.domain && entry.bytes == *bytes) {
            return Some(entry.fingerprint);
        }
        let fingerprint = self.domain.fingerprint(bytes);
        if bytes.len() <= MAX_CACHED_KEY && place < MAX_CACHED_KEYS {
            last.resize_with(last.len().max(place + 1), || CachedKey::empty(&self.domain));
            last[place] = CachedKey { domain: self.domain.clone(), bytes: bytes.clone(), fingerprint };
        }
        Some(fingerprint)
    }

    /// Like [`Self::extract`], for a key that the next request on the connection hardly has.
    pub fn extract_rare(&self, attributes: &RequestAttributes<'_>, key_cache: &mut KeyCache) -> Option<Fingerprint> {
        // No limit of a route has this place, so the key is not cached.
        self.extract(attributes, usize::MAX, key_cache)
    }

    /// The value of the first part of the key, by which overrides and tiers are looked up.
    pub fn subject<'m>(&self, attributes: &RequestAttributes<'_>, key_cache: &'m mut KeyCache) -> Option<Subject<'m>> {
        match self.first(attributes, key_cache)? {
            (Source::ClientIp { .. }, _) => Some(Subject::Address(attributes.client.to_canonical())),
            (_, bytes) => bytes.get(VALUE_HEADER..).map(Subject::Text),
        }
    }

    /// The first part of the key: the source that is present, and its bytes, which differ from those of any other source.
    pub fn first<'m>(
        &self,
        attributes: &RequestAttributes<'_>,
        key_cache: &'m mut KeyCache,
    ) -> Option<(&Source, &'m [u8])> {
        key_cache.bytes.clear();
        let mut readers = self.parts.first()?.iter();
        let reader = readers.find(|reader| reader.read(attributes, &mut key_cache.bytes).is_some())?;
        Some((&reader.source, &key_cache.bytes))
    }

    /// The first part of the key in the form of the admin API, if a source of quotas can be asked about it. An address counts
    /// only if all sources of the part are addresses: otherwise a client could send an address as a text and get its quota.
    pub fn quota_key(&self, attributes: &RequestAttributes<'_>, key_cache: &mut KeyCache) -> Option<Vec<u8>> {
        let (source, bytes) = self.first(attributes, key_cache)?;
        let value = bytes.get(VALUE_HEADER..)?;
        match source {
            Source::ClientIp { .. } if !self.asks_addresses() => None,
            Source::ClientIp { .. } => Some(key_text::written_text(&[Some((source, value.to_vec()))]).into_bytes()),
            _ => Some(value.to_vec()),
        }
    }

    fn asks_addresses(&self) -> bool {
        let is_address = |reader: &Reader| matches!(reader.source, Source::ClientIp { .. });
        self.parts.first().is_some_and(|part| part.iter().all(is_address))
    }

    /// For each part of the key: the source that is present, and its value.
    pub fn parts<'s>(&'s self, attributes: &RequestAttributes<'_>) -> Vec<Option<(&'s Source, Vec<u8>)>> {
        let read = |reader: &'s Reader| {
            let mut bytes = Vec::new();
            reader.read(attributes, &mut bytes)?;
            Some((&reader.source, bytes.split_off(VALUE_HEADER)))
        };
        self.parts.iter().map(|readers| readers.iter().find_map(read)).collect()
    }

    /// The sources for which the request has a value that is not a known key.
    pub fn unknown<'s>(&'s self, attributes: &RequestAttributes<'_>) -> Vec<&'s Source> {
        let is_given =
            |reader: &Reader| Reader { known: None, ..reader.clone() }.read(attributes, &mut Vec::new()).is_some();
        let missing = |reader: &&Reader| reader.read(attributes, &mut Vec::new()).is_none();
        let missing = self.parts.iter().flatten().filter(missing);
        missing.filter(|reader| is_given(reader)).map(|reader| &reader.source).collect()
    }

    /// The key if it stands for a part of all requests; `None` if all requests, or all without a key, share the counter.
    pub fn partition(&self, key: Fingerprint) -> Option<Fingerprint> {
        (!self.is_global && key != self.shared).then_some(key)
    }

    /// Whether clients without a key of their own share this `key`: a part lacks what tells clients apart, and no other part
    /// has it.
    pub fn is_of_strangers(&self, key: Fingerprint, attributes: &RequestAttributes<'_>) -> bool {
        if let [part] = &self.parts[..]
            && part.iter().all(|reader| reader.identifies)
        {
            return key == self.shared;
        }
        let (mut lacks, mut bytes) = (false, Vec::new());
        for part in &self.parts {
            let found = part.iter().find(|reader| reader.read(attributes, &mut bytes).is_some());
            if found.is_some_and(|reader| reader.identifies) {
                return false;
            }
            lacks |= found.is_none() || part.iter().any(|reader| reader.source.identifies_clients());
        }
        lacks
    }
}

impl Reader {
    /// Appends the value if there is one. Empty values and unknown keys count as missing.
    fn read(&self, attributes: &RequestAttributes<'_>, bytes: &mut Vec<u8>) -> Option<()> {
        match &self.source {
            Source::ClientIp { v6 } => self.push_address(attributes.client.to_canonical(), *v6, bytes),
            Source::Header(name) => self.push(attributes.headers.get(name)?.as_bytes().trim_ascii(), bytes),
            Source::Cookie(name) => self.push(&cookie(attributes.headers, name)?, bytes),
            Source::Query(name) => {
                let mut pairs = pieces::parameters(attributes.query?);
                let (_, value) = pairs.find(|(found, _)| **found == *name.as_bytes())?;
                self.push(&percent::decode_form(value), bytes)
            }
            Source::Bearer => self.push(bearer(attributes.headers)?, bytes),
            Source::Path => self.push(attributes.path.as_bytes(), bytes),
            Source::Capture(_) => self.push(attributes.path.split('/').skip(1).nth(self.place)?.as_bytes(), bytes),
            Source::Host => self.push(attributes.host.as_bytes(), bytes),
            Source::Method => self.push(attributes.method.as_str().as_bytes(), bytes),
            Source::Route => self.push(attributes.route.as_bytes(), bytes),
            Source::ClientCert => self.push(attributes.client_cert?.as_bytes(), bytes),
            Source::Jwt { name, claim } => {
                self.push(ValidToken::claim(attributes.tokens, name, claim)?.as_bytes(), bytes)
            }
            Source::Json(pointer) => self.push(attributes.body?.value(pointer, self.place)?, bytes),
            Source::Descriptor(name) => self.push(attributes.descriptors.get(self.place)?.value(name)?, bytes),
            Source::Global => self.push(b"*", bytes),
        }
    }

    fn push_address(&self, address: IpAddr, v6: u8, bytes: &mut Vec<u8>) -> Option<()> {
        match address {
            IpAddr::V4(address) => self.push(&address.octets(), bytes),
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(v6)).unwrap_or(0);
                self.push(&(u128::from(address) & mask).to_be_bytes(), bytes)
            }
        }
    }

    fn push(&self, value: &[u8], bytes: &mut Vec<u8>) -> Option<()> {
        if value.is_empty() || self.known.as_ref().is_some_and(|known| !known.contains(value)) {
            return None;
        }
        bytes.extend_from_slice(&self.tag);
        bytes.extend_from_slice(&(value.len() as u64).to_be_bytes());
        bytes.extend_from_slice(value);
        Some(())
    }
}

/// The first cookie of this name, percent-decoded, since most frameworks read `s%3Aone` as `s:one`. The header is searched as
/// bytes, so a cookie that is not UTF-8 does not hide the others.
fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<Cow<'a, [u8]>> {
    let lines = headers.get_all(header::COOKIE).iter();
    let mut cookies = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b';'));
    cookies.find_map(|cookie| {
        let value =
            cookie.trim_ascii().strip_prefix(name.as_bytes())?.trim_ascii_start().strip_prefix(b"=")?.trim_ascii();
        let value = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value);
        Some(percent_decode(value).into())
    })
}

fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    after_bearer(headers.get(header::AUTHORIZATION)?.as_bytes())
}

/// The token of `Bearer` credentials (RFC 6750, section 2.1). Some servers accept a tab after the scheme.
fn after_bearer(credentials: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = credentials.trim_ascii().split_at_checked(6)?;
    let is_bearer = scheme.eq_ignore_ascii_case(b"bearer") && token.first().is_some_and(u8::is_ascii_whitespace);
    is_bearer.then(|| token.trim_ascii())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;
    use crate::config::known_keys::Digest;

    fn headers(lines: &[(&'static str, &[u8])]) -> HeaderMap {
        lines.iter().map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_bytes(value).unwrap())).collect()
    }

    fn extractor(parts: &[&[Source]]) -> KeyExtractor {
        checked(parts, None)
    }

    fn checked(parts: &[&[Source]], known: Option<&Arc<KnownKeys>>) -> KeyExtractor {
        let key = Key { parts: parts.iter().map(|part| part.to_vec()).collect() };
        let capture = Segment::Capture("tenant".into());
        let segments = vec![Segment::Literal("v1".into()), capture];
        KeyExtractor::new("test", &key, &PathPattern { text: "/v1/{tenant}".into(), segments, rest: false }, known)
    }

    fn attributes<'a>(headers: &'a HeaderMap, client: &str, query: Option<&'a str>) -> RequestAttributes<'a> {
        let client = client.parse().unwrap();
        RequestAttributes {
            method: &Method::GET,
            host: "h",
            path: "/v1/acme",
            query,
            headers,
            client,
            contradictory: &[],
            client_cert: None,
            tokens: &[],
            route: "r",
            body: None,
            descriptors: &[],
        }
    }

    fn key(name: &'static str) -> Source {
        Source::Header(name.parse().unwrap())
    }

    #[test]
    fn the_first_source_that_is_present_counts() {
        let extractor = extractor(&[&[key("x-api-key"), Source::ClientIp { v6: 64 }]]);
        let of = |lines: &[(&'static str, &[u8])], client| {
            extractor.extract(&attributes(&headers(lines), client, None), 0, &mut KeyCache::default()).unwrap()
        };
        let a = of(&[("x-api-key", b"a")], "192.0.2.1");
        assert_eq!(a, of(&[("x-api-key", b" a ")], "192.0.2.2"));
        assert_ne!(a, of(&[("x-api-key", b"b")], "192.0.2.1"));
        assert_ne!(of(&[], "192.0.2.1"), of(&[], "192.0.2.2"));
        assert_eq!(of(&[("x-api-key", b"")], "192.0.2.1"), of(&[], "192.0.2.1"));
    }

    #[test]
    fn ipv6_is_cut_to_its_prefix() {
        let extractor = extractor(&[&[Source::ClientIp { v6: 64 }]]);
        let none = HeaderMap::new();
        let of = |client| extractor.extract(&attributes(&none, client, None), 0, &mut KeyCache::default()).unwrap();
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
    }

    #[test]
    fn different_keys_have_different_fingerprints() {
        let both = extractor(&[&[key("a")], &[key("b")]]);
        let of = |a: &[u8], b: &[u8]| {
            both.extract(&attributes(&headers(&[("a", a), ("b", b)]), "::1", None), 0, &mut KeyCache::default())
                .unwrap()
        };
        assert_ne!(of(b"xy", b"z"), of(b"x", b"yz"));
        let either = extractor(&[&[key("a"), key("b")]]);
        let of = |name| {
            either.extract(&attributes(&headers(&[(name, b"v")]), "::1", None), 0, &mut KeyCache::default()).unwrap()
        };
        assert_ne!(of("a"), of("b"), "the same value from another source is another key");
        assert_ne!(KeyExtractor::new("one", &Key { parts: vec![] }, &path(), None).shared, either.shared);
    }

    fn path() -> PathPattern {
        PathPattern { text: "/".into(), segments: vec![], rest: true }
    }

    #[test]
    fn every_source_is_read() {
        let lines: &[(&'static str, &[u8])] =
            &[("cookie", b"theme=\xff; sid=one"), ("cookie", b"other=\"two\""), ("authorization", b"bEARER  token ")];
        let headers = headers(lines);
        let attributes = attributes(&headers, "::1", Some("x=1&na%6De=a%20b&name=2&&a+b=%FF+%c3%2B%4"));
        let read = |source: Source| {
            let mut bytes = Vec::new();
            let reader = &extractor(&[&[source]]).parts[0][0];
            reader.read(&attributes, &mut bytes).map(|()| bytes[16..].to_vec())
        };
        assert_eq!(read(Source::Cookie("sid".into())).unwrap(), b"one");
        assert_eq!(read(Source::Cookie("other".into())).unwrap(), b"two");
        assert_eq!(read(Source::Cookie("si".into())), None);
        assert_eq!(read(Source::Bearer).unwrap(), b"token");
        assert_eq!(read(Source::Query("name".into())).unwrap(), b"a b");
        assert_eq!(read(Source::Query("nam".into())), None);
        assert_eq!(read(Source::Query("a b".into())).unwrap(), b"\xff \xc3+%4");
        assert_eq!(read(Source::Capture("tenant".into())).unwrap(), b"acme");
        assert_eq!(read(Source::Capture("nobody".into())), None);
        assert_eq!(read(Source::Path).unwrap(), b"/v1/acme");
        assert_eq!(read(Source::Host).unwrap(), b"h");
        assert_eq!(read(Source::Method).unwrap(), b"GET");
        assert_eq!(read(Source::Route).unwrap(), b"r");
        assert_eq!(read(Source::Global).unwrap(), b"*");
    }

    #[test]
    fn the_cache_changes_no_key() {
        let (a, b) = (
            extractor(&[&[key("a")]]),
            KeyExtractor::new("other", &Key { parts: vec![vec![key("a")]] }, &path(), None),
        );
        let mut key_cache = KeyCache::default();
        let long = "x".repeat(1000);
        for value in ["1", "1", "2", &long, &long, "1", "12"] {
            for (extractor, place) in [(&a, 0), (&b, 0), (&a, 5), (&b, 5), (&a, 100)] {
                let headers = headers(&[("a", value.as_bytes())]);
                let attributes = attributes(&headers, "::1", None);
                let fresh = extractor.extract(&attributes, place, &mut KeyCache::default());
                assert_eq!(extractor.extract(&attributes, place, &mut key_cache), fresh, "{value} at {place}");
            }
        }
    }

    #[test]
    fn a_key_that_is_not_known_is_missing() {
        let known = Arc::new(KnownKeys::new(vec![Digest::of(b"real"), Digest::of(b"192.0.2.1")]));
        let either = [key("a"), key("b"), Source::ClientIp { v6: 64 }];
        let (plain, checked) = (extractor(&[&either, &[key("c")]]), checked(&[&either, &[key("c")]], Some(&known)));
        let of = |extractor: &KeyExtractor, lines: &[(&'static str, &[u8])]| {
            let headers = headers(lines);
            extractor.extract(&attributes(&headers, "192.0.2.9", None), 0, &mut KeyCache::default()).unwrap()
        };
        assert_eq!(of(&checked, &[("a", b"real")]), of(&plain, &[("a", b"real")]));
        assert_eq!(of(&checked, &[("a", b"made up"), ("b", b"real")]), of(&plain, &[("b", b"real")]));
        assert_eq!(of(&checked, &[("a", b"made up"), ("b", b"too")]), of(&plain, &[]), "an address is always known");
        assert_ne!(of(&checked, &[("c", b"made up")]), of(&checked, &[]), "the others are not looked up");
        let headers = headers(&[("a", b"made up"), ("b", b"real")]);
        let attributes = attributes(&headers, "192.0.2.9", None);
        assert_eq!(checked.subject(&attributes, &mut KeyCache::default()), Some(Subject::Text(b"real")));
        assert_eq!(checked.unknown(&attributes), [&key("a")]);
    }

    #[test]
    fn no_memory_is_kept_for_long_keys() {
        let extractor = extractor(&[&[key("a")]]);
        let mut key_cache = KeyCache::default();
        let mut kept = |length: usize| {
            let headers = headers(&[("a", "x".repeat(length).as_bytes())]);
            let attributes = attributes(&headers, "::1", None);
            assert!((0..20).all(|place| extractor.extract(&attributes, place, &mut key_cache).is_some()));
            assert!(extractor.subject(&attributes, &mut key_cache).is_some());
            key_cache.shrink();
            key_cache.bytes.capacity() + key_cache.last.iter().map(|cached| cached.bytes.capacity()).sum::<usize>()
        };
        for length in [10, 60_000, 200, 60_000] {
            let kept = kept(length);
            assert!(kept <= MAX_CACHED_KEYS * MAX_CACHED_KEY + MAX_KEPT_BUFFER, "{kept} after {length}");
        }
    }

    #[test]
    fn a_key_is_missing_only_if_every_part_is() {
        let both = extractor(&[&[key("a")], &[key("b")]]);
        let of = |lines: &[(&'static str, &[u8])]| {
            both.extract(&attributes(&headers(lines), "::1", None), 0, &mut KeyCache::default())
        };
        assert_eq!(of(&[]), None);
        let all = [of(&[("a", b"v")]), of(&[("b", b"v")]), of(&[("a", b"v"), ("b", b"v")]), of(&[("b", b"w")])];
        for (place, one) in all.iter().enumerate() {
            assert!(one.is_some() && !all[..place].contains(one), "{place}: {all:?}");
        }
    }

    #[test]
    fn no_value_is_mistaken_for_a_missing_part() {
        let both = extractor(&[&[key("a")], &[Source::Query("b".into())]]);
        let of = |a: &[u8], query| {
            let a = headers(&[("a", a)]);
            both.extract(&attributes(&a, "::1", query), 0, &mut KeyCache::default()).unwrap()
        };
        let absent = of(b"v", None);
        assert_eq!(absent, of(b"v", Some("c=1")), "a missing part is always the same");
        for query in ["b=%00", "b=%FF%FF%FF%FF%FF%FF%FF%FF%FF%FF%FF%FF%FF%FF%FF%FF", "b=absent", "b=*"] {
            assert_ne!(absent, of(b"v", Some(query)), "{query}");
        }
        let with_marker = [&b"v"[..], &ABSENT[..]].concat();
        assert_ne!(absent, of(&with_marker, None));
    }
}
