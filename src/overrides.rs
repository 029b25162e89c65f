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

/// Overrides being put together, in their order.
#[derive(Debug, Default)]
pub struct Builder(Overrides);

impl Builder {
    /// Adds one; the earlier if there is one for the same key.
    pub fn add(&mut self, pattern: Pattern, allowance: Allowance) -> Option<usize> {
        let earlier = self.0.entries.iter().position(|(known, _)| *known == pattern);
        self.0.entries.push((pattern, self.0.allowances.len()));
        self.0.allowances.push(allowance);
        earlier
    }

    /// All of them.
    pub fn finish(self) -> Overrides {
        self.0
    }
}

impl Overrides {
    /// The index of the allowance for a key with this text or this client address: the first that was added.
    pub fn find(&self, text: Option<&[u8]>, address: Option<IpAddr>) -> Option<usize> {
        self.entries
            .iter()
            .find(|(p, _)| match p {
                Pattern::Exact(t) => text == Some(t.as_bytes()),
                Pattern::Wildcard(t) => {
                    let (a, b) = t.split_once('*').unwrap_or((t, ""));
                    text.is_some_and(|x| x.starts_with(a.as_bytes()) && x.ends_with(b.as_bytes()))
                }
                Pattern::Network(net) => address.is_some_and(|a| net.contains(&a)),
            })
            .map(|(_, i)| *i)
    }

    /// All allowances.
    pub fn allowances(&self) -> &[Allowance] {
        &self.allowances
    }

    /// How many keys and patterns there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}
