//! The normal form of a path, against which routes are matched.
//!
//! Servers read many spellings of a path as the same path. If a route missed one of them, clients could avoid its limits. So
//! each path is decoded as far as any server decodes it, and a path that servers read differently is refused.
//! docs/routes.md lists the spellings and the servers.
//!
//! The upstream gets the path as the client wrote it, except where servers could still read that differently ([`onward`]):
//! upstreams distinguish `/admin` from `/admin/`, and use parameters.

use std::borrow::Cow;

use crate::base::percent;

/// Which spellings are the same path, as the configuration says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathRules {
    pub matching: PathMatching,
    pub escaped_slashes: EscapedSlashes,
}

/// Whether a final slash and `;parameters` make a different path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathMatching {
    /// One final slash and the text after `;` in a segment are ignored.
    #[default]
    Forgiving,
    /// Both make a different path.
    Exact,
}

/// How `%2F` and `%5C` in a path are treated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EscapedSlashes {
    /// Answered 400.
    #[default]
    Reject,
    /// Kept as a part of the segment.
    Keep,
    /// Treated as slashes, also for the upstream.
    Decode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadPath {
    /// A `%` without two hexadecimal digits after it.
    BadEscape,
    /// A `.` or `..` segment, plain or encoded, also before parameters or between encoded slashes. The upstream could see
    /// another path than the gateway.
    DotSegment,
    /// A control character. Some servers end the path there.
    Control,
    /// An encoded slash or a backslash, unless the configuration says how upstreams read it.
    EscapedSlash,
    /// A slash, or a character that needs no escape, that is escaped twice. Servers that decode twice see another path.
    EscapedTwice,
    /// UTF-8 with more bytes than the character needs (RFC 3629, section 10). Lenient decoders read it as a slash or dot.
    Overlong,
}

impl BadPath {
    /// A sentence for the client.
    pub fn detail(self) -> &'static str {
        match self {
            Self::BadEscape => "The path has a percent sign that two hexadecimal digits do not follow.",
            Self::DotSegment => "The path has dot segments.",
            Self::Control => "The path has a control character.",
            Self::EscapedSlash => "The path has an encoded slash or a backslash.",
            Self::EscapedTwice => "The path has a character that is escaped twice.",
            Self::Overlong => "The path has a character in overlong UTF-8.",
        }
    }
}

/// Whether a byte has only one spelling and no special meaning.
static IS_SIMPLE: [bool; 256] = is_simple();

const fn is_simple() -> [bool; 256] {
    let mut simple = [false; 256];
    let mut byte = u8::MAX;
    while byte > 0 {
        simple[byte as usize] = byte == b'/' || (percent::is_plain(byte) && byte != b';');
        byte -= 1;
    }
    simple
}

/// The normal form of a path. Escapes are decoded if the character may stand for itself, otherwise they are in upper case;
/// slashes are merged; parameters are removed if they make no difference. A final slash stays, since routes may differ in it.
/// Borrowed if the path is in normal form already, as nearly all are. Fails when servers could read another path than the
/// gateway.
pub fn normal(path: &str, rules: PathRules) -> Result<Cow<'_, str>, BadPath> {
    let mut before = 0;
    let is_normal = |byte: u8| {
        let starts_oddly = before == b'/' && (byte == b'/' || byte == b'.');
        before = byte;
        IS_SIMPLE[usize::from(byte)] && !starts_oddly
    };
    if path.bytes().all(is_normal) { Ok(Cow::Borrowed(path)) } else { normalize(path, rules).map(Cow::Owned) }
}

fn normalize(path: &str, rules: PathRules) -> Result<String, BadPath> {
    let mut normalizer = Normalizer::new(rules, path.len());
    let mut rest = path.as_bytes();
    while let [byte, after @ ..] = rest {
        rest = after;
        match byte {
            b'/' => normalizer.slash()?,
            // Not valid in a URI (RFC 3986, section 2), so upstreams may read it in any way.
            b'\\' if rules.escaped_slashes != EscapedSlashes::Decode => return Err(BadPath::EscapedSlash),
            b'\\' => normalizer.escaped_slash(b'\\')?,
            b'%' => {
                let byte = percent::unescape(rest).ok_or(BadPath::BadEscape)?;
                rest = &rest[2..];
                match byte {
                    b'/' | b'\\' => normalizer.escaped_slash(byte)?,
                    b'%' if is_escaped_twice(rest, rules) => return Err(BadPath::EscapedTwice),
                    byte => normalizer.character(byte)?,
                }
            }
            byte => normalizer.character(*byte)?,
        }
    }
    normalizer.end_of_segment()?;
    Ok(normalizer.normal)
}

/// Whether `rest`, which follows `%25`, is the escape of a character that only an attacker escapes twice. Encoders do not
/// escape unreserved characters, so no honest client sends these. Applications that put one URL into another may escape a
/// slash twice; `escaped_slashes = "keep"` allows that.
fn is_escaped_twice(rest: &[u8], rules: PathRules) -> bool {
    // The digits may be escaped themselves: `%25%36%43` is `%6C` after one decoding.
    let mut digits = percent_encoding::percent_decode(rest);
    let escaped = loop {
        match (digits.next(), digits.next()) {
            // The percent sign may be escaped any number of times.
            (Some(b'2'), Some(b'5')) => {}
            (Some(high), Some(low)) => break percent::unescape(&[high, low]),
            _ => break None,
        }
    };
    escaped.is_some_and(|byte| match byte {
        b'/' | b'\\' | b';' => rules.escaped_slashes != EscapedSlashes::Keep,
        byte => byte.is_ascii_control() || byte.is_ascii_alphanumeric() || b"-._~".contains(&byte),
    })
}

/// Writes the normal form of a path.
struct Normalizer {
    rules: PathRules,
    normal: String,
    /// Whether the bytes up to the next slash are parameters that are removed.
    in_parameters: bool,
    /// The number of dots in the segment, if it has nothing else so far. Here a segment is what any server could read as one:
    /// encoded slashes end it, and parameters are not part of it.
    dots: Option<u8>,
    /// Whether the name of the segment is complete, because its parameters have begun.
    name_is_complete: bool,
    before: u8,
}

impl Normalizer {
    fn new(rules: PathRules, length: usize) -> Self {
        let normal = String::with_capacity(length + 8);
        Self { rules, normal, in_parameters: false, dots: Some(0), name_is_complete: false, before: 0 }
    }

    /// Handles a decoded character of a segment.
    fn character(&mut self, byte: u8) -> Result<(), BadPath> {
        if byte.is_ascii_control() {
            return Err(BadPath::Control);
        }
        if matches!((self.before, byte), (0xC0 | 0xC1, 0x80..=0xBF) | (0xE0, 0x80..=0x9F) | (0xF0, 0x80..=0x8F)) {
            return Err(BadPath::Overlong);
        }
        self.before = byte;
        if byte == b';' {
            self.name_is_complete = true;
            self.in_parameters |= self.rules.matching == PathMatching::Forgiving;
        }
        if !self.name_is_complete {
            self.dots = self.dots.filter(|_| byte == b'.').map(|dots| dots.saturating_add(1));
        }
        if !self.in_parameters {
            percent::push(&mut self.normal, byte);
        }
        Ok(())
    }

    fn slash(&mut self) -> Result<(), BadPath> {
        self.end_of_segment()?;
        self.in_parameters = false;
        if !self.normal.ends_with('/') {
            self.normal.push('/');
        }
        Ok(())
    }

    /// Handles `%2F`, `%5C` or a backslash.
    fn escaped_slash(&mut self, byte: u8) -> Result<(), BadPath> {
        match self.rules.escaped_slashes {
            EscapedSlashes::Reject => Err(BadPath::EscapedSlash),
            EscapedSlashes::Decode => self.slash(),
            EscapedSlashes::Keep => {
                self.end_of_segment()?;
                if !self.in_parameters {
                    percent::push(&mut self.normal, byte);
                }
                Ok(())
            }
        }
    }

    fn end_of_segment(&mut self) -> Result<(), BadPath> {
        self.name_is_complete = false;
        self.before = 0;
        match self.dots.replace(0) {
            Some(1 | 2) => Err(BadPath::DotSegment),
            _ => Ok(()),
        }
    }
}

/// The path as limits count by it: the same for paths that the route does not distinguish. `path` is from [`normal`].
pub fn key(path: &str, rules: PathRules, ignore_case: bool) -> Cow<'_, str> {
    let path = match path.strip_suffix('/') {
        Some(shorter) if rules.matching == PathMatching::Forgiving && !shorter.is_empty() => shorter,
        _ => path,
    };
    if ignore_case { lower(path) } else { Cow::Borrowed(path) }
}

/// The path with its ASCII letters in lower case. Borrowed if none is in upper case.
pub fn lower(path: &str) -> Cow<'_, str> {
    if path.bytes().any(|byte| byte.is_ascii_uppercase()) {
        Cow::Owned(path.to_ascii_lowercase())
    } else {
        Cow::Borrowed(path)
    }
}

/// The path that the upstream gets, for a path that [`normal`] has accepted: as the client wrote it, without its first
/// `strip` segments. Encoded slashes that the gateway reads as slashes become slashes, so that the upstream reads them in the
/// same way. Several slashes at the beginning become one: a server that resolves the path as a reference (RFC 3986, section
/// 4.2) would read `//x/login` as `/login` on the host `x`.
pub fn onward(path: &str, strip: usize, rules: PathRules) -> Cow<'_, str> {
    match slashed(path, rules) {
        Cow::Borrowed(path) => Cow::Borrowed(rooted(path, strip, rules)),
        Cow::Owned(path) => Cow::Owned(rooted(&path, strip, rules).to_owned()),
    }
}

/// The segment with this index, as the client wrote it, but without parameters if they make no difference. `path` is one that
/// [`normal`] has accepted. Empty if there is no such segment. Segments that [`normal`] removes do not count.
pub fn segment(path: &str, index: usize, rules: PathRules) -> String {
    let path = slashed(path, rules);
    let mut segments = path.split('/').filter(|segment| !is_removed(segment, rules));
    let segment = segments.nth(index).unwrap_or_default();
    let parameters = |sign: &&str| segment.find(*sign);
    let end = PARAMETER_SIGNS.iter().filter_map(parameters).min();
    let end = end.filter(|_| rules.matching == PathMatching::Forgiving).unwrap_or(segment.len());
    segment[..end].to_owned()
}

/// The path with encoded slashes replaced by slashes, if the gateway reads them as slashes.
fn slashed(path: &str, rules: PathRules) -> Cow<'_, str> {
    if rules.escaped_slashes == EscapedSlashes::Decode && path.bytes().any(|byte| matches!(byte, b'%' | b'\\')) {
        let escapes = ["%2F", "%2f", "%5C", "%5c", "\\"];
        return Cow::Owned(escapes.into_iter().fold(path.to_owned(), |path, escaped| path.replace(escaped, "/")));
    }
    Cow::Borrowed(path)
}

const PARAMETER_SIGNS: [&str; 3] = [";", "%3B", "%3b"];

fn is_removed(segment: &str, rules: PathRules) -> bool {
    let forgiving = rules.matching == PathMatching::Forgiving;
    segment.is_empty() || (forgiving && PARAMETER_SIGNS.iter().any(|sign| segment.starts_with(sign)))
}

fn rooted(path: &str, strip: usize, rules: PathRules) -> &str {
    let rest = without(path, strip, rules);
    match rest.len() - rest.trim_start_matches('/').len() {
        0 if rest.is_empty() => "/",
        0 => rest,
        slashes => &rest[slashes - 1..],
    }
}

/// The path without its first `count` segments, as written. Segments that [`normal`] removes do not count.
fn without(path: &str, count: usize, rules: PathRules) -> &str {
    let mut rest = path;
    for _ in 0..count {
        while let Some(inner) = rest.strip_prefix('/') {
            let (segment, after) = inner.split_at(inner.find('/').unwrap_or(inner.len()));
            rest = after;
            if !is_removed(segment, rules) {
                break;
            }
        }
    }
    rest
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const EXACT: PathRules = PathRules { matching: PathMatching::Exact, escaped_slashes: EscapedSlashes::Reject };
    const FORGIVING: PathRules = PathRules { matching: PathMatching::Forgiving, ..EXACT };
    const KEEP: PathRules = PathRules { escaped_slashes: EscapedSlashes::Keep, ..FORGIVING };
    const DECODE: PathRules = PathRules { escaped_slashes: EscapedSlashes::Decode, ..FORGIVING };
    const ALL: [PathRules; 4] = [EXACT, FORGIVING, KEEP, DECODE];

    #[test]
    fn spellings_that_mean_the_same_become_one() {
        for (written, normal_form) in [
            ("/v1/login", "/v1/login"),
            ("/v1/l%6Fgin", "/v1/login"),
            ("//v1///login", "/v1/login"),
            ("/v1/login/", "/v1/login/"),
            ("/v1/login//", "/v1/login/"),
            ("/.well-known/x", "/.well-known/x"),
            ("/a/...", "/a/..."),
            ("/%7Euser", "/~user"),
            ("/a%20b", "/a%20b"),
            ("/a%3ab@c%2B%40", "/a:b@c+@"),
            ("/%c3%a9", "/%C3%A9"),
            ("/é", "/%C3%A9"),
            ("/{a}|^\"", "/%7Ba%7D%7C%5E%22"),
            ("/100%25", "/100%25"),
            ("/a%2520b", "/a%2520b"),
            ("/%E0%A4%85%F0%90%8D%88%E9", "/%E0%A4%85%F0%90%8D%88%E9"),
            ("*", "*"),
            ("/", "/"),
            ("//", "/"),
        ] {
            for rules in ALL {
                assert_eq!(normal(written, rules).unwrap(), normal_form, "{written} {rules:?}");
            }
        }
    }

    #[test]
    fn parameters_make_another_path_or_do_not() {
        for (written, forgiving, exact) in [
            ("/v1/login;x", "/v1/login", "/v1/login;x"),
            ("/v1;a=1;b/login", "/v1/login", "/v1;a=1;b/login"),
            ("/v1/login%3Bx", "/v1/login", "/v1/login;x"),
            ("/v1/login;", "/v1/login", "/v1/login;"),
            ("/;a/v1", "/v1", "/;a/v1"),
            ("/v1/login/;a", "/v1/login/", "/v1/login/;a"),
            (";", "", ";"),
        ] {
            assert_eq!(normal(written, FORGIVING).unwrap(), forgiving, "{written}");
            assert_eq!(normal(written, EXACT).unwrap(), exact, "{written}");
        }
    }

    #[test]
    fn encoded_slashes_are_what_the_configuration_says() {
        for (written, keep, decode) in [
            ("/v1%2Flogin", "/v1%2Flogin", "/v1/login"),
            ("/v1%2flogin", "/v1%2Flogin", "/v1/login"),
            ("/v1%5Clogin", "/v1%5Clogin", "/v1/login"),
            ("/v1%2F%2flogin", "/v1%2F%2Flogin", "/v1/login"),
            ("/v1/login%2F", "/v1/login%2F", "/v1/login/"),
            ("/v1;a%2Fb/login", "/v1/login", "/v1/b/login"),
        ] {
            assert_eq!(normal(written, KEEP).unwrap(), keep, "{written}");
            assert_eq!(normal(written, DECODE).unwrap(), decode, "{written}");
            assert_eq!(normal(written, EXACT), Err(BadPath::EscapedSlash), "{written}");
        }
        assert_eq!(normal(r"/v1\login", DECODE).unwrap(), "/v1/login");
        assert_eq!(normal(r"/v1\login", KEEP), Err(BadPath::EscapedSlash));
        assert_eq!(normal(r"/v1\login", EXACT), Err(BadPath::EscapedSlash));
        assert_eq!(normal("/job/feature%252Ffoo", KEEP).unwrap(), "/job/feature%252Ffoo");
    }

    #[test]
    fn what_could_be_two_paths_is_refused() {
        let cases: &[(BadPath, &[&str])] = &[
            (
                BadPath::DotSegment,
                &[
                    "/a/../b",
                    "/..",
                    "/.",
                    "/./a",
                    "/%2e%2E/a",
                    "/a/.%2e",
                    "/a/..;/b",
                    "/a/..;x=1/b",
                    "/a/%2e%2e%3B/b",
                    "/.;a",
                ],
            ),
            (BadPath::BadEscape, &["/%", "/%4", "/%zz", "/%+1", "/a%", "/%u002f"]),
            (BadPath::Control, &["/v1/login%00", "/%0a", "/%0D%0Ax", "/a%1F", "/a%7f", "/a\u{7f}", "/a;%00"]),
            (BadPath::Overlong, &["/%c0%af", "/%C0%AE%c0%ae/", "/%c1%9c", "/%e0%80%af", "/%f0%80%80%af", "/%e0%9f%bf"]),
            (BadPath::EscapedTwice, &["/v1/%256Cogin", "/a/%252e%252e/b", "/a%2500", "/a%25252541", "/a%252dx"]),
            // The digits of the second escape are escaped.
            (
                BadPath::EscapedTwice,
                &["/v1/%25%36Cogin", "/v1/%256%43ogin", "/a/%25%32%65/b", "/%25%30a", "/%25%32%35%34%31"],
            ),
        ];
        for (why, paths) in cases {
            for (path, rules) in paths.iter().flat_map(|path| ALL.map(|rules| (path, rules))) {
                assert_eq!(normal(path, rules), Err(*why), "{path} {rules:?}");
            }
        }
        for rules in [KEEP, DECODE] {
            for path in ["/x%2F..%2Fv1/login", "/x%5c..", "/x/..%2f", "/%2e%2F", "/x;a%2F.."] {
                assert_eq!(normal(path, rules), Err(BadPath::DotSegment), "{path} {rules:?}");
            }
        }
        for rules in [EXACT, FORGIVING, DECODE] {
            for path in ["/v1%252Flogin", "/v1%255clogin", "/v1/login%253Bx"] {
                assert_eq!(normal(path, rules), Err(BadPath::EscapedTwice), "{path} {rules:?}");
            }
        }
    }

    #[test]
    fn paths_that_are_the_same_have_one_key() {
        for (path, forgiving, exact) in [("/a/B/", "/a/B", "/a/B/"), ("/a/B", "/a/B", "/a/B"), ("/", "/", "/")] {
            assert_eq!(key(path, FORGIVING, false), forgiving);
            assert_eq!(key(path, EXACT, false), exact);
            assert_eq!(key(path, FORGIVING, true), forgiving.to_lowercase());
        }
    }

    #[test]
    fn what_goes_on_is_as_written_unless_that_could_be_read_in_another_way() {
        for (written, strip, forgiving) in [
            ("/v1/a/b", 0, "/v1/a/b"),
            ("/v1/a/b", 1, "/a/b"),
            ("/v1//a;x/%41/", 0, "/v1//a;x/%41/"),
            ("//v1//a", 0, "/v1//a"),
            ("//v1//a", 1, "/a"),
            ("/v1", 1, "/"),
            ("/v1/", 1, "/"),
            ("/a/b/c", 2, "/c"),
            ("/a", 5, "/"),
            ("/;x/v1/a", 1, "/a"),
            ("/%3Bx/v1/a", 1, "/a"),
            ("/v1;x/a", 1, "/a"),
        ] {
            assert_eq!(onward(written, strip, FORGIVING), forgiving, "{written} {strip}");
        }
        assert_eq!(onward("/;x/v1/a", 1, EXACT), "/v1/a");
        assert_eq!(onward("/v1%2Fa", 1, KEEP), "/");
        for (written, strip, decoded) in [
            ("/v1%2Flogin", 0, "/v1/login"),
            (r"/v1%5clogin\x", 0, "/v1/login/x"),
            ("/v1%2F%2Fx%20", 1, "/x%20"),
            ("/%2Fx/login", 0, "/x/login"),
        ] {
            assert_eq!(onward(written, strip, DECODE), decoded, "{written} {strip}");
        }
    }

    fn rules() -> impl Strategy<Value = PathRules> {
        prop::sample::select(ALL.to_vec())
    }

    proptest! {
        #[test]
        fn escaping_makes_no_other_path(path in "(/[a-zA-Z0-9:@+$~é ]{0,6}){1,5}", mask in any::<u64>(), rules in rules()) {
            let spell = |(at, byte): (usize, u8)| match byte {
                b'/' => "/".to_owned(),
                _ if mask >> (at % 64) & 1 == 1 || !byte.is_ascii() => format!("%{byte:02x}"),
                _ => char::from(byte).to_string(),
            };
            let escaped: String = path.bytes().enumerate().map(spell).collect();
            prop_assert_eq!(normal(&escaped, rules), normal(&path, rules));
        }

        #[test]
        fn the_normal_form_of_a_normal_form_is_itself(path in "(/|[a.%;]|%2[0-9A-F]|%[0-9a-f]{2}|\\\\){0,12}", rules in rules()) {
            let path = format!("/{path}");
            let Ok(spelled) = normal(&path, rules) else { return Ok(()) };
            let again = normal(&spelled, rules).unwrap();
            prop_assert_eq!(&again, &spelled);
            prop_assert!(!spelled.contains("//"));
            prop_assert!(spelled.split('/').all(|segment| segment != "." && segment != ".."));
            // The gateway reads the path for the upstream as the same path.
            let onward = onward(&path, 0, rules);
            prop_assert_eq!(normal(&onward, rules).unwrap(), spelled);
        }

        #[test]
        fn stripping_takes_away_what_routes_count(path in "(/|/[a;]{0,3}|/%3B|%2F){1,8}", count in 0usize..4, rules in rules()) {
            let path = format!("/{path}");
            let Ok(spelled) = normal(&path, rules) else { return Ok(()) };
            // A route has matched its literal segments, none of which is empty.
            let count = spelled.split('/').skip(1).filter(|segment| !segment.is_empty()).count().min(count);
            let expected: String = spelled.split('/').skip(1 + count).flat_map(|segment| ["/", segment]).collect();
            let expected = if expected.is_empty() { "/".to_owned() } else { expected };
            let onward = onward(&path, count, rules);
            prop_assert_eq!(normal(&onward, rules).unwrap(), expected);
        }
    }
}
