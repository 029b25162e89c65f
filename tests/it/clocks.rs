//! Clocks that are set during a test, and clocks that differ.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::{self, sleep};
use std::time::Duration;

use gateway::limit::{Edge, Rate, Strategy};

use crate::harness::{Gateway, Software, cut_commands, limited, unix, until, with_each_server};
use crate::stores::{SECOND, benches, limit};

const MINUTE: u64 = 60 * SECOND;
const STEPS: u64 = 12;

/// How many minutes the wall clock is fast at each step.
type Setting = (&'static str, fn(u64) -> i64);

/// The clock is set back in the middle, or is wrong for a while.
const SETTINGS: [Setting; 3] = [
    ("set back", |step| -i64::from(step >= STEPS / 2)),
    ("set forward and back", |step| i64::from((4..8).contains(&step))),
    ("set back and forward", |step| -i64::from((4..8).contains(&step))),
];

/// Strategies, and how many quotas they may admit during one window if the clock is set once: two, and a token bucket
/// also refills.
fn strategies() -> Vec<(&'static str, Strategy, usize)> {
    vec![
        ("sliding", Strategy::default(), 2),
        ("sliding in 6 buckets, whole", Strategy::SlidingWindow { precision: 6, edge: Edge::Whole }, 2),
        ("fixed", Strategy::FixedWindow, 2),
        ("moving", Strategy::SlidingLog, 2),
        ("bucket", Strategy::TokenBucket { burst: 10 }, 3),
    ]
}

#[test]
fn a_clock_that_is_set_admits_at_most_the_quota_once_more() {
    for (store, mut bench) in benches(&Software::ALL.map(Software::start)) {
        for (text, window) in [("10/m", MINUTE), ("10/s", SECOND)] {
            for (way, strategy, most) in strategies() {
                for (setting, minutes) in SETTINGS {
                    let name = format!("{text} {way} {setting}").replace([' ', '/', ','], "-");
                    let rate = text.parse::<Rate>().unwrap().with_strategy(strategy.clone()).unwrap();
                    let (limit, key) = (limit(&name, &[rate]), bench.key());
                    let at = |step: u64| {
                        // All in one bucket: other tests cover the change from one bucket to the next.
                        let right = 10 * MINUTE + step * window / STEPS + window / 24;
                        right.checked_add_signed(minutes(step) * 60_000_000).unwrap()
                    };
                    let admitted: Vec<_> = (0..STEPS).map(|step| bench.burst(&limit, key, 20, at(step))).collect();
                    let sum: usize = admitted.iter().sum();
                    assert!((10..=10 * most).contains(&sum), "{store}, {name}: {admitted:?}");
                    // No request waits for a time that the clock has shown before.
                    let later = bench.burst(&limit, key, 20, at(STEPS - 1) + 2 * window);
                    assert_eq!(later, 10, "{store}, {name}, later");
                }
            }
        }
    }
}

fn server_ahead(software: Software, seconds: i64) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            thread::spawn(move || match software {
                Software::Memcached => answer_memcached(stream, seconds),
                Software::Valkey => answer_valkey(stream, seconds),
            });
        }
    });
    address
}

/// Speaks the text protocol for counters, and the binary protocol for statistics.
fn answer_memcached(mut stream: TcpStream, seconds: i64) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut line = String::new();
    loop {
        let answer = match reader.fill_buf().ok().and_then(|bytes| bytes.first()) {
            None => return,
            Some(0x80) => {
                let mut head = [0; 24];
                // Both requests consist of a head only.
                reader.read_exact(&mut head).unwrap();
                binary(head[1], seconds)
            }
            Some(_) => {
                line.clear();
                reader.read_line(&mut line).unwrap();
                if line == "mn\r\n" { b"MN\r\n".to_vec() } else { b"EN\r\n".to_vec() }
            }
        };
        if stream.write_all(&answer).is_err() {
            return;
        }
    }
}

fn binary(opcode: u8, seconds: i64) -> Vec<u8> {
    const STATISTICS: u8 = 0x10;
    let packet = |name: &str, value: &str| {
        let mut packet = vec![0; 24];
        (packet[0], packet[1]) = (0x81, opcode);
        packet[3] = u8::try_from(name.len()).unwrap();
        packet[11] = u8::try_from(name.len() + value.len()).unwrap();
        [&packet, name.as_bytes(), value.as_bytes()].concat()
    };
    if opcode != STATISTICS {
        return packet("", "1.6.0");
    }
    let time = time(seconds);
    [packet("pid", "1"), packet("time", &time), packet("evictions", "7"), packet("", "")].concat()
}

/// Answers as if no item existed.
fn answer_valkey(mut stream: TcpStream, seconds: i64) {
    let (mut sent, mut buffer) = (Vec::new(), [0; 1 << 12]);
    while let Ok(length @ 1..) = stream.read(&mut buffer) {
        sent.extend_from_slice(&buffer[..length]);
        for command in cut_commands(&mut sent) {
            let answer = match &*command[0] {
                "HELLO" => "%0\r\n".to_owned(),
                "MGET" => format!("*{}\r\n{}", command.len() - 1, "_\r\n".repeat(command.len() - 1)),
                "INFO" => {
                    let told = format!("server_time_usec:{}000000\nevicted_keys:7", time(seconds));
                    format!("${}\r\n{told}\r\n", told.len())
                }
                "SET" => "+OK\r\n".to_owned(),
                _ => ":1\r\n".to_owned(),
            };
            if stream.write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    }
}

/// The time of a server whose clock is ahead, in an early part of a second, so that both sides read the same one.
fn time(seconds: i64) -> String {
    let over = unix().subsec_millis();
    if over > 500 {
        sleep(Duration::from_millis(1_005 - u64::from(over)));
    }
    unix().as_secs().checked_add_signed(seconds).unwrap().to_string()
}

fn a_server_whose_clock_differs_is_reported(software: Software) {
    let right = software.start();
    let servers = [server_ahead(software, 60), server_ahead(software, -60), right.address];
    let listed = servers.map(|server| server.to_string());
    let limited = limited("header:x-api-key", "1000/d", "");
    let gateway = Gateway::start(&(software.store(&servers, "timeout = \"25ms\"") + &limited));
    let skew = |server: &String| {
        let name = format!("gateway_store_clock_skew_seconds{{server=\"{server}\"}}");
        gateway.metric(&name).unwrap_or_else(|| panic!("no {name}")).to_string()
    };
    // The known time of a server may be two seconds old, so a smaller difference is not reported. On a busy machine, an
    // answer may come late once.
    until("all are seen", Duration::from_secs(60), || listed.each_ref().map(skew) == ["60", "-58", "0"]);
    for server in &listed[..2] {
        let line = gateway.wait_log("the clock", |line| {
            line["server"] == **server && line["seconds"].as_i64().is_some_and(|seconds| seconds != 0)
        });
        assert!(line["message"].as_str().unwrap().contains("clock"), "{line}");
    }
}

with_each_server! {
    a_server_whose_clock_differs_is_reported
}
