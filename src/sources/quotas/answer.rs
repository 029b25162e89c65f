//! What sources of quotas say, before it is checked against a limit.

/// What a source says about a key, before it is checked against the limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QuotaAnswer {
    /// Rates as they are written in a file, such as "100/s"; empty if the source names none.
    pub rates: Vec<String>,
    /// The name of a tier.
    pub tier: Option<String>,
    /// The key passes without being counted.
    pub exempt: bool,
    /// The key does not pass.
    pub block: bool,
}

/// Why a lookup has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LookupError {
    /// The source cannot be asked: it cannot be connected to, the connection broke, or it does not answer in time. That says
    /// nothing about the key.
    Away(String),
    /// The source has answered this key in a way that cannot be used. Other keys are not affected.
    Unusable(String),
}

/// What a source announces by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QuotaChange {
    /// What it says about this key, in the form in which it is asked, has changed.
    Key(String),
    /// Changes may have been missed: all that is cached is to be renewed.
    Any,
}
