//! Behaviours: what a refusal tells is true, so that a client can obey it.

use std::io;
use std::time::{Duration, Instant};

use tokio::time::sleep_until;

use super::behaviour::{Behaviour, Group, Need, Outcome, run};
use super::exchange::{Exchange, Request};
use super::target::{Client, Target};

pub(crate) const ALL: &[Behaviour] = &[
    Behaviour {
        id: "status",
        group: Group::Truth,
        sentence: "A refusal has the status 429, not 503.",
        measure: "the status of the first refusal of a new key",
        source: "RFC 6585, section 4; nginx, documentation of limit_req_status, which is 503 by default",
        why: "503 says that the server has failed: load balancers take it out, and people are woken",
        needs: &[],
        run: run!(status),
    },
    Behaviour {
        id: "retry-after",
        group: Group::Truth,
        sentence: "A refusal has Retry-After, as whole seconds or as a date.",
        measure: "the field in the first refusal of a new key",
        source: "RFC 9110, section 10.2.3; https://github.com/alisaifee/flask-limiter/issues/62: strange values",
        why: "A client that cannot read the field tries at once",
        needs: &[Need::RetryAfter],
        run: run!(retry_after),
    },
    Behaviour {
        id: "told-early",
        group: Group::Truth,
        sentence: "Retry-After is not too long: a second before the told time, a request is refused.",
        measure: "a new key without room, another refusal up to 0.6 s later, so that the time is no whole number of seconds; one request \
                  that surely comes a second too early, by 0.1 s",
        source: "https://github.com/go-chi/httprate/issues/47: the told time was always the whole window",
        why: "A limiter that tells too long a time wastes what it has admitted",
        needs: &[Need::RetryAfter],
        run: run!(told_early),
    },
    Behaviour {
        id: "told-on-time",
        group: Group::Truth,
        sentence: "Retry-After is not too short: at the told time, a request passes.",
        measure: "a new key without room, half a window later another refusal; one request at its told time",
        source: "https://github.com/brandur/redis-cell/issues/56 and https://github.com/hashicorp/boundary/pull/4094: seconds were rounded down",
        why: "A client that obeys is refused again",
        needs: &[Need::RetryAfter],
        run: run!(told_on_time),
    },
    Behaviour {
        id: "cache",
        group: Group::Truth,
        sentence: "A refusal does not permit caches to store it.",
        measure: "Cache-Control and Expires of the first refusal of a new key",
        source: "RFC 6585, section 4: responses with 429 must not be stored by a cache",
        why: "A cache in between goes on refusing, also for others",
        needs: &[],
        run: run!(cache),
    },
    Behaviour {
        id: "explains",
        group: Group::Truth,
        sentence: "A refusal has a body, and says of which type it is.",
        measure: "Content-Type and length of the first refusal of a new key",
        source: "RFC 6585, section 4: the response should include details explaining the condition; RFC 9110, section 8.3",
        why: "Somebody has to find out what happened",
        needs: &[],
        run: run!(explains),
    },
    Behaviour {
        id: "head",
        group: Group::Truth,
        sentence: "HEAD is counted and refused like GET, with the same fields and without a body.",
        measure: "a new key that sends HEAD until it has no room; the fields of its refusal, and the next response",
        source: "RFC 9110, section 9.3.2",
        why: "A client asks with HEAD what GET would say. A body after HEAD is read as the next response",
        needs: &[],
        run: run!(head),
    },
    Behaviour {
        id: "options",
        group: Group::Truth,
        sentence: "OPTIONS is counted and refused like GET.",
        measure: "a new key that sends OPTIONS until it has no room",
        source: "RFC 9110, section 9.3.7; the stated policy",
        why: "Preflight requests reach the server, too: whoever sends only these has no limit",
        needs: &[],
        run: run!(options),
    },
    Behaviour {
        id: "http2-refusal",
        group: Group::Truth,
        sentence: "A refusal in HTTP/2 tells the same as one in HTTP/1.1.",
        measure: "a new key without room: the status and the names of the fields of a refusal in each version",
        source: "RFC 9110, section 1: the semantics are common to all versions",
        why: "A client that speaks HTTP/2 must obey as well",
        needs: &[Need::Http2],
        run: run!(http2_refusal),
    },
];

/// The first refusal of a new key.
pub(crate) async fn refusal(target: &Target) -> io::Result<Exchange> {
    let mut client = target.client().await?;
    let exchanges = target.exhaust(&mut client, &target.request(target.key())).await?;
    exchanges.into_iter().next_back().ok_or_else(|| io::Error::other("nothing was refused"))
}

async fn status(target: &Target) -> io::Result<Outcome> {
    let status = refusal(target).await?.response.status;
    Ok(Outcome::check(status == 429, format!("the status is {status}")))
}

async fn retry_after(target: &Target) -> io::Result<Outcome> {
    let Some(value) = refusal(target).await?.response.header("retry-after") else {
        return Ok(Outcome::failed("a refusal has no Retry-After"));
    };
    let is_whole = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    let is_date = httpdate::parse_http_date(&value).is_ok();
    Ok(Outcome::check(is_whole || is_date, format!("Retry-After: {value}")))
}

/// A refusal and the seconds that it told.
struct Told {
    client: Client,
    request: Request,
    refused: Exchange,
    seconds: f64,
}

impl Told {
    /// Makes a key without room, and asks again `later`.
    async fn ask(target: &Target, later: Duration) -> io::Result<Result<Self, Outcome>> {
        let request = target.request(target.key());
        let mut client = target.client().await?;
        let exchanges = target.exhaust(&mut client, &request).await?;
        let mut refused = exchanges.into_iter().next_back().ok_or_else(|| io::Error::other("nothing was refused"))?;
        sleep_until((refused.received + later).into()).await;
        refused = client.ask(&request).await?;
        if !refused.is_refused() {
            // A bucket has room again.
            let exchanges = target.exhaust(&mut client, &request).await?;
            refused = exchanges.into_iter().next_back().ok_or_else(|| io::Error::other("nothing was refused"))?;
        }
        let Some(seconds) = refused.response.retry_after() else {
            return Ok(Err(Outcome::failed("a refusal tells no seconds")));
        };
        if seconds > 2.0 * target.rate.window.as_secs_f64() + 2.0 {
            return Ok(Err(Outcome::failed(format!(
                "{seconds} s are told, for a window of {} s",
                target.rate.window.as_secs_f64()
            ))));
        }
        Ok(Ok(Self { client, request, refused, seconds }))
    }
}

async fn told_early(target: &Target) -> io::Result<Outcome> {
    let mut told = match Told::ask(target, Duration::from_millis(600).min(target.windows(0.5))).await? {
        Ok(told) => told,
        Err(outcome) => return Ok(outcome),
    };
    let seconds = told.seconds;
    if seconds <= 1.0 {
        return Ok(Outcome::check(true, format!("{seconds} s are told: nothing is a second earlier")));
    }
    // The limiter has decided after the request was sent, so the told time begins then at the earliest.
    let until = told.refused.sent + Duration::from_secs_f64(seconds - 1.0);
    let reserve = ((seconds - 1.0) * 0.1).min(0.1);
    sleep_until((told.refused.sent + Duration::from_secs_f64(seconds - 1.0 - reserve)).into()).await;
    let early = told.client.ask(&told.request).await?;
    let before = (told.refused.sent + Duration::from_secs_f64(seconds)).saturating_duration_since(early.received);
    let figure = format!(
        "{seconds} s were told; {:.2} s before, the answer was {}",
        before.as_secs_f64(),
        early.response.status
    );
    if early.received >= until {
        return Ok(Outcome::undecided(figure));
    }
    Ok(Outcome::check(early.is_refused(), figure))
}

async fn told_on_time(target: &Target) -> io::Result<Outcome> {
    let mut told = match Told::ask(target, target.windows(0.55)).await? {
        Ok(told) => told,
        Err(outcome) => return Ok(outcome),
    };
    // A clock of the limiter that is being corrected may run slower than ours.
    sleep_until((told.refused.received + Duration::from_secs_f64(told.seconds * 1.01)).into()).await;
    let on_time = told.client.ask(&told.request).await?;
    let figure = format!("{} s were told; then the answer was {}", told.seconds, on_time.response.status);
    // Much later, there is room whatever was told.
    let late = (on_time.received - told.refused.sent).as_secs_f64() - told.seconds;
    if on_time.is_admitted() && late > target.windows(0.2).as_secs_f64() {
        return Ok(Outcome::undecided(format!("{figure}, {late:.2} s late")));
    }
    Ok(Outcome::check(on_time.is_admitted(), figure))
}

async fn cache(target: &Target) -> io::Result<Outcome> {
    let response = refusal(target).await?.response;
    let control = response.header("cache-control").unwrap_or_default().to_lowercase();
    let is_forbidden = ["no-store", "no-cache", "private"].iter().any(|word| control.contains(word));
    let lifetime = control
        .split(',')
        .filter_map(|part| part.trim().split_once("max-age=").or(part.trim().split_once("s-maxage=")));
    let lives = lifetime.into_iter().any(|(_, seconds)| seconds.trim().parse::<u64>() != Ok(0));
    let permits = !is_forbidden && (lives || control.contains("public") || response.header("expires").is_some());
    let shown = if control.is_empty() { "no Cache-Control".to_owned() } else { format!("Cache-Control: {control}") };
    Ok(Outcome::check(!permits, shown))
}

async fn explains(target: &Target) -> io::Result<Outcome> {
    let response = refusal(target).await?.response;
    let kind = response.header("content-type");
    let figure = format!("{} bytes of {}", response.body.len(), kind.as_deref().unwrap_or("no type"));
    Ok(Outcome::check(!response.body.is_empty() && kind.is_some_and(|kind| kind.contains('/')), figure))
}

async fn head(target: &Target) -> io::Result<Outcome> {
    let request = target.request(target.key());
    let head = request.clone().method("HEAD");
    let mut client = target.client().await?;
    let begun = Instant::now();
    let refused = match target.exhaust(&mut client, &head).await {
        Ok(exchanges) => exchanges.into_iter().next_back(),
        Err(error) => return Ok(Outcome::failed(error.to_string())),
    };
    // If a body came after HEAD, this is no response.
    let next = client.ask(&request).await?;
    let took = begun.elapsed();
    if next.is_admitted() {
        return Ok(target.too_early(took < target.hold(), "GET was admitted after HEAD was refused"));
    }
    let lacks = refused.map(|refused| lacking(&next, &refused)).unwrap_or_default();
    Ok(Outcome::check(
        lacks.is_empty(),
        match lacks.as_slice() {
            [] => "HEAD was refused like GET".to_owned(),
            lacks => format!("the refusal of HEAD lacks {}", lacks.join(", ")),
        },
    ))
}

/// The fields of a refusal that another one lacks, of those that tell something about the limit.
fn lacking(one: &Exchange, other: &Exchange) -> Vec<&'static str> {
    let names = ["retry-after", "ratelimit", "ratelimit-policy", "content-type"];
    let has = |exchange: &Exchange, name| exchange.response.header(name).is_some();
    names.into_iter().filter(|name| has(one, name) && !has(other, name)).collect()
}

async fn options(target: &Target) -> io::Result<Outcome> {
    let request = target.request(target.key()).method("OPTIONS");
    let mut client = target.client().await?;
    let begun = Instant::now();
    let mut sent = 0;
    while begun.elapsed() < target.windows(0.5) && sent < 4 * target.rate.quota {
        sent += 1;
        let exchange = client.ask(&request).await?;
        if !exchange.is_admitted() {
            let figure = format!("request {sent} was answered {}", exchange.response.status);
            return Ok(Outcome::check(true, figure));
        }
    }
    let figure = format!("{sent} requests were admitted");
    Ok(if sent > 2 * target.rate.quota { Outcome::failed(figure) } else { Outcome::undecided(figure) })
}

async fn http2_refusal(target: &Target) -> io::Result<Outcome> {
    let request = target.request(target.key());
    let mut client = target.client().await?;
    let begun = Instant::now();
    let exchanges = target.exhaust(&mut client, &request).await?;
    let first = exchanges.into_iter().next_back().ok_or_else(|| io::Error::other("nothing was refused"))?;
    let second = target.http2(&[request]).await?.remove(0);
    if second.is_admitted() {
        return Ok(target.too_early(begun.elapsed() < target.hold(), "the request in HTTP/2 was admitted"));
    }
    let lacks = lacking(&first, &second);
    let [one, other] = [&first, &second].map(|exchange| exchange.response.status);
    let figure = match lacks.as_slice() {
        [] => format!("{one} and {other}, with the same fields"),
        lacks => format!("{one} and {other}, but HTTP/2 lacks {}", lacks.join(", ")),
    };
    Ok(Outcome::check(one == other && lacks.is_empty(), figure))
}
