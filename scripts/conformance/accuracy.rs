//! Behaviours: how far the limiter is from an exact log of what was admitted.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::time::{Duration, Instant};

use fastrand::Rng;
use tokio::task::JoinSet;
use tokio::time::sleep_until;

use super::behaviour::{Behaviour, Group, Need, Outcome, run};
use super::exchange::Exchange;
use super::judge::{against_exact_log, difference};
use super::policy::Algorithm;
use super::target::Target;

const CLIENTS: usize = 8;
/// How long the made traffic lasts, in windows.
const LENGTH: f64 = 3.0;

pub(crate) const ALL: &[Behaviour] = &[
    Behaviour {
        id: "poisson",
        group: Group::Accuracy,
        sentence: "For clients that come at random, the limiter differs from the exact log by no more than stated.",
        measure: "8 new keys, each with 1.5 N requests in a window at times of a Poisson process, for 3 windows: by which share \
                  the number of admitted requests differs from that of an exact log, mean and worst key. With `--algorithm log`, \
                  instead no decision may differ from the log of what was admitted before",
        source: "Cloudflare, \"How we built rate limiting capable of scaling to millions of domains\": 0.003 % were decided wrongly",
        why: "An estimate is as good as its assumptions about traffic",
        needs: &[],
        run: run!(poisson),
    },
    Behaviour {
        id: "bursts",
        group: Group::Accuracy,
        sentence: "For clients that come in bursts, the limiter differs from the exact log by no more than stated.",
        measure: "the same with bursts every 0.35 windows, of N / 2 + 1 requests from every other key, and of N + 1 from the rest",
        source: "Figma, \"An alternative approach to rate limiting\"",
        why: "Counters that assume even traffic are furthest off where it is not",
        needs: &[],
        run: run!(bursts),
    },
    Behaviour {
        id: "replay",
        group: Group::Accuracy,
        sentence: "For the clients of a real access log, the limiter differs from the exact log by no more than stated.",
        measure: "the same with the times and clients of `--log`: on each line a client and seconds from the beginning",
        source: "the log of the one who measures",
        why: "Real traffic is neither even nor random",
        needs: &[Need::AccessLog],
        run: run!(replay),
    },
];

/// When the requests of each client come, as seconds from the beginning.
type Schedule = Vec<Vec<f64>>;

async fn poisson(target: &Target) -> io::Result<Outcome> {
    let (window, mut random) = (target.rate.window.as_secs_f64(), Rng::with_seed(7));
    let pace = window / (1.5 * target.rate.quota as f64);
    let client = |_| {
        let mut at = 0.0;
        let mut times = Vec::new();
        while at < LENGTH * window {
            times.push(at);
            at -= pace * (1.0 - random.f64()).ln();
        }
        times
    };
    compare(target, (0..CLIENTS).map(client).collect()).await
}

async fn bursts(target: &Target) -> io::Result<Outcome> {
    let window = target.rate.window.as_secs_f64();
    let client = |number: usize| {
        let begun = number as f64 * 0.03 * window;
        let bursts = (0..).map(|burst| begun + f64::from(burst) * 0.35 * window).take_while(|at| *at < LENGTH * window);
        let size = if number.is_multiple_of(2) { target.rate.quota / 2 + 1 } else { target.rate.quota + 1 };
        bursts.flat_map(|at| vec![at; size]).collect()
    };
    compare(target, (0..CLIENTS).map(client).collect()).await
}

async fn replay(target: &Target) -> io::Result<Outcome> {
    let path = target.log.clone().unwrap_or_default();
    let schedule =
        read(&fs::read_to_string(&path)?).map_err(|wrong| io::Error::other(format!("{}: {wrong}", path.display())))?;
    compare(target, schedule).await
}

fn read(text: &str) -> Result<Schedule, String> {
    let mut clients: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for (number, line) in (1..).zip(text.lines()) {
        let fields = line.split_once(char::is_whitespace);
        let read = fields.and_then(|(client, time)| Some((client, time.trim().parse::<f64>().ok()?)));
        let (client, time) = read
            .filter(|(_, time)| (0.0..86_400.0).contains(time))
            .ok_or_else(|| format!("line {number} is no client and seconds, such as `192.0.2.1 12.5`: {line}"))?;
        clients.entry(client).or_default().push(time);
    }
    clients.values_mut().for_each(|times| times.sort_by(f64::total_cmp));
    Ok(clients.into_values().collect())
}

/// Sends this traffic, each client on a connection of its own, and compares the decisions.
async fn compare(target: &Target, schedule: Schedule) -> io::Result<Outcome> {
    let begun = Instant::now() + Duration::from_millis(50);
    let mut tasks = JoinSet::new();
    for times in schedule {
        let (mut client, request) = (target.client().await?, target.request(target.key()));
        tasks.spawn(async move {
            let mut exchanges = Vec::new();
            for at in times {
                sleep_until((begun + Duration::from_secs_f64(at)).into()).await;
                exchanges.push(client.ask(&request).await?);
            }
            Ok::<_, io::Error>(exchanges)
        });
    }
    let mut clients = Vec::new();
    while let Some(exchanges) = tasks.join_next().await {
        clients.push(exchanges.map_err(io::Error::other)??);
    }
    Ok(judge(target, &clients))
}

/// Compares the numbers of admitted requests of each client, and for a limiter that is a log itself also each decision.
fn judge(target: &Target, clients: &[Vec<Exchange>]) -> Outcome {
    let differences: Vec<_> = clients.iter().map(|exchanges| difference(exchanges, target.rate)).collect();
    let mean = differences.iter().sum::<f64>() / differences.len().max(1) as f64;
    let worst = differences.into_iter().fold(0.0, f64::max);
    let decisions = clients.iter().map(|exchanges| against_exact_log(exchanges, target.rate));
    let (over, under) = decisions.fold((0, 0), |(over, under), (more, fewer)| (over + more, under + fewer));
    let all: usize = clients.iter().map(Vec::len).sum();
    let figure = format!(
        "mean {:.1} %, worst key {:.1} %; of {all} decisions, {over} admitted and {under} refused against the log",
        mean * 100.0,
        worst * 100.0
    );
    let is_near = mean <= target.tolerance.mean && worst <= target.tolerance.worst;
    // The tolerance of others leaves room for a slow machine. A log is judged by what differs whenever it was decided.
    if target.algorithm != Algorithm::Log {
        return Outcome::check(is_near, figure);
    }
    let is_slow = |exchange: &&Exchange| exchange.received - exchange.sent > target.windows(0.05);
    let slow = clients.iter().flatten().filter(is_slow).count();
    if over + under == 0 && slow > all / 4 {
        return Outcome::undecided(format!("{figure}, but {slow} answers took too long"));
    }
    Outcome::check(over + under == 0, figure)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_has_clients_and_times() {
        assert_eq!(read("b 2.5\na 1\nb 0\n"), Ok(vec![vec![1.0], vec![0.0, 2.5]]));
        assert!(read("a 1\nb\n").unwrap_err().starts_with("line 2 is no client and seconds"));
    }
}
