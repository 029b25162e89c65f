//! The kinds of servers that can be asked for quotas.

use std::cell::RefCell;
use std::future::pending;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use serde::Deserialize;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use super::Postgres;
use super::{LookupError, QuotaAnswer, QuotaChange};
use crate::config::{HttpQuotas, QuotaServer};
use crate::net::fetch::{AGENT, Connection};

/// Used by one thread only.
pub(super) enum QuotaOrigin {
    Http(Box<Http>),
    Postgres(Box<Postgres>),
}

impl QuotaOrigin {
    /// `changes` is called for what the server announces.
    pub(super) fn new(server: &QuotaServer, changes: impl Fn(QuotaChange) + 'static) -> Self {
        match server {
            QuotaServer::Http(settings) => Self::Http(Box::new(Http::new(settings.clone()))),
            QuotaServer::Postgres(settings) => Self::Postgres(Box::new(Postgres::new(settings, changes))),
        }
    }

    /// Does what the server needs besides lookups. Never returns.
    pub(super) async fn run(&self) {
        match self {
            Self::Http(_) => pending().await,
            Self::Postgres(postgres) => postgres.run().await,
        }
    }

    /// The key is in the form in which it is sent. The caller bounds the time.
    pub(super) async fn look_up(&self, key: &str) -> Result<Option<QuotaAnswer>, LookupError> {
        match self {
            Self::Http(http) => http.look_up(key).await,
            Self::Postgres(postgres) => postgres.look_up(key).await,
        }
    }
}

/// In bytes.
const MAX_ANSWER: usize = 64 << 10;

/// The longest time to connect, with TLS, so that keys stop waiting for an unreachable server.
const CONNECT_LIMIT: Duration = Duration::from_millis(900);

/// How many connections are opened at the same time, since each may need a thread for its DNS lookup.
const MOST_CONNECTING: usize = 8;

/// How long an idle connection is kept. There are never more of them than concurrent lookups. If they were closed sooner, a
/// flood of lookups would use up the local ports.
const MAX_IDLE: Duration = Duration::from_secs(30);

/// Everything in a key except unreserved characters is escaped (RFC 3986, section 2.3).
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

pub(super) struct Http {
    settings: HttpQuotas,
    /// The target before and after the key.
    around: (String, String),
    /// Idle connections with the time of their last use, which is in ascending order.
    idle: RefCell<Vec<(Instant, Connection)>>,
    connecting: Semaphore,
}

enum Failure {
    /// The connection broke before the head of a response.
    Broken(String),
    Other(LookupError),
}

/// The document of a key. `null` means the same as a missing field.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    rates: Option<Vec<String>>,
    tier: Option<String>,
    exempt: Option<bool>,
    block: Option<bool>,
}

impl Http {
    pub(super) fn new(settings: HttpQuotas) -> Self {
        let target = settings.url.target.as_sent();
        let (before, after) = target.split_once("{key}").unwrap_or((target, ""));
        let around = (before.to_owned(), after.to_owned());
        Self { settings, around, idle: RefCell::default(), connecting: Semaphore::new(MOST_CONNECTING) }
    }

    /// `None` if the server does not know the key. The caller bounds the time.
    pub(super) async fn look_up(&self, key: &str) -> Result<Option<QuotaAnswer>, LookupError> {
        if matches!(key, "." | "..") {
            // Servers take such a segment for another path, whether it is escaped or not.
            return Ok(None);
        }
        // The server may have just closed a kept connection.
        while let Some(connection) = self.kept() {
            match self.exchange(connection, key).await {
                Err(Failure::Broken(_)) => {}
                Err(Failure::Other(error)) => return Err(error),
                Ok(answer) => return Ok(answer),
            }
        }
        let connection = self.connect().await.map_err(LookupError::Away)?;
        self.exchange(connection, key).await.map_err(|failure| match failure {
            Failure::Broken(why) => LookupError::Unanswered(why),
            Failure::Other(error) => error,
        })
    }

    fn kept(&self) -> Option<Connection> {
        let mut idle = self.idle.borrow_mut();
        loop {
            let (_, connection) = idle.pop()?;
            if connection.is_ready() {
                return Some(connection);
            }
        }
    }

    async fn connect(&self) -> Result<Connection, String> {
        let HttpQuotas { url, tls } = &self.settings;
        let all = async {
            let _turn = self.connecting.acquire().await;
            Connection::open(url, tls.as_ref()).await.map_err(|error| format!("cannot connect: {error}"))
        };
        let timed_out = |_| Err(format!("no connection within {}", humantime::format_duration(CONNECT_LIMIT)));
        timeout(CONNECT_LIMIT, all).await.unwrap_or_else(timed_out)
    }

    fn request(&self, key: &str) -> Option<Request<Full<Bytes>>> {
        let (before, after) = &self.around;
        let target = format!("{before}{}{after}", percent_encode(key.as_bytes(), ESCAPED));
        Request::get(target)
            .header(header::HOST, &self.settings.url.authority)
            .header(header::USER_AGENT, AGENT)
            .header(header::ACCEPT, HeaderValue::from_static("application/json"))
            .body(Full::default())
            .ok()
    }

    async fn exchange(&self, mut connection: Connection, key: &str) -> Result<Option<QuotaAnswer>, Failure> {
        let unusable = |why: &str| Failure::Other(LookupError::Unusable(why.to_owned()));
        let unanswered = |why: String| Failure::Other(LookupError::Unanswered(why));
        let request = self.request(key).ok_or_else(|| unusable("the key cannot be part of a URL"))?;
        let sent = connection.send(request).await;
        let (head, body) =
            sent.map_err(|error| Failure::Broken(format!("the server does not answer: {error}")))?.into_parts();
        let body = match Limited::new(body, MAX_ANSWER).collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) if error.is::<LengthLimitError>() => {
                return Err(unusable(&format!("the answer has more than {} KiB", MAX_ANSWER >> 10)));
            }
            Err(error) => return Err(unanswered(format!("the server does not send all of the answer: {error}"))),
        };
        // The connection may be ready only after the end of the response was seen.
        if connection.becomes_ready().await {
            let mut idle = self.idle.borrow_mut();
            let unused = idle.partition_point(|(used, _)| used.elapsed() > MAX_IDLE);
            idle.drain(..unused);
            idle.push((Instant::now(), connection));
        }
        match head.status {
            StatusCode::OK => read(&body).map_err(|why| unusable(&why)),
            StatusCode::NOT_FOUND => Ok(None),
            StatusCode::TOO_MANY_REQUESTS => {
                Err(Failure::Other(LookupError::Away("the server answers 429".to_owned())))
            }
            // A proxy before the server answers so if the server breaks or is silent.
            status @ (StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT) => {
                Err(unanswered(format!("the server answers {}", status.as_u16())))
            }
            status if status.is_redirection() => {
                Err(unusable(&format!("the server answers {}, and redirects are not followed", status.as_u16())))
            }
            status => Err(unusable(&format!("the server answers {}", status.as_u16()))),
        }
    }
}

/// Parses a document; `None` if no field is set. Errors never contain a part of the document.
fn read(body: &[u8]) -> Result<Option<QuotaAnswer>, String> {
    let document: Document = serde_json::from_slice(body).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        match error.classify() {
            serde_json::error::Category::Data => {
                format!("the answer has other fields or types than rates, tier, exempt and block (line {line}, column {column})")
            }
            _ => format!("the answer is not JSON (line {line}, column {column})"),
        }
    })?;
    let Document { rates, tier, exempt, block } = document;
    if rates.as_ref().is_some_and(Vec::is_empty) {
        return Err("the list of rates is empty".to_owned());
    }
    let answer = QuotaAnswer {
        rates: rates.unwrap_or_default(),
        tier,
        exempt: exempt.unwrap_or_default(),
        block: block.unwrap_or_default(),
    };
    Ok(Some(answer).filter(|answer| *answer != QuotaAnswer::default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::fetch::Url;

    #[test]
    fn documents_are_strict() {
        let rates = QuotaAnswer { rates: vec!["1/s".to_owned()], ..QuotaAnswer::default() };
        assert_eq!(read(br#"{"rates": ["1/s"]}"#), Ok(Some(rates.clone())));
        assert_eq!(read(br#"{"rates": ["1/s"], "tier": null, "exempt": false}"#), Ok(Some(rates)));
        assert_eq!(read(b"{}"), Ok(None));
        assert_eq!(read(br#"{"exempt": false, "tier": null}"#), Ok(None));
        for text in [
            "",
            "null",
            "[]",
            "{",
            "{} x",
            r#"{"rates": "1/s"}"#,
            r#"{"rates": []}"#,
            r#"{"rate": ["1/s"]}"#,
            r#"{"exempt": "secret-value"}"#,
            r#"{"exempt": true, "exempt": false}"#,
            "\u{feff}{}",
        ] {
            let error = read(text.as_bytes()).unwrap_err();
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn keys_are_one_segment() {
        let url = Url {
            host: "a.test".to_owned(),
            port: 80,
            authority: "a.test".to_owned(),
            target: "/v1/{key}?plan".to_owned().into(),
            server_name: None,
        };
        let http = Http::new(HttpQuotas { url, tls: None });
        for (key, target) in [
            ("k-1", "/v1/k-1?plan"),
            ("a/../b?c#d%", "/v1/a%2F..%2Fb%3Fc%23d%25?plan"),
            ("gr\u{fc}n \r\n", "/v1/gr%C3%BCn%20%0D%0A?plan"),
        ] {
            assert_eq!(http.request(key).unwrap().uri(), target);
        }
    }
}
