//! The key of a limit as a text, such as `partner-7` or `192.0.2.1|GET`: as the gateway shows and an operator writes it.
//!
//! A written part does not say from which of its sources it comes, so a key may have several readings and fingerprints.

use std::net::IpAddr;

use super::{ABSENT, KeyExtractor, Reader, Subject};
use crate::base::fingerprint::Fingerprint;
use crate::config::{Limit, PathPattern, Source};

/// The most readings of a key. Limits hardly ever have more than two.
const MAX_READINGS: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrittenKey<'a> {
    /// Finds the counters of the key.
    pub fingerprint: Fingerprint,
    /// The key in the cache of a source of quotas: the fingerprint, or that of the first part if there are more.
    pub quota_key: Fingerprint,
    /// Finds overrides; `None` if the first part is missing.
    pub subject: Option<Subject<'a>>,
    /// Whether an override of the written key applies to this reading. A written address means an address wherever it can, as
    /// in the file: otherwise a client could send that address as a text and get the override.
    pub has_override: bool,
}

/// The bytes of an incomplete reading.
#[derive(Clone, Default)]
struct Unfinished<'a> {
    bytes: Vec<u8>,
    first: usize,
    subject: Option<Subject<'a>>,
    /// Whether one of its parts is a text that could be an address.
    is_text_of_address: bool,
}

impl KeyExtractor {
    pub fn of_written(limit: &Limit) -> Self {
        // Written keys are read without a path.
        let path = PathPattern { text: String::new(), segments: Vec::new(), rest: true };
        Self::new(&limit.name, &limit.key, &path, limit.known_keys.as_ref())
    }

    pub fn part_count(&self) -> usize {
        self.parts.len()
    }

    /// All readings of a key whose parts have these values, by [`crate::config::Key::counted_values`]. A part without any is
    /// missing. Empty if the number of parts differs, or if no source of a part can have one of its values.
    pub fn written<'a>(&self, parts: &'a [Vec<Vec<u8>>]) -> Vec<WrittenKey<'a>> {
        if parts.len() != self.parts.len() {
            return Vec::new();
        }
        if parts.iter().all(Vec::is_empty) {
            let fingerprint = self.shared;
            return vec![WrittenKey { fingerprint, quota_key: fingerprint, subject: None, has_override: true }];
        }
        let mut readings = vec![Unfinished::default()];
        for (place, (part, readers)) in parts.iter().zip(&self.parts).enumerate() {
            let mut longer = Vec::new();
            let pairs = || part.iter().flat_map(|value| readers.iter().map(move |reader| (value, reader)));
            let may_be_address = pairs().any(|(value, reader)| {
                matches!(reader.push_written(value, &mut Vec::new()), Some(Subject::Address(_)))
            });
            for reading in &readings {
                if part.is_empty() {
                    let mut reading = reading.clone();
                    reading.bytes.extend_from_slice(&ABSENT);
                    longer.push(reading);
                }
                for (value, reader) in pairs() {
                    let mut reading = reading.clone();
                    let Some(subject) = reader.push_written(value, &mut reading.bytes) else { continue };
                    reading.is_text_of_address |= may_be_address && matches!(subject, Subject::Text(_));
                    if place == 0 {
                        (reading.first, reading.subject) = (reading.bytes.len(), Some(subject));
                    }
                    longer.push(reading);
                }
            }
            longer.truncate(MAX_READINGS);
            readings = longer;
        }
        let finish = |reading: Unfinished<'a>| {
            let fingerprint = self.domain.fingerprint(&reading.bytes);
            let first = reading.bytes.get(..reading.first).unwrap_or_default();
            let quota_key = if self.parts.len() == 1 { fingerprint } else { Fingerprint::of(first) };
            WrittenKey { fingerprint, quota_key, subject: reading.subject, has_override: !reading.is_text_of_address }
        };
        readings.into_iter().map(finish).collect()
    }
}

impl Reader {
    /// Appends a written value as [`Reader::read`] appends what it reads. `None` if the source cannot have this value.
    fn push_written<'a>(&self, value: &'a [u8], bytes: &mut Vec<u8>) -> Option<Subject<'a>> {
        match &self.source {
            Source::ClientIp { v6 } => {
                let address = std::str::from_utf8(value).ok()?.parse::<IpAddr>().ok()?.to_canonical();
                self.push_address(address, *v6, bytes)?;
                Some(Subject::Address(address))
            }
            Source::Global if value != b"*" => None,
            _ => self.push(value, bytes).map(|()| Subject::Text(value)),
        }
    }
}

/// The value of a source as a text. An IPv6 network has its prefix length.
pub fn value_text(source: &Source, value: &[u8]) -> String {
    match source {
        Source::ClientIp { v6 } => network(value, *v6),
        _ => String::from_utf8_lossy(value).into_owned(),
    }
}

/// Joins the texts of the parts of a key by `|`. Several parts write a `|` as `%7C` and a `%` as `%25`, so no other key has
/// the same text.
pub fn joined(parts: &[String]) -> String {
    match parts {
        [part] => part.clone(),
        _ => parts.iter().map(|part| part.replace('%', "%25").replace('|', "%7C")).collect::<Vec<_>>().join("|"),
    }
}

/// A key in the form of the admin API: its parts, [`joined`]. A missing part is empty; an IPv6 network is an address.
pub fn written_text(parts: &[Option<(&Source, Vec<u8>)>]) -> String {
    let part = |part: &Option<(&Source, Vec<u8>)>| match part {
        Some((Source::ClientIp { .. }, value)) => network(value, 128),
        Some((_, value)) => String::from_utf8_lossy(value).into_owned(),
        None => String::new(),
    };
    joined(&parts.iter().map(part).collect::<Vec<_>>())
}

/// A key as a text: its parts, joined by `|`. A missing part is `-`.
pub fn key_text(parts: &[Option<(&Source, Vec<u8>)>]) -> String {
    let part = |part: &Option<(&Source, Vec<u8>)>| match part {
        Some((source, value)) => value_text(source, value),
        None => "-".to_owned(),
    };
    parts.iter().map(part).collect::<Vec<_>>().join("|")
}

/// Formats an IPv4 address, or an IPv6 network with this prefix length, from its octets.
fn network(octets: &[u8], v6: u8) -> String {
    match (<[u8; 4]>::try_from(octets), <[u8; 16]>::try_from(octets)) {
        (Ok(octets), _) => IpAddr::from(octets).to_string(),
        (_, Ok(octets)) if v6 == 128 => IpAddr::from(octets).to_string(),
        (_, Ok(octets)) => format!("{}/{v6}", IpAddr::from(octets)),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, Method};

    use super::*;
    use crate::config::Key;
    use crate::request::identify::{KeyCache, RequestAttributes};

    fn extractor(parts: &[&[Source]]) -> KeyExtractor {
        let key = Key { parts: parts.iter().map(|part| part.to_vec()).collect() };
        KeyExtractor::new("test", &key, &PathPattern { text: "/*".into(), segments: Vec::new(), rest: true }, None)
    }

    fn written(extractor: &KeyExtractor, parts: &[&str]) -> Vec<Fingerprint> {
        let values = |part: &&str| if part.is_empty() { vec![] } else { vec![part.as_bytes().to_vec()] };
        let parts: Vec<_> = parts.iter().map(values).collect();
        extractor.written(&parts).into_iter().map(|reading| reading.fingerprint).collect()
    }

    fn extracted(extractor: &KeyExtractor, header: Option<&str>, client: &str) -> Fingerprint {
        let mut headers = HeaderMap::new();
        if let Some(value) = header {
            headers.insert("x-api-key", value.parse().unwrap());
        }
        let attributes = RequestAttributes {
            method: &Method::GET,
            host: "h",
            path: "/v1/acme",
            query: None,
            headers: &headers,
            client: client.parse().unwrap(),
            contradictory: &[],
            client_cert: None,
            tokens: &[],
            route: "r",
            body: None,
            descriptors: &[],
        };
        extractor.extract(&attributes, 0, &mut KeyCache::default()).unwrap_or(extractor.shared)
    }

    #[test]
    fn a_written_key_is_that_of_the_requests_that_have_it() {
        let (header, ip) = (Source::Header("x-api-key".parse().unwrap()), Source::ClientIp { v6: 64 });
        let one = extractor(&[&[header.clone(), ip.clone()]]);
        assert_eq!(written(&one, &["k"]), [extracted(&one, Some("k"), "192.0.2.1")]);
        // A client could send an address as its key.
        let both = [extracted(&one, Some("192.0.2.1"), "::1"), extracted(&one, None, "192.0.2.1")];
        assert_eq!(written(&one, &["192.0.2.1"]), both);
        let parts = [vec![b"192.0.2.1".to_vec()]];
        assert_eq!(one.written(&parts).iter().map(|reading| reading.has_override).collect::<Vec<_>>(), [false, true]);
        assert_eq!(written(&one, &["2001:db8::7"])[1], extracted(&one, None, "2001:db8::ffff"));
        assert_eq!(written(&one, &["::ffff:192.0.2.1"])[1], extracted(&one, None, "192.0.2.1"));
        let two = extractor(&[std::slice::from_ref(&header), &[Source::Method]]);
        assert_eq!(written(&two, &["k", "GET"]), [extracted(&two, Some("k"), "::1")]);
        assert_eq!(written(&two, &["", "GET"]), [extracted(&two, None, "::1")]);
        assert_eq!(written(&two, &["k"]), []);
        let alone = extractor(&[&[header]]);
        assert_eq!(written(&alone, &[""]), [extracted(&alone, None, "::1")]);
        assert_eq!(written(&extractor(&[&[ip]]), &["no-address"]), []);
        let global = extractor(&[&[Source::Global]]);
        assert_eq!(written(&global, &["*"]), [extracted(&global, None, "::1")]);
        assert_eq!(written(&global, &["x"]), []);
        let many = extractor(&[&[Source::Host, Source::Path][..]; 9]);
        assert_eq!(written(&many, &["x"; 9]).len(), MAX_READINGS);
    }

    #[test]
    fn parts_are_joined() {
        let (address, method) = (Source::ClientIp { v6: 64 }, Source::Method);
        let v6 = [0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0].to_vec();
        assert_eq!(key_text(&[Some((&address, v6.clone())), Some((&method, b"GET".to_vec()))]), "2001:db8::/64|GET");
        assert_eq!(
            written_text(&[Some((&address, v6.clone())), None, Some((&method, b"GET".to_vec()))]),
            "2001:db8::||GET"
        );
        let header = |value: &str| Some((&method, value.as_bytes().to_vec()));
        assert_eq!(written_text(&[header("a|b"), header("a%7Cb")]), "a%7Cb|a%257Cb");
        assert_eq!(written_text(&[header("a|b%")]), "a|b%");
        assert_eq!(key_text(&[None, Some((&address, vec![192, 0, 2, 1]))]), "-|192.0.2.1");
        assert_eq!(value_text(&Source::ClientIp { v6: 128 }, &v6), "2001:db8::");
        assert_eq!(value_text(&method, b"\xff"), "\u{fffd}");
    }
}
