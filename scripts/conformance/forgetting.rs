//! Behaviours: what a limiter remembers of keys that do not come back, and of one that does.

use std::io;
use std::time::Instant;

use tokio::time::sleep;

use super::behaviour::{Behaviour, Group, Need, Outcome, run};
use super::exchange::{Decision, Exchange, count};
use super::target::Target;

pub(crate) const ALL: &[Behaviour] = &[
    Behaviour {
        id: "memory",
        group: Group::Forget,
        sentence: "A key takes no more than `--most-bytes` of memory.",
        measure: "the resident memory of the processes before and after one request of each of `--keys` new keys",
        source: "Cloudflare, \"How we built rate limiting capable of scaling to millions of domains\": two numbers per counter",
        why: "Whoever invents keys fills the memory",
        needs: &[Need::Memory],
        run: run!(memory),
    },
    Behaviour {
        id: "idle-keys",
        group: Group::Forget,
        sentence: "Keys that do not come back are forgotten after `--idle`.",
        measure: "`--keys` new keys, a pause of `--idle`, and as many other ones: the memory grows again by at most half of the \
                  first growth, or by less than 2 MB",
        source: "https://github.com/networknt/light-4j/pull/2309: a map of clients that only grew",
        why: "A limiter that never forgets ends when the memory does",
        needs: &[Need::Memory],
        run: run!(idle_keys),
    },
    Behaviour {
        id: "pushed-out",
        group: Group::Forget,
        sentence: "A key without room is not forgotten because others come.",
        measure: "a new key without room; one request of each of as many other keys as fit into 0.3 windows, at most `--keys`; \
                  then the first key again",
        source: "nginx, documentation of limit_req_zone: if storage is exhausted, the least recently used state is removed",
        why: "A client that invents keys gets rid of its own counter",
        needs: &[],
        run: run!(pushed_out),
    },
    Behaviour {
        id: "crowd",
        group: Group::Forget,
        sentence: "Many other clients take nothing.",
        measure: "one request of each of as many new keys as fit into 0.3 windows, at most `--keys`; then N requests of another new key",
        source: "Cloudflare, documentation of pingora-limits: a count-min sketch estimates how often a key came",
        why: "A table of fixed size in which clients share counters refuses those that have sent nothing yet",
        needs: &[],
        run: run!(crowd),
    },
];

/// An allocator that has room from before shows nothing at first, and later a bit.
const NOISE: f64 = 2e6;

/// One request of each of so many new keys, by several connections. Stops at the end of the time. Returns how many there were.
async fn many_keys(target: &Target, count: usize, end: Option<Instant>) -> io::Result<usize> {
    const CONNECTIONS: usize = 8;
    let mut sent = 0;
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        clients.push(target.client().await?);
    }
    while sent < count && end.is_none_or(|end| Instant::now() < end) {
        let asks =
            clients.iter_mut().map(|client| async { client.ask(&target.request(target.key())).await.map(|_| ()) });
        futures_util::future::join_all(asks).await.into_iter().collect::<io::Result<()>>()?;
        sent += CONNECTIONS;
    }
    Ok(sent)
}

/// What the processes hold now.
fn held(target: &Target) -> io::Result<f64> {
    Ok(target.memory.as_ref().map_or(Ok(0), |memory| memory())? as f64)
}

async fn memory(target: &Target) -> io::Result<Outcome> {
    // What is needed only once, such as buffers of connections, is there before the first measurement.
    many_keys(target, target.keys / 20, None).await?;
    let before = held(target)?;
    let keys = many_keys(target, target.keys, None).await?;
    let each = (held(target)? - before).max(0.0) / keys as f64;
    Ok(Outcome::check(each <= target.most_bytes as f64, format!("{each:.0} bytes for each of {keys} keys")))
}

async fn idle_keys(target: &Target) -> io::Result<Outcome> {
    let before = held(target)?;
    let keys = many_keys(target, target.keys, None).await?;
    let first = held(target)? - before;
    sleep(target.idle).await;
    many_keys(target, target.keys, None).await?;
    let second = held(target)? - before - first;
    let figure =
        format!("with {keys} keys {:+.1} MB, then with as many other ones {:+.1} MB", first / 1e6, second / 1e6);
    Ok(Outcome::check(second <= (first / 2.0).max(NOISE), figure))
}

async fn crowd(target: &Target) -> io::Result<Outcome> {
    let keys = many_keys(target, target.keys, Some(Instant::now() + target.windows(0.3))).await?;
    let exchanges = target.in_turn(&vec![target.request(target.key()); target.rate.quota]).await?;
    let admitted = count(&exchanges, Decision::Admitted);
    let figure = format!("{admitted} of {} requests were admitted after {keys} other keys", exchanges.len());
    Ok(Outcome::check(admitted == exchanges.len(), figure))
}

async fn pushed_out(target: &Target) -> io::Result<Outcome> {
    let request = target.request(target.key());
    let mut client = target.client().await?;
    let begun = Instant::now();
    target.exhaust(&mut client, &request).await?;
    let keys = many_keys(target, target.keys, Some(Instant::now() + target.windows(0.3))).await?;
    // What came back in the meantime is used up. A limiter that has forgotten the key gives N at once.
    let mut admitted = 0;
    for _ in 0..target.rate.quota {
        admitted += usize::from(client.ask(&request).await.as_ref().is_ok_and(Exchange::is_admitted));
    }
    let time = begun.elapsed();
    let back = target.rate.most(target.algorithm, time, false) - target.rate.quota;
    let figure = format!("{admitted} of {} requests were admitted after {keys} other keys", target.rate.quota);
    if time >= target.windows(0.8) {
        return Ok(Outcome::undecided(figure));
    }
    Ok(if admitted <= back { Outcome::check(true, figure) } else { target.too_early(true, figure) })
}
