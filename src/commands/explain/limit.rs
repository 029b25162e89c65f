//! What one limit says about a request: its key, its rates, and what happens over them.

use std::sync::Arc;

use super::line;
use crate::base::units::spelled_size;
use crate::config::{self, ByteCost, Cost, Missing, Share, Source, TokenCost};
use crate::request::decide::{self, RateSet, ResolvedQuota, RouteLimit, SelectedRates};
use crate::request::identify::body::InspectedBody;
use crate::request::identify::key_text::value_text;
use crate::request::identify::{KeyCache, RequestAttributes};
use crate::sources::quotas::{GrantedQuota, Quota};
use crate::tokens::{Usage, Weights};

const MASK: &str = "***";

pub(super) struct DescribedLimit<'a> {
    pub(super) route_limit: &'a RouteLimit,
    pub(super) limit: &'a config::Limit,
    pub(super) share: Option<&'a Share>,
    pub(super) attributes: &'a RequestAttributes<'a>,
    pub(super) asked: &'a AskedQuota,
    pub(super) show_keys: bool,
}

impl DescribedLimit<'_> {
    pub(super) fn write(&self, text: &mut String) {
        let key_cache = &mut KeyCache::default();
        let key = self.route_limit.key.extract(self.attributes, 0, key_cache);
        line(text, &format!("    key      {}", self.key()));
        for source in self.route_limit.key.unknown(self.attributes) {
            line(text, &format!("    unknown  the value of {source} is not in known_keys, so it counts as missing"));
        }
        let counted = match (key, self.route_limit.missing) {
            (Some(key), _) => Some(key),
            (None, Missing::Shared) => Some(self.route_limit.key.shared),
            (None, Missing::Skip | Missing::Reject) => None,
        };
        let Some(counted) = counted else { return };
        line(text, &format!("    counted  {}:{counted}", self.limit.name));
        let quota = self.asked.as_ref().and_then(|asked| asked.as_ref().ok()?.as_deref());
        let RouteLimit { rates, key: extractor, .. } = self.route_limit;
        let selected = match self.route_limit.blocks_either(self.attributes, key_cache) {
            true => SelectedRates::Block,
            false => rates.select(extractor, counted, key.is_some(), self.attributes, key_cache, quota),
        };
        line(text, &format!("    rates    {}", self.rates(selected)));
        match (self.limit.gateways, self.share) {
            (Some(1), Some(Share::Name(name))) => {
                line(
                    text,
                    &format!("    share    {name} is not looked up: each gateway enforces its part of these rates"),
                );
            }
            (Some(gateways), Some(_)) if gateways > 1 => {
                line(text, &format!("    share    {gateways} gateways: these rates are the part of each"));
            }
            _ => {}
        }
        if let Some(section) = &self.limit.quotas {
            line(text, &format!("    quotas   {}: {}", section.server, answer(self.asked)));
        }
        if let (SelectedRates::Rates(RateSet::Listed(0), _), Some(tiers)) = (selected, &self.limit.tiers) {
            line(text, &format!("    tier     none: {} names no tier of the limit", tiers.source));
        }
        if let Some(most) = self.route_limit.max_in_flight.filter(|_| self.route_limit.is_of_route) {
            line(text, &format!("    at once  {most} in flight"));
        }
        let cost = match &self.route_limit.cost {
            Cost::Fixed(cost) => cost.to_string(),
            Cost::RequestHeader(name) => format!("the number in the request header {name}, otherwise 1"),
            Cost::ResponseHeader { name, reserve } => {
                format!("{reserve} until the response arrives, then the number in its header {name}")
            }
            Cost::Tokens(cost) => self.reserved(cost, selected),
            Cost::Bytes(cost) => self.bytes(cost, selected),
            Cost::Elements => "1 for each item if the body is a JSON array, otherwise 1".to_owned(),
            Cost::OnStatus(cost, _) => format!("{cost}, given back unless the response has a status in `count`"),
        };
        if !self.route_limit.is_of_route {
            return;
        }
        line(text, &format!("    cost     {cost}"));
        if let Some(pool) = self.limit.pool() {
            let instead = match extractor.is_of_strangers(counted, self.attributes) {
                true => format!("{pool} is not charged for requests that share a counter"),
                false => format!("{pool} is charged instead, if that has room"),
            };
            line(text, &format!("    no room  {instead}"));
        }
        if let Some(slow) = self.limit.slows() {
            line(text, &format!("    slows    {}", slow.in_words()));
        }
        line(text, &format!("    over it  {}", self.limit.on_limit.in_words(self.limit.status)));
        self.limit.jitter_in_words().iter().for_each(|words| line(text, &format!("    jitter   {words}")));
        self.limit.ban.iter().for_each(|ban| line(text, &format!("    bans     {ban}")));
    }

    /// What a request that costs tokens reserves.
    fn reserved(&self, cost: &TokenCost, selected: SelectedRates<'_>) -> String {
        let SelectedRates::Rates(_, limit) = selected else { return "none".to_owned() };
        let Usage { input, output, .. } = decide::reserved_tokens(cost, self.attributes.body);
        let most = limit.capacity();
        let reserved = decide::initial_cost_within(&self.route_limit.cost, most, self.attributes);
        let name = self.attributes.body.and_then(InspectedBody::model);
        let of = cost.model(name).map_or_else(String::new, |model| format!(" of {}", model.pattern.0));
        let Weights { input: per_input, output: per_output, .. } = cost.weights(name);
        let whole = if reserved == most { ", the most that the limit allows" } else { "" };
        format!(
            "{reserved} reserved{whole}: {input} tokens of input by its size, {output} of output; weights{of}: input \
             {per_input}, output {per_output}"
        )
    }

    /// What a request that costs bytes reserves, and what its response will.
    fn bytes(&self, cost: &ByteCost, selected: SelectedRates<'_>) -> String {
        let SelectedRates::Rates(_, limit) = selected else { return "none".to_owned() };
        let reserved = decide::initial_cost_within(&self.route_limit.cost, limit.capacity(), self.attributes);
        let step = spelled_size(cost.reserve.min(limit.capacity()));
        let response = match cost.counted.has_responses() {
            true => ", and before the head of the response its length",
            false => "",
        };
        let (first, stepwise) = match self.limit.charges_in_steps() {
            true => ("must have room", "of each body, reserved"),
            false => ("reserved", "of a body without a length"),
        };
        let (counted, reserved) = (cost.counted.in_words(), spelled_size(reserved));
        format!("the bytes of {counted}: {reserved} {first} at first{response}; {stepwise} {step} at a time")
    }

    fn key(&self) -> String {
        let parts = self.route_limit.key.parts(self.attributes);
        if parts.iter().all(Option::is_none) {
            return match self.route_limit.missing {
                Missing::Shared => "none: all requests without a key share one counter".to_owned(),
                Missing::Skip | Missing::Reject if !self.route_limit.is_of_route => {
                    "none: the pool has no room".to_owned()
                }
                Missing::Skip => "none: the limit does not apply".to_owned(),
                Missing::Reject => "none: answered 400".to_owned(),
            };
        }
        let shown = |(source, value): (&Source, Vec<u8>)| match source {
            Source::Global => source.to_string(),
            Source::ClientIp { .. } if self.show_keys => format!("{} from {source}", value_text(source, &value)),
            // The request line has these, so they are not secret.
            _ if self.show_keys || matches!(source, Source::Method | Source::Host | Source::Route | Source::Path) => {
                format!("{:?} from {source}", String::from_utf8_lossy(&value))
            }
            _ => format!("{MASK} from {source}"),
        };
        let absent = |sources: &[Source]| {
            let names: Vec<_> = sources.iter().map(ToString::to_string).collect();
            format!("no {}", names.join(" or "))
        };
        let parts = parts.into_iter().zip(&self.limit.key.parts);
        let parts = parts.map(|(part, sources)| part.map_or_else(|| absent(sources), shown));
        parts.collect::<Vec<_>>().join(", ")
    }

    fn rates(&self, selected: SelectedRates<'_>) -> String {
        let is_of_source = matches!(self.asked, Some(Ok(Some(_))));
        let (profile, limit) = match selected {
            SelectedRates::Exempt if is_of_source => return "none: the source of quotas exempts the key".to_owned(),
            SelectedRates::Exempt => return "none: an override exempts the key".to_owned(),
            SelectedRates::Block if !self.route_limit.is_of_route => {
                return "none: the key is blocked, so the pool has no room".to_owned();
            }
            SelectedRates::Block => {
                let by = if is_of_source { "the source of quotas" } else { "an override" };
                return format!("none: {by} blocks the key, {}", self.limit.on_limit.blocked_in_words());
            }
            SelectedRates::Rates(profile, limit) => (profile, limit),
        };
        let rates = limit.rates().iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ");
        let tiers = self.limit.tiers.as_ref().map_or(&[][..], |tiers| &tiers.rates);
        let RateSet::Listed(number) = profile else { return format!("{rates} (from the source of quotas)") };
        match number.checked_sub(1).map(|tier| tiers.get(tier)) {
            _ if rates.is_empty() => "none".to_owned(),
            None => rates,
            Some(Some((tier, _))) => format!("{rates} (tier {tier})"),
            Some(None) => format!("{rates} (an override for the key)"),
        }
    }
}

/// `None` if the source was not asked.
type AskedQuota = Option<Result<Option<Arc<Quota>>, String>>;

/// Asks the sources of all limits, except about keys with an override.
pub(super) fn ask_sources(limits: &[RouteLimit], attributes: &RequestAttributes<'_>) -> Vec<AskedQuota> {
    let ask = |limit: &RouteLimit| {
        let (source, key_cache) = (limit.quotas.as_ref()?, &mut KeyCache::default());
        let counted = limit.key.extract(attributes, 0, key_cache)?;
        if limit.rates.overridden(&limit.key, counted, true, attributes, key_cache).is_some() {
            return None;
        }
        let key = limit.key.quota_key(attributes, key_cache)?;
        Some(source.ask(&key).map(|quota| quota.map(Arc::new)))
    };
    limits.iter().map(ask).collect()
}

/// In the form that a decision needs.
pub(super) fn resolved(
    limits: &[RouteLimit],
    attributes: &RequestAttributes<'_>,
    asked: Vec<AskedQuota>,
) -> Vec<Option<ResolvedQuota>> {
    let resolve = |(limit, asked): (&RouteLimit, AskedQuota)| {
        let key = limit.key.extract(attributes, 0, &mut KeyCache::default())?;
        Some(ResolvedQuota { key, quota: asked?.ok().flatten() })
    };
    limits.iter().zip(asked).map(resolve).collect()
}

/// For people.
fn answer(asked: &AskedQuota) -> String {
    match asked {
        None => "not asked about this key".to_owned(),
        Some(Ok(None)) => "asked just now, and does not know the key".to_owned(),
        Some(Err(why)) => format!("asked just now, without a usable answer: {why}"),
        Some(Ok(Some(quota))) => {
            let granted = match &quota.granted {
                GrantedQuota::Rates(_) => "names these rates".to_owned(),
                GrantedQuota::Tier(name) => format!("names the tier {name}"),
                GrantedQuota::Exempt => "exempts the key".to_owned(),
                GrantedQuota::Block => "blocks the key".to_owned(),
            };
            format!("asked just now, and {granted}")
        }
    }
}
