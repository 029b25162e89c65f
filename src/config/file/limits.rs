//! `[limits.*]`: what is counted and how much is allowed.

use http::{HeaderName, StatusCode};

use super::super::read::{Findings, Read, Section, Value, integer, list, string, suggest, word};
use super::super::report::Problem;
use super::super::{HeaderStyle, Key, Limit, Missing, Source};
use crate::limit::{Edge, MAX_PRECISION, Rate, RateError};

/// More rates than anybody needs, and a bound for what one decision reads.
const MAX_RATES: usize = 8;

pub(crate) fn limit(name: &str, section: Section<'_>, findings: &Findings) -> Limit {
    let precision = section.read("precision", integer(1..=u64::from(MAX_PRECISION))).unwrap_or(1);
    let precision = u32::try_from(precision).unwrap_or(1);
    let edge = section.read("edge", word(&[("weighted", Edge::Weighted), ("whole", Edge::Whole)])).unwrap_or_default();
    let key = section.need("key", "\"client-ip\"", |value| key(value, findings));
    let rates = section.need("rates", "[\"10/s\", \"3000/10m\"]", |value| rates(value, precision, edge, findings));
    only(&section, "strategy", "sliding-window", &["fixed-window", "moving-window", "token-bucket"]);
    only(&section, "on_limit", "reject", &["shadow", "silent", "delay"]);
    section.read("cost", |value| match value.get_ref().as_integer().map(|cost| cost.as_str() == "1") {
        Some(true) => Ok(()),
        _ => Err(Problem::plain(value.span(), "a `cost` other than 1 is not supported yet")),
    });
    let missing = [("shared", Missing::Shared), ("skip", Missing::Skip), ("reject", Missing::Reject)];
    let styles = [
        ("draft", HeaderStyle::Draft),
        ("github", HeaderStyle::Github),
        ("both", HeaderStyle::Both),
        ("none", HeaderStyle::None),
    ];
    let status = section.read("status", integer(400..=599)).and_then(|status| u16::try_from(status).ok());
    let limit = Limit {
        name: name.to_owned(),
        key: key.unwrap_or(Key { parts: Vec::new() }),
        rates: rates.clone().unwrap_or_default(),
        missing: section.read("missing", word(&missing)).unwrap_or(Missing::Shared),
        headers: section.read("headers", word(&styles)).unwrap_or(HeaderStyle::Draft),
        status: status.and_then(|status| StatusCode::from_u16(status).ok()).unwrap_or(StatusCode::TOO_MANY_REQUESTS),
        body: section.read("body", string).unwrap_or_default().to_owned(),
    };
    section.later(&[
        "overrides",
        "overrides_file",
        "tier",
        "tiers",
        "count",
        "max_in_flight",
        "max_delay",
        "max_delayed",
        "timezone",
    ]);
    section.finish();
    limit
}

/// A key of which one value works today.
fn only(section: &Section<'_>, key: &'static str, today: &'static str, later: &[&str]) {
    section.read(key, |value| match string(value)? {
        text if later.contains(&text) => {
            Err(Problem::new(value.span(), format!("`{text}` is not supported yet"), format!("allowed: {today}")))
        }
        _ => word(&[(today, ())])(value),
    });
}

fn rates(value: &Value<'_>, precision: u32, edge: Edge, findings: &Findings) -> Read<Vec<Rate>> {
    let values = list(value, "rates", false)?;
    if values.len() > MAX_RATES {
        return Err(Problem::plain(value.span(), format!("a limit has at most {MAX_RATES} rates")));
    }
    let mut rates: Vec<Rate> = Vec::new();
    for value in values {
        let Some(rate) = findings.keep(rate(value, precision, edge)) else { continue };
        if rates.iter().any(|other| other.window() == rate.window()) {
            let help = "give each rate of a limit a period of its own";
            findings.add(Problem::new(
                value.span(),
                format!("{rate} has the period of another rate of this limit"),
                help,
            ));
        } else {
            rates.push(rate);
        }
    }
    Ok(rates)
}

fn rate(value: &Value<'_>, precision: u32, edge: Edge) -> Read<Rate> {
    let text = string(value)?;
    if text.contains("burst") {
        let help = "a burst belongs to the strategy \"token-bucket\"; the others take N/PERIOD";
        return Err(Problem::new(value.span(), "a `burst` is not supported yet", help));
    }
    let rate = text.parse::<Rate>().and_then(|rate| rate.cut(precision, edge));
    rate.map_err(|error| {
        let message = format!("`{text}` is not a rate");
        match error {
            RateError::Form => Problem::new(value.span(), message, error.to_string()),
            _ => Problem::new(value.span(), format!("`{text}` is not a rate that can be kept"), error.to_string()),
        }
    })
}

fn key<'a>(value: &'a Value<'a>, findings: &Findings) -> Read<Key> {
    let parts = list(value, "keys", true)?;
    let parts = parts.into_iter().filter_map(|value| findings.keep(part(value))).collect();
    Ok(Key { parts })
}

fn part(value: &Value<'_>) -> Read<Vec<Source>> {
    string(value)?.split('|').map(|text| source(text.trim(), value)).collect()
}

/// The sources without a name.
const PLAIN: [(&str, Source); 7] = [
    ("client-ip", Source::ClientIp { v6: 64 }),
    ("bearer", Source::Bearer),
    ("path", Source::Path),
    ("host", Source::Host),
    ("method", Source::Method),
    ("route", Source::Route),
    ("global", Source::Global),
];
const NAMED: [&str; 4] = ["header:NAME", "cookie:NAME", "query:NAME", "path:NAME"];

fn source(text: &str, value: &Value<'_>) -> Read<Source> {
    let problem = |message: String, help: String| Problem::new(value.span(), message, help);
    if text == "client-cert" {
        return Err(Problem::plain(value.span(), "the key `client-cert` is not supported yet"));
    }
    if let Some((_, source)) = PLAIN.iter().find(|(name, _)| *name == text) {
        return Ok(source.clone());
    }
    let Some((kind, name)) = text.split_once(':') else {
        let all: Vec<_> = PLAIN.iter().map(|(name, _)| *name).chain(NAMED).collect();
        return Err(problem(format!("`{text}` is not a key"), suggest(text, &all)));
    };
    let no_name = || problem(format!("`{text}` lacks a name"), format!("write {kind}:NAME"));
    match kind {
        "client-ip" => match name.parse() {
            Ok(v6 @ 1..=128) => Ok(Source::ClientIp { v6 }),
            _ => Err(problem(
                format!("`{name}` is no prefix length"),
                "client-ip takes 1 to 128, like client-ip:56".into(),
            )),
        },
        "header" => HeaderName::try_from(name).map(Source::Header).map_err(|_| {
            problem(format!("`{name}` is not the name of a header"), "write header:NAME, like header:x-api-key".into())
        }),
        "cookie" | "query" | "path" if name.is_empty() => Err(no_name()),
        "cookie" => Ok(Source::Cookie(name.to_owned())),
        "query" => Ok(Source::Query(name.to_owned())),
        "path" => Ok(Source::Capture(name.to_owned())),
        _ => {
            let kinds = ["header", "cookie", "query", "path", "client-ip"];
            Err(problem(format!("`{kind}:` is not a key"), suggest(kind, &kinds)))
        }
    }
}
