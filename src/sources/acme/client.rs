//! Requests to the authority, sent by the client that the gateway uses for all servers that it asks.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Collected, Full};
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use parking_lot::Mutex;

use crate::base::clock;
use crate::base::http::retry_after;
use crate::config::{Acme, document_url};
use crate::net::fetch::{self, FetchError, Url};
use crate::net::tls::ConnectorTls;

/// The largest answer in bytes, many times the size of a certificate chain.
const MOST: usize = 256 << 10;
/// Of one request.
const LIMIT: Duration = Duration::from_secs(15);

/// The pause that the authority asked for when it last refused something.
#[derive(Clone, Debug, Default)]
pub(super) struct RetryAfter(Arc<Mutex<Option<Duration>>>);

impl RetryAfter {
    /// The pause, if one was asked for since the last call.
    pub(super) fn take(&self) -> Option<Duration> {
        self.0.lock().take()
    }
}

/// Why there is no answer that the protocol defines.
#[derive(Debug)]
pub(super) enum NoAnswer {
    Fetch(FetchError),
    /// An answer with this status and without a problem document.
    Status(StatusCode),
    /// The authority names a URL that must not be asked.
    Url(String),
}

impl fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fetch(error) => error.fmt(f),
            Self::Status(status) => write!(f, "the server answers {}", status.as_u16()),
            Self::Url(why) => write!(f, "the directory of the authority has a URL that cannot be used: {why}"),
        }
    }
}

impl std::error::Error for NoAnswer {}

impl From<NoAnswer> for Error {
    fn from(why: NoAnswer) -> Self {
        Self::Other(Box::new(why))
    }
}

pub(super) struct AcmeClient {
    directory: Url,
    tls: Option<ConnectorTls>,
    told: RetryAfter,
}

impl AcmeClient {
    pub(super) fn new(acme: &Acme, told: &RetryAfter) -> Self {
        Self { directory: acme.directory.clone(), tls: acme.tls.clone(), told: told.clone() }
    }

    /// A remote authority must not make the gateway ask servers on its own machine without TLS.
    fn url(&self, text: &str) -> Result<Url, NoAnswer> {
        let url = document_url(text).map_err(NoAnswer::Url)?;
        if url.scheme() != self.directory.scheme() {
            return Err(NoAnswer::Url(format!("it begins with {}://", url.scheme())));
        }
        Ok(url)
    }
}

impl HttpClient for AcmeClient {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let (url, tls, told) = (self.url(&request.uri().to_string()), self.tls.clone(), self.told.clone());
        Box::pin(async move {
            let url = url?;
            let (head, body) = request.into_parts();
            let body = body.collect().await.map_or(Bytes::new(), Collected::to_bytes);
            let request = Request::from_parts(head, Full::new(body));
            let fetched = fetch::exchange(&url, tls.as_ref(), request, MOST, LIMIT).await;
            let (parts, body) = fetched.map_err(NoAnswer::Fetch)?.into_parts();
            let is_error = parts.status.is_client_error() || parts.status.is_server_error();
            if is_error {
                *told.0.lock() = retry_after(&parts.headers, clock::now());
                if serde_json::from_slice::<serde_json::Map<_, _>>(&body).is_err() {
                    return Err(NoAnswer::Status(parts.status).into());
                }
            }
            Ok(BytesResponse { parts, body: Box::new(body) })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_names_no_servers_that_are_asked_in_another_way() {
        let client = |directory| {
            let directory = document_url(directory).unwrap();
            AcmeClient { directory, tls: None, told: RetryAfter::default() }
        };
        let public = client("https://acme.test/directory");
        assert!(public.url("https://other.test/order").is_ok());
        for text in ["http://127.0.0.1:9901/api/drain", "http://acme.test/", "ftp://acme.test/", "/order", ""] {
            assert!(public.url(text).is_err(), "{text}");
        }
        assert!(client("http://127.0.0.1:1/").url("http://127.0.0.1:1/order").is_ok());
    }
}
