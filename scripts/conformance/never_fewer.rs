//! Behaviours: who stays within the limit gets N, whatever others do and whatever went wrong before.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use tokio::time::sleep;

use super::behaviour::{Behaviour, Group, Need, Outcome, Verdict, run};
use super::exchange::{Decision, Exchange, count};
use super::http1::Connection;
use super::never_more::poll;
use super::target::Target;

pub(crate) const ALL: &[Behaviour] = &[
    Behaviour {
        id: "quiet",
        group: Group::Fair,
        sentence: "A client that has been quiet gets all N requests.",
        measure: "N requests of a new key, spread evenly over half a window",
        source: "the stated policy",
        why: "Who pays for N and gets N - 1 looks for the fault in the own program",
        needs: &[],
        run: run!(quiet),
    },
    Behaviour {
        id: "at-once",
        group: Group::Fair,
        sentence: "A client that has been quiet gets all N requests also at the same moment.",
        measure: "N requests of a new key at once, on connections that were opened before",
        source: "nginx, documentation of limit_req: without burst, the second of two requests at once is refused",
        why: "A page that loads ten things at once needs ten requests at once",
        needs: &[],
        run: run!(at_once),
    },
    Behaviour {
        id: "recovers",
        group: Group::Fair,
        sentence: "A client that was refused gets all N requests again after a pause.",
        measure: "a new key without room, a pause of 2.1 windows, and N requests",
        source: "RFC 6585, section 4: the response tells how long to wait before a new request",
        why: "A client that exceeded the limit once has less for ever",
        needs: &[],
        run: run!(recovers),
    },
    Behaviour {
        id: "refused-free",
        group: Group::Fair,
        sentence: "Refused requests are not charged.",
        measure: "a new key without room; then 50 or more requests in each window, for two windows: at least three quarters of N pass",
        source: "https://github.com/sourcegraph/sourcegraph-public-snapshot/pull/51899: refused requests were counted; HAProxy, documentation of http_req_rate, which counts denied requests",
        why: "A client that asks every second whether it may go on never may",
        needs: &[],
        run: run!(refused_free),
    },
    Behaviour {
        id: "neighbours",
        group: Group::Fair,
        sentence: "The flood of another client takes nothing.",
        measure: "N requests of a new key, while a key that differs in its end has flooded for 0.2 windows, with 20 requests or more, and \
                  goes on",
        source: "Google, \"Site Reliability Engineering\", chapter 21: limits per client",
        why: "One client that runs wild stops the others, from which the limit should protect them",
        needs: &[],
        run: run!(neighbours),
    },
    Behaviour {
        id: "failures",
        group: Group::Fair,
        sentence: "A request that the upstream fails is charged once at most.",
        measure: "N / 2 requests of a new key to `--failing-path`, and the rest of N to the path of the URL",
        source: "RFC 9110, section 15.6: the server has failed, the request was apparently valid",
        why: "A limiter that tries again and charges each try refuses clients because of the server's failure",
        needs: &[Need::FailingPath],
        run: run!(failures),
    },
    Behaviour {
        id: "bodies",
        group: Group::Fair,
        sentence: "A refused request with a body leaves the connection in order, or the limiter closes it.",
        measure: "a key without room sends a POST with 20 kB, and another key's request on the same connection",
        source: "RFC 9112, section 9.3: a server reads the whole body or closes the connection",
        why: "What is left of the body is read as the next request",
        needs: &[],
        run: run!(bodies),
    },
];

/// How many requests of a client come before those of another one, at least.
const FLOOD: usize = 20;

async fn quiet(target: &Target) -> io::Result<Outcome> {
    let request = target.request(target.key());
    let mut client = target.client().await?;
    let pause = target.windows(0.5) / u32::try_from(target.rate.quota - 1).unwrap_or(1);
    let mut exchanges = vec![client.ask(&request).await?];
    for _ in 1..target.rate.quota {
        sleep(pause).await;
        exchanges.push(client.ask(&request).await?);
    }
    Ok(all_admitted(&exchanges))
}

async fn at_once(target: &Target) -> io::Result<Outcome> {
    let requests = vec![target.request(target.key()); target.rate.quota];
    Ok(all_admitted(&target.side_by_side(&requests, 1).await?))
}

fn all_admitted(exchanges: &[Exchange]) -> Outcome {
    let admitted = count(exchanges, Decision::Admitted);
    Outcome::check(admitted == exchanges.len(), format!("{admitted} of {} requests were admitted", exchanges.len()))
}

async fn recovers(target: &Target) -> io::Result<Outcome> {
    let request = target.request(target.key());
    let mut client = target.client().await?;
    target.exhaust(&mut client, &request).await?;
    sleep(target.windows(2.1)).await;
    let mut exchanges = Vec::new();
    for _ in 0..target.rate.quota {
        exchanges.push(client.ask(&request).await?);
    }
    Ok(all_admitted(&exchanges))
}

async fn refused_free(target: &Target) -> io::Result<Outcome> {
    let request = target.request(target.key());
    let mut client = target.client().await?;
    target.exhaust(&mut client, &request).await?;
    let interval = (target.step() / 2).min(target.windows(0.02));
    let exchanges = poll(target, &mut client, &request, target.windows(2.0), interval).await?;
    let admitted = count(&exchanges, Decision::Admitted);
    let figure =
        format!("{admitted} of {} requests were admitted in two windows after the first refusal", exchanges.len());
    if exchanges.len() < (2 * target.rate.quota).max(75) {
        return Ok(Outcome::undecided(format!("{figure}, which is too few")));
    }
    Ok(Outcome::check(admitted >= (3 * target.rate.quota).div_ceil(4), figure))
}

async fn neighbours(target: &Target) -> io::Result<Outcome> {
    let key = target.key();
    let (loud, quiet) = (target.request(format!("{key}-1")), target.request(format!("{key}-2")));
    let (mut loud_client, mut quiet_client) = (target.client().await?, target.client().await?);
    let begun = Instant::now();
    target.exhaust(&mut loud_client, &loud).await?;
    let (is_over, sent) = (AtomicBool::new(false), AtomicUsize::new(0));
    let flood = async {
        while !is_over.load(Ordering::Relaxed) {
            loud_client.ask(&loud).await?;
            sent.fetch_add(1, Ordering::Relaxed);
            sleep(target.windows(0.002)).await;
        }
        io::Result::Ok(())
    };
    let client = async {
        sleep(target.windows(0.2)).await;
        while sent.load(Ordering::Relaxed) < FLOOD {
            sleep(target.windows(0.01)).await;
        }
        let mut exchanges = Vec::new();
        for _ in 0..target.rate.quota {
            exchanges.push(quiet_client.ask(&quiet).await?);
        }
        is_over.store(true, Ordering::Relaxed);
        Ok(exchanges)
    };
    let ((), exchanges) = tokio::try_join!(flood, client)?;
    let outcome = all_admitted(&exchanges);
    let figure = format!("{}, beside {} of the other client", outcome.figure, sent.into_inner());
    if outcome.verdict == Verdict::Passed && begun.elapsed() > target.windows(0.9) {
        return Ok(Outcome::undecided(format!("{figure}, which is no flood")));
    }
    Ok(Outcome { figure, ..outcome })
}

async fn failures(target: &Target) -> io::Result<Outcome> {
    let request = target.request(target.key());
    let failing = request.clone().path(target.failing_path.clone().unwrap_or_default());
    let mut client = target.client().await?;
    let failures = target.rate.quota / 2;
    let mut statuses = Vec::new();
    for _ in 0..failures {
        statuses.push(client.ask(&failing).await?.response.status);
    }
    if let Some(other) = statuses.iter().find(|status| **status < 500) {
        return Ok(Outcome::undecided(format!("the failing path was answered {other}, not 5xx")));
    }
    let mut exchanges = Vec::new();
    for _ in failures..target.rate.quota {
        exchanges.push(client.ask(&request).await?);
    }
    let outcome = all_admitted(&exchanges);
    Ok(Outcome { figure: format!("after {failures} failures, {}", outcome.figure), ..outcome })
}

async fn bodies(target: &Target) -> io::Result<Outcome> {
    let request = target.request(target.key());
    let mut client = target.client().await?;
    target.exhaust(&mut client, &request).await?;
    let mut post = request.method("POST");
    post.body = b"x\n".repeat(10_000);
    let mut connection = Connection::open(target.instances[0].address).await?;
    let refused = match connection.ask(client.host(), &post).await {
        Ok(refused) => refused,
        Err(error) => return Ok(Outcome::undecided(format!("the connection ended in the response: {error}"))),
    };
    if connection.is_over {
        return Ok(Outcome::check(refused.is_refused(), "refused, and the connection was closed"));
    }
    match connection.ask(client.host(), &target.request(target.key())).await {
        Ok(next) => {
            Ok(Outcome::check(next.is_admitted(), format!("the next request was answered {}", next.response.status)))
        }
        // A server that lingers may close only now.
        Err(_) if connection.is_over => Ok(Outcome::check(true, "the connection was closed after the refusal")),
        Err(error) => Ok(Outcome::failed(error.to_string())),
    }
}
