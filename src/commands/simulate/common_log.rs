//! Lines in the Common and the Combined Log Format, as Apache and nginx write them:
//!
//! ```text
//! 203.0.113.7 - alice [10/Oct/2000:13:55:36 -0700] "GET /v1/users?q=1 HTTP/1.1" 200 2326 "https://referer/" "agent"
//! ```
//!
//! Text after the agent is ignored.

use std::borrow::Cow;
use std::net::IpAddr;

use http::{HeaderName, HeaderValue, Method, StatusCode, Uri, header};

use super::needs::Needs;
use super::record::{Record, time, unreadable};
use crate::base::http::written_target;
use crate::base::percent;
use crate::request::identify::client;

pub(super) fn read(line: &[u8], needs: &Needs) -> Result<Box<Record>, &'static str> {
    let (mut head, mut rest) = quoted(line).ok_or(unreadable::FORMAT)?;
    let begin = head;
    // Apache writes an empty user as "".
    if let Some(behind) = rest.strip_prefix(b"\"").filter(|_| !head.trim_ascii_end().ends_with(b"]")) {
        (head, rest) = quoted(behind).ok_or(unreadable::FORMAT)?;
    }
    let (request, rest) = quoted(rest).ok_or(unreadable::FORMAT)?;
    // The client chooses the user's name, which may contain brackets. So the last brackets are those of the time.
    let head = head.trim_ascii_end().strip_suffix(b"]").ok_or(unreadable::FORMAT)?;
    let open = memchr::memrchr(b'[', head).ok_or(unreadable::FORMAT)?;
    let time = std::str::from_utf8(&head[open + 1..]).ok().and_then(time).ok_or(unreadable::TIME)?;
    let mut fields = begin.split(u8::is_ascii_whitespace);
    let (mut client, mut host) = (fields.next().and_then(address), None);
    if client.is_none() {
        // Apache's vhost_combined has the name of the server first.
        client = fields.next().and_then(address);
        let name = begin.split(u8::is_ascii_whitespace).next().and_then(|name| std::str::from_utf8(name).ok());
        let name = name.map(|name| name.rsplit_once(':').map_or(name, |(name, _)| name));
        host = name.filter(|_| client.is_some()).map(Into::into);
    }
    if client.is_none() && needs.client {
        return Err(unreadable::CLIENT);
    }
    let (method, uri) = request_line(&unescaped(request))?;
    let mut rest = rest;
    let status = field(&mut rest).and_then(|status| StatusCode::from_bytes(status).ok());
    // Apache writes no bytes as `-`.
    let bytes = field(&mut rest).and_then(|bytes| if bytes == b"-" { Some(0) } else { number(bytes) });
    let mut headers = Vec::new();
    for name in [header::REFERER, header::USER_AGENT] {
        let Some((value, after)) = rest.trim_ascii_start().strip_prefix(b"\"").and_then(quoted) else { break };
        rest = after;
        if needs.headers.contains(&name) {
            headers.extend(header_value(name, &unescaped(value)));
        }
    }
    Ok(Box::new(Record { time, client, method, uri, host, headers, status, spent: None, bytes }))
}

/// The address of a client; the first one of a list, as in X-Forwarded-For.
pub(super) fn address(text: &[u8]) -> Option<IpAddr> {
    let first = text.split(|byte| *byte == b',').next().unwrap_or_default();
    client::parse_address(first.trim_ascii())
}

/// `None` if the log has none, written as `-`.
pub(super) fn header_value(name: HeaderName, value: &[u8]) -> Option<(HeaderName, HeaderValue)> {
    let value = HeaderValue::from_bytes(value).ok().filter(|value| !value.is_empty() && value != "-")?;
    Some((name, value))
}

/// Reads `GET /path HTTP/1.1`. Some clients send spaces in the path, although they are not valid.
pub(super) fn request_line(line: &[u8]) -> Result<(Method, Uri), &'static str> {
    let (method, rest) =
        line.split_at_checked(memchr::memchr(b' ', line).ok_or(unreadable::NO_REQUEST)?).unwrap_or_default();
    let rest = rest.trim_ascii();
    let target = match memchr::memrchr(b' ', rest) {
        Some(at) if rest[at + 1..].starts_with(b"HTTP/") => rest[..at].trim_ascii_end(),
        _ => rest,
    };
    request(method, target)
}

/// The target is a path or a URL, as the client wrote it.
pub(super) fn request(method: &[u8], target: &[u8]) -> Result<(Method, Uri), &'static str> {
    if method.is_empty() || target.is_empty() {
        return Err(unreadable::NO_REQUEST);
    }
    let method = Method::from_bytes(method).map_err(|_| unreadable::REQUEST)?;
    let uri = Uri::try_from(target).ok().or_else(|| written_target::read(target).map(Uri::from));
    let uri = uri.ok_or(unreadable::REQUEST)?;
    Ok((method, uri))
}

/// The next field between spaces.
fn field<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let text = rest.trim_ascii_start();
    let (field, after) = text.split_at(memchr::memchr(b' ', text).unwrap_or(text.len()));
    if field.is_empty() || field.starts_with(b"\"") {
        return None;
    }
    *rest = after;
    Some(field)
}

fn number(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// The text up to the next quotation mark without an escape, and the rest after that mark.
fn quoted(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut at = 0;
    loop {
        let next = at + memchr::memchr2(b'"', b'\\', text.get(at..)?)?;
        if text.get(next) == Some(&b'"') {
            return Some((text.get(..next)?, text.get(next + 1..)?));
        }
        at = next + 2;
    }
}

/// Removes the escapes of Apache and nginx: `\"`, `\\`, `\xHH`.
fn unescaped(text: &[u8]) -> Cow<'_, [u8]> {
    if memchr::memchr(b'\\', text).is_none() {
        return Cow::Borrowed(text);
    }
    let (mut plain, mut rest) = (Vec::with_capacity(text.len()), text);
    while let [byte, after @ ..] = rest {
        let (value, length) = match (byte, after) {
            (b'\\', [b'x' | b'X', digits @ ..]) => percent::unescape(digits).map_or((b'\\', 1), |value| (value, 4)),
            (b'\\', [b'n', ..]) => (b'\n', 2),
            (b'\\', [b'r', ..]) => (b'\r', 2),
            (b'\\', [b't', ..]) => (b'\t', 2),
            (b'\\', [escaped, ..]) => (*escaped, 2),
            _ => (*byte, 1),
        };
        plain.push(value);
        rest = &rest[length..];
    }
    Cow::Owned(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needs() -> Needs {
        Needs { headers: [header::USER_AGENT].into(), client: true }
    }

    fn line(text: &str) -> Result<Box<Record>, &'static str> {
        read(text.as_bytes(), &needs())
    }

    #[test]
    fn common_and_combined_lines_are_read() {
        let common = r#"203.0.113.7 - alice [10/Oct/2000:13:55:36 -0700] "GET /v1/users?q=1 HTTP/1.1" 200 2326"#;
        let record = line(common).unwrap();
        assert_eq!(record.time.micros(), 971_211_336_000_000);
        assert_eq!(record.client.unwrap().to_string(), "203.0.113.7");
        assert_eq!((record.method, record.uri), (Method::GET, Uri::from_static("/v1/users?q=1")));
        assert_eq!((record.status, record.headers.len()), (Some(StatusCode::OK), 0));
        for (tail, agent) in [
            (r#" "-" "curl/8.0""#, Some("curl/8.0")),
            (r#" "https://a/" "a \"quoted\" \x41\\ agent" "203.0.113.9" 0.003"#, Some("a \"quoted\" A\\ agent")),
            (r#" "-" "-""#, None),
            (r#" "-""#, None),
            (" more fields", None),
        ] {
            let record = line(&format!("{common}{tail}")).unwrap();
            let found = record.headers.first().map(|(_, value)| value.to_str().unwrap());
            assert_eq!(found, agent, "{tail}");
        }
    }

    #[test]
    fn unusual_lines_are_read_too() {
        for (text, client, target) in [
            (r#"2001:db8::1 - - [10/Oct/2000:13:55:36 +0000] "GET /a b HTTP/1.0" 400 -"#, "2001:db8::1", None),
            (r#"[::1]:80 - - [10/Oct/2000:13:55:36 +0000] "GET /a" - -"#, "::1", Some("/a")),
            (
                r#"1.2.3.4 - - [10/Oct/2000:13:55:36 +0000] "GET http://h/a HTTP/1.1" 200 1"#,
                "1.2.3.4",
                Some("http://h/a"),
            ),
            (r#"1.2.3.4 - - [10/Oct/2000:13:55:36 +0000] "GET /\xc3\xa4 HTTP/1.1" 200 1"#, "1.2.3.4", Some("/ä")),
            (
                r#"1.2.3.4 - - [10/Oct/2000:13:55:36 +0000] "GET /\xe4?q=<\x22> HTTP/1.1" 200 1"#,
                "1.2.3.4",
                Some("/%E4?q=%3C%22%3E"),
            ),
        ] {
            match (line(text), target) {
                (Ok(record), Some(target)) => {
                    assert_eq!(
                        (record.client.unwrap().to_string().as_str(), record.uri.to_string().as_str()),
                        (client, target)
                    );
                }
                (Err(unreadable::REQUEST), None) => {}
                (other, _) => panic!("{text}: {other:?}"),
            }
        }
    }

    #[test]
    fn what_others_write_around_the_client_is_read() {
        let rest = r#"[10/Oct/2000:13:55:36.123 -0700] "GET /a HTTP/1.1" 200 1 "-" "agent""#;
        for (begin, host) in [
            ("203.0.113.7 - alice", None),
            (r#"203.0.113.7 - """#, None),
            ("203.0.113.7, 10.0.0.1 - -", None),
            ("203.0.113.7,10.0.0.1 - -", None),
            ("shop.example:443 203.0.113.7 - -", Some("shop.example")),
            (r#"shop.example:443 203.0.113.7 - """#, Some("shop.example")),
        ] {
            let record = line(&format!("{begin} {rest}")).unwrap();
            assert_eq!(record.client.unwrap().to_string(), "203.0.113.7", "{begin}");
            assert_eq!((record.host.as_deref(), record.uri.path()), (host, "/a"), "{begin}");
            assert_eq!((record.time.micros(), record.headers.len()), (971_211_336_123_000, 1), "{begin}");
        }
    }

    #[test]
    fn a_client_cannot_write_the_time_into_its_name() {
        let text =
            r#"1.2.3.4 - x [01/Jan/2001:00:00:00 +0000] \"GET [10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.1" 200 1"#;
        assert_eq!(line(text).unwrap().time.micros(), 971_211_336_000_000);
    }

    #[test]
    fn other_lines_say_why_they_are_not_read() {
        for (text, why) in [
            ("", unreadable::FORMAT),
            ("hello", unreadable::FORMAT),
            (r#"1.2.3.4 - - "GET / HTTP/1.1" 200"#, unreadable::FORMAT),
            (r#"1.2.3.4 - - [10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.1 200"#, unreadable::FORMAT),
            (r#"1.2.3.4 - - [yesterday] "GET / HTTP/1.1" 200 1"#, unreadable::TIME),
            (r#"host.example - - [10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.1" 200 1"#, unreadable::CLIENT),
            (r#"1.2.3.4 - - [10/Oct/2000:13:55:36 -0700] "-" 400 0"#, unreadable::NO_REQUEST),
            (r#"1.2.3.4 - - [10/Oct/2000:13:55:36 -0700] "\x16\x03\x01 \x00" 400 0"#, unreadable::REQUEST),
        ] {
            assert_eq!(line(text), Err(why), "{text}");
        }
        let nobody = Needs { client: false, ..needs() };
        let text = r#"- - - [10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.1" 200 1"#;
        assert_eq!(read(text.as_bytes(), &nobody).unwrap().client, None);
    }
}
