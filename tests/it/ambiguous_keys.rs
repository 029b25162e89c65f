//! A request may have the source of a key only once and in one spelling. Otherwise the gateway could count one value
//! while the upstream uses another.

use std::fs;

use crate::harness::{Client, Gateway, Upstream, every_store, reply, run};

/// `/PATH` for each source, under a limit of two a day.
fn routes(up: &Upstream, sources: &[(&str, &str)]) -> String {
    let route = |(name, source): &(&str, &str)| {
        format!(
            "[limits.{name}]\nkey = {source:?}\nrates = [\"2/d\"]\n\
             [[routes]]\npath = \"/{name}\"\nlimits = [\"{name}\"]\nupstream = \"up\"\n"
        )
    };
    up.section() + &sources.iter().map(route).collect::<String>()
}

const SOURCES: [(&str, &str); 4] = [
    ("header", "header:x-api-key | client-ip"),
    ("query", "query:key | client-ip"),
    ("cookie", "cookie:sid | client-ip"),
    ("bearer", "bearer | client-ip"),
];

/// Requests with the key r1 for one reader and the real key for another: path and query, then fields. `#` is another
/// number in every request.
const TWICE: [(&str, &str); 18] = [
    ("/header", "X-Api-Key: r#\r\nX-Api-Key: REAL\r\n"),
    ("/header", "X-Api-Key: r#\r\nx_api_key: REAL\r\n"),
    ("/header", "x_api_key: r#\r\n"),
    ("/header", "X-Api-Key: \r\nX-Api-Key: r#\r\n"),
    ("/query?key=r#&key=REAL", ""),
    ("/query?key=r#&k%65y=REAL", ""),
    ("/query?key=r#&KEY=REAL", ""),
    ("/query?key=r#&key[]=REAL", ""),
    ("/query?a=1;key=r#", ""),
    ("/cookie", "Cookie: sid=r#; sid=REAL\r\n"),
    ("/cookie", "Cookie: sid=r#\r\nCookie: sid=REAL\r\n"),
    ("/cookie", "Cookie: sid=\"r#\"; a=1; SID=REAL\r\n"),
    ("/bearer", "Authorization: Bearer r#\r\nAuthorization: Bearer REAL\r\n"),
    ("/bearer", "Authorization: Basic r#\r\nAuthorization: Bearer REAL\r\n"),
    ("/bearer", "Authorization: Bearer REAL, r#\r\n"),
    ("/bearer", "Authorization: Bearer token=r#\r\n"),
    // Libraries that decode the JSON of tokens leniently read these as the same.
    ("/bearer", "Authorization: Bearer eyJhIjo#fQ.e30.qqo=\r\n"),
    ("/bearer", "Authorization: Bearer eyJhIjo#fQ.e30.qqp\r\n"),
];

fn source_of(target: &str) -> &'static str {
    let name = target[1..].split('?').next().unwrap();
    let (_, key) = SOURCES.iter().find(|(source, _)| *source == name).unwrap();
    key.split(' ').next().unwrap()
}

#[test]
fn a_key_given_twice_is_refused_and_named() {
    every_store(|store| {
        let up = Upstream::start(|_| reply(200, ""));
        let gateway = Gateway::start(&(store.to_owned() + &routes(&up, &SOURCES)));
        let mut client = gateway.client();
        for (target, fields) in TWICE {
            for number in 0..4 {
                let of = |text: &str| text.replace('#', &number.to_string());
                let answer = client.get_with(&of(target), of(fields));
                answer.expect_problem(400);
                let detail = answer.json()["detail"].as_str().unwrap().to_owned();
                assert!(detail.contains(source_of(target)), "{detail}");
                assert!(!detail.contains("REAL"), "{detail}");
            }
        }
        assert_eq!(up.received().len(), 0, "{store}");
        // Nothing was charged, and requests with one key are counted as before.
        for (target, fields) in [
            ("/header", "X-Api-Key: REAL\r\n"),
            ("/query?k%65y=REAL", ""),
            ("/cookie", "Cookie: sid=REAL\r\n"),
            ("/bearer", "Authorization: Bearer REAL\r\n"),
            ("/header", ""),
        ] {
            let statuses: Vec<_> = (0..3).map(|_| client.get_with(target, fields).status).collect();
            assert_eq!(statuses, [200, 200, 429], "{target}, {store}");
        }
        let refused = "outcome=\"refused\",status=\"4xx\",method_class=\"read\"}";
        let count: f64 = SOURCES
            .iter()
            .filter_map(|(name, _)| gateway.metric(&format!("gateway_requests_total{{route=\"/{name}\",{refused}")))
            .sum();
        assert!((count - 4.0 * f64::from(u16::try_from(TWICE.len()).unwrap())).abs() < 0.1, "{count}");
    });
}

#[test]
fn it_is_in_the_access_log() {
    let up = Upstream::start(|_| reply(200, ""));
    let gateway = Gateway::start(&routes(&up, &SOURCES));
    gateway.client().get_with("/header", "X-Api-Key: a\r\nX-Api-Key: b\r\n").expect_problem(400);
    let line = gateway.wait_log("the refusal", |line| line["path"] == "/header");
    assert_eq!((line["status"].as_u64(), line["outcome"].as_str()), (Some(400), Some("refused")), "{line}");
    assert_eq!((line["route"].as_str(), line["reason"].as_str()), (Some("/header"), Some("ambiguous_key")), "{line}");
    assert_eq!(gateway.metric("gateway_request_failures_total{route=\"/header\",reason=\"ambiguous_key\"}"), Some(1.0));
}

#[test]
fn a_flood_of_the_same_bytes_is_refused_every_time() {
    let up = Upstream::start(|_| reply(200, ""));
    let gateway = Gateway::with_log("access = false", &routes(&up, &SOURCES));
    let mut client = gateway.client();
    let once = "X-Api-Key: k\r\n";
    let twice = "X-Api-Key: k\r\nX-Api-Key: l\r\n";
    let ask = |client: &mut Client, fields: &str, count: usize| -> Vec<u16> {
        (0..count).map(|_| client.get_with("/header", fields).status).collect()
    };
    assert_eq!(ask(&mut client, once, 6), [200, 200, 429, 429, 429, 429]);
    assert_eq!(ask(&mut client, twice, 6), [400; 6]);
    assert_eq!(ask(&mut client, once, 3), [429; 3]);
    assert_eq!(
        gateway.metric(
            "gateway_requests_total{route=\"/header\",outcome=\"refused\",status=\"4xx\",method_class=\"read\"}"
        ),
        Some(6.0)
    );
}

#[test]
fn tiers_and_costs_are_given_once_too() {
    let limit = "[limits.l]\nkey = \"client-ip\"\nrates = [\"9/d\"]\ntier = \"header:x-plan\"\n\
                 cost = { request_header = \"x-cost\" }\n[limits.l.tiers.gold]\nrates = [\"100/d\"]\n\
                 [[routes]]\npath = \"/*\"\nlimits = [\"l\"]\nrespond = { status = 200 }\n";
    let gateway = Gateway::start(limit);
    let mut client = gateway.client();
    for fields in [
        "X-Plan: gold\r\nX-Plan: free\r\n",
        "x_plan: gold\r\n",
        "X-Cost: 1\r\nX-Cost: 9\r\n",
        "X-Cost: 1\r\nX_Cost: 9\r\n",
    ] {
        client.get_with("/", fields).expect_problem(400);
    }
    assert_eq!(client.get_with("/", "X-Plan: gold\r\nX-Cost: 2\r\n").status, 200);
}

#[test]
fn sources_that_no_limit_reads_may_be_repeated() {
    let up = Upstream::start(|_| reply(200, ""));
    let other = "[[routes]]\npath = \"/free\"\nupstream = \"up\"\n\
                 [[routes]]\npath = \"/address\"\nlimits = [\"address\"]\nupstream = \"up\"\n\
                 [limits.address]\nkey = \"client-ip\"\nrates = [\"100/d\"]\n";
    let gateway = Gateway::start(&(routes(&up, &SOURCES) + other));
    let mut client = gateway.client();
    let fields = "X-Api-Key: a\r\nX-Api-Key: b\r\nCookie: sid=a; sid=b\r\nAuthorization: Bearer a\r\nX_Other: 1\r\n";
    for target in ["/free?key=1&key=2", "/address?key=1&key=2", "/query?key=1&other=1&other=2"] {
        assert_eq!(client.get_with(target, fields).status, 200, "{target}");
    }
    let last = &up.received()[0];
    assert_eq!(last.target, "/free?key=1&key=2");
}

#[test]
fn spellings_of_one_cookie_share_its_counter() {
    let up = Upstream::start(|_| reply(200, ""));
    let gateway = Gateway::start(&routes(&up, &SOURCES));
    let mut client = gateway.client();
    let spelled = ["sid=s%3Akey", "sid=s:key", "sid=%73:k%65y", "sid=\"s:key\""];
    let statuses = spelled.map(|cookie| client.get_with("/cookie", format!("Cookie: {cookie}\r\n")).status);
    assert_eq!(statuses, [200, 200, 429, 429]);
}

#[test]
fn a_cookie_that_is_there_twice_with_one_value_is_one_key() {
    let up = Upstream::start(|_| reply(200, ""));
    let gateway = Gateway::start(&routes(&up, &SOURCES));
    let mut client = gateway.client();
    for (cookies, status) in [
        ("sid=a; sid=a", 200),
        ("SID=a; sid=a", 200),
        ("sid=a", 429),
        ("sid=b; sid=a", 400),
        ("SID=b; sid=a", 400),
        ("SID=a; Sid=a", 400),
        ("sid=a; sid[]=a", 400),
    ] {
        assert_eq!(client.get_with("/cookie", format!("Cookie: {cookies}\r\n")).status, status, "{cookies}");
    }
}

#[test]
fn explain_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gateway.toml");
    let up = Upstream::start(|_| reply(200, ""));
    fs::write(&file, routes(&up, &SOURCES)).unwrap();
    let explain = |arguments: &[&str]| {
        let output = run(&[&["explain", "--config", file.to_str().unwrap()], arguments].concat());
        String::from_utf8(output.stdout).unwrap()
    };
    let text = explain(&["-H", "x-api-key: a", "-H", "X_Api_Key: b", "http://h/header"]);
    assert!(text.contains("answered 400") && text.contains("has header:x-api-key more than once"), "{text}");
    assert!(!text.contains("empty counters"), "{text}");
    let text = explain(&["http://h/query?k%65y=1;a=1"]);
    assert!(text.contains("answered 400") && text.contains("has query:key in a spelling"), "{text}");
    let text = explain(&["-H", "x-api-key: a", "http://h/header"]);
    assert!(text.contains("empty counters: forwarded"), "{text}");
}

#[test]
fn a_key_among_too_many_cookies_or_parameters_is_not_searched() {
    let up = Upstream::start(|_| reply(200, ""));
    let gateway = Gateway::start(&routes(&up, &SOURCES));
    let mut client = gateway.client();
    for (target, fields, what) in [
        (String::from("/cookie"), format!("Cookie: sid=k{}\r\n", ";".repeat(8000)), "more than 1000 cookies"),
        (format!("/query?key=k{}", "&".repeat(4000)), String::new(), "more than 400 parameters"),
    ] {
        let response = client.get_with(&target, &fields);
        assert!(response.status == 400 && response.text().contains(what), "{}", response.text());
        // A limit that does not read this source accepts the request.
        let elsewhere = target.replace("cookie", "header").replace("query", "header");
        assert_eq!(client.get_with(&elsewhere, &fields).status, 200);
    }
}
