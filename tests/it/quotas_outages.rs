//! Rates of keys from a source that is slow, away or frozen, or answers garbage; and clients that invent keys.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::harness::plans::{Plans, field, limit, statuses, url};
use crate::harness::{Gate, Gateway, Upstream, closed_port, receive, reply, until};

#[test]
fn a_slow_source_delays_a_request_for_its_timeout_and_answers_later_ones() {
    let plans = Plans::start();
    plans.set("/v1/k", 200, r#"{"rates": ["5/d"]}"#);
    plans.gate.close();
    let gateway = Gateway::start(&limit(&plans.url(), "timeout = \"20ms\"", ""));
    let client = &mut gateway.client();
    assert_eq!(client.get_with("/", field("k")).headers.must("ratelimit-policy"), "\"l\";q=1;w=86400");
    assert_eq!(gateway.metric("gateway_quota_waits_timed_out_total"), Some(1.0));
    plans.gate.open();
    until("the lookup ends", Duration::from_secs(10), || gateway.metric("gateway_quota_cached_keys") == Some(1.0));
    assert_eq!(statuses(client, "k"), [200, 200, 200, 200, 429], "the first one is counted, too");
    assert_eq!(plans.asked("/v1/k"), 1);
}

#[test]
fn while_the_source_is_away_what_is_known_holds_and_nobody_waits() {
    let plans = Plans::start();
    plans.set("/v1/bad", 200, r#"{"block": true}"#);
    let gateway = Gateway::start(&limit(&plans.url(), "cache_for = \"1s\"", ""));
    let client = &mut gateway.client();
    assert_eq!(statuses(client, "bad"), [403]);
    plans.set("*", 429, "");
    plans.set("/v1/bad", 429, "");
    assert_eq!(statuses(client, "first"), [200, 429]);
    gateway.wait_message("a source of quotas is away: cached answers stay in use");
    assert_eq!(gateway.metric("gateway_quota_source_up"), Some(0.0));
    let begun = Instant::now();
    for number in 0..50 {
        assert_eq!(statuses(client, &format!("new-{number}")), [200, 429]);
    }
    assert!(begun.elapsed() < Duration::from_secs(25), "each would have waited for 5 s");
    let until_expired = Instant::now() + Duration::from_millis(1500);
    until("it has expired", Duration::from_secs(10), || Instant::now() > until_expired);
    assert_eq!(statuses(client, "bad"), [403; 3]);
    let (asked, seconds) = (plans.server.received().len(), begun.elapsed().as_secs());
    assert!(asked as u64 <= 10 + seconds, "in {seconds} s, it is asked {asked} times");
    plans.set("/v1/bad", 200, r#"{"block": true}"#);
    plans.set("*", 200, r#"{"block": true}"#);
    gateway.wait_message("a source of quotas is back");
    until("new keys are asked about", Duration::from_secs(10), || statuses(client, "later") == [403]);
    assert!(!gateway.log().concat().contains("new-7"), "a key is in the log");
}

#[test]
fn a_source_that_cannot_be_connected_to_is_away() {
    let (_socket, address) = closed_port();
    let gateway = Gateway::start(&limit(&url(address), "", ""));
    let client = &mut gateway.client();
    for number in 0..20 {
        assert_eq!(statuses(client, &format!("k{number}")), [200, 429]);
    }
    gateway.wait_message("a source of quotas is away: cached answers stay in use");
    assert_eq!(gateway.metric("gateway_quota_waits_timed_out_total"), Some(0.0));
}

#[test]
fn a_frozen_source_is_away_after_five_seconds() {
    let server = Upstream::raw(|wire, _| {
        std::mem::forget(wire);
    });
    let gateway = Gateway::start(&limit(&url(server.address()), "timeout = \"20ms\"", ""));
    let client = &mut gateway.client();
    let mut number = 0;
    until("it is away", Duration::from_secs(30), || {
        number += 1;
        assert_eq!(statuses(client, &format!("k{number}")), [200]);
        gateway.metric("gateway_quota_source_up") == Some(0.0)
    });
    let before = gateway.metric("gateway_quota_waits_timed_out_total");
    for number in 0..20 {
        assert_eq!(statuses(client, &format!("later-{number}")), [200]);
    }
    assert_eq!(gateway.metric("gateway_quota_waits_timed_out_total"), before, "nobody waits");
}

#[test]
fn a_killed_source_is_connected_to_again() {
    let first = Arc::new(Mutex::new(true));
    let cut = first.clone();
    // The source closes the connection after its first answer, when the next request arrives.
    let server = Upstream::raw(move |mut wire, _| {
        while let Ok(Some(_)) = receive(&mut wire) {
            if std::mem::take(&mut *cut.lock().unwrap()) || wire.write(&reply(200, r#"{"rates": ["2/d"]}"#)).is_err() {
                return;
            }
        }
    });
    let gateway = Gateway::start(&limit(&url(server.address()), "", ""));
    let client = &mut gateway.client();
    assert_eq!(statuses(client, "a"), [200, 429], "the connection broke");
    assert_eq!(statuses(client, "b"), [200, 200, 429], "others are answered");
    until("it is asked about again", Duration::from_secs(10), || statuses(client, "a") == [200]);
    *first.lock().unwrap() = true;
    assert_eq!(statuses(client, "c"), [200, 200, 429], "a kept connection that breaks is no failure");
}

#[test]
fn a_key_at_which_the_source_breaks_takes_it_from_no_other() {
    // Of keys that begin with a number, the source answers in this way, then closes the connection.
    let broken = [
        Vec::new(),
        b"garbage\r\n\r\n".to_vec(),
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}".to_vec(),
        format!("HTTP/1.1 200 OK\r\n{}\r\n", "x: y\r\n".repeat(1000)).into_bytes(),
        reply(502, ""),
        reply(503, ""),
        reply(504, ""),
    ];
    let count = broken.len();
    let server = Upstream::raw(move |mut wire, _| {
        while let Ok(Some(request)) = receive(&mut wire) {
            let number = request.target.trim_start_matches("/v1/").split('-').next().and_then(|text| text.parse().ok());
            let Some(number) = number else {
                let _ = wire.write(&reply(200, r#"{"block": true}"#));
                continue;
            };
            let way: &Vec<u8> = &broken[usize::min(number, count - 1)];
            let _ = wire.write(way);
            return;
        }
    });
    let gateway = Gateway::start(&limit(&url(server.address()), "", ""));
    let client = &mut gateway.client();
    for number in 0..count {
        for again in 0..3 {
            let keys = [format!("{number}-{again}"), format!("blocked-{number}-{again}")];
            assert_eq!(keys.map(|key| client.get_with("/", field(&key)).status), [200, 403], "{number}");
        }
    }
    assert_eq!(gateway.metric("gateway_quota_source_up"), Some(1.0));
}

#[test]
fn a_source_that_breaks_at_several_keys_and_answers_none_is_away_after_five_seconds() {
    let plans = Plans::start();
    plans.set("*", 503, "");
    let gateway = Gateway::start(&limit(&plans.url(), "", ""));
    let client = &mut gateway.client();
    let (begun, mut number) = (Instant::now(), 0);
    until("it is away", Duration::from_secs(30), || {
        number += 1;
        assert_eq!(statuses(client, &format!("k{number}")), [200]);
        gateway.metric("gateway_quota_source_up") == Some(0.0)
    });
    assert!(begun.elapsed() >= Duration::from_secs(5), "it may have been those keys alone");
    gateway.wait_message("a source of quotas is away: cached answers stay in use");
    plans.set("*", 200, r#"{"block": true}"#);
    gateway.wait_message("a source of quotas is back");
    until("new keys are asked about", Duration::from_secs(10), || statuses(client, "later") == [403]);
}

#[test]
fn answers_that_cannot_be_used_concern_one_key() {
    let plans = Plans::start();
    let garbage = [
        (200, "not JSON".to_owned()),
        (200, r#"{"rate": ["1/s"]}"#.to_owned()),
        (200, r#"{"rates": ["fast"]}"#.to_owned()),
        (200, r#"{"rates": ["5/s burst 9"]}"#.to_owned()),
        (200, r#"{"exempt": true, "block": true}"#.to_owned()),
        (200, format!("{{\"tier\": \"{}\"}}", "x".repeat(100_000))),
        (302, String::new()),
        (500, String::new()),
    ];
    for (number, (status, body)) in garbage.iter().enumerate() {
        plans.set(&format!("/v1/secret-{number}"), *status, body);
    }
    plans.set("/v1/good", 200, r#"{"rates": ["2/d"]}"#);
    let gateway = Gateway::start(&limit(&plans.url(), "", ""));
    let client = &mut gateway.client();
    for number in 0..garbage.len() {
        let begun = Instant::now();
        assert_eq!(statuses(client, &format!("secret-{number}")), [200, 429], "{number}");
        let (asked, seconds) = (plans.asked(&format!("/v1/secret-{number}")), begun.elapsed().as_secs());
        assert!((1..=1 + seconds).contains(&(asked as u64)), "{asked} times in {seconds} s: not again at once");
    }
    assert_eq!(statuses(client, "good"), [200, 200, 429]);
    assert_eq!(gateway.metric("gateway_quota_source_up"), Some(1.0));
    until("each of these answers is counted", Duration::from_secs(20), || {
        let asked = plans.server.received().len() - plans.asked("/v1/good");
        let line = format!("gateway_quota_lookups_total{{limit=\"l\",result=\"unusable\"}} {asked}\n");
        gateway.admin("/metrics").text().contains(&line)
    });
    let text = gateway.log().concat() + gateway.admin("/metrics").text();
    assert!(!text.contains("secret-"), "a key is in the log or the metrics");
}

#[test]
fn invented_keys_evict_none_that_the_source_knows() {
    let plans = Plans::start();
    for key in ["a", "b"] {
        plans.set(&format!("/v1/{key}"), 200, r#"{"rates": ["100000/d"]}"#);
    }
    let gateway = Gateway::start(&limit(&plans.url(), "cache_for = \"1h\"\nmax_cached = 64", ""));
    let client = &mut gateway.client();
    assert_eq!((statuses(client, "a"), statuses(client, "b")), ([200], [200]));
    for number in 0..1000 {
        assert_eq!(statuses(client, &format!("invented-{number}")), [200]);
    }
    assert!(gateway.metric("gateway_quota_cached_keys").unwrap() <= 64.0);
    assert!(gateway.metric("gateway_quota_evictions_total").unwrap() > 900.0);
    assert_eq!((statuses(client, "a"), statuses(client, "b")), ([200; 3], [200; 3]));
    assert_eq!((plans.asked("/v1/a"), plans.asked("/v1/b")), (1, 1));
}

#[test]
fn a_key_that_the_source_cannot_answer_hides_no_other() {
    let plans = Plans::start();
    plans.set("/v1/poison", 429, "");
    plans.set("/v1/gold", 200, r#"{"rates": ["1000000/d"]}"#);
    plans.set("/v1/late", 200, r#"{"rates": ["1000000/d"]}"#);
    let gateway = Gateway::start(&limit(&plans.url(), "", ""));
    let client = &mut gateway.client();
    assert_eq!(statuses(client, "poison"), [200]);
    gateway.wait_message("a source of quotas is away: cached answers stay in use");
    // Only lookups of other keys find out that the source is back.
    for key in ["gold", "late"] {
        until("it is asked about other keys", Duration::from_secs(20), || {
            statuses::<1>(client, "poison");
            statuses(client, key) == [200, 200, 200]
        });
    }
}

#[test]
fn one_key_without_an_answer_among_others_is_asked_about_less_and_less_often() {
    let plans = Plans::start();
    plans.set("*", 200, r#"{"exempt": true}"#);
    plans.set("/v1/poison", 503, "");
    let gateway = Gateway::start(&limit(&plans.url(), "", ""));
    // Others get answers all the time, also during lookups.
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for who in 0..4 {
            let (gateway, done) = (&gateway, &done);
            scope.spawn(move || {
                let mut client = gateway.client();
                for number in 0.. {
                    statuses::<1>(&mut client, &format!("k-{who}-{number}"));
                    if done.load(Ordering::Relaxed) {
                        return;
                    }
                }
            });
        }
        let client = &mut gateway.client();
        until("its failure is cached", Duration::from_secs(20), || {
            statuses::<1>(client, "poison");
            gateway.admin("/api/limits/l/keys/poison").json()["quota"]["failures"].as_u64() > Some(0)
        });
        let (asked, begun) = (plans.asked("/v1/poison"), Instant::now());
        statuses::<100>(client, "poison");
        let again = plans.asked("/v1/poison") - asked;
        assert!(again as u64 <= 2 + begun.elapsed().as_secs(), "{again} times for 100 requests");
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_flood_of_invented_keys_opens_few_connections_and_delays_nobody_who_is_known() {
    let plans = Plans::start();
    plans.set("/v1/known", 200, r#"{"exempt": true}"#);
    plans.set("/v1/later", 200, r#"{"rates": ["2/d"]}"#);
    let gateway = Gateway::start(&limit(&plans.url(), "cache_for = \"1h\"\ntimeout = \"20ms\"", ""));
    until("it is known", Duration::from_secs(10), || statuses(&mut gateway.client(), "known") == [200, 200]);
    let flood = |name: &str| {
        thread::scope(|scope| {
            for who in 0..16 {
                let gateway = &gateway;
                scope.spawn(move || {
                    let mut client = gateway.client();
                    for number in 0..100 {
                        assert_eq!(statuses(&mut client, &format!("{name}-{who}-{number}")), [200]);
                    }
                });
            }
        });
    };
    flood("quick");
    assert!(plans.server.connections() <= 64, "connections are kept: {}", plans.server.connections());
    let (asked, begun) = (plans.server.received().len(), Instant::now());
    plans.gate.close();
    flood("slow");
    let waited = gateway.metric("gateway_quota_waits_timed_out_total");
    assert_eq!(statuses(&mut gateway.client(), "known"), [200; 50]);
    assert_eq!(gateway.metric("gateway_quota_waits_timed_out_total"), waited, "it is cached");
    let (new, seconds) = (plans.server.received().len() - asked, begun.elapsed().as_secs());
    // If all of this takes so long that lookups end, a few more are made until the source is known to be away.
    assert!(new as u64 <= 65 + seconds, "{new} in {seconds} s");
    plans.gate.open();
    let client = &mut gateway.client();
    until("new keys are asked about", Duration::from_secs(30), || {
        client.get_with("/", field("later")).headers.must("ratelimit-policy").contains("q=2")
    });
}

#[test]
fn a_source_that_is_slow_for_ever_is_used_nevertheless() {
    let gate = Gate::opened();
    let passed = gate.clone();
    let server = Upstream::start(move |_| {
        passed.pass();
        thread::sleep(Duration::from_millis(500));
        reply(200, r#"{"exempt": true}"#)
    });
    let gateway = Gateway::start(&limit(&url(server.address()), "cache_for = \"1s\"\ntimeout = \"1ms\"", ""));
    let client = &mut gateway.client();
    for number in 0..5 {
        let key = format!("k{number}");
        gate.close();
        assert_eq!(statuses(client, &key), [200, 429], "nobody waits for it");
        gate.open();
        until("its answer holds", Duration::from_secs(20), || statuses(client, &key) == [200]);
    }
    assert_eq!(gateway.metric("gateway_quota_source_up"), Some(1.0));
    let (begun, asked) = (Instant::now(), server.received().len());
    until("it is renewed some times", Duration::from_secs(30), || {
        assert_eq!(statuses(client, "k4"), [200; 3], "what is known goes on holding meanwhile");
        server.received().len() >= asked + 3
    });
    assert!(begun.elapsed() >= Duration::from_secs(2), "each time it is used for 0.9 s");
}

#[test]
fn answers_without_an_end_take_bounded_memory_and_time() {
    let head = "HTTP/1.1 200 OK\r\n";
    for (begin, forever) in [
        (head.to_owned(), "x: y\r\n".repeat(1000)),
        (format!("{head}Transfer-Encoding: chunked\r\n\r\n"), format!("1000\r\n{}\r\n", "x".repeat(0x1000))),
        (String::new(), "HTTP/1.1 100 Continue\r\n\r\n".repeat(100)),
    ] {
        let server = Upstream::raw(move |mut wire, _| {
            let _ = receive(&mut wire);
            let _ = wire.write(begin.as_bytes());
            while wire.write(forever.as_bytes()).is_ok() {}
        });
        let gateway = Gateway::start(&limit(&url(server.address()), "", ""));
        let before = gateway.memory("VmRSS");
        assert_eq!(statuses(&mut gateway.client(), "k"), [200, 429]);
        let grown = gateway.memory("VmRSS").saturating_sub(before);
        assert!(grown < 32 << 20, "{grown} bytes");
    }
}
