//! Behaviours: the fields RateLimit-Policy and RateLimit can be read, and their numbers are true.

use std::io;
use std::time::Instant;

use sfv::{BareItem, List, ListEntry, Parser};
use tokio::time::sleep_until;

use super::behaviour::{Behaviour, Group, Need, Outcome, run};
use super::exchange::{Exchange, Response};
use super::policy::Algorithm;
use super::target::Target;
use super::truth::refusal;

const DRAFT: &str = "draft-ietf-httpapi-ratelimit-headers";

pub(crate) const ALL: &[Behaviour] = &[
    Behaviour {
        id: "fields",
        group: Group::Truth,
        sentence: "RateLimit is a list of names with whole numbers r and t, in admitted and in refused responses.",
        measure: "the field of the first response and of the first refusal of a new key, read as RFC 9651 says",
        source: DRAFT,
        why: "A field that no parser accepts tells nothing",
        needs: &[Need::RateLimit],
        run: run!(fields),
    },
    Behaviour {
        id: "policy",
        group: Group::Truth,
        sentence: "RateLimit-Policy has the stated policy: q is N, and w is the window.",
        measure: "the field of the first response of a new key, read as RFC 9651 says",
        source: DRAFT,
        why: "A client that plans by the field plans wrongly",
        needs: &[Need::RateLimit],
        run: run!(policy),
    },
    Behaviour {
        id: "remaining",
        group: Group::Truth,
        sentence: "After a response with r, a client that is alone gets r more at once, and r falls with each request.",
        measure: "a new key until it has no room: each r against the number of requests that were admitted after it",
        source: DRAFT,
        why: "A client that uses what it is told is refused, or leaves unused what it has",
        needs: &[Need::RateLimit],
        run: run!(remaining),
    },
    Behaviour {
        id: "refused-remaining",
        group: Group::Truth,
        sentence: "A refusal says that nothing remains: r is 0.",
        measure: "the field RateLimit in the first refusal of a new key",
        source: DRAFT,
        why: "A client that looks only at r sends the next request at once",
        needs: &[Need::RateLimit],
        run: run!(refused_remaining),
    },
    Behaviour {
        id: "reset",
        group: Group::Truth,
        sentence: "A refusal tells the same time twice: t of RateLimit and Retry-After differ by at most a second.",
        measure: "a new key without room, and another refusal 0.6 windows later",
        source: DRAFT,
        why: "Some clients read one of them, some the other",
        needs: &[Need::RateLimit, Need::RetryAfter],
        run: run!(reset),
    },
];

/// The items of a field with some of their parameters, if they are whole numbers; an error says what is wrong.
fn items(response: &Response, field: &str, names: [&str; 2]) -> Result<Vec<[Option<i64>; 2]>, String> {
    let text = response.header(field).ok_or_else(|| format!("{} without {field}", response.status))?;
    let list: List = Parser::new(&text).parse().map_err(|error| format!("{field}: {text} is no list: {error}"))?;
    let items = list.iter().map(|entry| {
        let ListEntry::Item(item) = entry else { return Err(format!("{field}: {text} has an inner list")) };
        let is_named = matches!(item.bare_item, BareItem::String(_) | BareItem::Token(_));
        let numbers = names.map(|name| item.params.get(name));
        let is_whole =
            numbers.iter().flatten().all(|value| value.as_integer().is_some_and(|number| i64::from(number) >= 0));
        if !is_named || !is_whole {
            return Err(format!("{field}: {text} has no name, or a number that is not whole"));
        }
        Ok(numbers.map(|value| value.and_then(BareItem::as_integer).map(i64::from)))
    });
    let items = items.collect::<Result<Vec<_>, _>>()?;
    if items.is_empty() || items.iter().any(|[first, _]| first.is_none()) {
        return Err(format!("{field}: {text} lacks {}", names[0]));
    }
    Ok(items)
}

/// The least r of a response, whatever else is wrong with it.
fn least(response: &Response) -> Option<i64> {
    items(response, "ratelimit", ["r", "-"]).ok()?.into_iter().filter_map(|[r, _]| r).min()
}

async fn fields(target: &Target) -> io::Result<Outcome> {
    let first = target.in_turn(&[target.request(target.key())]).await?.remove(0);
    let refused = refusal(target).await?;
    for exchange in [&first, &refused] {
        if let Err(wrong) = items(&exchange.response, "ratelimit", ["r", "t"]) {
            return Ok(Outcome::failed(wrong));
        }
    }
    Ok(Outcome::check(true, first.response.header("ratelimit").unwrap_or_default()))
}

async fn policy(target: &Target) -> io::Result<Outcome> {
    let first = target.in_turn(&[target.request(target.key())]).await?.remove(0);
    let shown = first.response.header("ratelimit-policy").unwrap_or_default();
    let stated = [i64::try_from(target.rate.quota).ok(), i64::try_from(target.rate.window.as_secs()).ok()];
    Ok(match items(&first.response, "ratelimit-policy", ["q", "w"]) {
        Ok(items) => Outcome::check(items.contains(&stated), shown),
        Err(wrong) => Outcome::failed(wrong),
    })
}

async fn remaining(target: &Target) -> io::Result<Outcome> {
    let request = target.request(target.key());
    let mut client = target.client().await?;
    let begun = Instant::now();
    let exchanges = target.exhaust(&mut client, &request).await?;
    // In the meantime, there may have been room again.
    let is_fast = begun.elapsed() < target.hold();
    let admitted: Vec<_> = exchanges.iter().filter(|exchange| exchange.is_admitted()).collect();
    for (number, exchange) in (1..).zip(&admitted) {
        let Some(told) = least(&exchange.response) else {
            return Ok(Outcome::failed(format!("response {number} tells no r")));
        };
        let told = usize::try_from(told).unwrap_or(usize::MAX);
        let after = admitted.len() - number;
        let figure = format!("after response {number}, r was {told}, and {after} more were admitted");
        if told > after {
            return Ok(Outcome::failed(figure));
        }
        // A bucket may have had a part of a token.
        let hidden = usize::from(target.algorithm == Algorithm::TokenBucket);
        if is_fast && after > told + hidden {
            return Ok(target.too_early(true, figure));
        }
    }
    if !is_fast {
        return Ok(Outcome::undecided("there may have been room again"));
    }
    Ok(Outcome::check(!admitted.is_empty(), format!("r was true in {} responses", admitted.len())))
}

async fn refused_remaining(target: &Target) -> io::Result<Outcome> {
    let refused = refusal(target).await?;
    Ok(match least(&refused.response) {
        Some(told) => Outcome::check(told == 0, format!("r is {told}")),
        None => Outcome::failed("a refusal tells no r"),
    })
}

async fn reset(target: &Target) -> io::Result<Outcome> {
    let request = target.request(target.key());
    let mut client = target.client().await?;
    let first = target.exhaust(&mut client, &request).await?;
    if let Some(last) = first.last() {
        sleep_until((last.received + target.windows(0.6)).into()).await;
    }
    let later = target.exhaust(&mut client, &request).await?;
    let refusals = [first.last(), later.last()].into_iter().flatten();
    let mut told = Vec::new();
    for Exchange { response, .. } in refusals {
        let times =
            items(response, "ratelimit", ["r", "t"]).ok().map(|items| items.into_iter().filter_map(|[_, t]| t).max());
        let (Some(Some(t)), Some(seconds)) = (times, response.retry_after()) else {
            return Ok(Outcome::failed("a refusal does not tell both times"));
        };
        told.push((t as f64, seconds));
    }
    let shown: Vec<_> = told.iter().map(|(t, seconds)| format!("t={t} and {seconds} s")).collect();
    Ok(Outcome::check(told.iter().all(|(t, seconds)| (t - seconds).abs() <= 1.0), shown.join(", then ")))
}
