//! The key of a limit, where its parts are in a request, and how the file spells it: sources joined by `|`, or a list of such
//! parts.

use std::fmt;

use http::{HeaderName, header};

use super::elsewhere;
use super::read::{Field, Name, Setting, Shape, Wrong};
use super::report::{did_you_mean, either, nearest};
use super::values;
use crate::tokens::pointer::Pointer;

/// Sources joined by `|`, or a list of such texts.
pub(super) const KEY_SHAPE: Shape = Shape::Or(&[Shape::Text, Shape::List(&Shape::Text, 1, values::MOST)]);

const PLAIN: [(&str, Source); 8] = [
    ("client-ip", Source::ClientIp { v6: 64 }),
    ("bearer", Source::Bearer),
    ("path", Source::Path),
    ("host", Source::Host),
    ("method", Source::Method),
    ("route", Source::Route),
    ("client-cert", Source::ClientCert),
    ("global", Source::Global),
];

const POINTER: &str = "a pointer (RFC 6901) begins with a slash, like json:/model or json:/metadata/user";
const SOURCES: &str = "sources are client-ip, header:NAME, cookie:NAME, query:NAME, bearer, path, path:NAME, host, \
                       method, route, client-cert, jwt:CLAIM, json:/POINTER, descriptor:NAME and global";

/// All parts together are the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// At least one part; each part is the first of its sources that a request has.
    pub parts: Vec<Vec<Source>>,
}

impl Key {
    /// Whether the value of this source in this part tells the clients of a limit apart. Where another part has only values
    /// that are verified, by the gateway or (in the first part) by `has_known_keys`, values that clients can invent do not.
    pub fn identifies(&self, part: usize, source: &Source, has_known_keys: bool) -> bool {
        let needs_verified = (0..self.parts.len()).any(|at| self.is_verified(at, has_known_keys));
        source.identifies(part, has_known_keys) && (!needs_verified || source.is_verified(part, has_known_keys))
    }

    /// Whether clients can invent none of the values by which this part tells them apart.
    fn is_verified(&self, part: usize, has_known_keys: bool) -> bool {
        let mut identifying =
            self.parts[part].iter().filter(|source| source.identifies(part, has_known_keys)).peekable();
        identifying.peek().is_some() && identifying.all(|source| source.is_verified(part, has_known_keys))
    }

    /// The sources of a part that a request may lack while nothing else tells its client. Such requests of all clients are
    /// counted together. `counts_missing`: whether requests that lack every part are counted.
    pub fn of_strangers(&self, has_known_keys: bool, counts_missing: bool) -> Option<&[Source]> {
        let (mut lacked, mut is_counted) = (Vec::new(), counts_missing);
        for (at, part) in self.parts.iter().enumerate() {
            let is_checked = |source: &Source| at == 0 && has_known_keys && source.is_chosen_by_clients();
            let always = part.iter().position(|source| source.is_always_there() && !is_checked(source));
            let reachable = always.map_or(&part[..], |always| &part[..=always]);
            let has_other = reachable.iter().any(|source| !self.identifies(at, source, has_known_keys));
            if !has_other && always.is_some() {
                return None;
            }
            is_counted |= has_other;
            if always.is_none() || part.iter().any(Source::identifies_clients) {
                lacked.push(at);
            }
        }
        let best = lacked.iter().find(|at| self.is_verified(**at, has_known_keys)).or(lacked.first())?;
        is_counted.then(|| &self.parts[*best][..])
    }

    /// Whether a request may have no part.
    pub fn may_be_missing(&self) -> bool {
        !self.parts.iter().flatten().any(Source::is_always_there)
    }

    /// As the file spells them.
    pub fn spelled_parts(&self) -> impl Iterator<Item = String> {
        self.parts.iter().map(|part| part.iter().map(ToString::to_string).collect::<Vec<_>>().join(" | "))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.spelled_parts().collect::<Vec<_>>().join(" and "))
    }
}

/// Where a part of a key comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// `client-ip`, `client-ip:56`: the client's address; IPv6 addresses are cut to this prefix length (1 to 128).
    ClientIp {
        v6: u8,
    },
    /// `header:NAME`
    Header(HeaderName),
    /// `cookie:NAME`
    Cookie(String),
    /// `query:NAME`
    Query(String),
    /// `bearer`: the token in Authorization.
    Bearer,
    /// `path`: the whole path.
    Path,
    /// `path:NAME`: a segment that the route captures.
    Capture(String),
    Host,
    Method,
    Route,
    /// `client-cert`: the subject of the client certificate that TLS has verified.
    ClientCert,
    /// `jwt:NAME:CLAIM`: a claim of a verified token.
    Jwt {
        /// `NAME` of `[jwt.NAME]`.
        name: String,
        claim: String,
    },
    /// `json:POINTER`: a text or a number in the JSON body.
    Json(Pointer),
    /// `descriptor:NAME`: an entry of an Envoy descriptor.
    Descriptor(String),
    /// `global`: one counter for all requests.
    Global,
}

impl Source {
    /// Whether clients choose the value, and so can invent as many values as they like.
    pub fn is_chosen_by_clients(&self) -> bool {
        !matches!(self, Self::ClientIp { .. } | Self::ClientCert | Self::Jwt { .. } | Self::Route | Self::Global)
    }

    pub fn is_always_there(&self) -> bool {
        // What is requested, and the address, which alone of the others no request lacks.
        matches!(self, Self::ClientIp { .. }) || !self.identifies_clients()
    }

    /// The header of a request that has the value.
    pub fn header(&self) -> Option<&HeaderName> {
        match self {
            Self::Header(name) => Some(name),
            Self::Cookie(_) => Some(&header::COOKIE),
            Self::Bearer => Some(&header::AUTHORIZATION),
            _ => None,
        }
    }

    pub fn is_in_body(&self) -> bool {
        matches!(self, Self::Json(_))
    }

    fn is_verified(&self, part: usize, has_known_keys: bool) -> bool {
        !self.is_chosen_by_clients() || part == 0 && has_known_keys
    }

    /// Like [`Self::identifies_clients`]. What is requested tells who sends a request if only known values count.
    fn identifies(&self, part: usize, has_known_keys: bool) -> bool {
        self.identifies_clients() || part == 0 && has_known_keys && self.is_chosen_by_clients()
    }

    /// Whether the value tells who sends a request, and not only what is requested.
    pub fn identifies_clients(&self) -> bool {
        !matches!(self, Self::Path | Self::Capture(_) | Self::Host | Self::Method | Self::Route | Self::Global)
    }
}

/// What happens to a request without a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// All such requests share one counter.
    Shared,
    /// The limit does not apply.
    Skip,
    /// Answered 400.
    Reject,
}

/// As the configuration spells it.
impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClientIp { v6 } if *v6 != 64 => write!(f, "client-ip:{v6}"),
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Cookie(name) => write!(f, "cookie:{name}"),
            Self::Query(name) => write!(f, "query:{name}"),
            Self::Capture(name) => write!(f, "path:{name}"),
            Self::Jwt { name, claim } => write!(f, "jwt:{name}:{claim}"),
            Self::Json(pointer) => write!(f, "json:{pointer}"),
            Self::Descriptor(name) => write!(f, "descriptor:{name}"),
            plain => f.write_str(PLAIN.iter().find(|(_, source)| source == plain).map_or("", |(name, _)| name)),
        }
    }
}

/// The names of all `[jwt.*]`.
pub(super) struct Names<'a>(Vec<&'a str>);

impl<'a> Names<'a> {
    pub(super) fn new(sections: &[(Name<'a>, Field<'a>)]) -> Self {
        Self(sections.iter().map(|(name, _)| name.text).collect())
    }

    /// Reads what follows `jwt:` in a source: `NAME:CLAIM`, or `CLAIM` if there is only one `[jwt.*]`. The names of some claims
    /// are URLs and have colons, so a first part that is not the name of a token belongs to the claim.
    pub(super) fn claim(&self, text: &str) -> Result<Source, Wrong> {
        let Self(names) = self;
        let Some(first) = names.first() else {
            return Err(Wrong::new(
                "there is no [jwt.*], so there are no claims",
                "define whose tokens are accepted: [jwt.site]",
            ));
        };
        let split = text.split_once(':').filter(|(name, _)| names.contains(name));
        let (name, claim) = match (split, names.len()) {
            (Some(split), _) => split,
            (None, 1) => (*first, text),
            (None, _) => {
                let name = text.split(':').next().unwrap_or_default();
                let all = format!("write which token it is from: `jwt:NAME:CLAIM` with the name {}", either(names));
                let help = if text.contains(':') { did_you_mean(name, names, &all) } else { all };
                return Err(Wrong::new(format!("`jwt:{text}` does not say which token it is from"), help));
            }
        };
        // A claim whose name begins almost like the name of a token is more likely a typing mistake.
        let nearly = text.split_once(':').filter(|_| split.is_none()).and_then(|(name, claim)| {
            let near = nearest(name, names.iter().copied())?;
            Some(format!("did you mean `jwt:{near}:{claim}`?"))
        });
        if let Some(help) = nearly {
            return Err(Wrong::new(format!("there is no [jwt.{}]", text.split(':').next().unwrap_or_default()), help));
        }
        if claim.is_empty() || claim.trim() != claim || claim.contains(char::is_control) {
            let help = format!("write the name of a claim of the token, like `jwt:{name}:sub`");
            return Err(Wrong::not(claim, "the name of a claim", help));
        }
        Ok(Source::Jwt { name: name.to_owned(), claim: claim.to_owned() })
    }
}

/// The key of a limit, or of an upstream that balances by a hash.
pub(super) fn key(field: &Field<'_>, key: &Setting<()>, jwts: &Names<'_>) -> Option<Key> {
    let part = |text: &str| part(text, jwts).map_err(|wrong| joined_otherwise(text, jwts).unwrap_or(wrong));
    if !field.value.is_array() {
        return Some(Key { parts: vec![field.parse(part)?] });
    }
    let parts: Vec<_> = field.list(key)?.iter().map(|field| field.parse(part)).collect();
    Some(Key { parts: parts.into_iter().collect::<Option<_>>()? })
}

/// Sources joined by `|`.
fn part(text: &str, jwts: &Names<'_>) -> Result<Vec<Source>, Wrong> {
    let mut start = 0;
    let mut sources = Vec::new();
    for piece in text.split('|') {
        let word = piece.trim();
        let from = start + (piece.len() - piece.trim_start().len());
        let place = from..from + word.len();
        let source =
            source(word, jwts).map_err(|wrong| if word.is_empty() { wrong } else { wrong.at(place.clone()) })?;
        if sources.contains(&source) {
            return Err(Wrong::new(format!("`{source}` is written twice"), "remove one of them").at(place));
        }
        sources.push(source);
        start += piece.len() + 1;
    }
    Ok(sources)
}

/// What is wrong if the text has valid sources, but joins them as in other files.
fn joined_otherwise(text: &str, jwts: &Names<'_>) -> Option<Wrong> {
    let joint = ["||", " or ", "&&", " and ", ",", ";", "+", "&"].into_iter().find(|joint| text.contains(joint))?;
    let sources = text.split(joint).map(|word| named_elsewhere(word.trim()).unwrap_or(word.trim().to_owned()));
    let sources: Vec<_> = sources.collect();
    let first = sources.join(" | ");
    part(&first, jwts).ok()?;
    let mut help = format!("write {first:?} for the first one that a request has");
    if !["||", " or "].contains(&joint) {
        help = format!("write {sources:?} for all of them together, or {first:?} for the first one that a request has");
    }
    Some(Wrong::new(format!("`{}` does not join sources", joint.trim()), help))
}

pub(super) fn source(word: &str, jwts: &Names<'_>) -> Result<Source, Wrong> {
    let plain = |word: &str| PLAIN.iter().find(|(name, _)| *name == word).map(|(_, source)| source.clone());
    let Some((kind, name)) = word.split_once(':') else {
        return match word {
            "" => Err(Wrong::new("a source is missing", SOURCES)),
            "json" => Err(Wrong::new("`json` has no pointer", POINTER)),
            "jwt" => Err(Wrong::new("`jwt` has no claim", "write which one: \"jwt:CLAIM\", or \"jwt:NAME:CLAIM\"")),
            "header" | "cookie" | "query" | "descriptor" => {
                Err(Wrong::new(format!("`{word}` has no name"), format!("write which one: \"{word}:NAME\"")))
            }
            _ => plain(word).ok_or_else(|| unknown(word, word)),
        };
    };
    match kind {
        "client-ip" => {
            let help = "IPv6 addresses are cut to this prefix length, from 1 to 128, like `client-ip:56`";
            let prefix = name.parse().ok().filter(|v6| (1..=128).contains(v6));
            let wrong = || Wrong::not(name, "a prefix length", help);
            prefix.map(|v6| Source::ClientIp { v6 }).ok_or_else(wrong)
        }
        "header" => values::header(name).map(Source::Header),
        "jwt" => jwts.claim(name),
        "cookie" if values::header(name).is_ok() => Ok(Source::Cookie(name.to_owned())),
        "query" if !name.is_empty() && !name.contains(char::is_control) => Ok(Source::Query(name.to_owned())),
        "cookie" | "query" => Err(Wrong::not(name, &format!("the name of a {kind}"), format!("like `{kind}:session`"))),
        "json" => pointer(name).map(Source::Json),
        "descriptor" if name.is_empty() => {
            Err(Wrong::new("`descriptor` has no name", "write which entry: \"descriptor:remote_address\""))
        }
        "descriptor" => Ok(Source::Descriptor(name.to_owned())),
        "path" => values::capture(name).map(|()| Source::Capture(name.to_owned())),
        _ if plain(kind).is_some() => {
            Err(Wrong::new(format!("`{kind}` takes no name"), format!("write `{kind}` alone")))
        }
        _ => Err(unknown(word, kind)),
    }
}

pub(super) fn pointer(text: &str) -> Result<Pointer, Wrong> {
    if text.is_empty() {
        return Err(Wrong::new("a JSON pointer is missing", POINTER));
    }
    text.parse().map_err(|why: String| Wrong::not(text, &format!("a JSON pointer: {why}"), POINTER))
}

fn unknown(word: &str, kind: &str) -> Wrong {
    let mut names: Vec<_> = PLAIN.iter().map(|(name, _)| *name).collect();
    names.extend(["header", "cookie", "query", "jwt", "json", "descriptor"]);
    let help = named_elsewhere(word).map(|meant| format!("did you mean `{meant}`? {SOURCES}"));
    let help = help.unwrap_or_else(|| did_you_mean(kind, &names, SOURCES));
    Wrong::not(word, "a source of keys", help)
}

/// Beginnings of names of other proxies: of nginx, Caddy and HAProxy.
const ELSEWHERE: [(&str, &str); 8] = [
    ("http_", "header:"),
    ("http.request.header.", "header:"),
    ("header.", "header:"),
    ("req.hdr(", "header:"),
    ("hdr(", "header:"),
    ("cookie_", "cookie:"),
    ("arg_", "query:"),
    ("query.", "query:"),
];

/// What a name of other proxies probably means.
fn named_elsewhere(word: &str) -> Option<String> {
    let word = word.trim_matches(['$', '{', '}', ')', '%']).to_ascii_lowercase();
    if let Some(meant) = elsewhere::meant("key", &word) {
        return Some(meant.name.to_owned());
    }
    if word.starts_with("x-") && !word.contains(':') {
        return Some(format!("header:{word}"));
    }
    ELSEWHERE.iter().find_map(|(there, here)| {
        let name = word.strip_prefix(there).filter(|name| !name.is_empty())?;
        let name = if *here == "header:" { name.replace('_', "-") } else { name.to_owned() };
        Some(format!("{here}{name}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_other_proxies_are_understood() {
        for (word, meant) in [
            ("$binary_remote_addr", "client-ip"),
            ("ip", "client-ip"),
            ("X-Api-Key", "header:x-api-key"),
            ("$http_x_api_key", "header:x-api-key"),
            ("$cookie_session_id", "cookie:session_id"),
            ("$arg_key", "query:key"),
            ("req.hdr(X-Api-Key)", "header:x-api-key"),
            ("{http.request.remote.host}", "client-ip"),
            ("%{src}", "client-ip"),
        ] {
            assert_eq!(named_elsewhere(word).as_deref(), Some(meant), "{word}");
        }
        for word in ["x-y:z", "http_", "clientip"] {
            assert_eq!(named_elsewhere(word), None, "{word}");
        }
    }

    #[test]
    fn other_joints_than_one_bar_are_named() {
        let said = |text: &str| joined_otherwise(text, &Names::new(&[])).map(|wrong| wrong.help);
        let first = "\"header:x | client-ip\" for the first one that a request has";
        for text in ["header:x || client-ip", "header:x or client-ip", "$http_x || $remote_addr"] {
            assert_eq!(said(text), Some(format!("write {first}")), "{text}");
        }
        for text in ["header:x, client-ip", "header:x&&client-ip", "header:x + ip", "header:x and client-ip"] {
            let all = "write [\"header:x\", \"client-ip\"] for all of them together, or";
            assert_eq!(said(text), Some(format!("{all} {first}")), "{text}");
        }
        for text in ["header:x", "header:x, nothing", ",", "client-ip || ip"] {
            assert_eq!(said(text), None, "{text}");
        }
    }

    #[test]
    fn reads_every_source() {
        let text = "client-ip|client-ip:128|header:x-api-key|cookie:sid|query:q|bearer|path|path:id|host|method|route|client-cert|json:/a/b|descriptor:remote_address|global";
        let sources = part(text, &Names::new(&[])).unwrap();
        assert_eq!(sources.iter().map(ToString::to_string).collect::<Vec<_>>().join("|"), text);
    }

    #[test]
    fn refuses_other_sources() {
        for text in [
            "",
            "|",
            "client-ip|",
            "client-ip:0",
            "client-ip:129",
            "header:",
            "header:a b",
            "cookie:",
            "cookie:a=b",
            "query:",
            "path:",
            "path:a/b",
            "json:",
            "json:model",
            "descriptor",
            "descriptor:",
            "bearer:x",
            "client-cert:CN",
            "ip",
            "host|host",
        ] {
            assert!(part(text, &Names::new(&[])).is_err(), "{text}");
        }
    }

    #[test]
    fn a_claim_may_be_a_url_and_a_name_is_only_needed_among_several() {
        let (none, one, two) = (Names(vec![]), Names(vec!["site"]), Names(vec!["site", "staff"]));
        let claim = |names: &Names<'_>, text: &str| names.claim(text).map(|source| source.to_string()).ok();
        for (text, by_one, by_two) in [
            ("sub", Some("jwt:site:sub"), None),
            ("site:sub", Some("jwt:site:sub"), Some("jwt:site:sub")),
            ("staff:sub", Some("jwt:site:staff:sub"), Some("jwt:staff:sub")),
            ("https://a.test/plan", Some("jwt:site:https://a.test/plan"), None),
            ("site:https://a.test/plan", Some("jwt:site:https://a.test/plan"), Some("jwt:site:https://a.test/plan")),
            ("site:site:sub", Some("jwt:site:site:sub"), Some("jwt:site:site:sub")),
            ("sites:sub", None, None),
            ("site:", None, None),
            ("site: sub", None, None),
            ("", None, None),
        ] {
            assert_eq!(claim(&one, text).as_deref(), by_one, "{text}");
            assert_eq!(claim(&two, text).as_deref(), by_two, "{text}");
            assert_eq!(claim(&none, text), None);
        }
    }
}
