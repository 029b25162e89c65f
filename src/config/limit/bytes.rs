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

    pub fn has_requests(self) -> bool {
        self != Self::Response
    }

    pub fn has_responses(self) -> bool {
        self != Self::Request
    }
}
