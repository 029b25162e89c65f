//! What a collector answers, and what follows from it (OTLP 1.x, "OTLP/HTTP Response"). Pure.

use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};
use prost::Message as _;

use super::messages::ExportResponse;
use crate::base::clock::Time;
use crate::base::http::retry_after::retry_after;

/// The longest pause that a collector can ask for.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// The part of a collector's message that is logged, in characters.
const LONGEST_MESSAGE: usize = 200;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Accepted,
    /// This many spans are refused, for this reason; the others are accepted.
    Partly(usize, String),
    /// The batch may be accepted later, at least after this time.
    Later(Option<Duration>),
    /// The batch will never be accepted.
    Refused,
}

/// `now` is the time at which the answer came.
pub(super) fn read(response: &Response<Bytes>, now: Time) -> Answer {
    match response.status() {
        // The collector has the spans, even if the body is invalid.
        status if status.is_success() => match ExportResponse::decode(response.body().clone()) {
            Ok(ExportResponse { partial_success: Some(partly) }) if partly.rejected_spans > 0 => {
                let message = partly.error_message.chars().take(LONGEST_MESSAGE).collect();
                Answer::Partly(usize::try_from(partly.rejected_spans).unwrap_or(usize::MAX), message)
            }
            _ => Answer::Accepted,
        },
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => {
            Answer::Later(retry_after(response.headers(), now).map(|pause| pause.min(LONGEST_PAUSE)))
        }
        _ => Answer::Refused,
    }
}

#[cfg(test)]
mod tests {
    use super::super::messages::PartialSuccess;
    use super::*;

    fn answer(status: u16, fields: &[(&'static str, &str)], body: Vec<u8>) -> Answer {
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
        assert_eq!(answer(200, &[], vec![]), Answer::Accepted);
        assert_eq!(answer(200, &[], b"<html>".to_vec()), Answer::Accepted);
        assert_eq!(answer(200, &[], partly(0, "a hint")), Answer::Accepted);
        assert_eq!(answer(200, &[], partly(-1, "")), Answer::Accepted);
        assert_eq!(answer(200, &[], partly(3, "why")), Answer::Partly(3, "why".to_owned()));
        assert_eq!(answer(200, &[], partly(1, &"é".repeat(300))), Answer::Partly(1, "é".repeat(200)));
    }

    #[test]
    fn some_failures_pass() {
        for status in [429, 502, 503, 504] {
            assert_eq!(answer(status, &[], vec![]), Answer::Later(None), "{status}");
        }
        for status in [301, 400, 401, 404, 413, 500, 501] {
            assert_eq!(answer(status, &[], vec![]), Answer::Refused, "{status}");
        }
    }

    #[test]
    fn a_collector_may_say_when() {
        // The date is seven seconds later.
        for (value, pause) in
            [("0", Some(0)), ("Sun, 06 Nov 1994 08:49:37 GMT", Some(7)), ("31", Some(30)), ("soon", None)]
        {
            let expected = Answer::Later(pause.map(Duration::from_secs));
            assert_eq!(answer(503, &[("retry-after", value)], vec![]), expected, "{value}");
        }
    }
}
