//! Exceptions to a limit: keys that get other rates, pass uncounted, or are blocked.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use crate::limit::Rate;

/// What a key gets instead of a limit's own rates.
#[derive(Clone, Debug, PartialEq)]
pub enum Allowance {
    /// These rates, of which there is at least one.
    Rates(Arc<[Rate]>),
    /// Everything, uncounted.
    Exempt,
    /// Nothing: its requests are answered 403.
    Block,
}

/// Which keys an override is for.
#[derive(Clone, Debug, PartialEq)]
pub enum Pattern {
    /// This key.
    Exact(String),
    /// Keys like this, where `*` is any text.
    Wildcard(String),
    /// Client addresses in this network.
    Network(IpNet),
}

/// The overrides of one limit, ready to be searched.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overrides {
    entries: Vec<(Pattern, usize)>,
    allowances: Vec<Allowance>,
}

impl Overrides {
    /// The index of the allowance for a key with this text or this client address: the first that was added.
    pub fn find(&self, _text: Option<&[u8]>, _address: Option<IpAddr>) -> Option<usize> {
        None
    }

    /// All allowances.
    pub fn allowances(&self) -> &[Allowance] {
        &self.allowances
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}
