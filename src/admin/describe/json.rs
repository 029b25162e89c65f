//! A configuration as JSON: what its text says with every default, and what other keys or the gateway itself decide.

use std::time::Duration;

use serde_json::{Value, json};

use super::MOST_TEXTS;
use crate::admin::certificates;
use crate::base::units::spelled_size;
use crate::config::overrides::Allowance;
use crate::config::{Action, Config, Cost, Jwks, Limit, Listener, Route, Upstream};
use crate::limit::Rate;

pub fn json(config: &Config) -> Value {
    let mut shown = config.shown();
    shown["certificates"] = json!(certificates::list(config).collect::<Vec<_>>());
    let listen = |one: &Listener| json!({ "address": one.address.to_string(), "tls": one.tls });
    shown["server"]["listen"] = config.server.listen.iter().map(listen).collect();
    if let Some(acme) = config.acme() {
        shown["server"]["tls"]["acme"]["directory"] = json!(acme.directory.to_string());
    }
    if config.log.access_file.is_some() {
        inherit(&mut shown["log"], &["access_format"], &json!({ "access_format": "json" }));
    }
    if let Some(tracing) = &config.tracing {
        shown["tracing"]["endpoint"] = json!(tracing.collector.endpoint());
    }
    for (shown, notices) in elements(&mut shown["notices"]).zip(&config.notices) {
        (shown["url"], shown["limits"]) = (json!(notices.url.to_string()), json!(notices.limits));
    }
    if config.store.share().is_some() {
        shown["store"]["gateways"] = json!(config.gateways);
    }
    for jwt in &config.jwts {
        shown["jwt"][&jwt.name]["jwks"] = match &jwt.jwks {
            Jwks::File { path, .. } => json!(path),
            Jwks::Server { url, .. } => json!(url.to_string()),
        };
    }
    config.upstreams.iter().for_each(|one| upstream(&mut shown["upstreams"][&one.name], one));
    config.limits.iter().for_each(|one| limit(&mut shown["limits"][&one.name], one));
    let mut routes = shown["routes"].take();
    elements(&mut routes).zip(&config.routes).for_each(|(route, read)| self::route(route, read, &shown));
    shown["routes"] = routes;
    shown
}

fn elements(list: &mut Value) -> impl Iterator<Item = &mut Value> {
    list.as_array_mut().into_iter().flatten()
}

/// Takes those of `keys` that the table does not have from another one.
fn inherit(shown: &mut Value, keys: &[&str], other: &Value) {
    for key in keys {
        if shown[key].is_null() {
            shown[key] = other[key].clone();
        }
    }
}

/// As the file spells it: `1m 30s`.
fn span(duration: Duration) -> Value {
    json!(humantime::format_duration(duration).to_string())
}

fn upstream(shown: &mut Value, upstream: &Upstream) {
    if let Some(bounds) = &upstream.overload.adaptive {
        shown["adaptive"] = json!({ "min": bounds.min, "max": bounds.max });
    }
    if let Some(ejection) = &upstream.ejection {
        shown["eject"]["max_for"] = span(ejection.longest);
    }
}

fn route(shown: &mut Value, route: &Route, file: &Value) {
    inherit(shown, &["max_body_size", "inspect_body", "body_timeout"], &file["server"]);
    if let Some(name) = shown["upstream"].as_str() {
        inherit(shown, &["rewrite_location"], &file["upstreams"][&name.to_owned()]);
    }
    shown["priority"] = json!(route.priority);
    if let Action::Respond { content_type, .. } = &route.action {
        shown["respond"]["content_type"] = json!(String::from_utf8_lossy(content_type.as_bytes()));
    }
    if let Some(cors) = &route.cors {
        shown["cors"]["methods"] = cors.methods.iter().map(http::Method::as_str).collect();
    }
}

fn limit(shown: &mut Value, limit: &Limit) {
    shown["retry_jitter"] = json!(format!("{}%", limit.retry_jitter));
    shown["part"] = json!(part(limit, &limit.rates));
    shown["status"] = json!(limit.status.as_u16());
    shown["content_type"] = json!(String::from_utf8_lossy(limit.content_type.as_bytes()));
    shown["overrides"] = json!(overrides(limit));
    for (name, rates) in limit.tiers.iter().flat_map(|tiers| &tiers.rates) {
        shown["tiers"][name]["part"] = json!(part(limit, rates));
    }
    if let Cost::Bytes(cost) = &limit.cost {
        shown["cost"]["reserve"] = json!(spelled_size(cost.reserve));
    }
    let cost = shown["cost"].clone();
    elements(&mut shown["models"]).for_each(|model| inherit(model, &["input", "cached", "output"], &cost));
    if let Some(ban) = &limit.ban {
        shown["ban"]["max_for"] = span(ban.longest);
    }
    if let Some(quotas) = &limit.quotas {
        shown["quotas"]["source"] = json!(quotas.server.to_string());
    }
}

fn rates(rates: &[Rate]) -> Vec<String> {
    rates.iter().map(ToString::to_string).collect()
}

/// The part of the rates that this gateway enforces; `None` if it enforces them whole.
fn part(limit: &Limit, own: &[Rate]) -> Option<Vec<String>> {
    (limit.gateways > Some(1)).then(|| rates(&limit.part(own)))
}

/// By allowance. Keys are only counted, because they may be secrets.
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
