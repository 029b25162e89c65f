//! What is on the screen, at several sizes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crossterm::event::KeyCode;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::style::{Color, Modifier};

use super::{Controls, Model, Panel, Theme, draw};
use crate::admin::dashboard::{
    ConnectionNumbers, Decisions, Durations, EndedReload, History, KeyCount, LimitDescription, LimitNumbers, Limits,
    MemcachedNumbers, MemcachedServer, MemoryNumbers, Numbers, Problem, ReloadNumbers, ReloadOutcome, ServerNumbers,
    State, StoreNumbers, UpstreamNumbers,
};
use crate::commands::top::controls::Action;
use crate::commands::top::feed::{Away, Update};

const START: u64 = 1_700_000_000;

/// The numbers after so many seconds in which each second 90 requests are forwarded in 2 ms, and 10 are refused.
fn numbers(seconds: u64) -> Numbers {
    let limit = |name: &str, rejected| LimitNumbers {
        name: name.to_owned(),
        decisions: Decisions { admitted: 90 * seconds, rejected, ..Decisions::default() },
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
        most_refused: vec![key(refused, 55, 0), key("fe\u{2026}w#00000001", 5, 0)],
        most_busy: vec![key("bu\u{2026}sy#00000002", 999, 3), key(refused, 70, 0), key("", 1, 0)],
    };
    let limits = vec![limit("per-client", "ab\u{2026}yz#12345678"), limit("per-tenant", "te\u{2026}nt#87654321")];
    Limits { keys_since: "2023-11-14T22:00:00Z".to_owned(), limits }
}

/// What is known after ten seconds.
fn model(now: Instant) -> Model {
    let mut model = Model::new();
    let refused = BTreeMap::from([("per-client".to_owned(), vec![100; 60])]);
    let history = History { minute: START / 60, refused_by_minute: refused, ..History::default() };
    model.take(Update::History(history), now);
    for second in 0..=10 {
        model.take(Update::Numbers(Box::new(numbers(second))), now);
    }
    model.take(Update::Limits(keys()), now);
    model
}

fn buffer(model: &Model, controls: &mut Controls, theme: Theme, (width, height): (u16, u16), now: Instant) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, model, controls, theme, "127.0.0.1:9901", now)).unwrap();
    terminal.backend().buffer().clone()
}

fn text(buffer: &Buffer) -> String {
    let lines = buffer.content.chunks(usize::from(buffer.area.width));
    lines.map(|line| line.iter().map(ratatui::buffer::Cell::symbol).collect::<String>() + "\n").collect()
}

/// The screen after these keys.
fn screen(codes: &[KeyCode], size: (u16, u16)) -> String {
    let now = Instant::now();
    let (model, mut controls) = (model(now), Controls::new());
    for code in codes {
        controls.apply(Action::of((*code).into()).unwrap());
        // A choice is made when it is drawn.
        buffer(&model, &mut controls, Theme::new(true), size, now);
    }
    text(&buffer(&model, &mut controls, Theme::new(true), size, now))
}

#[track_caller]
fn expect(screen: &str, wanted: &[&str]) {
    for part in wanted {
        assert!(screen.contains(part), "no {part:?}:\n{screen}");
    }
}

#[test]
fn a_small_terminal_shows_all_that_matters() {
    let shown = screen(&[], (80, 24));
    expect(
        &shown,
        &[
            "gateway 1.2.3  127.0.0.1:9901  ready  up 10 s",
            "22:13:30 UTC",
            "100/s  over a limit 10 %  failed 0 %  latency 2.0 ms, 99 % 3.0 ms",
            "stored keys 1,234  connections 12 of 4,096  held 4  reloads 3, last refused",
            "at most 90 ",
            "served             90     90 %",
            "over a limit       10     10 %",
            "per-client                 90        10     6,000",
            "per-tenant (shadow         90         0         0",
            " 900 admitted, 100 rejected ━",
            "Keys of per-client since 22:00",
            "ab…yz#12345678         55       70",
            "bu…sy#00000002          –     ≈999",
            "(no key)                –        1",
            "api: 5 retries, 2 wait",
            "10.0.1.1:9000",
            "ejected",
            "q quit",
        ],
    );
    assert!(!shown.contains("Reloads:"), "there is no room:\n{shown}");
}

#[test]
fn a_large_terminal_shows_all() {
    let shown = screen(&[], (160, 50));
    expect(
        &shown,
        &[
            "Upstreams",
            "3 of 20",
            "Store: in memory",
            "5.0 MiB of 256 MiB",
            "Reloads: 3 applied, 1 refused",
            "2023-11-14 22:14:20 UTC  applied: certificates",
            "2023-11-14 22:13:20 UTC  refused",
            "gateway.toml:7:1",
            "\"sever\" is not a section",
            "write [server]",
        ],
    );
}

#[test]
fn other_panels_are_reached_by_keys() {
    use KeyCode::{Char, Down, Enter, Esc, Tab};
    let small = (80, 24);
    expect(&screen(&[Tab, Tab, Tab], small), &["Store: in memory", "none: no round trip"]);
    expect(&screen(&[Tab, Tab, Tab, Tab], small), &["Reloads: 3 applied", "gateway.toml:7:1"]);
    expect(&screen(&[Down], small), &["Keys of per-tenant", "te…nt#87654321"]);
    expect(&screen(&[Down, Down, Down], small), &["Keys of per-tenant"]);
    let alone = screen(&[Tab, Enter], small);
    expect(&alone, &["Keys of per-client"]);
    assert!(!alone.contains("Upstreams"), "{alone}");
    expect(&screen(&[Tab, Enter, Esc], small), &["Upstreams"]);
    expect(&screen(&[Char('?')], small), &["Help", "Ctrl-C"]);
    let first = |screen: &str, one: &str, other: &str| screen.find(one).unwrap() < screen.find(other).unwrap();
    let by_requests = screen(&[Tab, Char('s')], small);
    assert!(first(&by_requests, "bu…sy", "ab…yz") && first(&screen(&[Tab], small), "ab…yz", "bu…sy"), "{by_requests}");
    let by_requests = screen(&[Tab, Tab, Char('s')], small);
    assert!(first(&by_requests, "10.0.1.2", "10.0.1.1"), "{by_requests}");
    // In a place for one panel, only that with the focus is shown.
    let low = screen(&[Tab], (80, 15));
    expect(&low, &["Keys of per-client"]);
    assert!(!low.contains("Limits"), "{low}");
}

#[test]
fn memcached_is_shown_with_its_latency() {
    let now = Instant::now();
    let mut model = Model::new();
    for second in 0..=10 {
        let counts = vec![100 * second, 0, 0];
        let store = MemcachedNumbers {
            servers: vec![
                MemcachedServer {
                    server: "10.0.0.1:11211".to_owned(),
                    up: true,
                    clock_skew_seconds: 0.0,
                    evictions: 0,
                },
                MemcachedServer {
                    server: "10.0.0.2:11211".to_owned(),
                    up: false,
                    clock_skew_seconds: 0.0,
                    evictions: 0,
                },
            ],
            round_trips: 100 * second,
            errors: 2,
            local: 3,
            lost: 0,
            round_trip_seconds: Durations { bounds: vec![0.000_4, 0.01], counts },
        };
        let numbers = Numbers { store: Some(StoreNumbers::Memcached(store)), ..numbers(second) };
        model.take(Update::Numbers(Box::new(numbers)), now);
    }
    let mut controls = Controls::new();
    (controls.focus, controls.is_zoomed) = (Panel::Store, true);
    let shown = text(&buffer(&model, &mut controls, Theme::new(true), (80, 24), now));
    expect(&shown, &["Memcached 1 of 2 up", "10.0.0.2:11211", "down", "200 µs", "round trips per second"]);
    let line = shown.lines().find(|line| line.contains("round trips per second")).unwrap();
    assert!(line.contains(" 100"), "{line}");
}

#[test]
fn old_numbers_stay_and_say_how_old_they_are() {
    let now = Instant::now();
    let later = now + Duration::from_secs(72);
    let away = Away { why: "nothing listens there".to_owned(), again: later + Duration::from_millis(2_500) };
    for (theme, has_colours) in [(Theme::new(true), true), (Theme::new(false), false)] {
        let (mut model, mut controls) = (model(now), Controls::new());
        model.take(Update::Away(away.clone()), now);
        let old = buffer(&model, &mut controls, theme, (80, 24), later);
        let wanted = "no numbers for 1 min 12 s, asking again in 3 s";
        expect(&text(&old), &[wanted, "nothing listens there", "served             90"]);
        let cell = &old[(1, 4)];
        let is_grey = if has_colours { cell.fg == Color::DarkGray } else { cell.modifier.contains(Modifier::DIM) };
        assert!(cell.symbol() == "s" && is_grey && !cell.modifier.contains(Modifier::BOLD), "{cell:?}");

        model.take(Update::Numbers(Box::new(numbers(11))), later);
        let new = text(&buffer(&model, &mut controls, theme, (80, 24), later));
        assert!(!new.contains("no numbers") && new.contains("q quit"), "{new}");
        // Numbers that stop without a reason are old, too.
        let silent = later + Duration::from_secs(9);
        expect(&text(&buffer(&model, &mut controls, theme, (80, 24), silent)), &["no numbers for 9 s"]);
    }
}

#[test]
fn another_process_does_not_have_the_rates_of_the_one_before() {
    let now = Instant::now();
    let mut model = model(now);
    let mut restarted = numbers(1);
    (restarted.time_ms, restarted.started) = ((START + 20) * 1000, START + 19);
    model.take(Update::History(History::default()), now);
    model.take(Update::Numbers(Box::new(restarted)), now);
    assert_eq!((model.rates(), model.decisions("per-client"), model.forwarded_within(0.5)), (None, None, None));
    assert_eq!(model.refusals("per-client").iter().sum::<u64>(), 10);
}

#[test]
fn without_colours_there_are_none() {
    let now = Instant::now();
    let (mut model, mut controls) = (model(now), Controls::new());
    for is_away in [false, true] {
        if is_away {
            model.take(Update::Away(Away { why: "gone".to_owned(), again: now }), now);
        }
        let shown = buffer(&model, &mut controls, Theme::new(false), (160, 50), now);
        assert!(shown.content.iter().all(|cell| (cell.fg, cell.bg) == (Color::Reset, Color::Reset)));
        let coloured = buffer(&model, &mut controls, Theme::new(true), (160, 50), now);
        assert!(coloured.content.iter().any(|cell| cell.fg != Color::Reset));
    }
}

#[test]
fn nothing_breaks_at_any_size() {
    let now = Instant::now();
    let full = model(now);
    let mut empty = Model::new();
    let nothing = Numbers {
        limits: Vec::new(),
        upstreams: Vec::new(),
        store: None,
        requests: BTreeMap::new(),
        forwarded_seconds: Durations::default(),
        ..numbers(0)
    };
    empty.take(Update::Numbers(Box::new(nothing)), now);
    empty.take(Update::NoLimits("they cannot be read".to_owned()), now);
    let mut large = numbers(u64::MAX >> 16);
    let limit = |number: usize| LimitNumbers { name: "x".repeat(9 * number), ..large.limits[0].clone() };
    large.limits = (0..40).map(limit).collect();
    large.time_ms = u64::MAX;
    large.minute = u64::MAX;
    let mut many = model(now);
    many.take(Update::Numbers(Box::new(large)), now);
    let heights = [1, 10, 11, 18, 22, 35, 60].into_iter();
    let sizes = heights.flat_map(|height| [1, 40, 72, 80, 131, 250].map(|width| (width, height)));
    for size in sizes {
        for model in [&Model::new(), &empty, &full, &many] {
            let mut controls = Controls::new();
            for panel in Panel::ALL {
                controls.focus = panel;
                controls.apply(Action::Zoom);
                controls.apply(Action::Move(100));
                controls.shows_help = panel == Panel::Store;
                buffer(model, &mut controls, Theme::new(true), size, now + Duration::from_secs(60));
            }
        }
    }
    expect(&text(&buffer(&full, &mut Controls::new(), Theme::new(true), (39, 24), now)), &["too small"]);
    expect(
        &text(&buffer(&empty, &mut Controls::new(), Theme::new(true), (80, 24), now)),
        &["no limit is configured", "no upstream is configured"],
    );
}
