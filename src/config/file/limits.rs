//! `[limits.NAME]`: what is counted, and how much is allowed.

use std::sync::Arc;

use http::{HeaderName, StatusCode};

use crate::config::read::{Field, Name, Section, Wrong, set};
use crate::config::report::{did_you_mean, quoted};
use crate::config::{Cost, HeaderStyle, Key, Limit, Missing, OnLimit, Source, values};
use crate::limit::{Edge, MAX_PRECISION, Rate, RateError, Strategy};
use crate::overrides::Overrides;
use crate::units;

/// Keys of the contract that this version does not know.
const LATER: [&str; 9] =
    ["overrides", "overrides_file", "max_delay", "max_delayed", "tier", "tiers", "count", "max_in_flight", "timezone"];
const KEY: &str = "say what is counted, like key = \"client-ip\" or key = \"header:x-api-key | client-ip\"";
const RATES: &str = "[\"10/s\", \"3000/10m\"]";
const RATE: &str = "a rate is N/PERIOD, where PERIOD is s, m, h, d or a duration, like \"10/s\" or \"3000/10m\"";
/// Sources that stand alone.
const PLAIN: [(&str, Source); 7] = [
    ("client-ip", Source::ClientIp { v6: 64 }),
    ("bearer", Source::Bearer),
    ("path", Source::Path),
    ("host", Source::Host),
    ("method", Source::Method),
    ("route", Source::Route),
    ("global", Source::Global),
];
const SOURCES: &str = "sources are client-ip, header:NAME, cookie:NAME, query:NAME, bearer, path, path:NAME, host, \
                       method, route and global";

/// Reads one limit; `None` if something about it is wrong.
pub(super) fn read(name: &Name<'_>, field: &Field<'_>) -> Option<Limit> {
    if let Err(wrong) = values::name(name.text) {
        field.source.report(name.span.clone(), wrong.message, wrong.help);
    }
    if !field.is_table() {
        field.source.report(
            name.span.clone(),
            format!("`{}` is not the table of a limit", name.text),
            "a limit has a name: write [limits.NAME], and its keys below",
        );
        return None;
    }
    let section = field.section(format!("[limits.{}]", name.text))?;
    let key = section.required("key", KEY).and_then(|field| key(&field));
    let rates = rates(&section);
    let mut status = StatusCode::TOO_MANY_REQUESTS;
    set(&mut status, section.field("status").and_then(|field| values::status(&field, 400..=599)));
    let mut body = String::new();
    set(&mut body, section.field("body").and_then(|field| field.text()).map(str::to_owned));
    let styles = [
        ("draft", HeaderStyle::Draft),
        ("github", HeaderStyle::Github),
        ("both", HeaderStyle::Both),
        ("none", HeaderStyle::None),
    ];
    let mut headers = HeaderStyle::Draft;
    set(&mut headers, section.choice("headers", &styles, &[]));
    let absent = [("shared", Missing::Shared), ("skip", Missing::Skip), ("reject", Missing::Reject)];
    let mut missing = Missing::Shared;
    set(&mut missing, section.choice("missing", &absent, &[]));
    section.choice("on_limit", &[("reject", ())], &["shadow", "silent", "delay"]);
    if let Some(cost) = section.field("cost").filter(|cost| !cost.is_integer("1")) {
        cost.refuse(Wrong::new("a `cost` other than 1 is not supported yet", "remove it: every request costs 1"));
    }
    section.close(&LATER);
    Some(Limit {
        name: name.text.to_owned(),
        key: key?,
        rates: rates?,
        max_in_flight: None,
        cost: Cost::Fixed(1),
        overrides: Arc::new(Overrides::default()),
        tiers: None,
        on_limit: OnLimit::Reject,
        missing,
        headers,
        status,
        body,
    })
}

fn rates(section: &Section<'_>) -> Option<Vec<Rate>> {
    let list = section.required("rates", &format!("say how much is allowed: rates = {RATES}"));
    let list = list.and_then(|field| field.some(RATES, values::MOST));
    section.choice("strategy", &[("sliding-window", ())], &["fixed-window", "moving-window", "token-bucket"]);
    let precision = section.field("precision").and_then(|field| field.integer(1..=u64::from(MAX_PRECISION)));
    let precision = precision.and_then(|precision| u32::try_from(precision).ok()).unwrap_or(1);
    let mut edge = Edge::Weighted;
    set(&mut edge, section.choice("edge", &[("weighted", Edge::Weighted), ("whole", Edge::Whole)], &[]));
    let mut rates: Vec<Rate> = Vec::new();
    for field in list? {
        let Some(rate) = field.parse(rate) else { continue };
        if let Some(earlier) = rates.iter().find(|earlier| earlier.window() == rate.window()) {
            let least = if earlier.quota() < rate.quota() { earlier } else { &rate };
            field.report(
                format!("\"{rate}\" has the same period as \"{earlier}\""),
                format!("all rates must hold, so the smaller one alone says the same: \"{least}\""),
            );
        }
        rates.push(rate);
    }
    let strategy = Strategy::Sliding { precision, edge };
    rates.into_iter().map(|rate| rate.counted(strategy.clone()).ok()).collect()
}

fn rate(text: &str) -> Result<Rate, Wrong> {
    if let Some((alone, _)) = text.split_once("burst") {
        let message = "a burst belongs to `strategy = \"token-bucket\"`, which is not supported yet";
        return Err(Wrong::new(message, format!("write the rate alone: {:?}", alone.trim())));
    }
    text.parse().map_err(|error| match error {
        RateError::Form | RateError::Period(_) => {
            let help = meant(text).map_or(RATE.to_owned(), |rate| format!("did you mean \"{rate}\"? {RATE}"));
            let period = text.rsplit('/').next().filter(|_| matches!(error, RateError::Period(_)));
            let why = period.map_or(String::new(), |period| format!(": {} is not a period", quoted(period.trim())));
            Wrong::new(format!("{} is not a rate{why}", quoted(text)), help)
        }
        RateError::Quota => {
            Wrong::new(format!("{} is out of range", quoted(text)), "allowed: 1 to 4294967296 requests")
        }
        _ => Wrong::new(format!("{} is out of range", quoted(text)), "allowed: periods from 1s to 31d"),
    })
}

/// `10/sec`, `10/1` and `10 per minute` leave no doubt.
fn meant(text: &str) -> Option<Rate> {
    let (quota, period) = text.split_once('/').or_else(|| text.split_once("per"))?;
    let (quota, period) = (quota.trim().parse().ok()?, period.trim());
    let window = [format!("1{period}"), format!("{period}s")].iter().find_map(|text| units::duration(text).ok())?;
    Rate::new(quota, window).ok()
}

fn key(field: &Field<'_>) -> Option<Key> {
    if !field.is_list() {
        return Some(Key { parts: vec![field.parse(part)?] });
    }
    let list = field.some("[\"header:x-api-key | client-ip\", \"method\"]", values::MOST)?;
    let parts: Vec<_> = list.iter().map(|field| field.parse(part)).collect();
    Some(Key { parts: parts.into_iter().collect::<Option<_>>()? })
}

/// Sources joined by `|`.
fn part(text: &str) -> Result<Vec<Source>, Wrong> {
    let mut start = 0;
    let mut sources = Vec::new();
    for piece in text.split('|') {
        let word = piece.trim();
        let from = start + (piece.len() - piece.trim_start().len());
        let place = from..from + word.len();
        let source = source(word).map_err(|wrong| if word.is_empty() { wrong } else { wrong.at(place.clone()) })?;
        if sources.contains(&source) {
            return Err(Wrong::new(format!("`{source}` is written twice"), "the first one present is used").at(place));
        }
        sources.push(source);
        start += piece.len() + 1;
    }
    Ok(sources)
}

fn source(word: &str) -> Result<Source, Wrong> {
    let plain = |word: &str| PLAIN.iter().find(|(name, _)| *name == word).map(|(_, source)| source.clone());
    let Some((kind, name)) = word.split_once(':') else {
        return match word {
            "" => Err(Wrong::new("a source is missing", SOURCES)),
            "client-cert" => Err(Wrong::later(word, SOURCES)),
            "header" | "cookie" | "query" => {
                Err(Wrong::new(format!("`{word}` has no name"), format!("write which one: \"{word}:NAME\"")))
            }
            _ => plain(word).ok_or_else(|| unknown(word, word)),
        };
    };
    match kind {
        "client-ip" => {
            let help = "it is the prefix length that IPv6 addresses are cut to, from 1 to 128, like `client-ip:56`";
            let prefix = name.parse().ok().filter(|v6| (1..=128).contains(v6));
            let wrong = || Wrong::new(format!("{} is not a prefix length", quoted(name)), help);
            prefix.map(|v6| Source::ClientIp { v6 }).ok_or_else(wrong)
        }
        "header" => values::header(name).map(Source::Header),
        "cookie" if HeaderName::from_bytes(name.as_bytes()).is_ok() => Ok(Source::Cookie(name.to_owned())),
        "query" if !name.is_empty() && !name.contains(char::is_control) => Ok(Source::Query(name.to_owned())),
        "cookie" | "query" => {
            Err(Wrong::new(format!("{} is not the name of a {kind}", quoted(name)), format!("like `{kind}:session`")))
        }
        "path" => values::capture(name).map(|()| Source::Capture(name.to_owned())),
        _ if plain(kind).is_some() => {
            Err(Wrong::new(format!("`{kind}` takes no name"), format!("write `{kind}` alone")))
        }
        _ => Err(unknown(word, kind)),
    }
}

fn unknown(word: &str, kind: &str) -> Wrong {
    let mut names: Vec<_> = PLAIN.iter().map(|(name, _)| *name).collect();
    names.extend(["header", "cookie", "query"]);
    Wrong::new(format!("{} is not a source of keys", quoted(word)), did_you_mean(kind, &names, SOURCES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_every_source() {
        let text =
            "client-ip|client-ip:128|header:x-api-key|cookie:sid|query:q|bearer|path|path:id|host|method|route|global";
        let sources = part(text).unwrap();
        assert_eq!(sources.iter().map(ToString::to_string).collect::<Vec<_>>().join("|"), text);
    }

    #[test]
    fn refuses_other_sources() {
        for text in [
            "",
            "|",
            "client-ip|",
            "client-ip:0",
            "client-ip:129",
            "header:",
            "header:a b",
            "cookie:",
            "cookie:a=b",
            "query:",
            "path:",
            "path:a/b",
            "bearer:x",
            "client-cert",
            "ip",
            "host|host",
        ] {
            assert!(part(text).is_err(), "{text}");
        }
    }

    #[test]
    fn guesses_what_a_rate_meant() {
        assert_eq!(meant("10/sec").unwrap().to_string(), "10/s");
        assert_eq!(meant("10 per minute").unwrap().to_string(), "10/m");
        assert_eq!(meant("10/10").unwrap().to_string(), "10/10s");
        assert_eq!(meant("ten/s"), None);
    }
}
