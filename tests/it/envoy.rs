//! Calls of Envoy's rate limit service: the answers, and the effect of invalid calls.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use gateway::request::descriptors::messages::{
    Code, DescriptorStatus, Entry, HealthCheckRequest, HealthCheckResponse, RateLimitDescriptor, RateLimitRequest,
    RateLimitResponse, Serving, Unit,
};
use http::Request;
use prost::Message;
use tokio::runtime::Runtime;

use crate::harness::http2_server::read;
use crate::harness::{Client, Gate, Gateway, Upstream, align, closed_port, every_store, reply, until};

const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const HEALTH: &str = "/grpc.health.v1.Health/Check";
const OK: i32 = Code::Ok as i32;
const OVER_LIMIT: i32 = Code::OverLimit as i32;

pub(crate) fn deciding(server: &str, rest: &str) -> Gateway {
    Gateway::with_server(&format!("listen = []\n{server}"), &format!("[decisions]\nlisten = \"127.0.0.1:0\"\n{rest}"))
}

pub(crate) fn rule(entries: &str, limits: &str) -> String {
    format!("[[decisions.descriptors]]\ndomain = \"edge\"\nentries = {{ {entries} }}\nlimits = {limits}\n")
}

fn limit(name: &str, key: &str, rates: &str, more: &str) -> String {
    format!("[limits.{name}]\nkey = \"{key}\"\nrates = {rates}\n{more}\n")
}

type Asked<'a> = (&'a [(&'a str, &'a str)], Option<u64>);

pub(crate) struct Caller {
    runtime: Runtime,
    client: h2::client::SendRequest<Bytes>,
}

/// The end of a call: its status, its error message, and its response message.
#[derive(Debug, PartialEq)]
struct Ended {
    status: String,
    why: String,
    message: Vec<u8>,
}

impl Caller {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let client = runtime.block_on(async {
            let stream = tokio::net::TcpStream::connect(address).await.unwrap();
            let (client, connection) = h2::client::handshake(stream).await.unwrap();
            tokio::spawn(connection);
            client
        });
        Self { runtime, client }
    }

    fn send(&mut self, request: Request<()>, body: Bytes, whole: bool) -> Ended {
        let ended = async {
            let mut client = self.client.clone().ready().await.unwrap();
            let (response, mut sender) = client.send_request(request, false).unwrap();
            // A body that is too large is refused before all of it was read.
            let _ = sender.send_data(body, whole);
            let (head, body) = response.await.unwrap().into_parts();
            assert_eq!(head.status, 200, "{head:?}");
            let (message, trailers) = read(body).await.unwrap();
            let field = |name| trailers.as_ref().unwrap_or(&head.headers).get(name).or(head.headers.get(name));
            let text = |name| field(name).map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default();
            Ended { status: text("grpc-status"), why: text("grpc-message"), message }
        };
        self.runtime.block_on(async { tokio::time::timeout(Duration::from_secs(60), ended).await }).unwrap()
    }

    /// Begins a call, and cancels it when `is_held` says so.
    fn give_up(&mut self, descriptors: &[Asked<'_>], is_held: impl Fn() -> bool) {
        let message = framed(&request(descriptors)).into();
        self.runtime.block_on(async {
            let mut client = self.client.clone().ready().await.unwrap();
            let (response, mut sender) = client.send_request(head(SHOULD_RATE_LIMIT), false).unwrap();
            sender.send_data(message, true).unwrap();
            // The connection is served meanwhile.
            let end = std::time::Instant::now() + Duration::from_secs(20);
            while !is_held() {
                assert!(std::time::Instant::now() < end, "it is not held");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            drop((response, sender));
            client.ready().await.unwrap();
        });
    }

    fn call(&mut self, path: &str, body: impl Into<Bytes>) -> Ended {
        self.send(head(path), body.into(), true)
    }

    #[track_caller]
    pub(crate) fn ask(&mut self, descriptors: &[Asked<'_>]) -> RateLimitResponse {
        self.send_request(&request(descriptors))
    }

    #[track_caller]
    pub(crate) fn send_request(&mut self, request: &RateLimitRequest) -> RateLimitResponse {
        let ended = self.call(SHOULD_RATE_LIMIT, framed(request));
        assert_eq!((ended.status.as_str(), ended.why.as_str()), ("0", ""));
        assert_eq!(ended.message[0], 0);
        RateLimitResponse::decode(&ended.message[5..]).unwrap()
    }

    /// Returns whether it may pass, and how much is left.
    #[track_caller]
    pub(crate) fn ask_one(&mut self, entries: &[(&str, &str)], hits: u64) -> (i32, u32) {
        let answer = self.ask(&[(entries, Some(hits))]);
        (answer.overall_code, answer.statuses[0].limit_remaining)
    }
}

fn head(path: &str) -> Request<()> {
    let uri = format!("http://gateway.test{path}");
    Request::post(uri).header("content-type", "application/grpc").header("te", "trailers").body(()).unwrap()
}

pub(crate) fn request(descriptors: &[Asked<'_>]) -> RateLimitRequest {
    let entry =
        |(key, value): &(&str, &str)| Entry { key: (*key).to_owned().into(), value: (*value).to_owned().into() };
    let descriptor = |(entries, hits): &Asked<'_>| RateLimitDescriptor {
        entries: entries.iter().map(entry).collect(),
        hits_addend: *hits,
        ..RateLimitDescriptor::default()
    };
    let descriptors = descriptors.iter().map(descriptor).collect();
    RateLimitRequest { domain: "edge".into(), descriptors, hits_addend: 0 }
}

fn framed(message: &impl Message) -> Vec<u8> {
    framed_bytes(0, &message.encode_to_vec())
}

fn framed_bytes(flag: u8, message: &[u8]) -> Vec<u8> {
    [&[flag][..], &u32::try_from(message.len()).unwrap().to_be_bytes(), message].concat()
}

#[test]
fn all_descriptors_of_a_call_are_one_decision() {
    every_store(|store| {
        let limits = limit("few", "descriptor:tenant", "[\"2/d\"]", "") + &limit("many", "global", "[\"5/d\"]", "");
        let rules = rule("tenant = \"*\"", "[\"few\"]") + &rule("any = \"*\"", "[\"many\"]");
        let gateway = deciding("", &format!("{rules}{store}{limits}"));
        let mut caller = Caller::connect(gateway.decisions());
        let mut ask = |tenant| caller.ask(&[(&[("tenant", tenant)], None), (&[("any", "")], None)]);
        let codes = |statuses: &[DescriptorStatus]| statuses.iter().map(|one| one.code).collect::<Vec<_>>();
        for left in [1, 0] {
            let answer = ask("a");
            assert_eq!((answer.overall_code, answer.statuses[0].limit_remaining), (OK, left), "{answer:?}");
            let current = answer.statuses[0].current_limit.as_ref().unwrap();
            let said = (current.name.as_str(), current.requests_per_unit, current.unit);
            assert_eq!(said, ("few", 2, Unit::Day as i32));
        }
        let refused = ask("a");
        assert_eq!((refused.overall_code, codes(&refused.statuses)), (OVER_LIMIT, vec![OVER_LIMIT, OK]));
        let header = |name: &str| refused.response_headers_to_add.iter().find(|line| line.key == name);
        assert!(header("retry-after").unwrap().value.parse::<u64>().unwrap() > 0);
        assert!(header("ratelimit").unwrap().value.starts_with("\"few\";r=0"), "{refused:?}");
        assert!(String::from_utf8_lossy(&refused.raw_body).contains("2/d"), "{refused:?}");
        assert!(refused.statuses[0].duration_until_reset.unwrap().seconds > 0);
        let answer = ask("b");
        assert_eq!(
            (answer.overall_code, answer.statuses[1].limit_remaining),
            (OK, 2),
            "the refusal was charged nowhere"
        );
        let line = gateway.wait_log("the refusal", |line| line["outcome"] == "limited");
        let said = ["via", "route", "limit", "protocol"].map(|name| line[name].as_str().unwrap().to_owned());
        assert_eq!(said, ["envoy", "envoy:edge", "few", "HTTP/2.0"]);
    });
}

#[test]
fn a_call_says_what_it_costs() {
    every_store(|store| {
        let limits = limit("cost", "descriptor:k", "[\"5/d\"]", "");
        let gateway = deciding("", &format!("{}{store}{limits}", rule("k = \"*\"", "[\"cost\"]")));
        let mut caller = Caller::connect(gateway.decisions());
        assert_eq!(caller.ask_one(&[("k", "a")], 3), (OK, 2));
        assert_eq!(caller.ask_one(&[("k", "a")], 3), (OVER_LIMIT, 2), "it must fit");
        assert_eq!(caller.ask_one(&[("k", "a")], 0), (OK, 2), "this only asks");
        assert_eq!(caller.ask_one(&[("k", "a")], 2), (OK, 0));
        assert_eq!(caller.ask_one(&[("k", "a")], 0).0, OVER_LIMIT, "there is no room for one more");
        for never in [6, u64::MAX] {
            let answer = caller.ask(&[(&[("k", "b")], Some(never))]);
            assert_eq!((answer.overall_code, answer.statuses[0].code), (OVER_LIMIT, OVER_LIMIT), "{never}");
            assert!(String::from_utf8_lossy(&answer.raw_body).contains(&never.to_string()), "{answer:?}");
        }
        assert_eq!(caller.ask_one(&[("k", "b")], 1), (OK, 4));
        // If a descriptor has no cost, the cost of the call applies.
        let of_call = RateLimitRequest { hits_addend: 3, ..request(&[(&[("k", "c")], None)]) };
        let ended = caller.call(SHOULD_RATE_LIMIT, framed(&of_call));
        assert_eq!(RateLimitResponse::decode(&ended.message[5..]).unwrap().statuses[0].limit_remaining, 2);
    });
}

#[test]
fn a_counter_that_several_descriptors_name_is_charged_for_all() {
    every_store(|store| {
        let limits = limit("l", "descriptor:k", "[\"5/d\"]", "");
        let rules = rule("k = \"*\", path = \"/a*\"", "[\"l\"]") + &rule("k = \"*\"", "[\"l\"]");
        let gateway = deciding("", &format!("{rules}{store}{limits}"));
        let mut caller = Caller::connect(gateway.decisions());
        let both = |hits: u64| -> [Asked<'static>; 3] {
            [
                (&[("k", "a"), ("path", "/a/b")], Some(hits)),
                (&[("k", "b")], Some(1)),
                (&[("path", "/c"), ("k", "a")], Some(2)),
            ]
        };
        let refused = caller.ask(&both(4));
        assert_eq!(refused.overall_code, OVER_LIMIT, "each fits, but not both: {refused:?}");
        let codes: Vec<_> = refused.statuses.iter().map(|status| status.code).collect();
        assert_eq!(codes, [OVER_LIMIT, OK, OVER_LIMIT]);
        let admitted = caller.ask(&both(3));
        let left: Vec<_> = admitted.statuses.iter().map(|status| status.limit_remaining).collect();
        assert_eq!((admitted.overall_code, left), (OK, vec![0, 4, 0]));
        assert_eq!(caller.ask_one(&[("k", "b")], 1), (OK, 3));
    });
}

#[test]
fn what_no_rule_fits_is_not_limited() {
    let rules = rule("k = \"free\"", "[]") + &rule("k = \"*\"", "[\"l\"]");
    let gateway = deciding("", &format!("{rules}{}", limit("l", "descriptor:k", "[\"1/d\"]", "")));
    let mut caller = Caller::connect(gateway.decisions());
    for entries in [[("k", "free")], [("other", "x")]] {
        for _ in 0..3 {
            let answer = caller.ask(&[(&entries, None)]);
            assert_eq!((answer.overall_code, answer.statuses.len()), (OK, 1));
            assert_eq!(answer.statuses[0], DescriptorStatus { code: OK, ..DescriptorStatus::default() });
            assert_eq!(answer.response_headers_to_add, []);
        }
    }
    gateway.wait_log("a call that nothing limits", |line| line["route"] == "envoy:edge");
    assert_eq!(caller.ask_one(&[("k", "x")], 1), (OK, 0));
    assert_eq!(caller.ask_one(&[("k", "x")], 1), (OVER_LIMIT, 0));
    let other = RateLimitRequest { domain: "mesh".into(), ..request(&[(&[("k", "x")], None)]) };
    let ended = caller.call(SHOULD_RATE_LIMIT, framed(&other));
    assert_eq!(RateLimitResponse::decode(&ended.message[5..]).unwrap().overall_code, OK, "it is of another domain");
}

#[test]
fn limits_are_those_of_requests() {
    let per_client = r#"
tier = "descriptor:plan"
ban = { after = 2, within = "1h", for = "1h" }
[[limits.per-client.overrides]]
keys = ["partner"]
exempt = true
[[limits.per-client.overrides]]
keys = ["thief"]
block = true
[limits.per-client.tiers.gold]
rates = ["4/d"]
"#;
    let limits = limit("per-client", "descriptor:ip", "[\"1/d\"]", per_client)
        + &limit("tried", "global", "[\"2/d\"]", "on_limit = \"shadow\"");
    let rules = rule("ip = \"*\"", "[\"per-client\", \"tried\"]");
    let gateway = deciding("", &format!("{rules}{limits}"));
    let mut caller = Caller::connect(gateway.decisions());
    let mut code = |entries: &[(&str, &str)]| caller.ask(&[(entries, None)]).overall_code;
    assert_eq!([(); 4].map(|()| code(&[("ip", "partner")])), [OK; 4]);
    assert_eq!(code(&[("ip", "thief")]), OVER_LIMIT);
    let of_gold = [(); 5].map(|()| code(&[("ip", "a"), ("plan", "gold")]));
    assert_eq!(of_gold, [OK, OK, OK, OK, OVER_LIMIT]);
    assert_eq!([(); 4].map(|()| code(&[("ip", "b")])), [OK, OVER_LIMIT, OVER_LIMIT, OVER_LIMIT]);
    let bans = gateway.admin("/api/limits/per-client/bans").json();
    assert_eq!(bans["bans"][0]["times"], 1, "{bans}");
    gateway.wait_log("a shadowed limit", |line| line["shadowed"] == serde_json::json!(["tried"]));
    // Each descriptor of a call has its own tier.
    let answer = caller.ask(&[(&[("ip", "c"), ("plan", "gold")], None), (&[("ip", "d")], None)]);
    let allowed = answer.statuses.iter().map(|status| status.current_limit.as_ref().unwrap().requests_per_unit);
    assert_eq!((answer.overall_code, allowed.collect::<Vec<_>>()), (OK, vec![4, 1]));
    // One key may have several tiers in a call: each tier has its own counter.
    for order in [[0, 1], [1, 0]] {
        let both: [Asked<'_>; 2] = [(&[("ip", "e"), ("plan", "gold")], Some(2)), (&[("ip", "e")], Some(2))];
        let answer = caller.ask(&order.map(|at| both[at]));
        assert_eq!(answer.overall_code, OVER_LIMIT, "{answer:?}");
        let codes = [answer.statuses[0].code, answer.statuses[1].code];
        assert_eq!(codes, order.map(|at| [OK, OVER_LIMIT][at]), "{answer:?}");
    }
}

#[test]
fn health_can_be_asked_for() {
    let gateway = deciding("", &rule("k = \"*\"", "[]"));
    let mut caller = Caller::connect(gateway.decisions());
    let mut check = |service: &str| caller.call(HEALTH, framed(&HealthCheckRequest { service: service.to_owned() }));
    for service in ["", "envoy.service.ratelimit.v3.RateLimitService"] {
        let ended = check(service);
        let serving = HealthCheckResponse { status: Serving::Serving as i32 };
        assert_eq!((ended.status.as_str(), HealthCheckResponse::decode(&ended.message[5..])), ("0", Ok(serving)));
    }
    assert_eq!(check("other").status, "5", "NOT_FOUND");
    let drain =
        Client::connect(gateway.admin).call("POST /api/drain HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(drain.status, 200, "{drain:?}");
    let drains = HealthCheckResponse { status: Serving::NotServing as i32 };
    assert_eq!(HealthCheckResponse::decode(&check("").message[5..]), Ok(drains), "as /readyz says");
}

#[test]
fn what_clients_send_is_counted_as_it_is() {
    let gateway = deciding("", &(rule("k = \"a*\"", "[\"l\"]") + &limit("l", "descriptor:k", "[\"1/d\"]", "")));
    let mut caller = Caller::connect(gateway.decisions());
    let mut ask = |value: &[u8]| {
        let entries = vec![Entry { key: "k".into(), value: Bytes::copy_from_slice(value) }];
        let descriptors = vec![RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }];
        let ended = caller.call(SHOULD_RATE_LIMIT, framed(&RateLimitRequest { descriptors, ..request(&[]) }));
        RateLimitResponse::decode(&ended.message[5..]).unwrap().overall_code
    };
    let long = vec![b'a'; 200_000];
    for value in [&b"a\xff"[..], b"a\xfe", b"a\0", &long, &long[1..]] {
        assert_eq!([ask(value), ask(value)], [OK, OVER_LIMIT]);
    }
}

#[test]
fn a_proxy_may_reset_the_calls_of_many_clients() {
    let held = "on_limit = \"delay\"\nmax_delay = \"300s\"\nmax_delayed = 1000";
    let rules = rule("k = \"*\"", "[\"l\"]") + &limit("l", "descriptor:k", "[\"1/5m\"]", held);
    let gateway = deciding("", &rules);
    let mut caller = Caller::connect(gateway.decisions());
    assert_eq!(caller.ask_one(&[("k", "a")], 1).0, OK);
    let call = Bytes::from(framed(&request(&[(&[("k", "a")], None)])));
    for _ in 0..20 {
        let client = caller.client.clone();
        let held = caller.runtime.block_on(async {
            let mut held = Vec::new();
            for _ in 0..80 {
                let (response, mut sender) =
                    client.clone().ready().await.unwrap().send_request(head(SHOULD_RATE_LIMIT), false).unwrap();
                sender.send_data(call.clone(), true).unwrap();
                held.push(response);
            }
            held
        });
        // When this is answered, the others are held.
        assert_eq!(caller.ask_one(&[("other", "")], 1).0, OK);
        drop(held);
    }
    assert_eq!(caller.ask_one(&[("k", "b")], 1).0, OK, "the connection is still there");
}

#[test]
fn a_call_that_is_wrong_fails_alone() {
    let rules = rule("k = \"*\"", "[\"l\"]") + &limit("l", "descriptor:k", "[\"1000/d\"]", "");
    let gateway = deciding("body_timeout = \"4s\"", &rules);
    let mut caller = Caller::connect(gateway.decisions());
    let one: Asked<'_> = (&[("k", "a")], None);
    let valid = request(&[one]);
    let message = valid.encode_to_vec();
    let huge = request(&[(&[("k", &"x".repeat(1_100_000))], None)]);
    // A field with the number 1 of a message in a message, many times.
    let nested = (0..5_000).fold(Vec::new(), |inner: Vec<u8>, _| match inner.len() {
        length @ ..=60_000 => {
            let mut outer = vec![0x12];
            prost::encoding::encode_varint(length as u64, &mut outer);
            outer.extend_from_slice(&inner);
            outer
        }
        _ => inner,
    });
    let (invalid, exhausted, unimplemented) = ("3", "8", "12");
    for (what, status, path, body) in [
        ("nothing", invalid, SHOULD_RATE_LIMIT, Vec::new()),
        ("no length", invalid, SHOULD_RATE_LIMIT, vec![0, 0, 0]),
        ("an empty message, so no domain", invalid, SHOULD_RATE_LIMIT, framed_bytes(0, b"")),
        ("no descriptors", invalid, SHOULD_RATE_LIMIT, framed(&request(&[]))),
        ("descriptors without end", invalid, SHOULD_RATE_LIMIT, framed(&request(&[one; 33]))),
        ("no message", invalid, SHOULD_RATE_LIMIT, framed_bytes(0, b"GET / HTTP/1.1")),
        ("messages in messages", invalid, SHOULD_RATE_LIMIT, framed_bytes(0, &nested)),
        ("a message that is cut off", invalid, SHOULD_RATE_LIMIT, framed_bytes(0, &message[..message.len() - 1])),
        ("two messages", invalid, SHOULD_RATE_LIMIT, [framed(&valid), framed(&valid)].concat()),
        ("more than the length says", invalid, SHOULD_RATE_LIMIT, [&framed(&valid)[..], b"x"].concat()),
        ("less than the length says", invalid, SHOULD_RATE_LIMIT, framed(&valid)[..8].to_vec()),
        ("a compressed message", unimplemented, SHOULD_RATE_LIMIT, framed_bytes(1, &message)),
        ("a huge message", exhausted, HEALTH, framed(&huge)),
        ("another procedure", unimplemented, "/envoy.service.ratelimit.v2.RateLimitService/ShouldRateLimit", {
            framed(&valid)
        }),
        ("no procedure", unimplemented, "/", framed(&valid)),
        ("another message", invalid, HEALTH, framed_bytes(0, &[0xff])),
    ] {
        let ended = caller.call(path, body);
        assert_eq!(ended.status, status, "{what}: {ended:?}");
        assert!(!ended.why.is_empty() && ended.message.is_empty(), "{what}: {ended:?}");
    }
    let ended = caller.call(SHOULD_RATE_LIMIT, framed(&huge));
    let refused = RateLimitResponse { overall_code: OVER_LIMIT, ..RateLimitResponse::default() };
    // A client can make a call large, and Envoy lets requests pass whose calls fail.
    assert_eq!(RateLimitResponse::decode(&ended.message[5..]), Ok(refused));
    let half = Bytes::from(framed(&valid)).slice(..8);
    let ended = caller.send(head(SHOULD_RATE_LIMIT), half, false);
    assert_eq!(ended.status, "4", "DEADLINE_EXCEEDED: {ended:?}");
    // Unknown fields are no error.
    let unknown = framed_bytes(0, &[&message[..], &[0xf8, 0x7f, 1]].concat());
    assert_eq!(caller.call(SHOULD_RATE_LIMIT, unknown).status, "0");
    assert_eq!(caller.ask_one(&[("k", "a")], 1), (OK, 998), "nothing else was charged");
    let failed = gateway.metric("gateway_request_failures_total");
    assert!(failed >= Some(16.0), "{failed:?}");
}

#[test]
fn a_question_by_http_is_no_call_whatever_its_client_sends() {
    let rules = rule("k = \"*\"", "[]") + &crate::harness::limited("global", "1/d", "");
    let gateway = deciding("trusted_proxies = [\"127.0.0.1/32\"]", &rules);
    let asked = |name: &str| {
        let mut question = head(HEALTH);
        question.headers_mut().insert(http::HeaderName::try_from(name).unwrap(), "/a".parse().unwrap());
        question.headers_mut().insert("x-original-method", "GET".parse().unwrap());
        question
    };
    let answers = crate::harness::over_http2(
        gateway.decisions(),
        vec![asked("x-original-uri"), asked("x-original-uri"), asked("x-forwarded-uri")],
    );
    let statuses: Vec<_> = answers.iter().map(|(status, _)| *status).collect();
    assert_eq!(statuses, [200, 429, 429], "a client with the headers of gRPC is limited as any other");
    let (status, headers) = &answers[0];
    assert!(*status == 200 && !headers.contains_key("grpc-status"), "{headers:?}");
}

#[test]
fn without_its_store_a_call_is_answered_as_the_file_says() {
    let (_held, address) = closed_port();
    for (on_error, status) in [("local", "0"), ("allow", "0"), ("reject", "14")] {
        let store = format!("[store]\ntype = \"memcached\"\nservers = [\"{address}\"]\non_error = \"{on_error}\"\n");
        let rules = rule("k = \"*\"", "[\"l\"]") + &store + &limit("l", "descriptor:k", "[\"1/d\"]", "");
        let gateway = deciding("", &rules);
        let ended =
            Caller::connect(gateway.decisions()).call(SHOULD_RATE_LIMIT, framed(&request(&[(&[("k", "a")], None)])));
        assert_eq!(ended.status, status, "{on_error}: {ended:?}");
    }
}

const HOLDING: &str = "slow = { from = 0.1, up_to = \"60s\" }";

fn delayed(gateway: &Gateway, limit: &str) -> f64 {
    gateway.metric(&format!("gateway_limit_decisions_total{{limit=\"{limit}\",decision=\"delayed\"}}")).unwrap()
}

#[test]
fn a_call_that_is_given_up_while_it_is_held_stays_charged() {
    every_store(|store| {
        let rules = rule("ip = \"*\"", "[\"slow\"]");
        let gateway = deciding("", &format!("{rules}{store}{}", limit("slow", "descriptor:ip", "[\"9/d\"]", HOLDING)));
        let mut caller = Caller::connect(gateway.decisions());
        let entries: &[(&str, &str)] = &[("ip", "192.0.2.1")];
        assert_eq!(caller.ask_one(entries, 1).0, OK);
        for held in 1..=8 {
            caller.give_up(&[(entries, None)], || delayed(&gateway, "slow") >= f64::from(held));
        }
        assert_eq!(gateway.used("slow", "192.0.2.1"), 9, "{store}");
        assert_eq!(caller.ask_one(entries, 1).0, OVER_LIMIT, "{store}");
        drop(caller);
        assert_eq!(gateway.used("slow", "192.0.2.1"), 9, "{store}");
    });
}

#[test]
fn a_call_that_is_given_up_while_it_is_delayed_is_charged() {
    every_store(|store| {
        let delaying = "on_limit = \"delay\"\nmax_delay = \"5m\"\nmax_delayed = 10";
        let rules = rule("ip = \"*\"", "[\"l\"]");
        let gateway = deciding("", &format!("{rules}{store}{}", limit("l", "descriptor:ip", "[\"9/4m\"]", delaying)));
        align(Duration::from_mins(4), Duration::from_secs(30));
        let mut caller = Caller::connect(gateway.decisions());
        let entries: &[(&str, &str)] = &[("ip", "192.0.2.1")];
        assert_eq!(caller.ask_one(entries, 9).0, OK);
        // One waits for room, and the others for their turn.
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut caller = Caller::connect(gateway.decisions());
                    caller.give_up(&[(entries, None)], || delayed(&gateway, "l") >= 3.0);
                });
            }
        });
        until("all are charged", Duration::from_secs(10), || gateway.used("l", "192.0.2.1") == 12);
    });
}

#[test]
fn a_hold_ends_before_envoy_stops_to_wait() {
    let delaying = "on_limit = \"delay\"\nmax_delay = \"60s\"\nstrategy = \"token-bucket\"";
    let limits = limit("slow", "descriptor:ip", "[\"9/d\"]", HOLDING)
        + &limit("delays", "descriptor:ip", "[\"2/m burst 1\"]", delaying);
    let rules = rule("ip = \"*\", slow = \"*\"", "[\"slow\"]") + &rule("ip = \"*\"", "[\"delays\"]");
    let gateway = deciding("", &format!("{rules}{limits}"));
    let mut caller = Caller::connect(gateway.decisions());
    let mut ask = |entries: &[(&str, &str)]| {
        let mut head = head(SHOULD_RATE_LIMIT);
        head.headers_mut().insert("grpc-timeout", "8S".parse().unwrap());
        let begun = std::time::Instant::now();
        let ended = caller.send(head, framed(&request(&[(entries, None)])).into(), true);
        let took = begun.elapsed();
        (RateLimitResponse::decode(&ended.message[5..]).unwrap().overall_code, took)
    };
    // It is late each time, unless the machine stalled.
    let is_in_time = ["192.0.2.2", "192.0.2.3", "192.0.2.4"].into_iter().any(|ip| {
        let slow = [("ip", ip), ("slow", "")];
        assert_eq!(Caller::connect(gateway.decisions()).ask_one(&slow, 7).0, OK);
        let (code, took) = ask(&slow);
        assert_eq!(code, OK);
        assert!(took >= Duration::from_secs(6), "{took:?}");
        took < Duration::from_secs(8)
    });
    assert!(is_in_time, "Envoy would have stopped to wait");
    let delays = [("ip", "192.0.2.1")];
    assert_eq!(ask(&delays).0, OK);
    let (code, took) = ask(&delays);
    assert_eq!(code, OVER_LIMIT, "it would be held for longer than Envoy waits");
    assert!(took < Duration::from_secs(8), "{took:?}");
}

#[test]
fn a_call_waits_for_a_source_of_quotas_less_than_envoy_waits_for_it() {
    every_store(|store| {
        // It is late each time, unless the machine stalled.
        let is_in_time = ["192.0.2.1", "192.0.2.2", "192.0.2.3"].into_iter().any(|ip| waits_for_a_source(store, ip));
        assert!(is_in_time, "{store}: Envoy would have stopped to wait");
    });
}

/// Returns whether Envoy would still wait when a call is answered whose source of quotas never answers.
fn waits_for_a_source(store: &str, ip: &str) -> bool {
    let gate = Gate::default();
    let passing = gate.clone();
    let source = Upstream::start(move |_| {
        passing.pass();
        reply(200, "{}")
    });
    let quotas = format!(
        "strategy = \"fixed-window\"\nquotas = {{ source = \"http://{}/{{key}}\", timeout = \"5s\" }}\n\
         slow = {{ from = 0.1, up_to = \"60s\" }}",
        source.address()
    );
    let rules = rule("ip = \"*\"", "[\"l\"]");
    let gateway = deciding("", &format!("{rules}{store}{}", limit("l", "descriptor:ip", "[\"9/m\"]", &quotas)));
    let mut head = head(SHOULD_RATE_LIMIT);
    head.headers_mut().insert("grpc-timeout", "4S".parse().unwrap());
    align(Duration::from_mins(1), Duration::from_secs(12));
    let mut caller = Caller::connect(gateway.decisions());
    let begun = std::time::Instant::now();
    let ended = caller.send(head, framed(&request(&[(&[("ip", ip)], Some(2))])).into(), true);
    let took = begun.elapsed();
    let answer = RateLimitResponse::decode(&ended.message[5..]).unwrap();
    assert!(took >= Duration::from_secs(3), "{took:?} for the source and the hold together");
    assert_eq!((answer.overall_code, answer.statuses[0].limit_remaining), (OK, 7), "{store}");
    assert!(answer.statuses[0].duration_until_reset.unwrap().seconds <= 60, "{answer:?}");
    gate.open();
    assert_eq!(gateway.used("l", ip), 2, "{store}");
    took < Duration::from_secs(4)
}

#[test]
fn what_has_been_used_is_charged_in_full() {
    every_store(|store| {
        let ban = "ban = { after = 2, within = \"1h\", for = \"1h\" }\non_limit = \"delay\"\nmax_delay = \"60s\"\n\
                   slow = { from = 0.1, up_to = \"60s\" }";
        let limits = limit("tokens", "descriptor:user", "[\"1000/d\"]", ban);
        let reports = rule("user = \"*\", report = \"*\"", "[\"tokens\"]") + "reports = true\n";
        let rules = reports + &rule("user = \"*\"", "[\"tokens\"]");
        let gateway = deciding("", &format!("{rules}{store}{limits}"));
        let mut caller = Caller::connect(gateway.decisions());
        let report: &[(&str, &str)] = &[("user", "ann"), ("report", "")];
        let mut told = |hits| caller.ask_one(report, hits);
        assert_eq!([400, 400, 400].map(&mut told), [(OK, 600), (OK, 200), (OK, 0)], "{store}");
        assert_eq!(
            [100, 100, 100, 100].map(&mut told),
            [(OVER_LIMIT, 0); 4],
            "{store}: it was over before, and bans nobody"
        );
        assert_eq!(told(0), (OVER_LIMIT, 0), "{store}");
        assert_eq!(gateway.used("tokens", "ann"), 1600, "{store}");
        assert_eq!(caller.ask_one(&[("user", "ben")], 100), (OK, 900), "{store}: questions are asked as ever");
        let both: &[Asked<'_>] = &[(&[("user", "cid")], Some(1)), (&[("user", "cid"), ("report", "")], Some(2000))];
        assert_eq!(caller.ask(both).overall_code, OK, "{store}");
        assert_eq!(gateway.used("tokens", "cid"), 2001, "{store}: of one counter");
        assert_eq!(caller.ask(both).overall_code, OVER_LIMIT, "{store}");
        assert_eq!(gateway.used("tokens", "cid"), 4001, "{store}: the question is not charged, the report is");
    });
}
