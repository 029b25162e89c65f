//! Requests that are decided long after they came: the decision counts at its own moment.

use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::harness::{Client, Gateway, Upstream, every_store, unix};

/// How long clients hold back the end of a body. Longer than the windows of the limits.
const HOLD: Duration = Duration::from_secs(4);
const WINDOW: u64 = 3;
/// Held back bodies for each limit.
const HELD: usize = 5;

const WAYS: [(&str, &str); 4] = [
    ("sliding", "rates = [\"10/3s\"]"),
    ("fixed", "rates = [\"10/3s\"]\nstrategy = \"fixed-window\""),
    ("moving", "rates = [\"10/3s\"]\nstrategy = \"moving-window\""),
    ("bucket", "rates = [\"10/3s burst 10\"]\nstrategy = \"token-bucket\""),
];

/// A route for each of the limits, which count by the body.
fn routes() -> String {
    let limits = WAYS.map(|(name, rates)| format!("[limits.{name}]\nkey = \"json:/model\"\n{rates}\n"));
    let routes = WAYS.map(|(name, _)| {
        format!("[[routes]]\npath = \"/{name}\"\nlimits = [\"{name}\"]\nrespond = {{ status = 200 }}\n")
    });
    [limits.concat(), routes.concat()].concat()
}

const BODY: &str = r#"{"model":"a"}"#;

fn head(path: &str) -> String {
    let length = BODY.len();
    format!("POST /{path} HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n")
}

/// A request whose body lacks its last byte.
fn begin(gateway: &Gateway, path: &str) -> Client {
    let mut client = gateway.client();
    client.send(head(path) + &BODY[..BODY.len() - 1]);
    client
}

fn post(client: &mut Client, path: &str) -> u16 {
    client.call(head(path) + BODY).status
}

#[test]
fn a_body_that_is_held_back_lifts_no_limit() {
    every_store(|store| {
        let gateway = Gateway::start(&(store.to_owned() + &routes()));
        let held: Vec<Vec<Client>> =
            WAYS.iter().map(|(name, _)| (0..HELD).map(|_| begin(&gateway, name)).collect()).collect();
        sleep(HOLD);
        for ((name, _), held) in WAYS.iter().zip(held) {
            let (mut client, begun, first_window) = (gateway.client(), Instant::now(), unix().as_secs() / WINDOW);
            let burst = |client: &mut Client| (0..20).filter(|_| post(client, name) == 200).count() as u64;
            let mut admitted = burst(&mut client);
            for mut held in held {
                held.send("}");
                admitted += u64::from(held.response(false).status == 200);
                admitted += burst(&mut client);
            }
            // In that time, the rate gives more: as whole windows, or little by little.
            let whole = unix().as_secs() / WINDOW - first_window;
            let parts = begun.elapsed().as_millis().div_ceil(100 * u128::from(WINDOW));
            let more = if *name == "fixed" { 10 * whole } else { parts.try_into().unwrap() };
            assert!(admitted >= 10, "{store} {name}: {admitted}");
            assert!(admitted <= 10 + more + 4, "{store} {name}: {admitted} in {:?}", begun.elapsed());
        }
    });
}

#[test]
fn a_body_that_is_held_back_shortens_no_ban() {
    every_store(|store| {
        let limits = "[limits.l]\nkey = \"json:/model\"\nrates = [\"1/d\"]\nban = { after = 1, for = \"10m\" }\n\
                      [[routes]]\npath = \"/*\"\nlimits = [\"l\"]\nrespond = { status = 200 }\n";
        let gateway = Gateway::start(&(store.to_owned() + limits));
        let mut client = gateway.client();
        let held = [(); 3].map(|()| begin(&gateway, "l"));
        sleep(HOLD);
        let ban_ends = || {
            let bans = gateway.admin("/api/limits/l/bans").json();
            let until = bans["bans"][0]["until"].as_str().map(|until| until.parse::<jiff::Timestamp>().unwrap());
            until.map(jiff::Timestamp::as_second)
        };
        while ban_ends().is_none() {
            post(&mut client, "l");
        }
        let before = ban_ends().unwrap();
        for mut held in held {
            held.send("}");
            assert_eq!(held.response(false).status, 429, "{store}");
        }
        assert_eq!(post(&mut client, "l"), 429, "{store}");
        let after = ban_ends().unwrap();
        assert!(before.abs_diff(after) <= 1, "{store}: the ban ends at {after} instead of {before}");
    });
}

#[test]
fn what_is_told_is_true_when_the_head_leaves() {
    const LASTS: u64 = 3;
    every_store(|store| {
        let upstream = Upstream::start(|_| {
            sleep(Duration::from_secs(LASTS));
            b"HTTP/1.1 200 OK\r\nX-Cost: 2\r\nContent-Length: 0\r\n\r\n".to_vec()
        });
        let rate = "rates = [\"10/60s\"]\nstrategy = \"fixed-window\"";
        let text = format!(
            "{store}[limits.draft]\nkey = \"client-ip\"\n{rate}\nheaders = \"both\"\n\
             [limits.settled]\nkey = \"client-ip\"\n{rate}\nheaders = \"anthropic\"\ncost = {{ response_header = \"x-cost\", reserve = 5 }}\n\
             {}limits = [\"draft\", \"settled\"]\n",
            upstream.everything()
        );
        let gateway = Gateway::start(&text);
        let begun = unix().as_secs();
        let response = gateway.client().get("/");
        let (headers, ended) = (&response.headers, unix().as_secs());
        let seconds = |text: &str| text.parse::<u64>().unwrap();
        let left = headers.must("ratelimit").split(";t=").nth(1).unwrap().split(';').next().unwrap();
        assert!(seconds(left) <= 60 - LASTS + 1, "{store}: {left} s are left");
        assert!(seconds(left) + LASTS + (ended - begun) >= 60, "{store}: {left} s are left");
        // The window begins with the request, and all forms report the same end.
        let ends = begun + 60..=ended + 60 - LASTS + 1;
        let reset = seconds(headers.must("x-ratelimit-reset"));
        assert!(ends.contains(&reset), "{store}: {reset} is not in {ends:?}");
        if let Some(date) = headers.get("anthropic-ratelimit-requests-reset") {
            let reset = date.parse::<jiff::Timestamp>().unwrap().as_second();
            assert!(ends.contains(&u64::try_from(reset).unwrap()), "{store}: {date} is not in {ends:?}");
        }
    });
}

#[test]
fn a_refusal_after_a_delay_says_from_when_it_is_sent() {
    let limits = "[limits.l]\nkey = \"client-ip\"\nrates = [\"1/4s\", \"2/60s\"]\nstrategy = \"fixed-window\"\n\
                  on_limit = \"delay\"\nmax_delay = \"6s\"\nheaders = \"both\"\n\
                  [[routes]]\npath = \"/*\"\nlimits = [\"l\"]\nrespond = { status = 200 }\n";
    let gateway = Gateway::start(limits);
    let begun = unix().as_secs();
    assert_eq!(gateway.client().get("/").status, 200);
    let served = unix().as_secs();
    let threads = [(); 2].map(|()| {
        let mut client = gateway.client();
        std::thread::spawn(move || client.get("/"))
    });
    // One is held until the first rate has room again, the other until it is known that the second rate has none.
    let responses = threads.map(|thread| thread.join().unwrap());
    let refused = responses.iter().find(|response| response.status == 429).unwrap();
    let reset = refused.headers.must("x-ratelimit-reset").parse::<u64>().unwrap();
    let ends = begun + 60..=served + 61;
    assert!(ends.contains(&reset), "the minute ends at {reset}, which is not in {ends:?}");
}
