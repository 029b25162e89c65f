//! Exceptions to a limit: keys that get other rates, pass uncounted, or are blocked.
//!
//! There may be a million keys. They are secrets, so only their fingerprints are stored, sorted, each with its place in the list
//! and its allowance. Equal allowances are stored once. So the changed overrides of a limit are counted, and cannot be named.

mod wildcard;

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use aho_corasick::BuildError;
use ipnet::IpNet;

use crate::base::fingerprint::Fingerprint;
use crate::limit::Rate;

use wildcard::Wildcards;

/// What a key gets instead of the limit's own rates.
#[derive(Clone, Debug, PartialEq)]
pub enum Allowance {
    /// At least one.
    Rates(Arc<[Rate]>),
    /// Requests pass and are not counted.
    Exempt,
    /// All requests are over the limit. They are answered 403 unless the limit only reports.
    Block,
}

/// Rates separated by spaces, `exempt` or `block`. Within one limit, equal texts mean equal allowances.
impl fmt::Display for Allowance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rates(rates) => f.write_str(&rates.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")),
            Self::Exempt => f.write_str("exempt"),
            Self::Block => f.write_str("block"),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Pattern {
    Exact(String),
    /// `*` is any text.
    Wildcard(String),
    /// Client addresses in this network.
    Network(IpNet),
}

/// `place` is the position of the override in the list; `allowance` is an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Grant {
    place: u32,
    allowance: u32,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overrides {
    /// Sorted.
    exact: Box<[Fingerprint]>,
    /// One for each key in `exact`, in the same order.
    grants: Box<[Grant]>,
    wildcards: Option<Wildcards>,
    networks: Networks,
    allowances: Vec<Allowance>,
}

impl Overrides {
    /// The index of the allowance for a key with this text or client address: that of the first override in the list that
    /// matches, of whatever kind.
    pub fn find(&self, text: Option<&[u8]>, address: Option<IpAddr>) -> Option<usize> {
        let by_text = text.and_then(|text| {
            let exact = self.exact(text);
            self.wildcards.as_ref().and_then(|wildcards| wildcards.find(text, exact, || {})).or(exact)
        });
        let by_address = address.and_then(|address| self.networks.find(address));
        let first = by_text.into_iter().chain(by_address).min()?;
        usize::try_from(first.allowance).ok()
    }

    fn exact(&self, text: &[u8]) -> Option<Grant> {
        if self.exact.is_empty() { None } else { self.grant(&Fingerprint::of(text)) }
    }

    fn grant(&self, key: &Fingerprint) -> Option<Grant> {
        self.grants.get(self.exact.binary_search(key).ok()?).copied()
    }

    fn wildcards(&self) -> impl Iterator<Item = (&str, Grant)> {
        self.wildcards.iter().flat_map(Wildcards::iter)
    }

    /// Each once.
    pub fn allowances(&self) -> &[Allowance] {
        &self.allowances
    }

    /// For each allowance, in order: the number of exact keys, which are stored as fingerprints, and the texts of all
    /// patterns and networks.
    pub fn granted(&self) -> Vec<(&Allowance, usize, Vec<String>)> {
        let mut granted: Vec<_> = self.allowances.iter().map(|allowance| (allowance, 0, Vec::new())).collect();
        let at = |grant: &Grant| usize::try_from(grant.allowance).unwrap_or(usize::MAX);
        for grant in &self.grants {
            granted[at(grant)].1 += 1;
        }
        let wildcards = self.wildcards().map(|(text, grant)| (grant, text.to_owned()));
        let networks = self.networks.grants.iter().map(|(network, grant)| (*grant, network.to_string()));
        let mut texts: Vec<_> = wildcards.chain(networks).collect();
        texts.sort_unstable();
        for (grant, text) in texts {
            granted[at(&grant)].2.push(text);
        }
        granted
    }

    pub fn len(&self) -> usize {
        self.exact.len() + self.wildcards().count() + self.networks.grants.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Builds overrides from a list, in its order.
#[derive(Debug, Default)]
pub struct Builder {
    exact: HashMap<Fingerprint, Grant, foldhash::fast::RandomState>,
    wildcards: HashMap<String, Grant>,
    networks: HashMap<IpNet, Grant, foldhash::fast::RandomState>,
    allowances: Vec<Allowance>,
    /// The index of each allowance by its text.
    known: HashMap<String, u32>,
    next: u32,
}

impl Builder {
    /// Adds an override for what these patterns match. Those that already have one keep it, and the place of the first of
    /// these is returned, from 0.
    pub fn add(&mut self, patterns: Vec<Pattern>, allowance: Allowance) -> Option<usize> {
        let grant = Grant { place: self.next, allowance: self.allowance(allowance) };
        self.next = self.next.saturating_add(1);
        let grants = patterns.into_iter().map(|pattern| match pattern {
            Pattern::Exact(text) => *self.exact.entry(Fingerprint::of(text.as_bytes())).or_insert(grant),
            Pattern::Network(network) => *self.networks.entry(network.trunc()).or_insert(grant),
            Pattern::Wildcard(text) => *self.wildcards.entry(text).or_insert(grant),
        });
        let earlier = grants.filter(|earlier| *earlier != grant).min()?;
        Some(usize::try_from(earlier.place).unwrap_or(usize::MAX))
    }

    /// The number of overrides added so far, which is the place of the next one.
    pub fn added(&self) -> usize {
        usize::try_from(self.next).unwrap_or(usize::MAX)
    }

    /// How many patterns have a `*`: every request is compared with all of them.
    pub fn wildcards(&self) -> usize {
        self.wildcards.len()
    }

    fn allowance(&mut self, allowance: Allowance) -> u32 {
        let text = allowance.to_string();
        let Self { known, allowances, .. } = self;
        *known.entry(text).or_insert_with(|| {
            allowances.push(allowance);
            u32::try_from(allowances.len() - 1).unwrap_or(u32::MAX)
        })
    }

    /// Fails when the patterns with `*` are too large together.
    pub fn finish(self) -> Result<Overrides, BuildError> {
        let mut sorted: Vec<_> = self.exact.into_iter().collect();
        sorted.sort_unstable_by_key(|(key, _)| *key);
        let (exact, grants): (Vec<_>, Vec<_>) = sorted.into_iter().unzip();
        let mut wildcards: Vec<_> = self.wildcards.into_iter().collect();
        wildcards.sort_unstable_by_key(|(_, grant)| *grant);
        Ok(Overrides {
            exact: exact.into(),
            grants: grants.into(),
            wildcards: if wildcards.is_empty() { None } else { Some(Wildcards::new(wildcards)?) },
            networks: Networks::new(self.networks),
            allowances: self.allowances,
        })
    }
}

/// Numbers of keys, patterns and networks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    pub added: usize,
    pub removed: usize,
    /// With another allowance.
    pub changed: usize,
}

impl Overrides {
    /// Whether every key gets the allowance with the same index as before, whatever that grants.
    pub fn selects_like(&self, old: &Self) -> bool {
        let Self { exact, grants, wildcards, networks, allowances } = self;
        let is_same = *exact == old.exact && *grants == old.grants && *networks == old.networks;
        is_same && *wildcards == old.wildcards && allowances.len() == old.allowances.len()
    }

    pub fn changes(&self, old: &Self) -> Changes {
        let exact = self.exact.iter().zip(&self.grants).map(|(key, grant)| (old.grant(key), *grant));
        let known = &old.networks.grants;
        let networks = self.networks.grants.iter().map(|(network, grant)| (known.get(network).copied(), *grant));
        let wildcards = self.wildcards().map(|(text, grant)| {
            let before = old.wildcards().find(|(before, _)| *before == text);
            (before.map(|(_, grant)| grant), grant)
        });
        let (mut changes, mut kept) = (Changes::default(), 0);
        for (before, grant) in exact.chain(networks).chain(wildcards) {
            match before {
                Some(before) => {
                    kept += 1;
                    changes.changed += usize::from(old.granted_by(before) != self.granted_by(grant));
                }
                None => changes.added += 1,
            }
        }
        changes.removed = old.len().saturating_sub(kept);
        changes
    }

    fn granted_by(&self, grant: Grant) -> Option<&Allowance> {
        self.allowances.get(usize::try_from(grant.allowance).ok()?)
    }
}

impl Changes {
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }
}

/// Finds the networks of an address among many, with one look-up for each prefix length that occurs.
#[derive(Clone, Debug, Default, PartialEq)]
struct Networks {
    grants: HashMap<IpNet, Grant, foldhash::fast::RandomState>,
    /// Sorted, of both families.
    lengths: Vec<u8>,
}

impl Networks {
    /// All networks are truncated.
    fn new(grants: HashMap<IpNet, Grant, foldhash::fast::RandomState>) -> Self {
        let mut lengths: Vec<_> = grants.keys().map(IpNet::prefix_len).collect();
        lengths.sort_unstable();
        lengths.dedup();
        Self { grants, lengths }
    }

    /// The first network in the list that contains the address.
    fn find(&self, address: IpAddr) -> Option<Grant> {
        let address = address.to_canonical();
        let networks = self.lengths.iter().filter_map(|length| IpNet::new(address, *length).ok());
        networks.filter_map(|network| self.grants.get(&network.trunc())).min().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rates(text: &str) -> Allowance {
        Allowance::Rates(vec![text.parse().unwrap()].into())
    }

    fn network(text: &str) -> Pattern {
        Pattern::Network(text.parse().unwrap())
    }

    #[test]
    fn the_first_that_matches_is_used_whatever_its_kind() {
        let mut builder = Builder::default();
        let exact = |text: &str| Pattern::Exact(text.to_owned());
        let wildcard = |text: &str| Pattern::Wildcard(text.to_owned());
        assert_eq!(builder.add(vec![exact("a1")], rates("1/s")), None);
        assert_eq!(builder.add(vec![wildcard("a*")], rates("2/s")), None);
        assert_eq!(builder.add(vec![exact("a2")], rates("3/s")), None);
        assert_eq!(builder.add(vec![network("10.0.0.0/8")], rates("4/s")), None);
        assert_eq!(builder.add(vec![network("10.1.0.0/16")], rates("5/s")), None);
        assert_eq!(builder.add(vec![exact("a1")], Allowance::Block), Some(0));
        assert_eq!(builder.add(vec![wildcard("a*")], Allowance::Block), Some(1));
        assert_eq!(builder.add(vec![network("10.0.0.0/8")], Allowance::Block), Some(3));
        let overrides = builder.finish().unwrap();
        let found = |text: &str| overrides.find(Some(text.as_bytes()), None).map(|at| &overrides.allowances()[at]);
        assert_eq!(found("a1"), Some(&rates("1/s")));
        assert_eq!(found("a2"), Some(&rates("2/s")), "the wildcard is before it in the list");
        assert_eq!(found("b"), None);
        assert_eq!(found("10.0.0.1"), None, "a text is no address");
        let from = |ip: &str| overrides.find(None, Some(ip.parse().unwrap())).map(|at| &overrides.allowances()[at]);
        assert_eq!(from("10.1.2.3"), Some(&rates("4/s")));
        assert_eq!(from("::ffff:10.1.2.3"), Some(&rates("4/s")));
        assert_eq!(from("11.1.2.3"), None);
    }

    #[test]
    fn lists_the_keys_of_each_allowance() {
        let mut builder = Builder::default();
        for (pattern, allowance) in [
            (Pattern::Exact("a".to_owned()), rates("1/s")),
            (network("2001:db8::/32"), Allowance::Exempt),
            (Pattern::Wildcard("a*".to_owned()), rates("1/s")),
            (Pattern::Exact("b".to_owned()), rates("1/s")),
            (network("10.0.0.0/8"), Allowance::Exempt),
            (network("192.0.2.7/32"), Allowance::Block),
            (network("0.0.0.0/0"), Allowance::Block),
            (network("::/0"), Allowance::Block),
            (network("::1/128"), Allowance::Block),
        ] {
            builder.add(vec![pattern], allowance);
        }
        let overrides = builder.finish().unwrap();
        let granted: Vec<_> = overrides.granted().into_iter().map(|(_, keys, texts)| (keys, texts.join(" "))).collect();
        let expected = [(2, "a*"), (0, "2001:db8::/32 10.0.0.0/8"), (0, "192.0.2.7/32 0.0.0.0/0 ::/0 ::1/128")];
        assert_eq!(granted, expected.map(|(keys, texts)| (keys, texts.to_owned())));
    }

    #[test]
    fn a_million_keys_take_little_room() {
        // Without optimization this takes ten times as long, so debug builds use a tenth of the keys.
        let keys = if cfg!(debug_assertions) { 100_000 } else { 1_000_000 };
        let mut builder = Builder::default();
        for key in 0..keys {
            let allowance = rates(if key % 2 == 0 { "10/s" } else { "20/s" });
            assert_eq!(builder.add(vec![Pattern::Exact(format!("client-{key}"))], allowance), None);
        }
        let overrides = builder.finish().unwrap();
        assert_eq!((overrides.len(), overrides.allowances().len()), (keys, 2));
        let bytes = size_of_val(&*overrides.exact) + size_of_val(&*overrides.grants);
        println!("{keys} keys take {bytes} bytes");
        assert_eq!(bytes / keys, 24, "bytes per key");
        for key in [0, 1, 49_999, keys - 1] {
            let found = overrides.find(Some(format!("client-{key}").as_bytes()), None).unwrap();
            assert_eq!(overrides.allowances()[found], rates(if key % 2 == 0 { "10/s" } else { "20/s" }));
        }
        assert_eq!(overrides.find(Some(format!("client-{keys}").as_bytes()), None), None);
    }

    /// Whether the pattern matches the key, by definition.
    fn fits(pattern: &Pattern, text: &str, address: IpAddr) -> bool {
        match pattern {
            Pattern::Exact(exact) => exact == text,
            Pattern::Wildcard(pattern) => {
                let (first, rest) = pattern.split_once('*').unwrap();
                let starts = (0..=text.len()).filter(|at| &text[..*at] == first);
                starts.clone().any(|at| match rest.contains('*') {
                    true => (at..=text.len()).any(|at| fits(&Pattern::Wildcard(rest.to_owned()), &text[at..], address)),
                    false => text[at..].ends_with(rest),
                })
            }
            Pattern::Network(network) => network.contains(&address),
        }
    }

    fn patterns() -> impl Strategy<Value = Pattern> {
        prop_oneof![
            "[ab]{1,3}".prop_map(Pattern::Exact),
            "[ab]{0,2}(\\*[ab]{0,2}){1,4}".prop_map(Pattern::Wildcard),
            (0..4u8, 8..=32u8).prop_map(|(last, length)| {
                Pattern::Network(IpNet::new([10, 0, 0, last].into(), length).unwrap().trunc())
            }),
            (0..4u16, 60..=128u8).prop_map(|(last, length)| {
                Pattern::Network(IpNet::new([0x2001, 0, 0, 0, 0, 0, 0, last].into(), length).unwrap().trunc())
            }),
        ]
    }

    proptest! {
        #[test]
        fn finds_the_same_as_a_linear_search(
            list in prop::collection::vec(patterns(), 0..12),
            text in "[ab]{0,8}",
            last in 0..4u8,
            v6 in any::<bool>(),
        ) {
            let address: IpAddr = if v6 {
                [0x2001, 0, 0, 0, 0, 0, 0, u16::from(last)].into()
            } else {
                [10, 0, 0, last].into()
            };
            let mut builder = Builder::default();
            for (place, pattern) in list.iter().enumerate() {
                let earlier = list[..place].iter().position(|earlier| earlier == pattern);
                prop_assert_eq!(builder.add(vec![pattern.clone()], rates(&format!("{}/s", place + 1))), earlier);
            }
            let overrides = builder.finish().unwrap();
            let granted = |found: Option<usize>| found.map(|at| overrides.allowances()[at].clone());
            for by_text in [true, false] {
                let walked = list.iter().position(|pattern| {
                    matches!(pattern, Pattern::Network(_)) != by_text && fits(pattern, &text, address)
                });
                let walked = walked.map(|place| rates(&format!("{}/s", place + 1)));
                let found = if by_text {
                    overrides.find(Some(text.as_bytes()), None)
                } else {
                    overrides.find(None, Some(address))
                };
                prop_assert_eq!(granted(found), walked);
            }
        }
    }

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
            builder.add(vec![pattern], allowance);
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
