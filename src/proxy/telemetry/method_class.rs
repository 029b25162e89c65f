//! The classes of methods by which requests are counted, since each method that a client invents would be a time series.

use http::Method;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MethodClass {
    /// Only reads: GET, HEAD, OPTIONS and TRACE, which RFC 9110, section 9.2.1, calls safe.
    Read,
    /// Changes something: POST, PUT, PATCH and DELETE.
    Write,
    /// Any other method, or none that could be read.
    Other,
}

impl MethodClass {
    pub const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Other];

    pub fn of(method: &Method) -> Self {
        match *method {
            Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE => Self::Read,
            Method::POST | Method::PUT | Method::PATCH | Method::DELETE => Self::Write,
            _ => Self::Other,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Other => "other",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_that_nobody_knows_are_others() {
        let class = |method: &str| MethodClass::of(&Method::from_bytes(method.as_bytes()).unwrap()).name();
        assert_eq!(["GET", "HEAD", "OPTIONS", "TRACE"].map(class), ["read"; 4]);
        assert_eq!(["POST", "PUT", "PATCH", "DELETE"].map(class), ["write"; 4]);
        assert_eq!(["CONNECT", "get", "PROPFIND", "X"].map(class), ["other"; 4]);
    }
}
