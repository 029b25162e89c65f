//! Asks HTTP servers for something: bounded in size and time, and without following redirects.
//!
//! A server that is asked over TLS needs a certificate that is trusted. Nothing here serves a request of a client: a
//! fetch of a document may take as long as [`LIMIT`].

mod connection;
mod url;

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use tokio::time::timeout;

use crate::net::tls::ConnectorTls;

pub use connection::{ConnectError, Connection};
pub use url::{Target, Url};

/// The longest time that a fetch of a document takes.
pub const LIMIT: Duration = Duration::from_secs(5);

/// How the gateway names itself to servers that it asks.
pub const AGENT: HeaderValue = HeaderValue::from_static(concat!("gateway/", env!("CARGO_PKG_VERSION")));

/// Why there is no document.
#[derive(Debug)]
pub enum FetchError {
    /// The server cannot be connected to.
    Connect(ConnectError),
    /// The exchange fails.
    Http(hyper::Error),
    /// The server answers with another status than 200.
    Status(StatusCode),
    /// The body of the answer is larger than allowed, in bytes.
    TooLarge(usize),
    /// The body of the answer cannot be read.
    Body,
    /// It takes longer than this.
    TimedOut(Duration),
}

impl fmt::Display for FetchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(error) => write!(f, "cannot connect to the server: {error}"),
            Self::Http(error) => write!(f, "the server does not answer: {error}"),
            Self::Status(StatusCode::NOT_MODIFIED) => {
                f.write_str("the server answers 304, although it was not asked whether something has changed")
            }
            Self::Status(status) if status.is_redirection() => {
                write!(f, "the server answers {}, and redirects are not followed", status.as_u16())
            }
            Self::Status(status) => write!(f, "the server answers {}", status.as_u16()),
            Self::TooLarge(most) => write!(f, "the answer has more than {} KiB", most >> 10),
            Self::Body => f.write_str("the server does not send all of the document"),
            Self::TimedOut(limit) => write!(f, "not done within {}", humantime::format_duration(*limit)),
        }
    }
}

impl std::error::Error for FetchError {}

/// Fetches a document of at most `most` bytes. `tls` is needed for `https`.
///
/// # Errors
/// When there is no such document within [`LIMIT`].
pub async fn fetch(url: &Url, tls: Option<&ConnectorTls>, most: usize) -> Result<Bytes, FetchError> {
    let mut request = Request::new(Full::default());
    let json = HeaderValue::from_static("application/json, */*;q=0.5");
    request.headers_mut().insert(header::ACCEPT, json);
    let response = exchange(url, tls, request, most, LIMIT).await?;
    if response.status() != StatusCode::OK {
        return Err(FetchError::Status(response.status()));
    }
    Ok(response.into_body())
}

/// The longest name of a version that is sent back to a server, in bytes.
const LONGEST_ETAG: usize = 1024;

/// What a fetch of a document that may have changed brings.
#[derive(Debug)]
pub enum Fetched {
    /// A document, and what the server calls this version of it.
    Document {
        /// The document.
        body: Bytes,
        /// What `If-None-Match` can be. `None` if the server sends none, or one that is not valid.
        etag: Option<HeaderValue>,
    },
    /// The document has the version of `If-None-Match`.
    Unchanged,
}

/// Fetches a document of at most `most` bytes within `limit`, unless it has the version that `headers` have as
/// `If-None-Match`. `tls` is needed for `https`.
///
/// # Errors
/// When there is no such document in time.
pub async fn fetch_changed(
    url: &Url,
    tls: Option<&ConnectorTls>,
    headers: HeaderMap,
    most: usize,
    limit: Duration,
) -> Result<Fetched, FetchError> {
    let is_conditional = headers.contains_key(header::IF_NONE_MATCH);
    let mut request = Request::new(Full::default());
    *request.headers_mut() = headers;
    let response = exchange(url, tls, request, most, limit).await?;
    match response.status() {
        StatusCode::OK => {
            let etag = response.headers().get(header::ETAG).filter(|etag| is_entity_tag(etag.as_bytes())).cloned();
            Ok(Fetched::Document { body: response.into_body(), etag })
        }
        StatusCode::NOT_MODIFIED if is_conditional => Ok(Fetched::Unchanged),
        status => Err(FetchError::Status(status)),
    }
}

/// Whether this is an entity-tag as RFC 9110, section 8.8.3, defines it, and not too long to be sent back.
fn is_entity_tag(bytes: &[u8]) -> bool {
    let opaque = bytes.strip_prefix(b"W/").unwrap_or(bytes);
    let inner = opaque.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\""));
    let is_allowed = |byte: &u8| matches!(byte, 0x21 | 0x23..=0x7e | 0x80..=0xff);
    bytes.len() <= LONGEST_ETAG && inner.is_some_and(|inner| inner.iter().all(is_allowed))
}

/// Sends a request to `url`, on a connection of its own. Its URI, `Host`, `User-Agent` and `Connection` are written here.
/// `tls` is needed for `https`.
///
/// # Errors
/// When there is no response with a body of at most `most` bytes within `limit`.
pub async fn exchange(
    url: &Url,
    tls: Option<&ConnectorTls>,
    request: Request<Full<Bytes>>,
    most: usize,
    limit: Duration,
) -> Result<Response<Bytes>, FetchError> {
    let whole = async {
        let mut connection = Connection::open(url, tls).await.map_err(FetchError::Connect)?;
        let (head, body) = connection.send(addressed(request, url)).await.map_err(FetchError::Http)?.into_parts();
        match Limited::new(body, most).collect().await {
            Ok(body) => Ok(Response::from_parts(head, body.to_bytes())),
            Err(error) if error.is::<LengthLimitError>() => Err(FetchError::TooLarge(most)),
            Err(_) => Err(FetchError::Body),
        }
    };
    timeout(limit, whole).await.unwrap_or(Err(FetchError::TimedOut(limit)))
}

/// The request with the headers of the only one on a connection to the server of `url`.
fn addressed(mut request: Request<Full<Bytes>>, url: &Url) -> Request<Full<Bytes>> {
    // Both were checked when the URL was read.
    *request.uri_mut() = url.target.as_sent().parse().unwrap_or_default();
    let host = HeaderValue::try_from(&url.authority).unwrap_or(HeaderValue::from_static(""));
    let close = HeaderValue::from_static("close");
    request.headers_mut().extend([(header::HOST, host), (header::USER_AGENT, AGENT), (header::CONNECTION, close)]);
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entity_tags_are_sent_back_if_they_are_valid() {
        for tag in [&b"\"\""[..], b"\"abc\"", b"W/\"abc\"", b"\"\x80\xff'!\""] {
            assert!(is_entity_tag(tag), "{tag:?}");
        }
        let long = format!("\"{}\"", "a".repeat(LONGEST_ETAG));
        for tag in
            [&b""[..], b"abc", b"\"", b"W/abc", b"w/\"abc\"", b"\"a\"b\"", b"\"a b\"", b"\"a\tb\"", long.as_bytes()]
        {
            assert!(!is_entity_tag(tag), "{tag:?}");
        }
    }
}
