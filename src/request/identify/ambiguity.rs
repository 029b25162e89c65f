//! Finds keys that servers read differently: the gateway would count one value and the upstream would use another, so a
//! client could get a new counter for every request.
//!
//! A key is unambiguous if the request has it exactly once, in exactly its own spelling. The behavior of servers, not a
//! standard, decides which other spellings count: see the tables in the tests. The checks are computed per route when the
//! configuration is built, so requests pay nothing if no limit reads a header, cookie, parameter or token.

use std::borrow::Cow;
use std::iter;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{HeaderMap, HeaderName, header};
use memchr::{memchr_iter, memchr2_iter};
use percent_encoding::percent_decode;

use super::after_bearer;
use super::pieces::{Pieces, Separation, name_and_value};
use crate::base::http::header_list;
use crate::base::http::header_rules::is_same_variable;
use crate::base::letter_case::without_case;
use crate::base::percent::decode_form;
use crate::config::{Limit, Source};

/// The sources that limits of a route read and that a request could have more than once.
#[derive(Clone, Debug, Default)]
pub struct SingleSources {
    rules: Vec<SourceRule>,
}

#[derive(Clone, Debug)]
struct SourceRule {
    source: Source,
    /// The name in the form in which names are compared: see [`SourceRule::is_read_from`].
    folded: String,
    /// Whether the name has characters that servers confuse with others.
    has_spellings: bool,
}

/// The most cookies and parameters of a request if a limit reads one of them. Browsers send at most about 180 cookies. A
/// client of HTTP/2 needs only a byte for a kilobyte of cookies.
const MOST_COOKIES: usize = 1000;
const MOST_PARAMETERS: usize = 400;

impl SingleSources {
    pub fn new<'c>(limits: impl IntoIterator<Item = &'c Limit>, others: impl IntoIterator<Item = &'c Source>) -> Self {
        let mut rules: Vec<SourceRule> = Vec::new();
        let mut add = |source: &Source| {
            if !rules.iter().any(|rule| rule.source == *source) {
                rules.extend(SourceRule::new(source));
            }
        };
        others.into_iter().for_each(&mut add);
        for limit in limits {
            let cost = limit.cost.request_header().map(|name| Source::Header(name.clone()));
            limit.sources().chain(&cost).for_each(&mut add);
        }
        Self { rules }
    }

    /// A sentence for the client about the first ambiguous source of the request. Only sources that the route's limits use are
    /// checked.
    pub fn ambiguity(&self, headers: &HeaderMap, query: Option<&str>) -> Option<String> {
        let query = query.unwrap_or_default();
        self.rules.iter().find_map(|rule| rule.ambiguity(headers, query))
    }

    /// Whether a limit uses this header or one that servers confuse with it.
    pub fn has_header(&self, name: &HeaderName) -> bool {
        self.rules.iter().any(|rule| match &rule.source {
            Source::Header(wanted) => is_same_variable(wanted.as_str(), name.as_str()),
            _ => false,
        })
    }
}

#[derive(Default)]
struct Occurrences {
    times: usize,
    is_misspelled: bool,
}

impl Occurrences {
    fn add(&mut self, is_misspelled: bool) {
        self.times += 1;
        self.is_misspelled |= is_misspelled;
    }
}

impl SourceRule {
    /// `None` for sources that each request has exactly once.
    fn new(source: &Source) -> Option<Self> {
        let (folded, has_spellings) = match source {
            Source::Header(name) => {
                (name.as_str().to_owned(), name.as_str().bytes().any(|byte| !byte.is_ascii_alphanumeric()))
            }
            Source::Cookie(name) | Source::Query(name) => {
                (significant(name).map(without_case).map(folded).collect(), true)
            }
            Source::Bearer => (String::new(), false),
            // The Host header is checked for every request, and clients do not write names for the others.
            Source::ClientIp { .. }
            | Source::Path
            | Source::Capture(_)
            | Source::Host
            | Source::Method
            | Source::Route
            | Source::ClientCert
            | Source::Jwt { .. }
            | Source::Json(_)
            | Source::Descriptor(_)
            | Source::Global => return None,
        };
        Some(Self { source: source.clone(), folded, has_spellings })
    }

    /// Not inline, because its frame is large and most routes have no such source.
    #[inline(never)]
    fn ambiguity(&self, headers: &HeaderMap, query: &str) -> Option<String> {
        let source = &self.source;
        // It would count by what its server does not see (RFC 9110, section 7.6.1).
        let is_dropped = |name: &HeaderName| header_list::has_member(headers, &header::CONNECTION, name.as_str());
        if source.header().is_some_and(is_dropped) {
            return Some(format!("Connection names the header of {source}, so that no server gets it."));
        }
        if let Some(too_many) = self.too_many(headers, query) {
            return Some(too_many);
        }
        let mut found = Occurrences::default();
        self.search(headers, query, &mut found);
        match found {
            Occurrences { times: 0, .. } | Occurrences { times: 1, is_misspelled: false } => None,
            // Servers differ in whether they find it or in the value that they read.
            Occurrences { times: 1, is_misspelled: true } => {
                Some(format!("The request has {source} in a spelling that servers read differently."))
            }
            Occurrences { .. } => Some(format!("The request has {source} more than once.")),
        }
    }

    fn too_many(&self, headers: &HeaderMap, query: &str) -> Option<String> {
        match self.source {
            Source::Cookie(_) => {
                let lines = headers.get_all(header::COOKIE).iter();
                let mut separators = lines.flat_map(|line| memchr2_iter(b';', b',', line.as_bytes()));
                separators.nth(MOST_COOKIES - 1).map(|_| format!("The request has more than {MOST_COOKIES} cookies."))
            }
            Source::Query(_) => {
                let last = memchr2_iter(b'&', b';', query.as_bytes()).nth(MOST_PARAMETERS - 1);
                last.map(|_| format!("The request has more than {MOST_PARAMETERS} parameters."))
            }
            _ => None,
        }
    }

    fn search(&self, headers: &HeaderMap, query: &str, found: &mut Occurrences) {
        match &self.source {
            Source::Header(name) => self.search_headers(name, headers, found),
            Source::Cookie(name) => self.search_cookies(name, headers, found),
            Source::Query(name) => self.search_query(name, query, found),
            Source::Bearer => search_bearer(headers, found),
            _ => {}
        }
    }

    fn search_headers(&self, name: &HeaderName, headers: &HeaderMap, found: &mut Occurrences) {
        if !self.has_spellings {
            headers.get_all(name).iter().for_each(|value| found.add(has_blank_edge(value.as_bytes())));
            return;
        }
        for (written, value) in headers {
            let is_exact = written == name;
            if is_exact || is_same_variable(written.as_str(), &self.folded) {
                found.add(!is_exact || has_blank_edge(value.as_bytes()));
            }
        }
    }

    /// Browsers send one cookie of each path and domain. If all have the same value, it does not matter which of them a
    /// server reads, nor whether it ignores the case of their names.
    fn search_cookies(&self, name: &str, headers: &HeaderMap, found: &mut Occurrences) {
        let (mut value_of_all, mut has_exact) = (None, false);
        for line in headers.get_all(header::COOKIE) {
            for (separation, pair) in Pieces::new(line.as_bytes(), b';', b',') {
                let (written, value) = name_and_value(pair);
                let written = written.trim_ascii();
                if self.is_read_from(written) {
                    let value = value.trim_ascii();
                    let is_well_spelled = separation == Separation::Certain
                        && written.eq_ignore_ascii_case(name.as_bytes())
                        && is_cookie_value(value)
                        && !has_blank_edge(value);
                    if !is_well_spelled || *value_of_all.get_or_insert(value) != value {
                        found.add(!is_well_spelled);
                    }
                    has_exact |= is_well_spelled && written == name.as_bytes();
                }
                if self.follows_blank(value.trim_ascii()) {
                    found.add(true);
                }
            }
        }
        if value_of_all.is_some() {
            found.add(!has_exact);
        }
    }

    /// Whether the cookie stands behind a blank in the value of another one, where Python's `SimpleCookie` finds it.
    fn follows_blank(&self, value: &[u8]) -> bool {
        let mut words = value.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).skip(1).peekable();
        iter::from_fn(|| Some((words.next()?, words.peek().copied()))).any(|(word, next)| {
            let (written, _) = name_and_value(word);
            let has_value = written.len() < word.len() || next.is_some_and(|next| next.starts_with(b"="));
            has_value && self.is_read_from(written)
        })
    }

    fn search_query(&self, name: &str, query: &str, found: &mut Occurrences) {
        for (separation, pair) in Pieces::new(query.as_bytes(), b'&', b';') {
            let (written, value) = name_and_value(pair);
            if self.is_read_from(written) {
                let is_exact = separation == Separation::Certain && is_form_encoded(written, name);
                found.add(!is_exact || !has_whole_escapes(value));
            }
        }
    }

    /// Whether some server reads `written`, the name of a cookie or a parameter, as this name.
    fn is_read_from(&self, written: &[u8]) -> bool {
        // Most names differ in their first letter, so this check decides most cases.
        let first = written.first().filter(|byte| byte.is_ascii_alphanumeric());
        if first.is_some_and(|first| self.folded.bytes().next() != Some(first.to_ascii_lowercase())) {
            return false;
        }
        let text = decoded(written);
        let may_end_blank = written.last().is_some_and(|last| !last.is_ascii());
        let text = if may_end_blank { text.trim_end_matches(is_blank) } else { &text };
        let mut characters = significant(text).map(without_case);
        let has_prefix =
            self.folded.chars().all(|wanted| characters.next().is_some_and(|found| folded(found) == wanted));
        // Some servers read `name[x]` as an element of `name`.
        has_prefix && matches!(characters.next(), None | Some('[' | ']'))
    }
}

/// A token must not contain a character at which some server ends it: Rails reads `Bearer KEY, x=1` and `Bearer token=KEY` as
/// KEY. It may end in padding (RFC 6750, section 2.1).
fn search_bearer(headers: &HeaderMap, found: &mut Occurrences) {
    for value in headers.get_all(header::AUTHORIZATION) {
        let token = after_bearer(value.as_bytes()).unwrap_or_default();
        let end = token.iter().rposition(|byte| *byte != b'=').map_or(0, |last| last + 1);
        let is_divided = |byte: &u8| byte.is_ascii_whitespace() || !byte.is_ascii() || b",;\"=".contains(byte);
        found.add(token[..end].iter().any(is_divided) || is_lax_jwt(token));
    }
}

/// Whether this is a JSON Web Token in another spelling than its issuer's (RFC 7515, section 2): with padding, other
/// characters, or bits after the last byte. Many libraries ignore these when they decode a signature, so one token would have
/// many counters. The header and the claims are signed in their spelling.
fn is_lax_jwt(token: &[u8]) -> bool {
    let mut segments = token.split(|byte| *byte == b'.');
    let is_json = |header: &[u8]| {
        let begin = header.first_chunk::<4>().and_then(|begin| URL_SAFE_NO_PAD.decode(begin).ok());
        begin.is_some_and(|begin| begin.first() == Some(&b'{'))
    };
    let is_exact = |segment: &[u8]| {
        let (whole, rest) = segment.split_at(segment.len() & !3);
        let is_digit = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_".contains(byte);
        whole.iter().all(is_digit) && URL_SAFE_NO_PAD.decode_slice(rest, &mut [0; 3]).is_ok()
    };
    token.contains(&b'.') && segments.next().is_some_and(is_json) && !segments.all(is_exact)
}

/// Whether servers that strip blanks around a value read another value than servers that keep them: blanks of Unicode (Go,
/// Django), or the two of Latin-1 as single bytes (Node, Werkzeug).
fn has_blank_edge(value: &[u8]) -> bool {
    let value = value.trim_ascii();
    let edges = [value.first(), value.last()];
    let is_edge = |is: fn(&u8) -> bool| edges.into_iter().flatten().any(is);
    is_edge(|byte| matches!(byte, 0x85 | 0xa0))
        || is_edge(|byte| !byte.is_ascii()) && {
            let text = String::from_utf8_lossy(value);
            text.trim().len() < text.len()
        }
}

/// Whether some servers strip this character, or the byte of Latin-1 that decodes to it, around a name.
fn is_blank(character: char) -> bool {
    character.is_whitespace() || character == char::REPLACEMENT_CHARACTER
}

/// A percent-decoded name. ASP.NET's escapes (`%u006B`) are decoded too.
fn decoded(written: &[u8]) -> Cow<'_, str> {
    let text = percent_decode(written).decode_utf8_lossy();
    let Some((start, rest)) = text.split_once("%u") else { return text };
    let mut whole = start.to_owned();
    for piece in rest.split("%u") {
        let digits = piece.get(..4).and_then(|digits| u32::from_str_radix(digits, 16).ok());
        match digits.and_then(char::from_u32) {
            Some(character) => {
                whole.push(character);
                whole.push_str(&piece[4..]);
            }
            None => whole.push_str(piece),
        }
    }
    Cow::Owned(whole)
}

/// The characters of a name that servers read: PHP drops spaces before it and ends it at a zero byte, Rack drops brackets.
fn significant(name: &str) -> std::str::Chars<'_> {
    let name = name.split('\0').next().unwrap_or_default();
    let is_dropped = |character: char| is_blank(character) || matches!(character, '[' | ']' | '+');
    name.trim_start_matches(is_dropped).chars()
}

/// A character as PHP reads it. PHP replaces those that a variable's name cannot have.
fn folded(character: char) -> char {
    if matches!(character, '.' | ' ' | '+' | '[') { '_' } else { character }
}

/// Whether every server reads `written` as this name of a form field.
fn is_form_encoded(written: &[u8], name: &str) -> bool {
    has_whole_escapes(written) && *decode_form(written) == *name.as_bytes()
}

/// Whether two hexadecimal digits follow every percent sign. Servers differ in how they read any other.
fn has_whole_escapes(value: &[u8]) -> bool {
    let is_whole = |at| value.get(at + 1..at + 3).is_some_and(|digits: &[u8]| digits.iter().all(u8::is_ascii_hexdigit));
    memchr_iter(b'%', value).all(is_whole)
}

/// Whether all servers read the same value: RFC 6265, section 4.1.1, extended by characters beyond ASCII, which clients send.
fn is_cookie_value(value: &[u8]) -> bool {
    let inner = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value);
    inner.iter().all(|byte| !byte.is_ascii_whitespace() && !byte.is_ascii_control() && !b"\"\\,;".contains(byte))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    /// How often a request with these headers and this query has `source`, and whether some server could read it differently.
    fn found(source: &Source, lines: &[(&'static str, &'static [u8])], query: Option<&str>) -> (usize, bool) {
        let headers: HeaderMap = lines
            .iter()
            .map(|(name, value)| (name.parse::<HeaderName>().unwrap(), HeaderValue::from_bytes(value).unwrap()))
            .collect();
        let mut found = Occurrences::default();
        SourceRule::new(source).unwrap().search(&headers, query.unwrap_or_default(), &mut found);
        (found.times, found.is_misspelled)
    }

    const ABSENT: (usize, bool) = (0, false);
    const GIVEN: (usize, bool) = (1, false);
    const MISSPELLED: (usize, bool) = (1, true);

    #[test]
    fn names_of_headers() {
        let key = || Source::Header("x-api-key".parse().unwrap());
        for (name, expected) in [
            ("X-Api-Key", GIVEN),
            ("x_api_key", MISSPELLED), // CGI, WSGI, PHP, Rack: HTTP_X_API_KEY is either
            ("x-api_key", MISSPELLED), // the same
            ("x.api.key", MISSPELLED), // lighttpd: all but letters and digits
            ("x-api-keys", ABSENT),
            ("x-api--key", ABSENT),
            ("xxapixkey", ABSENT),
            ("x-ap1-key", ABSENT),
        ] {
            assert_eq!(found(&key(), &[(name, b"k")], None), expected, "{name}");
            let beside = found(&key(), &[("x-api-key", b"r1"), (name, b"k")], None);
            assert_eq!(beside.0, 1 + expected.0, "{name}");
        }
        for (value, expected) in [
            (&b"k"[..], GIVEN),
            (b" k ", GIVEN),
            (b"schl\xc3\xbcssel", GIVEN),
            (b"k\xa0", MISSPELLED),         // Node's trim(), on Latin-1: k
            (b"\x85k", MISSPELLED),         // Python's strip(), on Latin-1: k
            (b"k\xc2\xa0", MISSPELLED),     // Go's TrimSpace: k
            (b"\xe3\x80\x80k", MISSPELLED), // the same
        ] {
            assert_eq!(found(&key(), &[("x-api-key", value)], None), expected, "{value:?}");
        }
        // An empty header counts too: the other one has the key.
        assert_eq!(found(&key(), &[("x-api-key", b""), ("x-api-key", b"k")], None).0, 2);
        let folded = Source::Header("x_api_key".parse().unwrap());
        assert_eq!(found(&folded, &[("x-api-key", b"k")], None), MISSPELLED);
        let plain = Source::Header("authorization".parse().unwrap());
        assert_eq!(found(&plain, &[("authorization", b"k"), ("authorizatiom", b"k")], None), GIVEN);
    }

    #[test]
    fn names_of_parameters() {
        for (name, query, expected) in [
            ("key", "key=k", GIVEN),
            ("key", "a=1&key=k&b=2", GIVEN),
            ("key", "k%65y=k", GIVEN), // all
            ("key", "key", GIVEN),     // all: empty
            ("key", "keys=k&ke=y&a=key&=key", ABSENT),
            ("key", "key=k&key=k", (2, false)), // the first, the last, a list, "k,k"
            ("key", "key=k&k%65y=k", (2, false)),
            ("key", "KEY=k", MISSPELLED),        // ASP.NET
            ("key", "%4Bey=k", MISSPELLED),      // ASP.NET
            ("key", "k%u0065y=k", MISSPELLED),   // ASP.NET 4
            ("key", "%u006bey=k", MISSPELLED),   // ASP.NET 4
            ("key", "+key=k", MISSPELLED),       // PHP
            ("key", "%20%20key=k", MISSPELLED),  // PHP
            ("key", "key%00x=k", MISSPELLED),    // PHP
            ("key", "key[]=k", MISSPELLED),      // PHP, Rack, qs (Express)
            ("key", "key[a][b]=k", MISSPELLED),  // PHP, Rack, qs
            ("key", "key%5B0%5D=k", MISSPELLED), // PHP, Rack, qs
            ("key", "[key]=k", MISSPELLED),      // Rack, qs
            ("key", "key]=k", MISSPELLED),       // Rack
            ("key", "a=1;key=k", MISSPELLED),    // Rack 2, Python before 3.9.2, CGI.pm
            ("key", "key=k;a=1", MISSPELLED),    // the same: k, or "k;a=1"
            ("key", "a=1;key=k;b=1&c", MISSPELLED),
            ("key", "a=1;b=2&key=k", GIVEN),
            ("key", "key=%u0041", MISSPELLED), // ASP.NET 4: A
            ("key", "key=%4", MISSPELLED),     // refused, left as it is, or dropped
            ("key", "key=%41+%e4%F6", GIVEN),
            ("api_key", "api_key=k", GIVEN),
            ("api_key", "api%5Fkey=k", GIVEN),      // all
            ("api_key", "api.key=k", MISSPELLED),   // PHP
            ("api_key", "api+key=k", MISSPELLED),   // PHP
            ("api_key", "api%20key=k", MISSPELLED), // PHP
            ("api_key", "api[key=k", MISSPELLED),   // PHP
            ("api_key", "api-key=k", ABSENT),
            ("api.key", "api_key=k", MISSPELLED), // PHP
            ("api.key", "api.key=k", GIVEN),
            ("filter[id]", "filter[id]=k&filter[name]=n", GIVEN),
            ("filter[id]", "filter%5Bid%5D=k", GIVEN),
            ("filter[id]", "filter[id][]=k", MISSPELLED),
            ("schlüssel", "schl%C3%BCssel=k", GIVEN),
            ("schlüssel", "schl\u{fc}ssel=k", GIVEN), // all: bytes that need no escape
            ("schlüssel", "SCHL%C3%9CSSEL=k", MISSPELLED), // ASP.NET
        ] {
            assert_eq!(found(&Source::Query(name.into()), &[], Some(query)), expected, "{name} in {query}");
            let repeated = found(&Source::Query(name.into()), &[], Some(&format!("{name}=r1&{query}")));
            assert_eq!(repeated.0, 1 + expected.0, "{name} twice in {query}");
        }
        assert_eq!(found(&Source::Query("key".into()), &[], None), ABSENT);
    }

    #[test]
    fn a_source_that_the_client_asks_not_to_forward_is_ambiguous() {
        let api_key = HeaderName::from_static("x-api-key");
        for (source, named) in [
            (Source::Header(api_key), "X-Api-Key"),
            (Source::Cookie("sid".to_owned()), "close, cookie"),
            (Source::Bearer, " Authorization"),
        ] {
            let sources = SingleSources::new([], [&source]);
            let ambiguity = |named: &'static str| {
                let headers = HeaderMap::from_iter([(header::CONNECTION, HeaderValue::from_static(named))]);
                sources.ambiguity(&headers, None)
            };
            let expected = format!("Connection names the header of {source}, so that no server gets it.");
            assert_eq!(ambiguity(named), Some(expected));
            assert_eq!(ambiguity("close, x-other"), None);
        }
    }

    #[test]
    fn only_so_many_places_are_searched() {
        let cookie = SingleSources { rules: vec![SourceRule::new(&Source::Cookie("sid".to_owned())).unwrap()] };
        let query = SingleSources { rules: vec![SourceRule::new(&Source::Query("key".to_owned())).unwrap()] };
        for separator in [";", ",", "; "] {
            // Cookies are counted over all lines.
            let cookies = |count: usize| {
                let line = HeaderValue::from_str(&format!("a=1{separator}").repeat(count / 2 - 1)).unwrap();
                HeaderMap::from_iter([(header::COOKIE, line)])
            };
            let mut twice = cookies(MOST_COOKIES);
            twice.append(header::COOKIE, twice[header::COOKIE].clone());
            assert_eq!(cookie.ambiguity(&twice, None), None);
            twice.append(header::COOKIE, HeaderValue::from_static(";;"));
            let many = "The request has more than 1000 cookies.";
            assert_eq!(cookie.ambiguity(&twice, None).as_deref(), Some(many));
            assert_eq!(query.ambiguity(&twice, None), None, "no limit of the route reads them");
        }
        for separator in ["&", ";"] {
            let none = HeaderMap::new();
            let most = separator.repeat(MOST_PARAMETERS - 1);
            assert_eq!(query.ambiguity(&none, Some(&most)), None);
            let many = "The request has more than 400 parameters.";
            assert_eq!(query.ambiguity(&none, Some(&(most + separator))).as_deref(), Some(many));
        }
    }

    #[test]
    fn cookies() {
        for (line, expected) in [
            (&b"sid=k"[..], GIVEN),
            (b"a=1; sid=k; b=2", GIVEN),
            (b"a=1;sid = k ;b=2", GIVEN),
            (b"sid=\"k\"", GIVEN),
            (b"sid=s%3Ak=", GIVEN),
            (b"sid=", GIVEN),
            (b"sidx=k; si=d; a=sid", ABSENT),
            (b"sid=k; sid=l", (2, false)), // the first: PHP, Go; the last: Python, Express the first
            (b"sid=k; SID=l", (2, false)), // ASP.NET, the same
            (b"sid=k; sid=\"k\"", (2, false)), // PHP keeps the quotes
            (b"sid=k; sid[]=k", (2, true)), // PHP: a list
            (b"SID=k; Sid=k", MISSPELLED), // others have none
            (b"sid=\"a; sid=b\"", (2, true)), // one: Python, Tomcat's legacy parser; two: PHP, Go
            (b"SID=k", MISSPELLED),        // ASP.NET
            (b"s%69d=k", MISSPELLED),      // Rack, PHP before 7.2.34
            (b"sid[]=k", MISSPELLED),      // PHP
            (b"sid[a]=k", MISSPELLED),     // PHP
            (b"sid=k,a=1", MISSPELLED),    // a separator by RFC 2965: Rack 1, Tomcat's legacy parser
            (b"a=1,sid=k", MISSPELLED),    // the same
            (b"sid=\"\\153\"", MISSPELLED), // Python, Django: k
            (b"sid=\"k", MISSPELLED),      // Go: no cookie
            (b"sid=k l", MISSPELLED),      // ends at the space: Tomcat's legacy parser
            (b"a=1 sid=k", MISSPELLED),    // another cookie: Python
            (b"a=1\tb sid =k", MISSPELLED), // the same
            (b"a=\"; sid=l; b=\" sid=k", (2, true)), // k: Python; l: others
            (b"a=1 sid; b=Wed, 21 Oct; c=1 sidx=k", ABSENT),
            (b"theme=\xff; sid=\xff", GIVEN),
            (b"sid=k\xc2\xa0", MISSPELLED),         // Django: k
            (b"sid=k\xe2\x80\x83\xa0", MISSPELLED), // the same
            (b"sid\xc2\xa0=k", MISSPELLED),         // Django: a cookie of this name
            (b"sid\xa0=k", MISSPELLED),
        ] {
            let shown = String::from_utf8_lossy(line);
            assert_eq!(found(&Source::Cookie("sid".into()), &[("cookie", line)], None), expected, "{shown}");
            let repeated = found(&Source::Cookie("sid".into()), &[("cookie", b"sid=r1"), ("cookie", line)], None);
            assert!(repeated.0 > expected.0, "in a second line: {shown}");
        }
        for line in [&b"sid=k; sid=k"[..], b"SID=k; a=1;sid = k ;Sid=k", b"sid=; sid=", b"sid=\"k\"; sid=\"k\""] {
            let lines = [("cookie", line), ("cookie", line)];
            assert_eq!(found(&Source::Cookie("sid".into()), &lines, None), GIVEN, "{}", String::from_utf8_lossy(line));
        }
        assert_eq!(found(&Source::Cookie("my_sid".into()), &[("cookie", b"my.sid=k")], None), MISSPELLED); // PHP
    }

    #[test]
    fn tokens() {
        for (value, expected) in [
            (&b"Bearer k"[..], GIVEN),
            (b"bearer\tk", GIVEN),
            (b"Bearer  a-._~+/b==", GIVEN),
            (b"Bearer 12|abc", GIVEN), // Laravel Sanctum
            (b"Basic dXNlcjpw, x=1", GIVEN),
            (b"Bearer k, x=1", MISSPELLED),         // Rails: k
            (b"Bearer k,Bearer l", MISSPELLED),     // two lines that a proxy has joined
            (b"Bearer k;x=1", MISSPELLED),          // Rails: k
            (b"Bearer k x", MISSPELLED),            // Express, with split(" "): k
            (b"Bearer token=k", MISSPELLED),        // Rails: k
            (b"Bearer \"k\"", MISSPELLED),          // Rails: k
            (b"Bearer k\xa0", MISSPELLED),          // Werkzeug, Node: k
            (b"Bearer k\xc2\xa0l", MISSPELLED),     // Python's split(): k
            (b"Bearer eyJhIjoxfQ.e30.qqqg", GIVEN), // a JSON Web Token
            (b"Bearer eyJhIjoxfQ.e30.qqo", GIVEN),
            (b"Bearer eyJhIjoxfQ.e30.qg", GIVEN),
            (b"Bearer eyJhIjoxfQ.e30.", GIVEN),
            (b"Bearer eyJhIjoxfQ.e30.qqo=", MISSPELLED), // PyJWT, Node, Java: the padding may be there
            (b"Bearer eyJhIjoxfQ.e30.qg==", MISSPELLED),
            (b"Bearer eyJhIjoxfQ.e30.qqp", MISSPELLED), // the last two bits are ignored
            (b"Bearer eyJhIjoxfQ.e30.qj", MISSPELLED),  // the last four bits are ignored
            (b"Bearer eyJhIjoxfQ.e30.qq/o", MISSPELLED), // Node: / and _ are the same
            (b"Bearer eyJhIjoxfQ.e30.qq|qg", MISSPELLED), // Python skips what is no digit
            (b"Bearer eyJhIjoxfQ.e30.q", MISSPELLED),
            (b"Bearer ewogICJhIjox.e30.qq+o", MISSPELLED), // JSON with blanks
            (b"Bearer eyJhIjoxfQ.k.i.c.t=", MISSPELLED),   // an encrypted one has five parts
            (b"Bearer MTk4.Cl2FMQ.Zn==", GIVEN),           // not a JSON Web Token: its server compares it as it is
            (b"Bearer eyJhIjoxfQ==", GIVEN),
        ] {
            let shown = String::from_utf8_lossy(value);
            assert_eq!(found(&Source::Bearer, &[("authorization", value)], None), expected, "{shown}");
            let lines = [("authorization", &b"Basic dXNlcjpw"[..]), ("authorization", value)];
            assert_eq!(found(&Source::Bearer, &lines, None).0, 2, "{shown}");
        }
        assert_eq!(found(&Source::Bearer, &[], None), ABSENT);
    }
}
