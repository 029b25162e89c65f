//! Checks the head of a response, and finds out where the body ends. The library has checked that it is valid in HTTP/2, so
//! there are no headers of a connection in it (RFC 9113, section 8.2.2).

use h2::RecvStream;
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, Method, Response, StatusCode};

use crate::upstream::error::UpstreamError;

/// How the end of a response's body is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyEnd {
    /// There is no body.
    None,
    /// After so many bytes, and at the end of the stream.
    Length(u64),
    /// At the end of the stream.
    Stream,
}

/// A response's head, ready to go to the client.
#[derive(Debug)]
pub(super) struct Head<B> {
    pub(super) response: Response<B>,
    pub(super) end: BodyEnd,
}

/// Checks the head of the response to a request with this method.
///
/// # Errors
/// [`UpstreamError::Bad`] if it switches to another protocol, or the length of its body can be read in two ways.
pub(super) fn check(response: Response<RecvStream>, method: &Method) -> Result<Head<RecvStream>, UpstreamError> {
    let is_over = response.body().is_end_stream();
    let (head, received) = response.into_parts();
    let (status, mut headers) = (head.status, head.headers);
    if status.is_informational() {
        return Err(UpstreamError::Bad("a switch of protocols that was not asked for"));
    }
    let length = length(&mut headers)?;
    let has_none = *method == Method::HEAD || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    let end = match length {
        _ if has_none || is_over => BodyEnd::None,
        Some(length) => BodyEnd::Length(length),
        None => BodyEnd::Stream,
    };
    // The headers of the limits are added later.
    headers.reserve(4);
    let mut response = Response::new(received);
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    Ok(Head { response, end })
}

/// The length that the headers state. A repeated length is forwarded once (RFC 9110, section 8.6).
fn length(headers: &mut HeaderMap) -> Result<Option<u64>, UpstreamError> {
    let Some(first) = headers.get(CONTENT_LENGTH) else { return Ok(None) };
    let digits = first.to_str().ok().filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
    let length = digits.and_then(|digits| digits.parse().ok());
    let are_equal = headers.get_all(CONTENT_LENGTH).iter().all(|length| length == first);
    if length.is_none() || !are_equal {
        return Err(UpstreamError::Bad("a response whose length can be read in two ways"));
    }
    let first = first.clone();
    headers.insert(CONTENT_LENGTH, first);
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_has_one_reading() {
        for (lines, expected) in [
            (&[][..], Some(None)),
            (&["5"], Some(Some(5))),
            (&["5", "5"], Some(Some(5))),
            (&["5", "6"], None),
            (&["5, 5"], None),
            (&["+5"], None),
            (&[""], None),
            (&["99999999999999999999"], None),
        ] {
            let mut headers = HeaderMap::new();
            lines.iter().for_each(|line| _ = headers.append(CONTENT_LENGTH, line.parse().unwrap()));
            assert_eq!(length(&mut headers).ok(), expected, "{lines:?}");
            assert!(expected.is_none() || headers.len() <= 1, "{headers:?}");
        }
    }
}
