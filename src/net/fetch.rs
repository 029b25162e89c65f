//! A client for servers that the gateway itself asks: bounded in size and time, without following redirects.
//!
//! Over TLS, a server needs a trusted certificate. No request of a client waits here: a fetch may take as long as [`LIMIT`].

mod connection;

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Version, header};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use rustls::pki_types::ServerName;
use tokio::time::timeout;

use crate::net::tls::ConnectorTls;

pub use connection::{ConnectError, Connection, connect};

pub const LIMIT: Duration = Duration::from_secs(5);

pub const AGENT: HeaderValue = HeaderValue::from_static(concat!("gateway/", env!("CARGO_PKG_VERSION")));

#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    #[error("cannot connect to the server: {0}")]
    Connect(ConnectError),
    #[error("the server does not answer: {0}")]
    Http(hyper::Error),
    #[error("the server answers {}{}", .0.as_u16(), why_not(*.0))]
    Status(StatusCode),
    /// The limit, in bytes.
    #[error("the answer has more than {} KiB", .0 >> 10)]
    TooLarge(usize),
    #[error("the server does not send all of the document")]
    Body,
    /// See [`has_end`].
    #[error(
        "the server does not say where the document ends: it must send Content-Length or Transfer-Encoding: chunked"
    )]
    NoEnd,
    #[error("not done within {}", humantime::format_duration(*.0))]
    TimedOut(Duration),
}

fn why_not(status: StatusCode) -> &'static str {
    match status {
        StatusCode::NOT_MODIFIED => ", although it was not asked whether something has changed",
        status if status.is_redirection() => ", and redirects are not followed",
        _ => "",
    }
}

/// Fetches a document of at most `most` bytes. `tls` is needed for `https`. Fails when there is no such document within
/// [`LIMIT`].
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

/// In bytes. A longer entity-tag is not sent back.
const LONGEST_ETAG: usize = 1024;

pub enum Fetched {
    Document {
        body: Bytes,
        /// To be sent as `If-None-Match`. `None` if the server sends no valid entity-tag.
        etag: Option<HeaderValue>,
    },
    Unchanged,
}

/// Fetches a document of at most `most` bytes within `limit`, unless the server still has the version that `If-None-Match` in
/// `headers` names. `tls` is needed for `https`. Fails when there is no such document in time.
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
        StatusCode::OK if !has_end(&response) => Err(FetchError::NoEnd),
        StatusCode::OK => {
            let etag = response.headers().get(header::ETAG).filter(|etag| is_entity_tag(etag.as_bytes())).cloned();
            Ok(Fetched::Document { body: response.into_body(), etag })
        }
        StatusCode::NOT_MODIFIED if is_conditional => Ok(Fetched::Unchanged),
        status => Err(FetchError::Status(status)),
    }
}

/// Whether the head of a response says where its body ends. If not, a body that breaks off looks whole, and the beginning of
/// many a document is a valid one, though not of a JSON object.
pub fn has_end<B>(response: &Response<B>) -> bool {
    let headers = response.headers();
    let codings = headers.get_all(header::TRANSFER_ENCODING).iter().next_back().map(HeaderValue::as_bytes);
    let last = codings.and_then(|codings| codings.rsplit(|byte| *byte == b',').next());
    last.map_or(headers.contains_key(header::CONTENT_LENGTH), |last| {
        response.version() == Version::HTTP_11 && last.trim_ascii().eq_ignore_ascii_case(b"chunked")
    })
}

/// RFC 9110, section 8.8.3.
fn is_entity_tag(bytes: &[u8]) -> bool {
    let opaque = bytes.strip_prefix(b"W/").unwrap_or(bytes);
    let inner = opaque.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\""));
    let is_allowed = |byte: &u8| matches!(byte, 0x21 | 0x23..=0x7e | 0x80..=0xff);
    bytes.len() <= LONGEST_ETAG && inner.is_some_and(|inner| inner.iter().all(is_allowed))
}

/// Sends a request to `url`, on a connection of its own. Sets its URI, `Host`, `User-Agent` and `Connection`. `tls` is needed
/// for `https`. Fails when there is no response with a body of at most `most` bytes within `limit`.
pub async fn exchange(
    url: &Url,
    tls: Option<&ConnectorTls>,
    request: Request<Full<Bytes>>,
    most: usize,
    limit: Duration,
) -> Result<Response<Bytes>, FetchError> {
    let whole = async {
        let (_connection, response) = send(url, tls, request).await?;
        let (head, body) = response.into_parts();
        match Limited::new(body, most).collect().await {
            Ok(body) => Ok(Response::from_parts(head, body.to_bytes())),
            Err(error) if error.is::<LengthLimitError>() => Err(FetchError::TooLarge(most)),
            Err(_) => Err(FetchError::Body),
        }
    };
    timeout(limit, whole).await.unwrap_or(Err(FetchError::TimedOut(limit)))
}

/// Like [`exchange`], but ignores the body of the response. Fails when there is no response within `limit`.
pub async fn status(
    url: &Url,
    tls: Option<&ConnectorTls>,
    request: Request<Full<Bytes>>,
    limit: Duration,
) -> Result<StatusCode, FetchError> {
    let sent = timeout(limit, send(url, tls, request)).await.unwrap_or(Err(FetchError::TimedOut(limit)));
    sent.map(|(_, response)| response.status())
}

/// Returns the connection, too, which must be kept while the body is read.
async fn send(
    url: &Url,
    tls: Option<&ConnectorTls>,
    mut request: Request<Full<Bytes>>,
) -> Result<(Connection, Response<Incoming>), FetchError> {
    let mut connection = Connection::open(url, tls).await.map_err(FetchError::Connect)?;
    // Both were checked when the URL was read.
    *request.uri_mut() = url.target.as_sent().parse().unwrap_or_default();
    let host = HeaderValue::try_from(&url.authority).unwrap_or(HeaderValue::from_static(""));
    let close = HeaderValue::from_static("close");
    request.headers_mut().extend([(header::HOST, host), (header::USER_AGENT, AGENT), (header::CONNECTION, close)]);
    let response = connection.send(request).await.map_err(FetchError::Http)?;
    Ok((connection, response))
}

/// A URL of `http` or `https`, without a user name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// A name or an address; an IPv6 address has no brackets.
    pub host: String,
    pub port: u16,
    /// For the `Host` header.
    pub authority: String,
    pub target: RequestTarget,
    /// With `https`, the name that the certificate of the server must have.
    pub server_name: Option<ServerName<'static>>,
}

impl Url {
    pub fn scheme(&self) -> &'static str {
        if self.server_name.is_some() { "https" } else { "http" }
    }

    /// The URL as it was written, with a query that may be secret.
    pub fn whole(&self) -> String {
        format!("{}://{}{}", self.scheme(), self.authority, self.target.as_sent())
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", self.scheme(), self.authority, self.target)
    }
}

/// The path and query of a URL. A query may be secret, so it is shown as `?***`.
#[derive(Clone, PartialEq, Eq)]
pub struct RequestTarget {
    sent: String,
    is_path_secret: bool,
}

impl RequestTarget {
    /// The path is as secret as the query, and is shown as `/***`.
    #[must_use]
    pub fn with_secret_path(self) -> Self {
        Self { is_path_secret: true, ..self }
    }

    /// With its secrets, for requests only.
    pub fn as_sent(&self) -> &str {
        &self.sent
    }
}

impl From<String> for RequestTarget {
    fn from(sent: String) -> Self {
        Self { sent, is_path_secret: false }
    }
}

impl fmt::Display for RequestTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, query) = self.sent.split_once('?').map_or((&*self.sent, ""), |(path, _)| (path, "?***"));
        // What is before an @ may be the end of a password with a slash.
        if self.is_path_secret || path.contains('@') {
            return f.write_str("/***");
        }
        write!(f, "{path}{query}")
    }
}

impl fmt::Debug for RequestTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
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

    #[test]
    fn a_body_has_an_end_by_its_length_or_its_chunks() {
        let has_end = |version: Version, headers: &[(&'static str, &str)]| {
            let mut response = Response::builder().version(version);
            for (name, value) in headers {
                response = response.header(*name, *value);
            }
            has_end(&response.body(()).unwrap())
        };
        let (length, chunks) = (("content-length", "7"), ("transfer-encoding", "gzip, Chunked "));
        assert!(has_end(Version::HTTP_10, &[length]) && has_end(Version::HTTP_11, &[length]));
        assert!(
            has_end(Version::HTTP_11, &[chunks]) && has_end(Version::HTTP_11, &[("transfer-encoding", "gzip"), chunks])
        );
        for headers in [&[][..], &[("transfer-encoding", "gzip"), length], &[("transfer-encoding", "chunked, gzip")]] {
            assert!(!has_end(Version::HTTP_11, headers), "{headers:?}");
        }
        assert!(!has_end(Version::HTTP_10, &[chunks]));
    }

    #[test]
    fn secrets_are_not_shown() {
        let url = |target: RequestTarget| Url {
            host: "a.test".to_owned(),
            port: 80,
            authority: "a.test".to_owned(),
            target,
            server_name: None,
        };
        for (sent, shown) in [
            ("/", "http://a.test/"),
            ("/a/b", "http://a.test/a/b"),
            ("/a?hidden", "http://a.test/a?***"),
            ("/hidden@b/c?hidden", "http://a.test/***"),
        ] {
            let target = RequestTarget::from(sent.to_owned());
            assert_eq!(target.as_sent(), sent);
            let (plain, secret) = (url(target.clone()), url(target.with_secret_path()));
            assert_eq!((plain.to_string().as_str(), secret.to_string().as_str()), (shown, "http://a.test/***"));
            assert!(!format!("{plain:?} {secret:?}").contains("hidden"));
        }
    }
}
