//! The descriptors about which Envoy asks instead of a request: lists of entries, each a key and a value.

pub mod messages;

use crate::base::wildcard::Wildcard;
use crate::config::DescriptorRule;
use messages::{Entry, RateLimitDescriptor, RateLimitRequest};

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Descriptor<'a> {
    pub entries: &'a [Entry],
    /// The cost. With 0, the limit is only asked whether it has room for 1.
    pub hits: u64,
    /// Whether `hits` have been used already, so they are charged in any case. Then the limit is asked about room for 1, too.
    pub is_report: bool,
    /// Whether `hits` are given back, as far as they are counted. Such a descriptor never refuses.
    pub gives_back: bool,
    /// Whether its status says that it is over the limit, and the call passes all the same.
    pub is_quota: bool,
}

impl<'a> Descriptor<'a> {
    pub fn value(&self, key: &str) -> Option<&'a [u8]> {
        self.entries.iter().find(|entry| entry.key == key).map(|entry| &*entry.value)
    }

    /// Whether its limits only tell, and refuse nothing.
    pub fn only_tells(&self) -> bool {
        self.gives_back || self.is_quota
    }
}

pub struct DescriptorRules(pub Vec<DescriptorRule>);

impl DescriptorRules {
    /// The index of the first rule that fits a descriptor of this domain; `None` if no rule limits it.
    pub fn find(&self, domain: &[u8], descriptor: &RateLimitDescriptor) -> Option<usize> {
        let has = |(key, pattern): &(String, Wildcard)| {
            descriptor.entries.iter().any(|entry| entry.key == *key && pattern.matches(&entry.value))
        };
        self.0.iter().position(|rule| rule.domain.as_bytes() == domain && rule.entries.iter().all(has))
    }

    /// What a descriptor asks for by this rule, or by none.
    pub fn read<'a>(
        &self,
        rule: Option<usize>,
        call: &RateLimitRequest,
        descriptor: &'a RateLimitDescriptor,
    ) -> Descriptor<'a> {
        let rule = rule.and_then(|rule| self.0.get(rule));
        let gives_back = descriptor.is_negative_hits;
        Descriptor {
            entries: &descriptor.entries,
            hits: call.hits(descriptor),
            is_report: !gives_back && rule.is_some_and(|rule| rule.reports),
            gives_back,
            is_quota: rule.is_some_and(|rule| rule.quota_mode),
        }
    }

    pub fn of_domain(&self, domain: &[u8]) -> Option<usize> {
        self.0.iter().position(|rule| rule.domain.as_bytes() == domain)
    }
}

impl RateLimitRequest {
    /// The cost of a descriptor: its own, otherwise that of the call for all descriptors, in which 0 means 1.
    pub fn hits(&self, descriptor: &RateLimitDescriptor) -> u64 {
        descriptor.hits_addend.unwrap_or_else(|| u64::from(self.hits_addend.max(1)))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config;

    fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
        let entry =
            |(key, value): &(&str, &str)| Entry { key: (*key).to_owned().into(), value: (*value).to_owned().into() };
        RateLimitDescriptor { entries: entries.iter().map(entry).collect(), ..RateLimitDescriptor::default() }
    }

    /// Domains, and entries as in the file.
    fn rules(rules: &[(&str, &str)]) -> DescriptorRules {
        let rule = |(domain, entries): &(&str, &str)| {
            format!("[[decisions.descriptors]]\ndomain = \"{domain}\"\nentries = {{ {entries} }}\nlimits = []\n")
        };
        let rules: String = rules.iter().map(rule).collect();
        let text = format!("[server]\nlisten = []\n[decisions]\nlisten = \"127.0.0.1:0\"\n{rules}");
        DescriptorRules(config::parse(text.as_bytes(), "test", Path::new("")).unwrap().descriptors().to_vec())
    }

    #[test]
    fn the_first_rule_that_fits_counts() {
        let rules = rules(&[
            ("edge", r#"path = "/v1/*", ip = "*""#),
            ("edge", r#"ip = "192.0.2.1""#),
            ("mesh", r#"ip = "*""#),
            ("edge", r#"ip = "*""#),
        ]);
        let find = |domain: &str, entries: &[_]| rules.find(domain.as_bytes(), &descriptor(entries));
        assert_eq!(find("edge", &[("ip", "192.0.2.1"), ("path", "/v1/a")]), Some(0), "in any order");
        assert_eq!(find("edge", &[("ip", "192.0.2.1"), ("path", "/v2")]), Some(1), "others do not matter");
        assert_eq!(find("edge", &[("ip", "192.0.2.2")]), Some(3));
        assert_eq!(find("mesh", &[("ip", "")]), Some(2), "a value may be empty");
        assert_eq!(find("mesh", &[("path", "/v1/a")]), None);
        assert_eq!(find("other", &[("ip", "192.0.2.1")]), None);
        assert_eq!(find("edge", &[]), None);
        assert_eq!(find("edge", &[("ip", "192.0.2.2"), ("ip", "192.0.2.1")]), Some(1), "an entry may be there twice");
    }

    #[test]
    fn a_descriptor_may_say_what_it_costs() {
        let with = |of_call, own| {
            let descriptor = RateLimitDescriptor { hits_addend: own, ..descriptor(&[]) };
            RateLimitRequest { hits_addend: of_call, ..RateLimitRequest::default() }.hits(&descriptor)
        };
        assert_eq!([with(0, None), with(3, None), with(3, Some(5)), with(3, Some(0))], [1, 3, 5, 0]);
    }
}
