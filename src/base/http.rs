//! HTTP's rules for headers and responses, and the identifiers of requests and traces.

pub mod header_list;
pub mod header_lines;
pub mod header_rules;
pub mod host;
pub mod path;
pub mod request_id;
pub mod spare_headers;
pub mod trace_context;
pub mod via;
pub mod written_target;

use std::time::{Duration, UNIX_EPOCH};

use http::{HeaderMap, Method, StatusCode, header};

use super::clock::Time;

/// Whether a response has no content, whatever its headers say (RFC 9110, section 6.4.1).
pub fn has_no_content(method: &Method, status: StatusCode) -> bool {
    *method == Method::HEAD || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
}

/// Whether upper case would make it a standard method. Methods are case-sensitive (RFC 9110, section 9.1), but some servers
/// read `post` as POST (WSGI, Rack), and the gateway would find the route of another method.
pub fn is_method_in_other_case(method: &str) -> bool {
    const STANDARD: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"];
    method.bytes().any(|byte| byte.is_ascii_lowercase())
        && STANDARD.iter().any(|standard| standard.eq_ignore_ascii_case(method))
}

/// How long a response asks the client to wait: from `now`, by a header in seconds or as a date (RFC 9110, section 10.2.3).
pub fn retry_after(headers: &HeaderMap, now: Time) -> Option<Duration> {
    let text = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim();
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(Duration::from_secs(text.parse().unwrap_or(u64::MAX)));
    }
    let until = httpdate::parse_http_date(text).ok()?.duration_since(UNIX_EPOCH).ok()?;
    Some(until.saturating_sub(Duration::from_micros(now.micros())))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn servers_say_in_two_ways_how_long_to_wait() {
        let now = Time::from_micros(784_111_777_000_000);
        for (text, expected) in [
            ("120", Some(120)),
            (" 7 ", Some(7)),
            ("0", Some(0)),
            ("18446744073709551615", Some(u64::MAX)),
            ("999999999999999999999999", Some(u64::MAX)),
            ("Sun, 06 Nov 1994 08:50:37 GMT", Some(60)),
            ("Sun, 06 Nov 1994 08:49:00 GMT", Some(0)),
            ("soon", None),
            ("-1", None),
            ("+1", None),
            ("", None),
        ] {
            let headers = HeaderMap::from_iter([(header::RETRY_AFTER, HeaderValue::from_str(text).unwrap())]);
            assert_eq!(retry_after(&headers, now).map(|wait| wait.as_secs()), expected, "{text:?}");
        }
        assert_eq!(retry_after(&HeaderMap::new(), now), None);
    }
}
