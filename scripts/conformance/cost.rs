//! Behaviours: the time of a decision, as the difference between medians, so that the network and the upstream do not matter.

use std::io;
use std::time::Duration;

use super::behaviour::{Behaviour, Group, Need, Outcome, run};
use super::exchange::Exchange;
use super::target::Target;

const PAIRS: usize = 100;

pub(crate) const ALL: &[Behaviour] = &[
    Behaviour {
        id: "decision-time",
        group: Group::Cost,
        sentence: "A limit makes an admitted request slower by at most `--most-cost`.",
        measure: "100 pairs of requests in turn on one connection, one to `--free-path` and one of a new key: the difference of the \
                  two medians",
        source: "Envoy, documentation of the rate limit filter: a call for each request",
        why: "Each request of each client pays for it",
        needs: &[Need::FreePath],
        run: run!(decision_time),
    },
    Behaviour {
        id: "refusal-time",
        group: Group::Cost,
        sentence: "A refusal takes no longer than an admission, by at most `--most-cost`.",
        measure: "100 pairs of requests in turn on one connection, one of a key without room and one of a new key: the difference of \
                  the two medians",
        source: "AWS, \"Using load shedding to avoid overload\": rejecting must be cheaper than the work",
        why: "A flood of refused requests must not cost more than what it is refused",
        needs: &[],
        run: run!(refusal_time),
    },
];

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times.get(times.len() / 2).map_or(0.0, Duration::as_secs_f64)
}

fn time(exchange: &Exchange) -> Duration {
    exchange.received - exchange.sent
}

fn compare(target: &Target, names: [&str; 2], times: [Vec<Duration>; 2]) -> Outcome {
    let [one, other] = times.map(median);
    let [first, second] = names;
    let more = (other - one) * 1e6;
    let figure = format!(
        "{more:+.0} us: the medians are {:.0} us for {second} and {:.0} us for {first}",
        other * 1e6,
        one * 1e6
    );
    Outcome::check(more <= target.most_cost.as_secs_f64() * 1e6, figure)
}

async fn decision_time(target: &Target) -> io::Result<Outcome> {
    let free = target.without_key().path(target.free_path.clone().unwrap_or_default());
    let mut client = target.client().await?;
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for _ in 0..PAIRS {
        without.push(time(&client.ask(&free).await?));
        with.push(time(&client.ask(&target.request(target.key())).await?));
    }
    Ok(compare(target, ["a request without a limit", "one with a limit"], [without, with]))
}

async fn refusal_time(target: &Target) -> io::Result<Outcome> {
    let request = target.request(target.key());
    let mut client = target.client().await?;
    target.exhaust(&mut client, &request).await?;
    let (mut admitted, mut refused) = (Vec::new(), Vec::new());
    for _ in 0..PAIRS {
        admitted.push(time(&client.ask(&target.request(target.key())).await?));
        let exchange = client.ask(&request).await?;
        if exchange.is_refused() {
            refused.push(time(&exchange));
        }
    }
    Ok(compare(target, ["an admission", "a refusal"], [admitted, refused]))
}
