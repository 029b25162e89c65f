//! The request of a certificate authority that checks whether the gateway answers for a name: http-01 (RFC 8555, section
//! 8.3). It reaches no route and no limit, and gets only the answer of its challenge.

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Method, StatusCode};

use super::ConnectionContext;
use crate::config::Challenge;
use crate::net::Traffic;
use crate::proxy::respond::{self, LocalResponse};
use crate::proxy::telemetry::Outcome;
use crate::sources::acme::Challenges;

/// The path before the token, as the authority sends it. Other spellings are not challenges.
const PATH: &str = "/.well-known/acme-challenge/";
const OCTETS: HeaderValue = HeaderValue::from_static("application/octet-stream");

/// The token of a challenge; `None` unless the listener is plain and such challenges are answered.
pub(super) fn token<'a>(connection: &ConnectionContext, head: &'a Parts) -> Option<&'a str> {
    let is_plain = connection.tls.is_none() && connection.traffic == Traffic::Requests;
    if !is_plain || !connection.worker.challenges.answer(Challenge::Http01) {
        return None;
    }
    let token = head.uri.path().strip_prefix(PATH)?;
    // Other methods are answered like unknown tokens.
    Some(if matches!(head.method, Method::GET | Method::HEAD) { token } else { "" })
}

pub(super) async fn answer(challenges: &Challenges, host: &str, token: &str) -> (Outcome, LocalResponse) {
    match challenges.response(host, token).await {
        Some(answer) => (Outcome::Responded, respond::with_body(StatusCode::OK, OCTETS, Bytes::from(answer))),
        None => {
            let why = "No challenge with this token is under way.";
            (Outcome::Unrouted, respond::problem(StatusCode::NOT_FOUND, why))
        }
    }
}
