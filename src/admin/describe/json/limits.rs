//! `[limits.NAME]` as JSON.

use serde_json::{Value, json};

use super::key;
use crate::admin::describe::{MOST_TEXTS, statuses_in_words};
use crate::base::units::spelled_size;
use crate::config::overrides::Allowance;
use crate::config::{Ban, ByteCost, Cost, Limit, ModelWeights, QuotaServer, Quotas, TokenCost, Word};
use crate::limit::{Rate, Strategy};
use crate::tokens::pointer::Pointer;
use crate::tokens::response::UsagePointers;
use crate::tokens::{Weight, Weights};

pub(super) fn limit(limit: &Limit) -> Value {
    let strategy = limit.strategy();
    let (precision, edge) = match strategy {
        Some(Strategy::SlidingWindow { precision, edge }) => (Some(precision), Some(edge.word())),
        _ => (None, None),
    };
    let (max_delay, max_delayed) = limit.on_limit.delay().unzip();
    let slow = limit.slow.as_ref();
    json!({
        "key": key(&limit.key),
        "rates": rates(&limit.rates),
        "share": limit.gateways.is_some(),
        "part": part(limit, &limit.rates),
        "max_in_flight": limit.max_in_flight,
        "strategy": strategy.map(strategy_name),
        "precision": precision,
        "edge": edge,
        "timezone": limit.calendar().map(|calendar| calendar.zone().to_string()),
        "cost": cost(&limit.cost),
        "models": models(limit),
        "count": match &limit.cost {
            Cost::OnStatus(_, statuses) => json!({ "status": statuses.iter().map(statuses_in_words).collect::<Vec<_>>() }),
            _ => Value::Null,
        },
        "known_keys": limit.known_keys.as_ref().map(|known| known.count()),
        "overrides": overrides(limit),
        "overrides_file": limit.overrides_file,
        "quotas": limit.quotas.as_ref().map(quotas),
        "tier": limit.tiers.as_ref().map(|tiers| tiers.source.to_string()),
        "tiers": tiers(limit),
        "on_limit": limit.on_limit.word(),
        "overflow": limit.overflow,
        "max_delay": max_delay.map(super::span),
        "max_delayed": max_delayed.or(slow.map(|slow| slow.max_delayed)),
        "slow": slow.map(|slow| json!({ "from": slow.from_as_fraction(), "up_to": super::span(slow.up_to) })),
        "ban": limit.ban.as_ref().map(ban),
        "missing": limit.missing.word(),
        "headers": limit.headers.word(),
        "status": limit.status.as_u16(),
        "retry_jitter": format!("{}%", limit.retry_jitter),
        "body": limit.body,
        "content_type": String::from_utf8_lossy(limit.content_type.as_bytes()),
    })
}

fn strategy_name(strategy: &Strategy) -> &'static str {
    match strategy {
        Strategy::SlidingWindow { .. } => "sliding-window",
        Strategy::FixedWindow => "fixed-window",
        Strategy::SlidingLog => "moving-window",
        Strategy::TokenBucket { .. } => "token-bucket",
        Strategy::Calendar(_) => "calendar",
        Strategy::Ban { .. } => "ban",
    }
}

fn ban(Ban { after, within, first, longest, respond }: &Ban) -> Value {
    json!({
        "after": after,
        "within": super::span(*within),
        "for": super::span(*first),
        "max_for": super::span(*longest),
        "respond": respond.word(),
    })
}

fn rates(rates: &[Rate]) -> Vec<String> {
    rates.iter().map(ToString::to_string).collect()
}

/// The part of the rates that this gateway enforces; `None` if it enforces them whole.
fn part(limit: &Limit, own: &[Rate]) -> Option<Vec<String>> {
    (limit.gateways > Some(1)).then(|| rates(&limit.part(own)))
}

fn cost(cost: &Cost) -> Value {
    match cost {
        Cost::Fixed(cost) | Cost::OnStatus(cost, _) => json!(cost),
        Cost::RequestHeader(name) => json!({ "request_header": name.as_str() }),
        Cost::ResponseHeader { name, reserve } => json!({ "response_header": name.as_str(), "reserve": reserve }),
        Cost::Tokens(cost) => tokens(cost),
        Cost::Bytes(ByteCost { counted, reserve, on_exhausted }) => json!({
            "bytes": counted.word(),
            "reserve": spelled_size(*reserve),
            "on_exhausted": on_exhausted.word(),
        }),
        Cost::Elements => json!({ "elements": true }),
    }
}

fn tokens(cost: &TokenCost) -> Value {
    let Weights { input, cached, output } = cost.weights;
    let pointers = cost.pointers.as_ref().map(|UsagePointers { input, output, cached, total }| {
        let text = |pointer: &Option<Pointer>| pointer.as_ref().map(ToString::to_string);
        json!({ "input": text(input), "output": text(output), "cached": text(cached), "total": text(total) })
    });
    json!({
        "tokens": pointers.unwrap_or_else(|| json!("auto")),
        "input": number(input),
        "cached": number(cached),
        "output": number(output),
        "max_output": cost.max_output,
        "without_usage": cost.without_usage.word(),
        "part": cost.part,
        "ask_usage": cost.ask_usage,
        "on_exhausted": cost.on_exhausted.word(),
    })
}

fn number(weight: Weight) -> Value {
    weight.to_string().parse::<f64>().map_or(Value::Null, |weight| json!(weight))
}

fn models(limit: &Limit) -> Vec<Value> {
    let Cost::Tokens(cost) = &limit.cost else { return Vec::new() };
    let one = |model: &ModelWeights| {
        let Weights { input, cached, output } = model.weights;
        json!({
            "match": model.pattern.0,
            "input": number(input),
            "cached": number(cached),
            "output": number(output),
        })
    };
    cost.models.iter().map(one).collect()
}

/// By allowance. Keys are only counted, because only their fingerprints are known.
fn overrides(limit: &Limit) -> Vec<Value> {
    let granted = limit.overrides.granted().into_iter();
    let one = |(allowance, keys, mut patterns): (&Allowance, usize, Vec<String>)| {
        patterns.truncate(MOST_TEXTS);
        match allowance {
            Allowance::Rates(own) => {
                json!({ "rates": rates(own), "part": part(limit, own), "keys": keys, "patterns": patterns })
            }
            Allowance::Exempt => json!({ "exempt": true, "keys": keys, "patterns": patterns }),
            Allowance::Block => json!({ "block": true, "keys": keys, "patterns": patterns }),
        }
    };
    granted.map(one).collect()
}

fn quotas(quotas: &Quotas) -> Value {
    let (query, channel) = match &quotas.server {
        QuotaServer::Http(_) => (None, None),
        QuotaServer::Postgres(settings) => (Some(&settings.query), settings.channel.as_ref()),
    };
    json!({
        "source": quotas.server.to_string(),
        "query": query,
        "channel": channel,
        "cache_for": super::span(quotas.cache_for),
        "max_cached": quotas.max_cached,
        "timeout": super::span(quotas.timeout),
        "send": quotas.send.word(),
    })
}

fn tiers(limit: &Limit) -> Value {
    let Some(tiers) = &limit.tiers else { return Value::Null };
    let priority = |name: &String| tiers.priorities.iter().find(|(tier, _)| tier == name).map(|(_, priority)| priority);
    let one = |(name, own): &(String, Vec<Rate>)| {
        (name.clone(), json!({ "rates": rates(own), "part": part(limit, own), "priority": priority(name) }))
    };
    Value::Object(tiers.rates.iter().map(one).collect())
}
