//! A line of an access log, read as a request.

use std::fmt;
use std::net::IpAddr;

use http::uri::Authority;
use http::{HeaderName, HeaderValue, Method, StatusCode, Uri};

use crate::base::clock::Time;
use crate::request::route::host;
use crate::tokens::Usage;

/// A request, as far as the log describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// The time of arrival, or the closest time in the log.
    pub(super) time: Time,
    /// `None` if the log has no address.
    pub(super) client: Option<IpAddr>,
    pub(super) method: Method,
    pub(super) uri: Uri,
    pub(super) host: Option<Box<str>>,
    /// Those that the configuration uses and the log has.
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
    pub(super) status: Option<StatusCode>,
    /// `None` if the log does not say it.
    pub(super) spent: Option<Spent>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spent {
    Cost(u64),
    /// Tokens of a language model.
    Tokens(Usage),
}

impl Record {
    /// The value of the Host header. Many logs spell the host of an absolute target in another way. So the host counts as a
    /// second name only if it differs from the target in more than spelling.
    pub(super) fn named_host(&self) -> Option<&str> {
        let (target, named) = (self.uri.authority().map(Authority::as_str), self.host.as_deref());
        named.filter(|named| target.is_none_or(|target| host::normal(target) != host::normal(named))).or(target)
    }

    /// Approximate bytes in memory.
    pub(super) fn bytes(&self) -> usize {
        let path = self.uri.path_and_query().map_or(0, |path| path.as_str().len());
        let header = |(name, value): &(HeaderName, HeaderValue)| {
            size_of::<(HeaderName, HeaderValue)>() + name.as_str().len() + value.len()
        };
        let headers: usize = self.headers.iter().map(header).sum();
        size_of::<Self>() + path + self.host.as_ref().map_or(0, |host| host.len()) + headers
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Line {
    Request(Box<Record>),
    /// A line of the gateway's log about something else.
    Message,
    /// A line of the gateway's log for this many refused requests, which it does not describe.
    LeftOut(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unreadable {
    Long,
    /// Neither JSON nor in the Common or Combined Log Format.
    Format,
    /// Begins like JSON, but is not valid.
    Json,
    NoTime,
    /// The time is in no known format.
    Time,
    NoClient,
    Client,
    /// The method or the path is missing.
    NoRequest,
    /// The method or the path is not valid in HTTP.
    Request,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Long => "the line is longer than 1 MiB",
            Self::Format => "the line is not in the Common or Combined Log Format and is not JSON",
            Self::Json => "the line is not valid JSON",
            Self::NoTime => "the line has no time (--field time=NAME names its field)",
            Self::Time => "the time has an unknown format",
            Self::NoClient => "the line has no client (--field client=NAME names its field)",
            Self::Client => "the client is not an IP address",
            Self::NoRequest => "the line has no method or no path (--field method=NAME and path=NAME name the fields)",
            Self::Request => "the method or the path is not valid",
        })
    }
}
