//! A request as it is to be sent, whatever the protocol.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Method, Version};

use crate::identify::ambiguity::SingleSources;
use crate::tls::ClientCertificate;

/// A request as it is to be sent.
#[derive(Debug)]
pub struct UpstreamRequest<'a> {
    /// The method.
    pub method: &'a Method,
    /// The path and query, in origin form.
    pub target: &'a str,
    /// The client's headers.
    pub headers: &'a HeaderMap,
    /// Whether the upstream gets the client's Host header, which then must not be empty. Else it gets its own
    /// authority.
    pub preserve_host: bool,
    /// Where the request came from.
    pub forwarded: ForwardedInfo<'a>,
    /// What limits decide by, which no trailer may give once more.
    pub counted: &'a Arc<SingleSources>,
    /// The longest that the client may go without sending more of its body.
    pub body_timeout: Duration,
    /// The most bytes that its body may have.
    pub max_body_size: u64,
}

/// Where a request came from, for the upstream to know.
#[derive(Clone, Copy, Debug)]
pub struct ForwardedInfo<'a> {
    /// The address of who opened the connection, as text.
    pub peer: &'a str,
    /// The client's address where it is not the peer's: the peer is a proxy that is trusted.
    pub client: Option<IpAddr>,
    /// Whether what the peer says of the request's origin is believed.
    pub trusted: bool,
    /// The version of HTTP that the request came in.
    pub version: Version,
    /// Whether the connection speaks TLS.
    pub is_tls: bool,
    /// The certificate that the peer has shown.
    pub certificate: Option<&'a ClientCertificate>,
}
