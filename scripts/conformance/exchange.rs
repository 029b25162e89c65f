//! A request and its response, with the moments between which the limiter has decided.

use std::time::Instant;

/// A request as bytes of HTTP/1.1, except the body's length, which is added.
#[derive(Clone)]
pub(crate) struct Request {
    pub(crate) method: &'static str,
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, Vec<u8>)>,
    pub(crate) body: Vec<u8>,
}

impl Request {
    pub(crate) fn with(mut self, name: &str, value: impl Into<Vec<u8>>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    pub(crate) fn method(self, method: &'static str) -> Self {
        Self { method, ..self }
    }

    pub(crate) fn path(self, path: impl Into<String>) -> Self {
        Self { path: path.into(), ..self }
    }

    pub(crate) fn bytes(&self, host: &str) -> Vec<u8> {
        let mut bytes = format!("{} {} HTTP/1.1\r\nHost: {host}\r\n", self.method, self.path).into_bytes();
        for (name, value) in &self.headers {
            bytes.extend_from_slice(name.as_bytes());
            bytes.extend_from_slice(b": ");
            bytes.extend_from_slice(value);
            bytes.extend_from_slice(b"\r\n");
        }
        if !self.body.is_empty() || ["POST", "PUT", "PATCH"].contains(&self.method) {
            bytes.extend_from_slice(format!("Content-Length: {}\r\n", self.body.len()).as_bytes());
        }
        bytes.extend_from_slice(b"\r\n");
        bytes.extend_from_slice(&self.body);
        bytes
    }
}

/// What the limiter did with a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Decision {
    Admitted,
    /// By the limit.
    Refused,
    /// As malformed or ambiguous, whatever the limit is.
    Rejected,
}

#[derive(Clone, Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, Vec<u8>)>,
    pub(crate) body: Vec<u8>,
}

impl Response {
    /// The values of a field, joined as RFC 9110 says in section 5.3; `None` if it is absent or not visible ASCII.
    pub(crate) fn header(&self, name: &str) -> Option<String> {
        let values = self.headers.iter().filter(|(other, _)| other.eq_ignore_ascii_case(name));
        let values = values.map(|(_, value)| std::str::from_utf8(value).ok()).collect::<Option<Vec<_>>>()?;
        (!values.is_empty()).then(|| values.join(", "))
    }

    pub(crate) fn decision(&self) -> Decision {
        match self.status {
            429 | 503 => Decision::Refused,
            400 | 401 | 403 | 405 | 413 | 414 | 431 | 501 => Decision::Rejected,
            _ => Decision::Admitted,
        }
    }

    /// The seconds of Retry-After, also in spellings that RFC 9110 does not allow: one behaviour alone judges the spelling.
    pub(crate) fn retry_after(&self) -> Option<f64> {
        self.header("retry-after")?.trim().parse().ok().filter(|seconds: &f64| seconds.is_finite() && *seconds >= 0.0)
    }
}

/// The limiter has decided after `sent` and before `received`.
#[derive(Clone, Debug)]
pub(crate) struct Exchange {
    pub(crate) sent: Instant,
    pub(crate) received: Instant,
    pub(crate) response: Response,
}

impl Exchange {
    pub(crate) fn is(&self, decision: Decision) -> bool {
        self.response.decision() == decision
    }

    pub(crate) fn is_admitted(&self) -> bool {
        self.is(Decision::Admitted)
    }

    pub(crate) fn is_refused(&self) -> bool {
        self.is(Decision::Refused)
    }
}

pub(crate) fn count(exchanges: &[Exchange], decision: Decision) -> usize {
    exchanges.iter().filter(|exchange| exchange.is(decision)).count()
}
