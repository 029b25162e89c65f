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
        /// The limits of this gateway for traffic that passes through other proxies; without it they cannot ask.
        decisions: () = shaped(Shape::Table(&decisions::TABLE));
        /// What is written to standard error.
        log: () = shaped(Shape::Table(&log::TABLE));
        /// A listener for operators; without it there is none.
        admin: () = shaped(Shape::Table(&admin::TABLE));
        /// Spans of requests for a collector of OpenTelemetry; without it there are none.
        tracing: () = shaped(Shape::Table(&tracing::TABLE));
        /// Where counters live.
        store: () = shaped(Shape::Table(&store::TABLE));
        /// Servers that answer requests, by the name that routes use.
        upstreams: () = shaped(Shape::Named(&Shape::Table(&upstream::TABLE)));
        /// Whose tokens are believed, by the name that sources of keys use.
        jwt: () = shaped(Shape::Named(&Shape::Table(&jwt::TABLE)));
        /// What is counted, and how much is allowed, by the name that routes use.
        limits: () = shaped(Shape::Named(&Shape::Table(&limit::TABLE)));
        /// Which requests are answered, and how.
        routes: () = shaped(Shape::List(&Shape::Table(&route::TABLE), 0, usize::MAX));
    }
}
