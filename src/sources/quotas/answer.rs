//! Answers of sources of quotas, before they are checked against a limit.

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QuotaAnswer {
    /// Written like in a file, such as "100/s"; empty if the source names none.
    pub rates: Vec<String>,
    pub tier: Option<String>,
    /// Requests pass without being counted.
    pub exempt: bool,
    /// Requests do not pass.
    pub block: bool,
}

/// Why a lookup has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LookupError {
    /// The source cannot be reached, the connection broke, or the answer does not come in time. That says nothing about the key.
    Away(String),
    /// The source has answered this key in an unusable way. Other keys are not affected.
    Unusable(String),
}

/// What a source announces without being asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QuotaChange {
    /// The quota of this key has changed; the key is in the form in which it is sent.
    Key(String),
    /// Changes may have been missed, so everything in the cache must be renewed.
    Any,
}
