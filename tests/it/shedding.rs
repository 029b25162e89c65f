//! Overload with a real slow server: low priorities are shed, and the number in flight follows the latency.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::harness::{Client, Gateway, Upstream, reply, until};

const PATIENCE: Duration = Duration::from_secs(30);
const WORK: Duration = Duration::from_millis(20);

/// Works on two requests at the same time, 20 ms each, so it serves 100 a second.
fn slow() -> Upstream {
    let free = Arc::new((Mutex::new(2), Condvar::new()));
    Upstream::start(move |_| {
        let (count, freed) = &*free;
        *freed.wait_while(count.lock().unwrap(), |count| *count == 0).unwrap() -= 1;
        thread::sleep(WORK);
        *count.lock().unwrap() += 1;
        freed.notify_one();
        reply(200, "done")
    })
}

fn address(number: u8) -> IpAddr {
    IpAddr::from(Ipv4Addr::new(127, 0, 7, number))
}

/// The statuses that a client has got until the end, with the value of Retry-After.
type Answers = Vec<(u16, Option<String>)>;

/// Clients with different addresses; each sends one request after the other.
struct Crowd {
    over: Arc<AtomicBool>,
    clients: Vec<thread::JoinHandle<Answers>>,
}

impl Crowd {
    fn start(gateway: SocketAddr, path: &'static str, fields: &'static str, clients: u8) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let client = |number| {
            let over = Arc::clone(&over);
            thread::spawn(move || {
                let mut client = Client::connect_from(address(number), gateway);
                let mut answers = Vec::new();
                while !over.load(Ordering::SeqCst) {
                    let response = client.get_with(path, fields);
                    if response.status != 200 {
                        thread::sleep(WORK);
                    }
                    answers.push((response.status, response.headers.get("retry-after").map(str::to_owned)));
                }
                answers
            })
        };
        let clients = (1..=clients).map(client).collect();
        Self { over, clients }
    }

    fn end(self) -> Answers {
        self.over.store(true, Ordering::SeqCst);
        self.clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    }
}

fn count(answers: &Answers, status: u16) -> usize {
    answers.iter().filter(|(other, _)| *other == status).count()
}

fn counted(gateway: &Gateway, start: &str) -> usize {
    let metrics = gateway.admin("/metrics");
    let lines = metrics.text().lines().filter(|line| line.starts_with(start));
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<usize>().unwrap()).sum()
}

const SHED: &str = "shed = { latency = \"100ms\", status = 503 }";

fn with_priorities(up: &Upstream) -> String {
    let limit = "[limits.all]\nkey = \"global\"\nrates = [\"1000000/h\"]\ntier = \"header:x-plan\"\n\
                 [limits.all.tiers.gold]\nrates = [\"1000000/h\"]\npriority = 9\n";
    let route = |path: &str, more: &str| format!("[[routes]]\npath = \"{path}\"\n{more}\n");
    let low = route("/low", "upstream = \"up\"\nlimits = [\"all\"]\npriority = 2");
    let high = route("/high", "upstream = \"up\"\npriority = 8");
    format!("{}{limit}{low}{high}{}", up.section(), route("/own", "respond = { status = 200 }\npriority = 0"))
}

#[test]
fn bodies_that_come_slowly_are_no_latency() {
    let up = Upstream::start(|_| reply(200, "done"));
    let gateway = Gateway::with_server(&SHED.replace("100ms", "3s"), &with_priorities(&up));
    let mut slow: Vec<_> = (0..8).map(|_| gateway.client()).collect();
    for client in &mut slow {
        client.send("POST /low HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n");
    }
    thread::sleep(Duration::from_secs(5));
    slow.iter_mut().for_each(|client| client.send("12345"));
    slow.iter_mut().for_each(|client| assert_eq!(client.response(false).status, 200));
    thread::sleep(Duration::from_millis(600));
    assert_eq!(gateway.metric("gateway_shed_level"), Some(0.0));
    assert!(!gateway.log().iter().any(|line| line.contains("shedding begins")));
}

/// These tests load the machine, or measure what load disturbs, so they take turns.
mod alone {
    use super::*;

    #[test]
    fn low_priorities_are_shed_while_an_upstream_is_slow() {
        let up = slow();
        let rest = with_priorities(&up);
        let gateway = Gateway::with_server(SHED, &rest);
        assert_eq!(gateway.metric("gateway_shed_level"), Some(0.0));
        let low = Crowd::start(gateway.http, "/low", "", 40);
        let line = gateway.wait_message("shedding begins");
        assert_eq!(
            (&line["upstream"], &line["because"], &line["level"]),
            (&"up".into(), &"latency".into(), &"WARN".into())
        );
        let is_shedding = || gateway.metric("gateway_shed_level").unwrap() > 2.0;
        until("requests of the priority 2 are shed", PATIENCE, is_shedding);

        // While the machine itself is too slow, all priorities are shed, so this may need several attempts.
        let mut client = gateway.client();
        until("important requests are served", PATIENCE, || {
            let high = Crowd::start(gateway.http, "/high", "", 2);
            let gold = Crowd::start(gateway.http, "/low", "X-Plan: gold\r\n", 1);
            // Shedding must hold for some windows.
            for _ in 0..20 {
                assert_eq!(client.get("/own").status, 200, "its route needs no upstream");
                assert_eq!(gateway.admin("/healthz").status, 200);
                thread::sleep(Duration::from_millis(100));
            }
            let is_served = |crowd: Crowd| {
                let answers = crowd.end();
                count(&answers, 200) * 100 > answers.len() * 95 && answers.len() > 10
            };
            [high, gold].map(is_served) == [true, true]
        });
        // A gRPC call gets its own form. Only some clients are shed, so each of them calls.
        let call = "POST /low HTTP/1.1\r\nHost: a\r\nContent-Type: application/grpc\r\nContent-Length: 0\r\n\r\n";
        let mut callers: Vec<_> = (1..=40).map(|number| Client::connect_from(address(number), gateway.http)).collect();
        let mut code = None;
        until("a call is shed", PATIENCE, || {
            let codes =
                callers.iter_mut().map(|client| client.call(call).headers.get("grpc-status").map(str::to_owned));
            code = codes.flatten().next();
            code.is_some()
        });
        assert_eq!(code.as_deref(), Some("14"));
        let low = low.end();

        let shed = count(&low, 503);
        assert!(shed > 50 && count(&low, 200) + shed == low.len(), "{shed}");
        let after = low.iter().filter(|(status, _)| *status == 503).map(|(_, after)| after.as_deref().unwrap());
        assert!(after.map(|after| after.parse::<u32>().unwrap()).all(|after| (1..=5).contains(&after)));

        let counted = |start: &str| counted(&gateway, start);
        let of_upstream = "gateway_shed_requests_total{upstream=\"up\",priority=\"2\"}";
        let of_route = "gateway_requests_total{route=\"/low\",outcome=\"shed\",status=\"5xx\",method_class=\"read\"}";
        until("all are counted", PATIENCE, || counted(of_upstream) >= shed && counted(of_route) >= shed);
        until("a request that is shed is not charged", PATIENCE, || {
            let admitted = counted("gateway_limit_decisions_total{limit=\"all\",decision=\"admitted\"}");
            admitted == counted("gateway_requests_total{route=\"/low\",outcome=\"forwarded\"")
        });
        gateway.wait_log("a shed request", |line| line["message"] == "request" && line["outcome"] == "shed");

        let line = gateway.wait_message("shedding ends");
        assert!(line["shed"].as_u64().is_some_and(|count| count > 50), "{line}");
        assert_eq!(gateway.metric("gateway_shed_level"), Some(0.0));
        gateway.reload("", &rest);
        gateway.wait_message("reloaded");
        assert_eq!(gateway.metric("gateway_shed_level"), None);
        let warned = gateway.wait_log("a warning", |line| line["level"] == "WARN" && line["place"].is_string());
        assert!(warned["message"].as_str().unwrap().contains("has no effect without [server.shed]"), "{warned}");
    }

    #[test]
    fn requests_are_shed_while_more_of_the_processors_is_in_use_than_wanted() {
        let up = Upstream::start(|_| reply(200, "done"));
        let rest = with_priorities(&up);
        // The clients alone use more than a thousandth.
        let gateway = Gateway::with_server("shed = { cpu = 0.001 }", &rest);
        let crowds = ["/low", "/own"].map(|path| Crowd::start(gateway.http, path, "", 10));
        let line = gateway.wait_message("shedding begins");
        assert_eq!(
            (&line["because"], &line["level"], &line["upstream"]),
            (&"cpu".into(), &"WARN".into(), &Value::Null)
        );
        let level = || gateway.metric("gateway_shed_level").unwrap();
        until("requests of the priority 2 are shed", PATIENCE, || level() > 2.0);
        // They are few, so they are among those that are admitted in any case.
        let mut client = gateway.client();
        let important = (0..10).filter(|_| {
            thread::sleep(Duration::from_millis(200));
            assert_eq!(gateway.admin("/healthz").status, 200);
            client.get("/high").status == 200
        });
        assert!(important.count() >= 5);
        for answers in crowds.map(Crowd::end) {
            let (shed, served) = (count(&answers, 503), count(&answers, 200));
            assert!(shed > 50 && shed + served == answers.len(), "{served} of {}", answers.len());
        }
        gateway.reload("shed = { cpu = 1.0 }", &rest);
        gateway.wait_message("shedding ends");
        until("nothing is shed", PATIENCE, || level() == 0.0);
        assert_eq!(client.get("/own").status, 200);
    }

    #[test]
    fn a_reload_begins_to_shed() {
        let up = slow();
        let gateway = Gateway::start(&with_priorities(&up));
        let low = Crowd::start(gateway.http, "/low", "", 40);
        up.wait_connections(40);
        gateway.reload(SHED, &with_priorities(&up));
        gateway.wait_message("reloaded");
        gateway.wait_message("shedding begins");
        until("requests are shed", PATIENCE, || gateway.metric("gateway_shed_requests_total").is_some());
        gateway.reload("shed = { latency = \"1h\" }", &with_priorities(&up));
        until("no request is shed", PATIENCE, || gateway.metric("gateway_shed_level") == Some(0.0));
        low.end();
    }

    #[test]
    fn the_number_in_flight_follows_the_latency() {
        let up = slow();
        let adaptive = |keys: &str| format!("{}{keys}\n[[routes]]\npath = \"/*\"\nupstream = \"up\"\n", up.section());
        let gateway = Gateway::start(&adaptive("adaptive = { min = 1, max = 100 }"));
        let most = || gateway.metric("gateway_upstream_server_max_in_flight");
        assert_eq!(most(), Some(20.0));
        let all = Crowd::start(gateway.http, "/", "", 60);
        // Two simultaneous requests are as fast as possible; the formula lets about three more wait.
        until("the limit has fallen", PATIENCE, || most().is_some_and(|most| most < 14.0));
        let reason = "gateway_request_failures_total{route=\"/*\",reason=\"max_in_flight\"}";
        let forwarded = "gateway_requests_total{route=\"/*\",outcome=\"forwarded\"";
        let are_many = || [reason, forwarded].iter().all(|start| counted(&gateway, start) > 100);
        until("many are refused and many are forwarded", PATIENCE, are_many);
        gateway.reload("", &adaptive("adaptive = { min = 2, max = 3 }"));
        until("the limit is within its new bounds", PATIENCE, || most().is_some_and(|most| most <= 3.0));
        gateway.reload("", &adaptive(""));
        until("there is no limit", PATIENCE, || most().is_none());
        let answers = all.end();
        assert!(count(&answers, 503) > 100 && count(&answers, 200) > 100);
    }
}
