//! Exceptions to a limit's own rates: `overrides`, and `tier` with `tiers`.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use ipnet::IpNet;

use super::keys as limit;
use super::rates::{RATES, Terms};
use crate::config::key::{Names, Source, source};
use crate::config::kinds::{number, shaped};
use crate::config::overrides::{Allowance, Builder, Overrides, Pattern};
use crate::config::read::{Name, Section, Shape, Wrong, tables};
use crate::config::report::quoted;
use crate::config::written_key::WrittenPart;
use crate::config::{HIGHEST_PRIORITY, values};
use crate::limit::Rate;

const ENTRY: &str = "an override is keys = [\"partner-7\"] with rates = [\"100/s\"], exempt = true or block = true";
pub(super) const TWICE: &str = "a key can have only one override: remove one of them";
/// In the configuration and its file of overrides together.
const MOST_WILDCARDS: usize = 1_000;

/// `true` is the only value.
pub(super) const TRUE: Shape = Shape::Values("[true]");

#[derive(Clone, Debug, PartialEq)]
pub struct Tiers {
    /// Where a request has the name of its tier.
    pub source: Source,
    /// At least one tier, each with at least one rate. Requests without a known tier get the rates of the limit.
    pub rates: Vec<(String, Vec<Rate>)>,
    pub priorities: Vec<(String, u8)>,
}

tables! {
    /// Keys with rates of their own. A key can have only one override.
    exception {
        /// Whole keys, keys with `*` for any text, and networks. An IPv6 address stands for the network by which it is counted.
        keys: () = shaped(Shape::List(&Shape::Secret, 1, 10_000)).required() => ["partner-7", "gold-*"];
        /// The keys' rates.
        rates: () = shaped(RATES) => ["10/s", "3000/10m"];
        /// These keys have no limit.
        exempt: () = shaped(TRUE) => true;
        /// Requests of these keys get 403.
        block: () = shaped(TRUE) => true;
    }

    /// The rates and the priority of a tier.
    tier {
        /// The rates of each key in the tier.
        rates: () = shaped(RATES).required() => ["10/s", "3000/10m"];
        /// The priority of its requests, instead of the route's.
        priority: u8 = number(0, HIGHEST_PRIORITY as u64) => 7;
    }
}

/// Which kinds of keys overrides can have, according to the first part of the limit's key.
#[derive(Clone, Copy)]
pub(super) struct Kinds<'k> {
    addresses: bool,
    texts: bool,
    part: WrittenPart<'k>,
}

impl<'k> Kinds<'k> {
    pub(super) fn of(part: WrittenPart<'k>) -> Self {
        let is_address = |source: &&Source| matches!(source, Source::ClientIp { .. });
        let addresses = part.sources.iter().filter(is_address).count();
        Self { addresses: addresses > 0, texts: addresses < part.sources.len() || part.sources.is_empty(), part }
    }

    /// More than one if the sources count the text differently.
    pub(super) fn patterns(self, text: &str) -> Result<Vec<Pattern>, Wrong> {
        if text.is_empty() {
            return Err(Wrong::new("a key is empty", "an empty value counts as a missing key"));
        }
        if self.addresses {
            match values::network(text) {
                Ok(network) => return Ok(vec![Pattern::Network(self.part.counted_network(network)?)]),
                Err(wrong) if !self.texts || text.parse::<IpNet>().is_ok() => return Err(wrong),
                Err(_) => {}
            }
            if text == "*" {
                let all = [IpAddr::from(Ipv4Addr::UNSPECIFIED), IpAddr::from(Ipv6Addr::UNSPECIFIED)];
                let all = all.into_iter().filter_map(|from| IpNet::new(from, 0).ok()).map(Pattern::Network);
                return Ok(all.chain([Pattern::Wildcard(text.to_owned())]).collect());
            }
        }
        let is_pattern = text.contains('*');
        let pattern = |value: Cow<'_, str>| match is_pattern {
            true => Pattern::Wildcard(value.into_owned()),
            false => Pattern::Exact(value.into_owned()),
        };
        Ok(self.part.values(text, is_pattern)?.into_iter().map(pattern).collect())
    }
}

pub(super) fn overrides(section: &Section<'_>, name: &str, terms: &Terms, kinds: Kinds<'_>) -> Builder {
    let mut overrides = Builder::default();
    let Some(field) = section.field(&limit::overrides) else { return overrides };
    if !field.value.is_array() {
        field.mistyped("a list of tables", format!("write [[limits.{name}.overrides]] for each"));
        return overrides;
    }
    for section in section.tables(&limit::overrides) {
        entry(&section, terms, kinds, &mut overrides);
    }
    overrides
}

pub(super) fn entry(section: &Section<'_>, terms: &Terms, kinds: Kinds<'_>, overrides: &mut Builder) {
    let keys = section.needed(&exception::keys).and_then(|field| field.list(&exception::keys));
    let Some(allowance) = allowance(section, terms, ENTRY) else { return };
    for field in keys.unwrap_or_default() {
        let Some(patterns) = field.parse(|text| kinds.patterns(text)) else { continue };
        if matches!(&patterns[..], [Pattern::Exact(text)] if !kinds.addresses && text.parse::<IpNet>().is_ok()) {
            let message =
                "this is a network, but the keys of the limit are not addresses: only a key with this text matches";
            field.warn(message, "networks are for limits whose key has `client-ip`");
        }
        if overrides.add(patterns, allowance.clone()).is_some() {
            field.report("this key has an override already", TWICE);
        }
    }
}

/// `None`, after a report, if there are too many patterns.
pub(super) fn finish(overrides: Builder, limit: &Name<'_>, section: &Section<'_>) -> Option<Arc<Overrides>> {
    let count = overrides.wildcards();
    let (message, help) = if count > MOST_WILDCARDS {
        let message = format!("the overrides of `{}` have {count} keys with *", limit.text);
        (message, format!("allowed: at most {MOST_WILDCARDS}, because every request is compared with all of them"))
    } else {
        match overrides.finish() {
            Ok(overrides) => return Some(Arc::new(overrides)),
            Err(error) => {
                let message = format!("the overrides of `{}` with * are too long together: {error}", limit.text);
                (message, "write full keys instead".to_owned())
            }
        }
    };
    section.source.report(limit.span.clone(), message, help);
    None
}

/// What an override grants, which has keys like those of [`exception`]. `example` is a whole override.
pub(super) fn allowance(section: &Section<'_>, terms: &Terms, example: &str) -> Option<Allowance> {
    let (key, field) = section.one_of(&[&exception::rates, &exception::exempt, &exception::block], example)?;
    if key.name == exception::rates.name {
        if !terms.has_rates {
            field.report("the limit has no rates to override", "add rates to it, or use `exempt` or `block`");
        }
        return terms.rates(&field, key).map(|rates| Allowance::Rates(Arc::from(rates)));
    }
    if !field.boolean()? {
        field.report(format!("`{} = false` has no effect", key.name), "remove it");
    }
    Some(if key.name == exception::exempt.name { Allowance::Exempt } else { Allowance::Block })
}

/// The one source of a tier's name.
fn tier(text: &str, jwts: &Names<'_>) -> Result<Source, Wrong> {
    let help = "use one source whose value is a word, like \"header:x-plan\"";
    match source(text.trim(), jwts) {
        _ if text.contains('|') => Err(Wrong::not(text, "one source", help)),
        Ok(Source::ClientIp { .. } | Source::Global) => {
            Err(Wrong::new(format!("{} does not name a tier", quoted(text)), help))
        }
        read => read,
    }
}

pub(super) fn tiers(section: &Section<'_>, name: &str, terms: &Terms, jwts: &Names<'_>) -> Option<Tiers> {
    let [attribute, table] = section.both(&limit::tier, &limit::tiers)?;
    let example = format!("[limits.{name}.tiers.gold] with rates = [\"100/s\"]");
    let source = attribute.parse(|text| tier(text, jwts));
    let (mut rates, mut priorities) = (Vec::new(), Vec::new());
    for (tier, field) in table.entries(&format!("[limits.{name}.tiers]"))? {
        if !field.value.is_table() {
            field.source.report(tier.span, format!("`{}` is not the table of a tier", tier.text), &example);
            continue;
        }
        let title = format!("[limits.{name}.tiers.{}]", tier.text);
        let Some(section) = field.section(title, &tier::TABLE) else { continue };
        let list = section.needed(&tier::rates);
        let list = list.and_then(|field| terms.rates(&field, &tier::rates));
        priorities.extend(section.given(&tier::priority).map(|priority| (tier.text.to_owned(), priority)));
        rates.extend(list.map(|list| (tier.text.to_owned(), list)));
    }
    if rates.is_empty() {
        // Either the table is empty, or all its errors are already reported.
        if section.source.is_clean() {
            table.report("there are no tiers to choose from", format!("add {example}"));
        }
        return None;
    }
    Some(Tiers { source: source?, rates, priorities })
}
