//! Counts the changed overrides of a limit. The keys themselves are not stored, so they cannot be named.

use std::cmp::Ordering;

use ipnet::IpNet;

use super::wildcard::Wildcards;
use super::{Allowance, Grant, Overrides};
use crate::base::fingerprint::Fingerprint;

/// Numbers of keys, patterns and networks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    pub added: usize,
    pub removed: usize,
    /// With another allowance.
    pub changed: usize,
}

impl Overrides {
    pub fn changes(&self, old: &Self) -> Changes {
        let mut changes = Changes::default();
        changes.count(old.exact_keys(), self.exact_keys());
        changes.count(old.patterns(), self.patterns());
        changes.count(old.sorted_networks(), self.sorted_networks());
        changes
    }

    fn exact_keys(&self) -> impl Iterator<Item = (&Fingerprint, &Allowance)> {
        self.exact.iter().zip(&self.grants).filter_map(|(key, grant)| Some((key, self.granted_by(*grant)?)))
    }

    fn patterns(&self) -> impl Iterator<Item = (&str, &Allowance)> {
        let patterns = self.wildcards.iter().flat_map(Wildcards::iter);
        sorted(patterns.filter_map(|(text, grant)| Some((text, self.granted_by(grant)?))))
    }

    fn sorted_networks(&self) -> impl Iterator<Item = (IpNet, &Allowance)> {
        sorted(self.networks.iter().filter_map(|(network, grant)| Some((network, self.granted_by(grant)?))))
    }

    fn granted_by(&self, grant: Grant) -> Option<&Allowance> {
        self.allowances.get(usize::try_from(grant.allowance).ok()?)
    }
}

fn sorted<'a, K: Ord>(granted: impl Iterator<Item = (K, &'a Allowance)>) -> impl Iterator<Item = (K, &'a Allowance)> {
    let mut granted: Vec<_> = granted.collect();
    granted.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
    granted.into_iter()
}

impl Changes {
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }

    /// Counts the differences of two lists. Each list is sorted by key, without duplicates.
    fn count<'a, K: Ord>(
        &mut self,
        old: impl Iterator<Item = (K, &'a Allowance)>,
        new: impl Iterator<Item = (K, &'a Allowance)>,
    ) {
        let (mut old, mut new) = (old.peekable(), new.peekable());
        loop {
            let order = match (old.peek(), new.peek()) {
                (None, None) => return,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some((before, _)), Some((after, _))) => before.cmp(after),
            };
            let before = if order.is_le() { old.next() } else { None };
            let after = if order.is_ge() { new.next() } else { None };
            match (before, after) {
                (Some((_, before)), Some((_, after))) => self.changed += usize::from(before != after),
                (before, after) => {
                    self.removed += usize::from(before.is_some());
                    self.added += usize::from(after.is_some());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Builder, Pattern};
    use super::*;

    fn overrides(of: &[(&str, &str)]) -> Overrides {
        let mut builder = Builder::default();
        for (key, allowance) in of {
            let pattern = match key.parse() {
                Ok(network) => Pattern::Network(network),
                Err(_) if key.contains('*') => Pattern::Wildcard((*key).to_owned()),
                Err(_) => Pattern::Exact((*key).to_owned()),
            };
            let allowance = match *allowance {
                "exempt" => Allowance::Exempt,
                "block" => Allowance::Block,
                rate => Allowance::Rates(vec![rate.parse().unwrap()].into()),
            };
            builder.add(pattern, allowance);
        }
        builder.finish().unwrap()
    }

    #[test]
    fn counts_what_differs_by_kind_of_key() {
        let old = overrides(&[
            ("stays", "1/s"),
            ("goes", "1/s"),
            ("other rate", "1/s"),
            ("stays*", "exempt"),
            ("goes*", "exempt"),
            ("blocked*", "exempt"),
            ("10.0.0.0/8", "1/s"),
            ("192.0.2.0/24", "2/s"),
        ]);
        let new = overrides(&[
            ("new*", "1/s"),
            ("blocked*", "block"),
            ("stays*", "exempt"),
            ("other rate", "2/s"),
            ("stays", "1/s"),
            ("new", "1/s"),
            ("new too", "1/s"),
            ("10.0.0.0/8", "2/s"),
            ("2001:db8::/32", "2/s"),
        ]);
        assert_eq!(new.changes(&old), Changes { added: 4, removed: 3, changed: 3 });
        assert_eq!(old.changes(&new), Changes { added: 3, removed: 4, changed: 3 });
        assert!(new.changes(&new).is_empty() && !new.changes(&old).is_empty());
        assert_eq!(new.changes(&Overrides::default()), Changes { added: 9, ..Changes::default() });
    }
}
