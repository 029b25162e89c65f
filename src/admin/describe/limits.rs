//! Describes the limits of a configuration: what is counted, what a request costs, and which keys have other rates.

use std::fmt;

use super::MOST_TEXTS;
use crate::base::units::spelled_size;
use crate::config::overrides::Allowance;
use crate::config::{ByteCost, Cost, Limit, Missing, OnExhausted, Quotas, SentKey, TokenCost, WithoutUsage};
use crate::limit::{Edge, Rate, Strategy};
use crate::tokens::Weights;
use crate::tokens::response::UsagePointers;

pub(super) fn describe(f: &mut fmt::Formatter<'_>, limit: &Limit) -> fmt::Result {
    let mut allowed: Vec<_> = limit.rates.iter().map(ToString::to_string).collect();
    allowed.extend(limit.max_in_flight.map(|most| format!("{most} in flight")));
    writeln!(f, "  {}", limit.name)?;
    writeln!(f, "    {} per {}", allowed.join(" and "), limit.key)?;
    match limit.gateways {
        Some(1) => {}
        Some(_) => writeln!(f, "    of which this gateway enforces {}", joined(&limit.part(&limit.rates)))?,
        None => writeln!(f, "    on each gateway, whatever `share` says")?,
    }
    match limit.strategy() {
        Some(Strategy::SlidingWindow { precision, edge }) => {
            let edge = match edge {
                Edge::Weighted => "is weighted by its share in the window",
                Edge::Whole => "counts in full",
            };
            let buckets = if *precision == 1 { "bucket" } else { "buckets" };
            writeln!(f, "    sliding window of {precision} {buckets}; the oldest bucket {edge}")?;
        }
        Some(Strategy::FixedWindow) => writeln!(f, "    fixed window, which begins with a key's first request")?,
        Some(Strategy::SlidingLog) => writeln!(f, "    moving window, which stores every request")?,
        Some(Strategy::TokenBucket { .. }) => writeln!(f, "    token bucket, which is full at first")?,
        Some(Strategy::Calendar(_) | Strategy::Ban { .. }) | None => {}
    }
    if let Some(calendar) = limit.calendar() {
        writeln!(f, "    days and months begin at midnight in the time zone {}", calendar.zone())?;
    }
    match &limit.cost {
        Cost::Fixed(1) => {}
        Cost::Fixed(cost) => writeln!(f, "    a request costs {cost}")?,
        Cost::RequestHeader(name) => writeln!(f, "    a request costs the number in its header {name}, otherwise 1")?,
        Cost::ResponseHeader { name, reserve } => {
            writeln!(f, "    a request costs the number in the response header {name}; {reserve} until then")?;
        }
        Cost::Tokens(cost) => tokens(f, cost)?,
        Cost::Bytes(cost) => bytes(f, limit, *cost)?,
        Cost::Elements => writeln!(f, "    a request costs 1, or the number of items if its body is a JSON array")?,
        Cost::OnStatus(cost, statuses) => {
            let statuses = super::statuses(statuses);
            writeln!(f, "    a request costs {cost}, which is given back unless the response has status {statuses}")?;
        }
    }
    if let Some(known) = &limit.known_keys {
        writeln!(f, "    {} known key(s); any other key counts as missing", known.count())?;
    }
    exceptions(f, limit)?;
    let missing = match limit.missing {
        Missing::Shared => "share one counter",
        Missing::Skip => "are not limited",
        Missing::Reject => "are answered 400",
    };
    if let Some(slow) = limit.slows() {
        writeln!(f, "    requests that it admits are {}", slow.in_words())?;
    }
    if let Some(pool) = limit.pool() {
        writeln!(f, "    requests over the limit are charged to {pool} instead, if that has room")?;
    }
    let over = limit.on_limit.in_words(limit.status);
    if limit.key.may_be_missing() {
        writeln!(f, "    requests without a key {missing}")?;
    }
    writeln!(f, "    requests over the limit are {over}")?;
    limit.jitter_in_words().iter().try_for_each(|words| writeln!(f, "    their {words}"))?;
    limit.ban.iter().try_for_each(|ban| writeln!(f, "    bans {ban}"))
}

/// Says what is reserved before the response ends, what a request costs then, and what happens to a stream that needs more.
fn tokens(f: &mut fmt::Formatter<'_>, cost: &TokenCost) -> fmt::Result {
    writeln!(f, "    a request costs the tokens that its response reports")?;
    if let Some(UsagePointers { input, output, cached, total }) = &cost.pointers {
        let named = [("input", input), ("output", output), ("cached", cached), ("total", total)];
        let shown = named.into_iter().filter_map(|(name, at)| Some(format!("{name} at {}", at.as_ref()?)));
        writeln!(f, "      {}", shown.collect::<Vec<_>>().join(", "))?;
    }
    let others = if cost.models.is_empty() { "all models" } else { "other models" };
    let models = cost.models.iter().map(|model| (model.pattern.0.as_str(), model.weights));
    for (model, Weights { input, cached, output }) in models.chain([(others, cost.weights)]) {
        writeln!(f, "      {model}: {input} for input, {cached} for cached input, {output} for output")?;
    }
    writeln!(f, "      {} tokens of output are reserved if the request names no maximum", cost.max_output)?;
    let is_reserved = cost.without_usage == WithoutUsage::Reserved;
    let unsaid = if is_reserved { "what was reserved, or its size if that is more" } else { "its size" };
    writeln!(f, "      a success that does not report its usage costs {unsaid}")?;
    writeln!(f, "      {} tokens of input are reserved for each part that is not text", cost.part)?;
    if !cost.ask_usage {
        writeln!(f, "      streams are not asked for their usage")?;
    }
    if cost.on_exhausted == OnExhausted::Cut {
        writeln!(f, "      a stream of events, or of lines or elements of JSON, is cut if there is no room for more")?;
    }
    Ok(())
}

fn bytes(f: &mut fmt::Formatter<'_>, limit: &Limit, cost: ByteCost) -> fmt::Result {
    writeln!(f, "    a request costs the bytes of {}", cost.counted.in_words())?;
    let which = if limit.charges_in_steps() { "each body" } else { "a body without a length" };
    writeln!(f, "      {} at a time are reserved of {which}", spelled_size(cost.reserve))?;
    if cost.on_exhausted == OnExhausted::Cut {
        writeln!(f, "      such a body is cut if there is no room for more")?;
    }
    Ok(())
}

/// Overrides, then tiers: the order of lookup.
fn exceptions(f: &mut fmt::Formatter<'_>, limit: &Limit) -> fmt::Result {
    if !limit.overrides.is_empty() {
        writeln!(f, "    overrides")?;
    }
    for (allowance, keys, mut texts) in limit.overrides.granted() {
        let granted = match allowance {
            Allowance::Rates(rates) => joined(rates),
            Allowance::Exempt => "not limited".to_owned(),
            Allowance::Block => format!("blocked, {}", limit.on_limit.blocked_in_words()),
        };
        let more = texts.len().saturating_sub(MOST_TEXTS);
        texts.truncate(MOST_TEXTS);
        let keys = (keys > 0).then(|| if keys == 1 { "1 key".to_owned() } else { format!("{keys} keys") });
        let more = (more > 0).then(|| format!("{more} more"));
        let all: Vec<_> = keys.into_iter().chain(texts).chain(more).collect();
        writeln!(f, "      {granted}: {}", all.join(", "))?;
    }
    if let Some(quotas) = &limit.quotas {
        let Quotas { server, cache_for, max_cached, timeout, send } = quotas;
        let send = match send {
            SentKey::Key => "keys",
            SentKey::Sha256 => "the SHA-256 of keys",
        };
        writeln!(f, "    quotas from {server}, which is sent {send}")?;
        writeln!(f, "      cached for {cache_for:?}, at most {max_cached} keys; a request waits at most {timeout:?}")?;
    }
    let Some(tiers) = &limit.tiers else { return Ok(()) };
    writeln!(f, "    tiers by {}", tiers.source)?;
    for (name, rates) in &tiers.rates {
        let priority = tiers.priorities.iter().find(|(tier, _)| tier == name);
        let priority = priority.map_or(String::new(), |(_, priority)| format!(", priority {priority}"));
        writeln!(f, "      {name}: {}{priority}", joined(rates))?;
    }
    let others = if limit.rates.is_empty() { "no rates".to_owned() } else { joined(&limit.rates) };
    writeln!(f, "      any other: {others}")
}

fn joined(rates: &[Rate]) -> String {
    rates.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ")
}
