//! The key of a limit, and where its parts are in a request.

use std::fmt;

use http::HeaderName;

use crate::tokens::pointer::Pointer;

/// All parts together are the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// At least one part; each part is the first of its sources that a request has.
    pub parts: Vec<Vec<Source>>,
}

impl Key {
    /// Whether a request may lack a part while its other parts do not identify the client. Such requests of all clients are
    /// counted together.
    pub fn may_be_of_strangers(&self) -> bool {
        let is_always_there = |part: &Vec<Source>| part.iter().any(Source::is_always_there);
        let tells_apart = |part: &Vec<Source>| is_always_there(part) && part.iter().all(Source::identifies_clients);
        !self.parts.iter().all(is_always_there) && !self.parts.iter().any(tells_apart)
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
        !matches!(
            self,
            Self::Header(_)
                | Self::Cookie(_)
                | Self::Query(_)
                | Self::Bearer
                | Self::ClientCert
                | Self::Jwt { .. }
                | Self::Json(_)
                | Self::Descriptor(_)
        )
    }

    pub fn is_in_body(&self) -> bool {
        matches!(self, Self::Json(_))
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
            Self::ClientIp { v6: 64 } => f.write_str("client-ip"),
            Self::ClientIp { v6 } => write!(f, "client-ip:{v6}"),
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Cookie(name) => write!(f, "cookie:{name}"),
            Self::Query(name) => write!(f, "query:{name}"),
            Self::Bearer => f.write_str("bearer"),
            Self::Path => f.write_str("path"),
            Self::Capture(name) => write!(f, "path:{name}"),
            Self::Host => f.write_str("host"),
            Self::Method => f.write_str("method"),
            Self::Route => f.write_str("route"),
            Self::ClientCert => f.write_str("client-cert"),
            Self::Jwt { name, claim } => write!(f, "jwt:{name}:{claim}"),
            Self::Json(pointer) => write!(f, "json:{pointer}"),
            Self::Descriptor(name) => write!(f, "descriptor:{name}"),
            Self::Global => f.write_str("global"),
        }
    }
}
