//! Checks the head of a response, and finds out where the body ends. The library has checked that it is valid in HTTP/2, but
//! lets some hop-by-hop headers pass.

use h2::RecvStream;
use http::header::CONTENT_LENGTH;
use http::response::Parts;
use http::{HeaderMap, Method, Response, StatusCode};

use crate::base::content::has_no_content;
use crate::base::http::header_rules::remove_hop_by_hop;
use crate::upstream::response_rules::{BadHead, content_length};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyEnd {
    None,
    /// After so many bytes, and at the end of the stream.
    Length(u64),
    /// At the end of the stream.
    Stream,
}

#[derive(Debug)]
pub(super) struct CheckedHead {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) received: RecvStream,
    pub(super) end: BodyEnd,
}

/// # Errors
/// [`BadHead`] if the response switches to another protocol, or the length of its body can be read in two ways.
pub(super) fn check(response: Response<RecvStream>, method: &Method) -> Result<CheckedHead, BadHead> {
    let is_over = response.body().is_end_stream();
    let (Parts { status, mut headers, .. }, received) = response.into_parts();
    if status.is_informational() {
        return Err(BadHead::Upgrade);
    }
    remove_hop_by_hop(&mut headers);
    let length = length(&mut headers)?;
    let end = match length {
        _ if is_over || has_no_content(method, status) => BodyEnd::None,
        Some(length) => BodyEnd::Length(length),
        None => BodyEnd::Stream,
    };
    // The headers of the limits are added later.
    headers.reserve(4);
    Ok(CheckedHead { status, headers, received, end })
}

/// The length that the headers state. A repeated length is forwarded once (RFC 9110, section 8.6).
fn length(headers: &mut HeaderMap) -> Result<Option<u64>, BadHead> {
    let Some(first) = headers.get(CONTENT_LENGTH) else { return Ok(None) };
    let length = content_length(first.as_bytes())?;
    if headers.get_all(CONTENT_LENGTH).iter().any(|other| other != first) {
        return Err(BadHead::Length);
    }
    let first = first.clone();
    headers.insert(CONTENT_LENGTH, first);
    Ok(Some(length))
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
