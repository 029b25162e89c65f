//! Behaviours: whatever a client does with its connections and with time, no more than N pass.

use std::io;
use std::time::{Duration, Instant};

use tokio::time::sleep_until;

use super::behaviour::{Behaviour, Group, Need, Outcome, Verdict, run};
use super::exchange::Exchange;
use super::judge;
use super::target::Target;

pub(crate) const ALL: &[Behaviour] = &[
    Behaviour {
        id: "burst",
        group: Group::Never,
        sentence: "Of many requests side by side, on a connection each, at most N pass.",
        measure: "3 N requests of a new key at once, on connections that were opened before",
        source: "https://github.com/TerminalWitchcraft/actix-ratelimit/issues/16: requests that read the same count",
        why: "A limiter that reads, decides and writes in three steps admits all requests that come between the first step and \
              the last",
        needs: &[],
        run: run!(burst),
    },
    Behaviour {
        id: "connections",
        group: Group::Never,
        sentence: "A client that opens a connection for each request gets no more than N.",
        measure: "3 N requests of a new key one after the other, each with `Connection: close`",
        source: "RFC 9110, section 3.3: HTTP is stateless, two requests on one connection need not be of one client",
        why: "What is counted in a connection is forgotten with it",
        needs: &[],
        run: run!(connections),
    },
    Behaviour {
        id: "pipelined",
        group: Group::Never,
        sentence: "Of requests that are sent before the responses of the first ones, at most N pass.",
        measure: "3 N requests of a new key in one write on one connection, which the limiter may close after a refusal",
        source: "RFC 9112, section 9.3.2: pipelining",
        why: "A limiter that decides once for what it has read admits everything that came in one packet",
        needs: &[],
        run: run!(pipelined),
    },
    Behaviour {
        id: "streams",
        group: Group::Never,
        sentence: "Of requests in streams of one HTTP/2 connection, at most N pass.",
        measure: "3 N streams of a new key at once, by HTTP/2 without TLS",
        source: "RFC 9113, section 5: streams are independent of each other",
        why: "Each stream is a request, although there is one connection",
        needs: &[Need::Http2],
        run: run!(streams),
    },
    Behaviour {
        id: "flood",
        group: Group::Never,
        sentence: "A client that never stops gets no more than N in any window.",
        measure: "a request every 100th of a window, for 2.2 windows, at least 130 together; the most that surely lie in a time less than a window",
        source: "Cloudflare, \"Counting things, a lot of different things\": sliding windows",
        why: "Counters that are dropped under load, or renewed by refusals, let a flood pass",
        needs: &[],
        run: run!(flood),
    },
    Behaviour {
        id: "edge",
        group: Group::Never,
        sentence: "A client that uses up its quota at the end of a window gets no second one just after it.",
        measure: "one request; 0.8 windows later N - 1, and then a request every 50th of a window until 1.7 windows",
        source: "Figma, \"An alternative approach to rate limiting\": a fixed window admits 2 N around its edge",
        why: "Who plans for N in a window gets twice as many within a moment",
        needs: &[],
        run: run!(edge),
    },
    Behaviour {
        id: "instances-in-turn",
        group: Group::Never,
        sentence: "A client that turns from one instance to the next gets no more than N together.",
        measure: "3 N requests of a new key one after the other, each at another instance than the one before",
        source: "Stripe, \"Scaling your API with rate limiters\": counters of several servers",
        why: "With a counter in each instance, the limit is N times the number of instances",
        needs: &[Need::Instances],
        run: run!(instances_in_turn),
    },
    Behaviour {
        id: "instances-at-once",
        group: Group::Never,
        sentence: "A client that asks all instances at the same moment gets no more than N together.",
        measure: "3 N requests of a new key at once, spread over all instances",
        source: "Figma, \"An alternative approach to rate limiting\": races between servers",
        why: "Instances that tell each other later what they have admitted admit too much until then",
        needs: &[Need::Instances],
        run: run!(instances_at_once),
    },
    Behaviour {
        id: "methods",
        group: Group::Never,
        sentence: "A client that changes the method gets no more than N together.",
        measure: "3 N requests of a new key with GET, POST, PUT and DELETE in turn",
        source: "the stated policy: N for each key, whatever the method is",
        why: "A counter for each method multiplies the quota",
        needs: &[],
        run: run!(methods),
    },
    Behaviour {
        id: "paths",
        group: Group::Never,
        sentence: "A client that changes the path or the query gets no more than N together.",
        measure: "3 N requests of a new key below the path of the URL, with other names and queries",
        source: "the stated policy: N for each key, whatever the path is",
        why: "A client invents a parameter, and has a new counter",
        needs: &[],
        run: run!(paths),
    },
    Behaviour {
        id: "addresses",
        group: Group::Never,
        sentence: "A client that claims other addresses gets no more than N together.",
        measure: "3 N requests of a new key, each with another X-Forwarded-For, Forwarded and X-Real-IP",
        source: "RFC 7239, section 8.1: the field cannot be trusted",
        why: "Anybody can write these fields",
        needs: &[],
        run: run!(addresses),
    },
];

fn never_more(target: &Target, exchanges: &[Exchange]) -> Outcome {
    judge::never_more(exchanges, target.rate, target.algorithm, false)
}

/// Three times the quota.
fn many(target: &Target) -> usize {
    3 * target.rate.quota
}

async fn burst(target: &Target) -> io::Result<Outcome> {
    let requests = vec![target.request(target.key()); many(target)];
    Ok(never_more(target, &target.side_by_side(&requests, 1).await?))
}

async fn connections(target: &Target) -> io::Result<Outcome> {
    let request = target.request(target.key()).with("Connection", "close");
    let mut exchanges = Vec::new();
    for _ in 0..many(target) {
        exchanges.push(target.client().await?.ask(&request).await?);
    }
    Ok(never_more(target, &exchanges))
}

async fn pipelined(target: &Target) -> io::Result<Outcome> {
    let request = target.request(target.key());
    let mut client = target.client().await?;
    let bytes = request.bytes(client.host()).repeat(many(target));
    let sent = client.connection().send(&bytes).await?;
    let mut exchanges: Vec<Exchange> = Vec::new();
    for _ in 0..many(target) {
        match client.connection().receive(sent, false).await {
            Ok(exchange) => exchanges.push(exchange),
            // The requests behind a refusal were not answered.
            Err(_) if exchanges.last().is_some_and(Exchange::is_refused) && client.connection().is_over => break,
            Err(error) => return Err(error),
        }
    }
    Ok(never_more(target, &exchanges))
}

async fn streams(target: &Target) -> io::Result<Outcome> {
    let requests = vec![target.request(target.key()); many(target)];
    Ok(never_more(target, &target.http2(&requests).await?))
}

async fn flood(target: &Target) -> io::Result<Outcome> {
    let request = target.request(target.key());
    let mut client = target.client().await?;
    let exchanges = poll(target, &mut client, &request, target.windows(2.2), target.windows(0.01)).await?;
    let outcome = judge::never_more(&exchanges, target.rate, target.algorithm, true);
    if outcome.verdict == Verdict::Passed && exchanges.len() < 130 {
        return Ok(Outcome::undecided(format!("{}, which is no flood", outcome.figure)));
    }
    Ok(outcome)
}

/// Sends a request again and again for a time, at most one in each interval.
pub(crate) async fn poll(
    target: &Target,
    client: &mut super::target::Client,
    request: &super::exchange::Request,
    time: Duration,
    interval: Duration,
) -> io::Result<Vec<Exchange>> {
    let (begun, mut exchanges) = (Instant::now(), Vec::new());
    while begun.elapsed() < time {
        let due = Instant::now() + interval.max(target.windows(0.001));
        exchanges.push(client.ask(request).await?);
        sleep_until(due.into()).await;
    }
    Ok(exchanges)
}

async fn edge(target: &Target) -> io::Result<Outcome> {
    let request = target.request(target.key());
    let mut client = target.client().await?;
    let mut exchanges = vec![client.ask(&request).await?];
    sleep_until((exchanges[0].received + target.windows(0.8)).into()).await;
    for _ in 1..target.rate.quota {
        exchanges.push(client.ask(&request).await?);
    }
    // Otherwise there is room at the edge because of requests that were late.
    let is_used_up = exchanges[0].sent.elapsed() < target.windows(0.98);
    let interval = target.windows(0.02).min(target.windows(0.5) / u32::try_from(target.rate.quota).unwrap_or(1));
    exchanges.extend(poll(target, &mut client, &request, target.windows(0.9), interval).await?);
    let outcome = judge::never_more(&exchanges, target.rate, target.algorithm, true);
    if outcome.verdict == Verdict::Passed && !is_used_up {
        return Ok(Outcome::undecided(format!("{}, but not N in the first window", outcome.figure)));
    }
    Ok(outcome)
}

async fn instances_in_turn(target: &Target) -> io::Result<Outcome> {
    let request = target.request(target.key());
    let mut clients = Vec::new();
    for instance in 0..target.instances.len() {
        clients.push(target.client_of(instance).await?);
    }
    let mut exchanges = Vec::new();
    for number in 0..many(target) {
        let next = number % clients.len();
        exchanges.push(clients[next].ask(&request).await?);
    }
    Ok(never_more(target, &exchanges))
}

async fn instances_at_once(target: &Target) -> io::Result<Outcome> {
    let requests = vec![target.request(target.key()); many(target)];
    Ok(never_more(target, &target.side_by_side(&requests, target.instances.len()).await?))
}

async fn methods(target: &Target) -> io::Result<Outcome> {
    let request = target.request(target.key());
    let requests = ["GET", "POST", "PUT", "DELETE"].map(|method| request.clone().method(method));
    let requests: Vec<_> = requests.into_iter().cycle().take(many(target)).collect();
    Ok(never_more(target, &target.in_turn(&requests).await?))
}

async fn paths(target: &Target) -> io::Result<Outcome> {
    let request = target.request(target.key());
    let path = request.path.trim_end_matches('/').to_owned();
    let requests = (0..many(target)).map(|number| {
        let path = match number % 4 {
            0 => format!("{path}/{number}"),
            1 => format!("{path}/?n={number}"),
            2 => format!("{path}/%{:02x}", b'a' + u8::try_from(number % 26).unwrap_or_default()),
            _ => format!("{path}/{number}/"),
        };
        request.clone().path(path)
    });
    Ok(never_more(target, &target.in_turn(&requests.collect::<Vec<_>>()).await?))
}

async fn addresses(target: &Target) -> io::Result<Outcome> {
    let request = target.request(target.key());
    let requests = (1..=many(target)).map(|number| {
        let address = format!("198.51.{}.{}", number / 250, number % 250 + 1);
        let request = request.clone().with("X-Forwarded-For", address.as_str()).with("X-Real-IP", address.as_str());
        request.with("Forwarded", format!("for={address}"))
    });
    Ok(never_more(target, &target.in_turn(&requests.collect::<Vec<_>>()).await?))
}
