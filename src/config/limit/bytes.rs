//! Which bytes of a request are counted: `bytes` of `cost`.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountedBytes {
    Request,
    Response,
    Both,
}

impl CountedBytes {
    pub const WORDS: [(&'static str, Self); 3] =
        [("response", Self::Response), ("request", Self::Request), ("both", Self::Both)];

    /// Whose bytes are counted.
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Request => "its body",
            Self::Response => "its response",
            Self::Both => "its body and its response",
        }
    }

    /// How many of these bytes of the request and of the response are counted.
    pub fn of(self, [request, response]: [u64; 2]) -> u64 {
        match self {
            Self::Request => request,
            Self::Response => response,
            Self::Both => request.saturating_add(response),
        }
    }

    pub fn has_requests(self) -> bool {
        self != Self::Response
    }

    pub fn has_responses(self) -> bool {
        self != Self::Request
    }
}
