//! What a collector answers, and what follows from it (OTLP 1.x, "OTLP/HTTP Response"). Pure.

use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};
use prost::Message as _;

use super::messages::ExportResponse;
use crate::base::clock::Time;
use crate::base::http::retry_after;

/// The longest pause that a collector can ask for.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// The part of a collector's message that is logged, in characters.
const LONGEST_MESSAGE: usize = 200;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum ExportOutcome {
    Accepted,
    /// This many spans are refused, for this reason; the others are accepted.
    Partly(usize, String),
    /// The batch may be accepted later, at least after this time.
    Later(Option<Duration>),
    /// The batch will never be accepted.
    Refused,
}

/// `now` is the time at which the answer came.
pub(super) fn read(response: &Response<Bytes>, now: Time) -> ExportOutcome {
    match response.status() {
        // The collector has the spans, even if the body is invalid.
        status if status.is_success() => match ExportResponse::decode(response.body().clone()) {
            Ok(ExportResponse { partial_success: Some(partly) }) if partly.rejected_spans > 0 => {
                let message = partly.error_message.chars().take(LONGEST_MESSAGE).collect();
                ExportOutcome::Partly(usize::try_from(partly.rejected_spans).unwrap_or(usize::MAX), message)
            }
            _ => ExportOutcome::Accepted,
        },
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => {
            ExportOutcome::Later(retry_after(response.headers(), now).map(|pause| pause.min(LONGEST_PAUSE)))
        }
        _ => ExportOutcome::Refused,
    }
}

#[cfg(test)]
mod tests {
    use super::super::messages::PartialSuccess;
    use super::*;

    fn answer(status: u16, fields: &[(&'static str, &str)], body: Vec<u8>) -> ExportOutcome {
        let mut response = Response::builder().status(status);
        for (name, value) in fields {
            response = response.header(*name, *value);
        }
        read(&response.body(body.into()).unwrap(), Time::from_micros(784_111_770_000_000))
    }

    fn partly(rejected_spans: i64, error_message: &str) -> Vec<u8> {
        let partly = PartialSuccess { rejected_spans, error_message: error_message.to_owned() };
        ExportResponse { partial_success: Some(partly) }.encode_to_vec()
    }

    #[test]
    fn a_success_may_be_partial() {
        assert_eq!(answer(200, &[], vec![]), ExportOutcome::Accepted);
        assert_eq!(answer(200, &[], b"<html>".to_vec()), ExportOutcome::Accepted);
        assert_eq!(answer(200, &[], partly(0, "a hint")), ExportOutcome::Accepted);
        assert_eq!(answer(200, &[], partly(-1, "")), ExportOutcome::Accepted);
        assert_eq!(answer(200, &[], partly(3, "why")), ExportOutcome::Partly(3, "why".to_owned()));
        assert_eq!(answer(200, &[], partly(1, &"é".repeat(300))), ExportOutcome::Partly(1, "é".repeat(200)));
    }

    #[test]
    fn some_failures_pass() {
        for status in [429, 502, 503, 504] {
            assert_eq!(answer(status, &[], vec![]), ExportOutcome::Later(None), "{status}");
        }
        for status in [301, 400, 401, 404, 413, 500, 501] {
            assert_eq!(answer(status, &[], vec![]), ExportOutcome::Refused, "{status}");
        }
    }

    #[test]
    fn a_collector_may_say_when() {
        // The date is seven seconds later.
        for (value, pause) in
            [("0", Some(0)), ("Sun, 06 Nov 1994 08:49:37 GMT", Some(7)), ("31", Some(30)), ("soon", None)]
        {
            let expected = ExportOutcome::Later(pause.map(Duration::from_secs));
            assert_eq!(answer(503, &[("retry-after", value)], vec![]), expected, "{value}");
        }
    }
}
