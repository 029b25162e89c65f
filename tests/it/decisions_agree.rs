//! A request gets the same decision whether it comes to the gateway or another proxy asks about it: random requests go both
//! ways, to gateways with equal files.

use std::collections::BTreeMap;

use crate::harness::{Client, Gateway, Response};

const REQUESTS: usize = 1000;

const FILE: &str = r#"
[decisions]
listen = "127.0.0.1:0"

[limits.clients]
key = "header:x-key | client-ip"
rates = ["20/30d", "50/31d"]
strategy = "fixed-window"
headers = "both"
tier = "header:x-plan"
[limits.clients.tiers.gold]
rates = ["100/30d"]
[[limits.clients.overrides]]
keys = ["free-*"]
exempt = true
[[limits.clients.overrides]]
keys = ["thief"]
block = true

[limits.writes]
key = ["cookie:session | query:session", "path:tenant"]
rates = ["5/30d"]
strategy = "moving-window"
cost = { request_header = "x-cost" }
missing = "reject"

[limits.reports]
key = ["host", "method", "path"]
rates = ["3/30d burst 9"]
strategy = "token-bucket"

[limits.watched]
key = "query:q"
rates = ["2/30d"]
strategy = "fixed-window"
on_limit = "shadow"
missing = "skip"

[[routes]]
path = "/v1/{tenant}/*"
methods = ["POST", "DELETE"]
respond = { status = 200 }
limits = ["clients", "writes"]

[[routes]]
path = "/v1/*"
respond = { status = 200 }
limits = ["clients", "watched"]

[[routes]]
host = "reports.test"
path = "/*"
methods = ["GET"]
respond = { status = 200 }
limits = ["reports"]
response_headers = { set = { x-frame-options = "DENY" } }

[[routes]]
path = "/pages/*"
scheme = "https"
respond = { status = 200 }
limits = ["reports", "clients"]
"#;

/// The same numbers in each run (xorshift).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(most).unwrap()).unwrap()
    }

    fn of<'a>(&mut self, choices: &[&'a str]) -> &'a str {
        choices[self.below(choices.len())]
    }
}

struct Random {
    method: &'static str,
    target: String,
    host: &'static str,
    fields: String,
}

fn random(numbers: &mut Numbers) -> Random {
    let method = numbers.of(&["GET", "GET", "GET", "HEAD", "POST", "POST", "DELETE", "OPTIONS", "PURGE", "get"]);
    let path = numbers.of(&[
        "/v1/acme/users",
        "/v1/acme/users",
        "/v1/ACME/users/",
        "/v1/acme",
        "/v1",
        "/v1//acme;a=b/x",
        "/v1/a%63me/users",
        "/v1/acme/%2e%2e/x",
        "/v1/a%2Fb",
        "/v1/%",
        "/",
        "/a",
        "/report/7",
        "/pages/a",
        "/PAGES/a",
        "/v1/acme/%00",
    ]);
    let query = numbers.of(&["", "", "?q=1", "?q=2", "?q=1&q=2", "?session=s", "?Q=1", "?"]);
    let host = numbers.of(&["api.test", "reports.test", "REPORTS.test:80", "reports.test.", "a b"]);
    let mut fields = String::new();
    for choices in [
        &[
            "",
            "",
            "X-Key: a",
            "X-Key: b",
            "X-Key: free-1",
            "X-Key: thief",
            "X-Key: a\r\nX-Key: b",
            "X_Key: c",
            "X-Key:",
        ][..],
        &["", "", "X-Plan: gold", "X-Plan: none"],
        &["", "Cookie: session=s", "Cookie: session=t; session=u", "Cookie: a=b"],
        &["", "", "X-Cost: 2", "X-Cost: 9", "X-Cost: x"],
        &["", "X-Forwarded-For: 192.0.2.1", "X-Forwarded-For: 192.0.2.2, 127.0.0.1", "X-Forwarded-For: nobody"],
        &["", "X-Forwarded-Proto: https"],
        &["", "", "", "Content-Type: application/grpc"],
    ] {
        let field = numbers.of(choices);
        if !field.is_empty() {
            fields.extend([field, "\r\n"]);
        }
    }
    Random { method, target: format!("{path}{query}"), host, fields }
}

/// The limits in a response, without the time, which differs a little.
fn told(response: &Response) -> BTreeMap<String, String> {
    let names = ["ratelimit", "ratelimit-policy", "ratelimit-shadow", "x-ratelimit-limit", "x-ratelimit-remaining"];
    let more = ["www-authenticate", "allow", "x-frame-options"];
    let value = |name: &str| Some(response.headers.get(name)?.split(";t=").next().unwrap_or_default().to_owned());
    let mut told: BTreeMap<_, _> =
        names.into_iter().chain(more).filter_map(|name| Some((name.to_owned(), value(name)?))).collect();
    if response.headers.get("retry-after").is_some() {
        told.insert("retry-after".to_owned(), String::new());
    }
    told
}

/// Opens another connection after the gateway has closed one.
struct Sender<'a> {
    gateway: &'a Gateway,
    is_asker: bool,
    client: Option<Client>,
}

impl Sender<'_> {
    fn send(&mut self, request: &Random, way: usize) -> Response {
        let Random { method, target, host, fields } = request;
        let address = if self.is_asker { self.gateway.decisions() } else { self.gateway.http };
        let client = self.client.get_or_insert_with(|| Client::connect(address));
        let text = match (self.is_asker, way) {
            (false, _) => format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n"),
            (true, 0) => format!(
                "GET /decide HTTP/1.1\r\nHost: {host}\r\nX-Original-URI: {target}\r\nX-Original-Method: {method}\r\n\
                 {fields}\r\n"
            ),
            (true, _) => format!(
                "GET / HTTP/1.1\r\nHost: gateway\r\nX-Forwarded-Uri: {target}\r\nX-Forwarded-Method: {method}\r\n\
                 X-Forwarded-Host: {host}\r\n{fields}\r\n"
            ),
        };
        let response = client.call(text);
        if response.headers.get("connection").is_some_and(|value| value == "close") {
            self.client = None;
        }
        response
    }
}

#[test]
fn requests_are_decided_on_in_the_same_way_by_both_listeners() {
    let start = || Gateway::with_server("trusted_proxies = [\"127.0.0.1/32\"]", FILE);
    let gateways = [start(), start()];
    let mut direct = Sender { gateway: &gateways[0], is_asker: false, client: None };
    let mut asking = Sender { gateway: &gateways[1], is_asker: true, client: None };
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    let mut statuses = BTreeMap::<u16, usize>::new();
    for count in 0..REQUESTS {
        let request = random(&mut numbers);
        let way = numbers.below(2);
        let what =
            format!("request {count}: {} {} {:?} {:?}", request.method, request.target, request.host, request.fields);
        let (came, asked) = (direct.send(&request, way), asking.send(&request, way));
        // A refused gRPC call has status 200, with the outcome in a field.
        let outcome = came.headers.get("grpc-status").map(|status| status.parse::<u16>().unwrap());
        let expected = match (outcome, came.status) {
            // A blocked client and a request that costs too much are refused by a limit, too.
            (Some(7 | 8), _) | (None, 403 | 413 | 429) => vec![429],
            (Some(3), _) => vec![400],
            (Some(12), _) => vec![404, 405, 501],
            (_, status) => vec![status],
        };
        assert!(expected.contains(&asked.status), "{what}: {} of {expected:?}\n{asked:?}\n{came:?}", asked.status);
        assert_eq!(told(&came), told(&asked), "{what}");
        if outcome.is_none() && request.method != "HEAD" && came.status != 200 {
            assert_eq!(came.anonymous(), asked.anonymous(), "{what}");
        }
        *statuses.entry(asked.status).or_default() += 1;
    }
    assert!([200, 400, 404, 405, 429].iter().all(|status| statuses.contains_key(status)), "{statuses:?}");
    let decisions = |gateway: &Gateway| {
        let text = gateway.admin("/metrics").text().to_owned();
        let lines = text.lines().filter(|line| line.starts_with("gateway_limit_decisions_total"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(decisions(&gateways[0]).len() > 8);
    assert_eq!(decisions(&gateways[0]), decisions(&gateways[1]));
}
