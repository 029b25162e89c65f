//! The screen at several sizes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::style::{Color, Modifier};

use super::{Model, Screen, count, latency, rate};
use crate::admin::dashboard::{
    ConnectionNumbers, Decisions, Durations, EndedReload, KeyCount, LimitDescription, LimitNumbers, Limits,
    MemoryNumbers, Numbers, Problem, ReloadNumbers, ReloadOutcome, ServerNumbers, SharedNumbers, State, StoreNumbers,
    StoreServer, UpstreamNumbers,
};
use crate::commands::top::feed::Update;

const START: u64 = 1_700_000_000;

/// The numbers after `seconds`. In each second 90 requests are forwarded, in 2 ms, and 10 are refused.
fn numbers(seconds: u64) -> Numbers {
    let limit = |name: &str, rejected| LimitNumbers {
        name: name.to_owned(),
        decisions: Decisions([("admitted".into(), 90 * seconds), ("rejected".into(), rejected)].into()),
        refused_this_minute: rejected,
    };
    let server = |server: &str, health: &str, requests| ServerNumbers {
        server: server.to_owned(),
        weight: 1,
        health: health.to_owned(),
        in_flight: 3,
        max_in_flight: Some(20),
        requests,
        failures: 7,
        failures_in_row: 0,
        ejections: 0,
        failed_checks: 0,
        latency_seconds: Some(0.0021),
    };
    Numbers {
        time_ms: (START + seconds) * 1000,
        version: "1.2.3".to_owned(),
        started: START,
        uptime_seconds: seconds,
        state: State::Ready,
        requests: [("forwarded", 90), ("limited", 10)].map(|(name, rate)| (name.to_owned(), rate * seconds)).into(),
        forwarded_seconds: Durations { bounds: vec![0.001, 0.003], counts: vec![0, 90 * seconds, 0] },
        held: 4,
        minute: (START + seconds) / 60,
        limits: vec![limit("per-client", 10 * seconds), limit("per-tenant", 0)],
        store: Some(StoreNumbers::Memory(MemoryNumbers {
            keys: 1_234,
            max_keys: 1_000_000,
            bytes: 5 << 20,
            max_bytes: 256 << 20,
            evictions: 0,
            gateways: 4,
        })),
        upstreams: vec![UpstreamNumbers {
            name: "api".to_owned(),
            retries: 5,
            retries_over_budget: 0,
            waiting: 2,
            servers: vec![
                server("10.0.1.1:9000", "healthy", 30 * seconds),
                server("10.0.1.2:9000", "ejected", 60 * seconds),
            ],
        }],
        connections: ConnectionNumbers { open: 12, max: 4_096, refused: 0, evicted: 0, stalled: 0 },
        reloads: ReloadNumbers {
            ok: 3,
            refused: 1,
            current: false,
            recent: vec![EndedReload {
                time: START,
                result: ReloadOutcome::Refused,
                problem: Some(Problem {
                    place: Some("gateway.toml:7:1".to_owned()),
                    message: "\"sever\" is not a section".to_owned(),
                    help: Some("write [server]".to_owned()),
                }),
            }],
        },
        certificates: ReloadNumbers {
            ok: 1,
            refused: 0,
            current: true,
            recent: vec![EndedReload { time: START + 60, result: ReloadOutcome::Ok, problem: None }],
        },
        expiries: Vec::new(),
        routes: Vec::new(),
    }
}

fn keys() -> Limits {
    let key = |key: &str, count, error| KeyCount { key: key.to_owned(), count, error };
    let limit = |name: &str, refused: &str| LimitDescription {
        name: name.to_owned(),
        rates: vec!["10/s".to_owned()],
        gateways: 4,
        on_limit: if name == "per-tenant" { "shadow" } else { "reject" }.to_owned(),
        max_in_flight: None,
        ban: None,
        bans: Vec::new(),
        overrides: 0,
        temporary: Vec::new(),
        temporary_overrides: 0,
        decisions: Decisions::default(),
        tokens: None,
        most_refused: vec![key(refused, 55, 0), key("", 11, 3), key("fe\u{2026}w#00000001", 5, 0)],
        most_busy: vec![key("bu\u{2026}sy#00000002", 999, 3)],
    };
    let limits = vec![limit("per-client", "ab\u{2026}yz#12345678"), limit("per-tenant", "te\u{2026}nt#87654321")];
    Limits { keys_since: "2023-11-14T22:00:00Z".to_owned(), limits }
}

fn new(numbers: Numbers) -> Update {
    Update::Numbers(Ok(Box::new(numbers)))
}

fn screen(model: Model) -> Screen {
    Screen { address: "127.0.0.1:9901".to_owned(), has_colours: true, model }
}

fn full(now: Instant) -> Screen {
    let mut model = Model::new(numbers(0), now);
    (1..=10).for_each(|second| model.take(new(numbers(second)), now));
    model.take(Update::Limits(Ok(keys())), now);
    screen(model)
}

fn buffer(screen: &Screen, (width, height): (u16, u16), now: Instant) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| screen.draw(frame, now)).unwrap();
    terminal.backend().buffer().clone()
}

fn text(buffer: &Buffer) -> String {
    let lines = buffer.content.chunks(usize::from(buffer.area.width));
    lines.map(|line| line.iter().map(ratatui::buffer::Cell::symbol).collect::<String>() + "\n").collect()
}

fn shown(screen: &Screen, size: (u16, u16), now: Instant) -> String {
    text(&buffer(screen, size, now))
}

#[track_caller]
fn expect(screen: &str, wanted: &[&str]) {
    for part in wanted {
        assert!(screen.contains(part), "no {part:?}:\n{screen}");
    }
}

#[test]
fn a_small_terminal_shows_all_that_matters() {
    let now = Instant::now();
    let shown = shown(&full(now), (80, 24), now);
    expect(
        &shown,
        &[
            "gateway 1.2.3  127.0.0.1:9901  ready  up 10s ",
            "requests/s  served 90  over a limit 10  refused 0  failed 0  abandoned 0 ",
            "connections 12 of 4,096  held 4  reloads 3, last refused ",
            " Limits, by refusals ",
            "per-client  10/s                          90        10         100           100\n",
            "per-tenant (shadow)  10/s                 90         0           0             0\n",
            " Most refused keys since 22:00 UTC ",
            "ab…yz#12345678        55 per-client  10.0.1.2:9000  ap   ejected     60    2.1ms\n",
            "te…nt#87654321        55 per-tenant  10.0.1.1:9000  ap   healthy     30    2.1ms\n",
            "(no key)             ≈11 per-client ",
            " Store: in memory ",
            "keys 1,234 of 1,000,000  memory 5.0 MiB of 256.0 MiB  keys evicted in use 0",
            "q quit",
        ],
    );
    let first = |one: &str, other: &str| shown.find(one).unwrap() < shown.find(other).unwrap();
    assert!(first("10.0.1.2", "10.0.1.1"), "what is not well comes first:\n{shown}");
    assert!(first("te…nt", "(no key)") && first("(no key)", "fe…w#"), "keys are in order:\n{shown}");
}

#[test]
fn a_wide_terminal_shows_all_columns_and_a_narrow_one_the_first() {
    let now = Instant::now();
    expect(&shown(&full(now), (160, 30), now), &["3 of 20", "failures", "since start"]);
    let narrow = shown(&full(now), (40, 24), now);
    expect(
        &narrow,
        &["ready", "per-client", "admitted/s", "ab…yz#12345678", "10.0.1.2:9000", "ejected", "Store: in mem"],
    );
    assert!(!narrow.contains("since start") && !narrow.contains("in flight"), "{narrow}");
}

#[test]
fn a_list_that_does_not_fit_says_so() {
    let now = Instant::now();
    let mut many = numbers(0);
    let limit = |number: usize| LimitNumbers { name: format!("limit-{number}"), ..many.limits[0].clone() };
    many.limits = (0..40).map(limit).collect();
    let shown = shown(&screen(Model::new(many, now)), (80, 24), now);
    expect(&shown, &["Limits, by refusals, 7 of 40", "limit-6"]);
    assert!(!shown.contains("limit-7"), "{shown}");
}

#[test]
fn memcached_is_shown_with_what_is_down() {
    let now = Instant::now();
    let of = |second| {
        let server =
            |server: &str, up| StoreServer { server: server.to_owned(), up, clock_skew_seconds: 0.0, evictions: 0 };
        let store = SharedNumbers {
            servers: vec![server("10.0.0.1:11211", true), server("10.0.0.2:11211", false)],
            round_trips: 100 * second,
            errors: 2,
            local: 3,
            lost: 0,
            round_trip_seconds: Durations::default(),
        };
        Numbers { store: Some(StoreNumbers::Memcached(store)), ..numbers(second) }
    };
    let mut model = Model::new(of(0), now);
    model.take(new(of(1)), now);
    let shown = shown(&screen(model), (80, 24), now);
    expect(
        &shown,
        &["Store: in Memcached", "10.0.0.2:11211 down  1 of 2 up  round trips/s 100  errors 2", "counters lost 0"],
    );
}

#[test]
fn old_numbers_stay_and_say_how_old_they_are() {
    let now = Instant::now();
    let later = now + Duration::from_secs(72);
    for has_colours in [true, false] {
        let mut screen = Screen { has_colours, ..full(now) };
        screen.model.take(Update::Numbers(Err("nothing listens there".to_owned())), now);
        let old = buffer(&screen, (80, 24), later);
        expect(&text(&old), &["no numbers for 1m 12s, asking again", "nothing listens there", "served 90"]);
        let cell = &old[(0, 1)];
        assert!(cell.symbol() == "r" && cell.fg == Color::Reset && cell.modifier == Modifier::DIM, "{cell:?}");

        screen.model.take(new(numbers(11)), later);
        let new = shown(&screen, (80, 24), later);
        assert!(!new.contains("no numbers") && new.contains("ready"), "{new}");
        // Numbers that stop without a reason are old, too.
        expect(&shown(&screen, (80, 24), later + Duration::from_secs(9)), &["no numbers for 9s"]);
    }
}

#[test]
fn rates_are_differences_over_a_few_seconds() {
    let now = Instant::now();
    let mut model = Model::new(numbers(0), now);
    let served = |model: &Model| model.per_second(|numbers| numbers.requests.get("forwarded").copied());
    assert_eq!(served(&model), None);
    for second in [1, 2, 3, 3] {
        model.take(new(numbers(second)), now);
        assert_eq!(served(&model), Some(90.0), "one of the same time changes nothing");
    }
    model.take(new(numbers(60)), now);
    assert_eq!(served(&model), None, "the others are too old");
    model.take(new(Numbers { time_ms: START * 1000, ..numbers(61) }), now);
    assert_eq!(served(&model), None, "the clock is set back");
    model.take(new(Numbers { time_ms: (START + 1) * 1000, ..numbers(62) }), now);
    assert_eq!(served(&model), Some(90.0));
    let restarted = Numbers { time_ms: (START + 2) * 1000, started: START + 1, ..numbers(0) };
    model.take(new(restarted), now);
    assert_eq!(served(&model), None, "another process does not have the rates of the one before");
}

#[test]
fn without_colours_there_are_none() {
    let now = Instant::now();
    let mut screen = full(now);
    for is_away in [false, true] {
        if is_away {
            screen.model.take(Update::Numbers(Err("gone".to_owned())), now);
        }
        screen.has_colours = false;
        let plain = buffer(&screen, (160, 50), now);
        assert!(plain.content.iter().all(|cell| (cell.fg, cell.bg) == (Color::Reset, Color::Reset)));
        screen.has_colours = true;
        assert!(buffer(&screen, (160, 50), now).content.iter().any(|cell| cell.fg != Color::Reset));
    }
}

#[test]
fn nothing_breaks_at_any_size() {
    let now = Instant::now();
    let nothing =
        Numbers { limits: Vec::new(), upstreams: Vec::new(), store: None, requests: BTreeMap::new(), ..numbers(0) };
    let mut empty = screen(Model::new(nothing, now));
    empty.model.take(Update::Limits(Err("they cannot be read".to_owned())), now);
    let mut large = numbers(u64::MAX >> 16);
    let limit = |number: usize| LimitNumbers { name: "x".repeat(9 * number), ..large.limits[0].clone() };
    large.limits = (0..40).map(limit).collect();
    large.time_ms = u64::MAX;
    let mut many = full(now);
    many.model.take(new(large), now);
    for height in [1, 10, 14, 15, 18, 22, 35, 60] {
        for width in [1, 40, 41, 71, 72, 80, 131, 250] {
            for screen in [&empty, &full(now), &many] {
                buffer(screen, (width, height), now + Duration::from_secs(60));
            }
        }
    }
    expect(&shown(&full(now), (39, 24), now), &["too small"]);
    expect(
        &shown(&empty, (80, 24), now),
        &["no limit is configured", "they cannot be read", "no upstream is configured"],
    );
}

#[test]
fn numbers_are_as_people_read_them() {
    assert_eq!([0, 999, 1_000, 999_999].map(count), ["0", "999", "1,000", "999,999"]);
    assert_eq!(count(u64::MAX), "18,446,744,073,709,551,615");
    let rates = [None, Some(0.0), Some(0.01), Some(0.44), Some(9.96), Some(1_234.4), Some(123_456.0)];
    assert_eq!(rates.map(rate), ["–", "0", "<0.1", "0.4", "10", "1,234", "123,456"]);
    let latencies = [None, Some(0.000_25), Some(0.001_24), Some(0.25), Some(3.0), Some(-1.0), Some(f64::MAX)];
    assert_eq!(latencies.map(latency), ["–", "250.0µs", "1.2ms", "250.0ms", "3.0s", "–", "–"]);
}
