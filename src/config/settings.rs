//! All keys of the file, each with its values, its default and its purpose.
//!
//! The readers in `file`, the JSON schema and docs/reference.md all use these tables. A default is read like a value of the
//! file. So documentation and readers cannot disagree.

mod clients;
mod operation;
mod forwarding;
mod limiting;
mod routing;

use ::tracing::Level;

use super::kinds::shaped;
use super::read::{Setting, Shape, Table, name, tables};
use super::{
    AccessFormat, BanResponse, Challenge, EscapedSlashes, HeaderStyle, LogFormat, Missing, OnError, OnExhausted,
    PathMatching, SentKey, WithoutUsage,
};
use crate::limit::Edge;
use crate::net::tls::MinVersion;

pub(super) use clients::{
    MOST_CONNECTIONS, acme, certificate, decisions, descriptor, http2, listener, server, shed, tls,
};
pub(super) use forwarding::{Balancing, adaptive, eject, health, retry, upstream, upstream_server, upstream_tls};
pub(super) use limiting::{
    Counting, ban, cost, count, exception, jwt, limit, model, overrides_file, quotas, slow, temporary,
    temporary_overrides, tier, usage,
};
pub(super) use operation::{MOST_GATEWAYS, admin, log, store, tracing};
pub(super) use routing::{cors, header_changes, redirect, respond, route};

/// A status as a number or a text, or a class of statuses.
const STATUS: &Shape = &Shape::Or(&[Shape::Number(100, 599), Shape::Pattern("^[1-5](xx|XX|[0-9][0-9])$")]);

/// A value that the file spells as a word.
pub trait Word {
    fn word(self) -> &'static str;
}

macro_rules! words {
    ($($value:ty: $key:path;)*) => { $(
        impl Word for $value {
            fn word(self) -> &'static str {
                $key.word(self)
            }
        }
    )* };
}

words! {
    PathMatching: server::path_matching;
    EscapedSlashes: server::escaped_slashes;
    MinVersion: tls::min_version;
    Challenge: acme::challenge;
    Level: log::level;
    LogFormat: log::format;
    AccessFormat: log::access_format;
    OnError: store::on_error;
    Edge: limit::edge;
    HeaderStyle: limit::headers;
    Missing: limit::missing;
    BanResponse: ban::respond;
    SentKey: quotas::send;
    WithoutUsage: cost::without_usage;
    OnExhausted: cost::on_exhausted;
}

tables! {
    /// The configuration of a gateway.
    root "the file" {
        /// How clients connect, and what they may do.
        server: () = shaped(Shape::Table(&server::TABLE));
        /// Lets other proxies ask this gateway whether its limits admit a request; without this table they cannot.
        decisions: () = shaped(Shape::Table(&decisions::TABLE));
        /// What the gateway writes to standard error.
        log: () = shaped(Shape::Table(&log::TABLE));
        /// A listener for operators; without this table there is none.
        admin: () = shaped(Shape::Table(&admin::TABLE));
        /// Sends spans of requests to an OpenTelemetry collector; without this table there are none.
        tracing: () = shaped(Shape::Table(&tracing::TABLE));
        /// Where the gateway keeps its counters.
        store: () = shaped(Shape::Table(&store::TABLE));
        /// Servers that answer requests; routes refer to them by name.
        upstreams: () = shaped(Shape::Named(&Shape::Table(&upstream::TABLE)));
        /// Trusted issuers of tokens; sources of keys refer to them by name.
        jwt: () = shaped(Shape::Named(&Shape::Table(&jwt::TABLE)));
        /// What the gateway counts, and how much it allows; routes refer to limits by name.
        limits: () = shaped(Shape::Named(&Shape::Table(&limit::TABLE)));
        /// Which requests the gateway answers, and how.
        routes: () = shaped(Shape::List(&Shape::Table(&route::TABLE), 0, usize::MAX));
    }
}
