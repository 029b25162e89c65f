//! For each key with a default, an example checks what docs/reference.md says about the missing key.
//!
//! An example may be about several keys.

mod waits;

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use jsonwebtoken::Algorithm;
use serde_json::{Value, json};

use crate::acme::shown;
use crate::harness::acme::{self, AcmeMood, AcmeServer};
use crate::harness::http2::{RawHttp2, kind};
use crate::harness::{
    self, Answer, Authority, Client, Fault, Gateway, Mode, ModelServer, Signer, Software, TlsClient, Upstream, Valkey,
    claims, closed_port, full_queue, limited, over_http2, reply, run, run_json, until,
};
use crate::notices::{self, Hook};
use crate::reference::tables;
use crate::schema::schema;
use crate::{envoy, model_costs};

const PATIENCE: Duration = Duration::from_secs(20);

/// Makes a test of each example, and [`EXAMPLES`].
macro_rules! examples {
    ($($name:ident: [$($key:literal),+ $(,)?] $body:block)*) => {
        const EXAMPLES: &[&str] = &[$($($key),+),*];

        $(
            #[test]
            fn $name() $body
        )*
    };
}

examples! {
    over_a_limit_requests_are_refused_with_429_and_a_problem: [
        "limits.NAME.cost", "limits.NAME.on_limit", "limits.NAME.status", "limits.NAME.body", "limits.NAME.headers",
    ] {
        let gateway = Gateway::start(&limited("global", "2/d", ""));
        let answers = [(); 3].map(|()| gateway.client().get("/"));
        assert_eq!(answers.each_ref().map(|answer| answer.status), [200, 200, 429]);
        let refused = &answers[2];
        assert_eq!(refused.headers.get("content-type"), Some("application/problem+json"));
        assert_eq!(refused.json()["status"], 429);
        for answer in &answers {
            let fields = ["ratelimit", "ratelimit-policy", "x-ratelimit-limit"].map(|name| answer.headers.get(name).is_some());
            assert_eq!(fields, [true, true, false]);
        }
    }

    requests_without_the_key_share_one_counter: ["limits.NAME.missing"] {
        let gateway = Gateway::start(&limited("header:x-api-key", "2/d", ""));
        let mut client = gateway.client();
        let mut ask = |fields: &str| client.get_with("/", fields).status;
        assert_eq!([ask(""), ask("x-other: 1\r\n"), ask(""), ask("x-api-key: k\r\n")], [200, 200, 429, 200]);
    }

    half_a_window_later_half_of_the_window_before_counts: [
        "limits.NAME.strategy", "limits.NAME.edge", "limits.NAME.precision",
    ] {
        // Ten requests at the beginning of a minute, and ten in the middle of the next one.
        let rejected = |more: &str| simulated(more, [0, 90]);
        assert_eq!(rejected(""), 5);
        for more in ["strategy = \"sliding-window\"", "edge = \"weighted\"", "precision = 1"] {
            assert_eq!(rejected(more), 5, "{more}");
        }
        for more in ["strategy = \"fixed-window\"", "strategy = \"moving-window\"", "precision = 10"] {
            assert_eq!(rejected(more), 0, "{more}");
        }
        assert_eq!(rejected("edge = \"whole\""), 10);
    }

    the_twenty_first_refusal_bans_for_ten_minutes: [
        "limits.NAME.ban.after", "limits.NAME.ban.for", "limits.NAME.ban.respond",
    ] {
        let gateway = Gateway::start(&limited("header:x-api-key", "1/2s", "strategy = \"fixed-window\"\nban = {}"));
        let mut client = gateway.client();
        let mut refused = 0;
        // Sometimes the window ends, and a request passes.
        until("it is banned", PATIENCE, || {
            let answer = client.get_with("/", "x-api-key: k\r\n");
            if answer.status == 200 {
                assert!(refused <= 20, "{refused}");
                return false;
            }
            refused += 1;
            assert_eq!(answer.status, 429);
            let wait: u64 = answer.headers.must("retry-after").parse().unwrap();
            assert_eq!(wait > 2, refused == 21, "{refused}: {wait}");
            assert!(refused < 21 || (590..=600).contains(&wait), "{wait}");
            refused == 21
        });
    }

    a_token_is_a_bearer_and_is_not_required: ["jwt.NAME.from", "jwt.NAME.required"] {
        let (folder, signer) = (tempfile::tempdir().unwrap(), Signer::new(Algorithm::ES256, "one"));
        let keys = folder.path().join("keys.json");
        fs::write(&keys, harness::key_set(&[&signer])).unwrap();
        let site = format!(
            "[jwt.site]\nissuer = \"https://login.test/\"\naudience = [\"api\"]\njwks = {keys:?}\nalgorithms = [\"ES256\"]\n"
        );
        let gateway = Gateway::start(&(site + &limited("jwt:sub", "1/d", "")));
        let token = signer.sign(&claims("alice"));
        let ask = |fields: &str| gateway.client().get_with("/", fields).status;
        let bearer = format!("Authorization: Bearer {token}\r\n");
        assert_eq!([ask(&bearer), ask(&bearer)], [200, 429], "alice has one request");
        assert_eq!([ask(""), ask(&format!("Cookie: token={token}\r\n"))], [200, 429], "without a token they share a counter");
    }

    tokens_cost_what_the_response_says: [
        "limits.NAME.cost.input", "limits.NAME.cost.output", "limits.NAME.cost.cached", "limits.NAME.cost.max_output",
        "limits.NAME.cost.without_usage",
    ] {
        let usage = r#"{"usage": {"prompt_tokens": 10, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}}}"#;
        let up = Upstream::start(move |request| {
            let body = if request.target == "/usage" { usage } else { "{}" };
            let length = body.len();
            format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}").into_bytes()
        });
        let gateway = Gateway::start(
            &("[limits.l]\nkey = \"global\"\nrates = [\"1000000/d\"]\ncost = { tokens = \"auto\" }\n".to_owned()
                + &up.section()
                + "[[routes]]\npath = \"/*\"\nlimits = [\"l\"]\nupstream = \"up\"\n"),
        );
        let of = |name: &str| gateway.metric(&format!("gateway_token_cost_{name}_total{{limit=\"l\"}}")).unwrap();
        let ask = |path: &str| {
            let body = r#"{"model": "m", "messages": []}"#;
            let length = body.len();
            let request = format!("POST {path} HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n{body}");
            assert_eq!(gateway.client().call(request).status, 200);
        };
        ask("/usage");
        until("it is settled", PATIENCE, || of("settled") > 0.0);
        assert_eq!(Some(of("settled")), Some(15.0), "each token costs one");
        let reserved = of("reserved");
        assert!((4_096.0..4_200.0).contains(&reserved), "what may come is 4096: {reserved}");
        // A success without a cost costs what was reserved.
        ask("/silent");
        until("it is settled", PATIENCE, || of("settled") > 15.0);
        assert_eq!(Some(of("settled") - 15.0), Some(of("reserved") - reserved));
    }

    a_source_of_quotas_is_asked_by_the_key: ["limits.NAME.quotas.send", "limits.NAME.quotas.max_cached"] {
        let plans = Upstream::start(|_| reply(200, r#"{"rates": ["1/d"]}"#));
        let plain = limited("header:x-api-key", "9/d", "");
        let (limit, route) = plain.split_once("[[routes]]").unwrap();
        let quotas = format!("[limits.l.quotas]\nsource = \"http://{}/plans/{{key}}\"\ntimeout = \"5s\"\n", plans.address());
        let gateway = Gateway::start(&format!("{limit}{quotas}[[routes]]{route}"));
        let statuses = [(); 2].map(|()| gateway.client().get_with("/", "x-api-key: customer-7\r\n").status);
        assert_eq!(statuses, [200, 429]);
        assert!(plans.received().iter().all(|request| request.target == "/plans/customer-7"));
        let most = gateway.metric("gateway_quota_max_cached_keys").unwrap();
        assert!((90_000.0..=100_000.0).contains(&most), "{most}");
    }

    a_route_has_no_limits_and_changes_nothing: [
        "routes.limits", "routes.ignore_case", "routes.preserve_host", "routes.request_headers.set", "routes.request_headers.add",
        "routes.request_headers.remove", "routes.response_headers.set", "routes.response_headers.add",
        "routes.response_headers.remove", "server.forwarded", "upstreams.NAME.http2", "upstreams.NAME.proxy_protocol",
    ] {
        let up = Upstream::start(|_| b"HTTP/1.1 200 OK\r\nX-One: 1\r\nX-One: 2\r\nContent-Length: 0\r\n\r\n".to_vec());
        let rest = "request_headers = {}\nresponse_headers = {}\n";
        let route = format!("[[routes]]\npath = \"/a\"\nupstream = \"up\"\n{rest}");
        let gateway = Gateway::start(&(limited("global", "1/d", "").replace("/*", "/limited") + &up.section() + &route));
        let mut client = gateway.client();
        let answers = [(); 3].map(|()| client.get_with("/a", "X-Mine: a\r\nX-Mine: b\r\n"));
        for answer in &answers {
            assert_eq!((answer.status, answer.headers.get("ratelimit")), (200, None));
            assert_eq!(answer.headers.joined("x-one"), "1, 2");
        }
        for request in up.received() {
            assert_eq!(request.headers.must("host"), up.address().to_string());
            assert_eq!((request.headers.joined("x-mine"), request.headers.get("forwarded")), ("a, b".to_owned(), None));
        }
        assert_eq!(client.get("/A").status, 404);
    }

    answers_of_the_gateway_are_200_and_empty_and_redirects_308: [
        "routes.respond.status", "routes.respond.body", "routes.redirect.status",
    ] {
        let gateway = Gateway::start(
            "[[routes]]\npath = \"/own\"\nrespond = {}\n[[routes]]\npath = \"/old\"\nredirect = { to = \"/own\" }\n",
        );
        let (own, old) = (gateway.client().get("/own"), gateway.client().get("/old"));
        assert_eq!((own.status, own.text(), old.status), (200, "", 308));
    }

    paths_are_forgiving_but_for_escaped_slashes: ["server.path_matching", "server.escaped_slashes"] {
        let gateway = Gateway::start("[[routes]]\npath = \"/a\"\nrespond = {}\n[[routes]]\npath = \"/b/*\"\nrespond = {}\n");
        let status = |path: &str| gateway.client().get(path).status;
        assert_eq!(["/a", "/a/", "/a;x=1", "/b/c%2Fd", "/b/c%5Cd"].map(status), [200, 200, 200, 400, 400]);
    }

    nobody_is_trusted_about_the_client: ["server.trusted_proxies", "server.proxy_protocol"] {
        let gateway = Gateway::start(&limited("client-ip", "1/d", ""));
        let ask = |fields: &str| gateway.client().get_with("/", fields).status;
        let told = ["X-Forwarded-For: 192.0.2.1\r\n", "X-Forwarded-For: 192.0.2.2\r\n", "Forwarded: for=192.0.2.3\r\n"];
        assert_eq!(told.map(ask), [200, 429, 429]);
        let mut client = gateway.client();
        let preamble = "PROXY TCP4 192.0.2.4 192.0.2.5 1 2\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n";
        assert_eq!(client.call(preamble).status, 400);
    }

    bodies_and_connections_have_no_maximum: ["server.max_body_size", "server.max_connections_per_ip"] {
        let up = Upstream::start(|_| reply(200, ""));
        let gateway = Gateway::start(&up.everything());
        let mut clients: Vec<_> = (0..100).map(|_| gateway.client()).collect();
        assert!(clients.iter_mut().all(|client| client.get("/").status == 200));
        let body = vec![b'x'; 3 << 20];
        let head = format!("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n", body.len());
        assert_eq!(gateway.client().call([head.as_bytes(), &body].concat()).status, 200);
    }

    heads_have_64_kib: ["server.max_header_size", "server.http2.max_header_list"] {
        let gateway = Gateway::start("[[routes]]\npath = \"/*\"\nrespond = {}\n");
        let status = |size: usize| gateway.client().get_with("/", format!("X-Long: {}\r\n", "x".repeat(size))).status;
        assert_eq!([60 << 10, 66 << 10].map(status), [200, 431]);
        let request = |size: usize| {
            let uri = format!("http://{}/", gateway.http);
            http::Request::get(uri).header("x-long", "x".repeat(size)).body(()).unwrap()
        };
        let answers = over_http2(gateway.http, vec![request(60 << 10), request(66 << 10)]);
        assert_eq!(answers.iter().map(|(status, _)| *status).collect::<Vec<_>>(), [200, 431]);
    }

    a_mebibyte_of_a_body_is_read_before_the_decision: ["server.inspect_body"] {
        let gateway = Gateway::start(&limited("json:/model", "9/d", ""));
        let status = |size: usize| {
            let body = format!("{{\"model\": \"m\", \"long\": \"{}\"}}", "x".repeat(size - 26));
            assert_eq!(body.len(), size);
            let head = format!("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: {size}\r\n\r\n");
            gateway.client().call(head + &body).status
        };
        assert_eq!([1 << 20, (1 << 20) + 1].map(status), [200, 413]);
    }

    each_core_has_a_worker: ["server.workers"] {
        let gateway = Gateway::with_server("workers = 0", "[[routes]]\npath = \"/*\"\nrespond = {}\n");
        let cores = thread::available_parallelism().unwrap().get();
        assert_eq!(gateway.metric("gateway_workers"), Some(f64::from(u32::try_from(cores).unwrap())));
    }

    tls_is_1_2_or_later_and_clients_show_certificates_where_there_is_an_authority: [
        "server.tls.min_version", "server.tls.client_auth", "admin.tls.min_version", "admin.tls.client_auth",
        "decisions.tls.min_version", "decisions.tls.client_auth",
    ] {
        let authority = Authority::new();
        let site = authority.issue("site", "site", &["site.test"]);
        let own = authority.issue("client", "client", &[]);
        let rest = "[[routes]]\npath = \"/*\"\nrespond = {}\n";
        let client_ca = format!("client_ca = {:?}", authority.ca());
        for (asked, is_asked) in [("", false), (&*client_ca, true)] {
            let keys = format!("certificates = [{}]", site.toml());
            let table = |name: &str| format!("[{name}.tls]\n{keys}\n{asked}\n");
            let listen = "listen = \"127.0.0.1:0\"\n";
            let text = format!(
                "[server]\nlisten = [{{ address = \"127.0.0.1:0\", tls = false }}, {{ address = \"127.0.0.1:0\" }}]\n{}[admin]\n{listen}{}[decisions]\n{listen}{}{rest}",
                table("server"), table("admin"), table("decisions")
            );
            let gateway = Gateway::from_text(&text);
            for address in [gateway.https(), gateway.admin, gateway.decisions()] {
                let serves = |own| TlsClient::connect(address, &authority.client(own), "site.test").and_then(|mut client| client.get("/")).is_ok();
                assert_eq!([serves(None), serves(Some(&own))], [!is_asked, true], "{asked}");
                let speaks = |version: &str| {
                    let (url, resolve) = (format!("https://site.test:{}/", address.port()), format!("site.test:{}:127.0.0.1", address.port()));
                    let curl = ["-sk", "-o", "/dev/null", "--tls-max", version, "--tlsv1.0", "--ciphers", "DEFAULT@SECLEVEL=0"];
                    harness::curl(curl.into_iter().chain(["--resolve", &*resolve, &*url])).status.success()
                };
                assert!(is_asked || ["1.1", "1.2", "1.3"].map(speaks) == [false, true, true]);
            }
        }
    }

    counters_are_in_memory_for_a_million_keys: ["store.type", "store.max_keys", "store.max_memory"] {
        let gateway = Gateway::start(&limited("client-ip", "9/d", ""));
        assert_eq!(gateway.metric("gateway_store_mode{mode=\"memory\"}"), Some(1.0));
        let keys = gateway.metric("gateway_store_max_keys").unwrap();
        assert!((900_000.0..=1_000_000.0).contains(&keys), "{keys}");
        assert_eq!(gateway.metric("gateway_store_max_bytes"), Some(268_435_456.0));
    }

    counters_in_valkey_are_in_database_0_of_one_server: ["store.database", "store.cluster"] {
        let valkey = Valkey::start();
        let gateway = Gateway::start(&(valkey.store_with("") + &limited("global", "9/d", "")));
        assert_eq!(gateway.client().get("/").status, 200);
        until("it is counted", PATIENCE, || valkey.ask(&["INFO", "keyspace"])[0].contains("db0:"));
    }

    keys_in_memcached_begin_with_gw: ["store.prefix"] {
        let memcached = Software::Memcached.start();
        let servers = format!("[store]\ntype = \"memcached\"\nservers = [\"{}\"]\n", memcached.address);
        let gateway = Gateway::start(&(servers + &limited("global", "9/d", "")));
        assert_eq!(gateway.client().get("/").status, 200);
        until("it is counted", PATIENCE, || !memcached.counters().is_empty());
        assert!(memcached.counters().keys().all(|key| key.starts_with("gw")), "{:?}", memcached.counters());
    }

    a_request_is_sent_again_once_where_that_is_safe: ["upstreams.NAME.retries", "upstreams.NAME.retry.status"] {
        let (one, other) = (Upstream::start(|_| reply(503, "")), Upstream::start(|_| reply(503, "")));
        let servers = format!("servers = [\"http://{}\", \"http://{}\"]", one.address(), other.address());
        let route = "[[routes]]\npath = \"/*\"\nupstream = \"up\"\n";
        let gateway = Gateway::start(&format!("[upstreams.up]\n{servers}\n{route}"));
        assert_eq!(gateway.client().get("/").status, 503);
        assert_eq!(one.received().len() + other.received().len(), 1, "an answer is an answer");

        let (held, away) = closed_port();
        let up = Upstream::start(|_| reply(200, ""));
        let servers = format!("servers = [\"http://{away}\", \"http://{}\"]", up.address());
        let gateway = Gateway::start(&format!("[upstreams.up]\n{servers}\n{route}"));
        assert!((0..20).all(|_| gateway.client().get("/").status == 200));
        drop(held);
        // The gateway tries all servers that refuse connections, and two of those that fail.
        let (_held, away) = [closed_port(), closed_port(), closed_port()].into_iter().unzip::<_, _, Vec<_>, Vec<_>>();
        let broken = [(); 3].map(|()| Upstream::start(|_| b"nonsense\r\n\r\n".to_vec()));
        let start = |addresses: &[std::net::SocketAddr]| {
            let servers = addresses.iter().map(|address| format!("\"http://{address}\"")).collect::<Vec<_>>().join(", ");
            Gateway::start(&format!("[upstreams.up]\nservers = [{servers}]\n{route}"))
        };
        let failed = |gateway: &Gateway, reason: &str| {
            gateway.metric(&format!("gateway_upstream_failures_total{{upstream=\"up\",reason=\"{reason}\"}}")).unwrap()
        };
        let gateway = start(&away);
        assert_eq!((gateway.client().get("/").status, failed(&gateway, "connect")), (502, 3.0));
        let gateway = start(&broken.each_ref().map(Upstream::address));
        assert_eq!((gateway.client().get("/").status, failed(&gateway, "bad_response")), (502, 2.0));
        let post = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n";
        assert_eq!((gateway.client().call(post).status, failed(&gateway, "bad_response")), (502, 3.0));
    }

    a_server_is_ejected_after_five_failures_that_are_no_answers: [
        "upstreams.NAME.eject", "upstreams.NAME.eject.failures", "upstreams.NAME.eject.status",
    ] {
        let broken = Upstream::start(|request| if request.target == "/503" { reply(503, "") } else { b"nonsense\r\n\r\n".to_vec() });
        let up = Upstream::start(|_| reply(200, ""));
        let servers = format!("servers = [\"http://{}\", \"http://{}\"]", broken.address(), up.address());
        let gateway = Gateway::start(&format!(
            "[upstreams.up]\nretries = 0\nbalance = \"round-robin\"\n{servers}\n[[routes]]\npath = \"/*\"\nupstream = \"up\"\n"
        ));
        let ejections = || gateway.metric("gateway_upstream_server_ejections_total").unwrap();
        (0..40).for_each(|_| drop(gateway.client().get("/503")));
        assert_eq!((ejections(), broken.received().len()), (0.0, 20), "answers are the application's own");
        (0..40).for_each(|_| drop(gateway.client().get("/")));
        assert_eq!((ejections(), broken.received().len()), (1.0, 25));
    }

    days_begin_in_utc: ["limits.NAME.timezone"] {
        // Half an hour before and after midnight in Berlin, and the same in UTC.
        for (zone, hours, expected) in [("", [21, 22], 1), ("", [23, 24], 0), ("timezone = \"Europe/Berlin\"", [21, 22], 0)] {
            let seconds = hours.map(|hour| hour * 3600 + 1_800);
            assert_eq!(simulated_with("10/day", zone, seconds), expected * 10, "{zone} {hours:?}");
        }
    }

    what_would_wait_for_longer_than_a_second_is_refused: ["limits.NAME.max_delay"] {
        let gateway = Gateway::start(&limited("header:x-api-key", "1/m", "strategy = \"moving-window\"\non_limit = \"delay\""));
        let ask = || gateway.client().get_with("/", "x-api-key: k\r\n").status;
        assert_eq!([ask(), ask()], [200, 429]);
    }

    a_limit_has_its_part_where_gateways_share: ["limits.NAME.share"] {
        let gateway = Gateway::start(&("[store]\nshare = 2\n".to_owned() + &limited("global", "4/d", "")));
        assert_eq!([(); 3].map(|()| gateway.client().get("/").status), [200, 200, 429]);
    }

    a_picture_reserves_a_thousand_tokens: ["limits.NAME.cost.part"] {
        let up = Upstream::start(|_| reply(500, ""));
        let limit = "[limits.l]\nkey = \"global\"\nrates = [\"1000000/d\"]\ncost = { tokens = \"auto\" }\n";
        let route = "[[routes]]\npath = \"/*\"\nlimits = [\"l\"]\nupstream = \"up\"\n";
        let gateway = Gateway::start(&(limit.to_owned() + &up.section() + route));
        let mut before = 0.0;
        let reserved = [0, 1, 2].map(|parts: usize| {
            let picture = json!({ "type": "image_url", "image_url": { "url": "https://a.test/1" } });
            let content = vec![picture; parts];
            let body = json!({ "model": "m", "messages": [{ "role": "user", "content": content }] }).to_string();
            let length = body.len();
            let request = format!("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n{body}");
            assert_eq!(gateway.client().call(request).status, 500);
            let total = || gateway.metric("gateway_token_cost_reserved_total{limit=\"l\"}").unwrap();
            until("it is counted", PATIENCE, || total() > before);
            let now = total();
            now - std::mem::replace(&mut before, now)
        });
        for (fewer, more) in [(reserved[0], reserved[1]), (reserved[1], reserved[2])] {
            assert!((1_000.0..1_100.0).contains(&(more - fewer)), "{reserved:?}");
        }
    }

    while_memcached_is_away_requests_are_counted_here: ["store.on_error"] {
        let mut memcached = Software::Memcached.start();
        let servers = format!("[store]\ntype = \"memcached\"\nservers = [\"{}\"]\n", memcached.address);
        let gateway = Gateway::start(&(servers + &limited("global", "3/d", "")));
        assert_eq!(gateway.client().get("/").status, 200);
        memcached.kill();
        let statuses = [(); 5].map(|()| gateway.client().get("/").status);
        assert!(statuses.iter().all(|status| [200, 429].contains(status)) && statuses[4] == 429, "{statuses:?}");
    }

    servers_have_equal_weights_and_no_maximum: [
        "upstreams.NAME.servers.weight", "upstreams.NAME.adaptive", "upstreams.NAME.max_in_flight",
    ] {
        let servers = [(); 2].map(|()| Upstream::start(|_| reply(200, "")));
        let [one, other] = servers.each_ref().map(Upstream::address);
        let gateway = Gateway::with_server("workers = 1", &format!(
            "[upstreams.up]\nbalance = \"round-robin\"\n\
             servers = [{{ url = \"http://{one}\" }}, {{ url = \"http://{other}\", weight = 1 }}]\n\
             [[routes]]\npath = \"/*\"\nupstream = \"up\"\n"
        ));
        (0..20).for_each(|_| assert_eq!(gateway.client().get("/").status, 200));
        assert_eq!(servers.each_ref().map(|server| server.received().len()), [10, 10]);
        assert_eq!(gateway.metric("gateway_upstream_server_max_in_flight"), None);
    }

    who_may_wait_for_a_server_does_for_a_second: ["upstreams.NAME.max_wait"] {
        let (up, release) = Upstream::holding();
        let route = "[[routes]]\npath = \"/*\"\nupstream = \"up\"\n";
        let gateway = Gateway::start(&(up.section() + "max_in_flight = 1\nmax_waiting = 1\n" + route));
        let mut first = gateway.client();
        first.send("GET /held HTTP/1.1\r\nHost: h\r\n\r\n");
        up.wait_connections(1);
        takes(1, || assert_eq!(gateway.client().get("/").status, 503));
        drop(release);
    }

    a_connection_is_tried_for_a_second: ["upstreams.NAME.connect_timeout"] {
        let (listener, _waiting) = full_queue(([127, 0, 0, 1], 0).into()).unwrap();
        let server = format!("servers = [\"http://{}\"]", listener.local_addr().unwrap());
        let gateway = Gateway::start(&format!("[upstreams.up]\n{server}\n[[routes]]\npath = \"/*\"\nupstream = \"up\"\n"));
        takes(1, || assert_eq!(gateway.client().get("/").status, 504));
    }

    a_head_may_take_ten_seconds: ["server.header_timeout"] {
        let gateway = Gateway::start("[[routes]]\npath = \"/*\"\nrespond = {}\n");
        let mut client = gateway.client();
        takes(10, || assert_eq!(client.call("GET / HTTP/1.1\r\n").status, 408));
    }

    two_good_checks_and_three_bad_ones_count: [
        "upstreams.NAME.health.healthy_after", "upstreams.NAME.health.unhealthy_after", "upstreams.NAME.health.status",
    ] {
        // Two bad responses are too few, and one good one, too; then all are good.
        let script = [&[204, 299, 300, 404, 200, 500, 500, 500][..], &[200, 500].repeat(5)].concat();
        let asked = AtomicUsize::new(0);
        let length = script.len();
        let up = Upstream::start(move |_| reply(*script.get(asked.fetch_add(1, Ordering::SeqCst)).unwrap_or(&200), ""));
        let health = "[upstreams.up.health]\npath = \"/health\"\ninterval = \"100ms\"\ntimeout = \"20s\"\n";
        let gateway = Gateway::start(&(up.section() + health + "[[routes]]\npath = \"/*\"\nupstream = \"up\"\n"));
        gateway.wait_message("a server gets no requests");
        let changes = || {
            let is_change = |line: &String| line.contains("a server gets");
            gateway.log().into_iter().filter(is_change).map(|line| line.contains("gets no requests")).collect::<Vec<_>>()
        };
        until("it is healthy again", PATIENCE, || changes().last() == Some(&false));
        assert!(up.received().len() > length, "{}", up.received().len());
        assert_eq!(changes().iter().filter(|is_bad| **is_bad).count(), 1, "{:?}", changes());
    }

    a_fifth_of_the_requests_is_sent_again: ["upstreams.NAME.retry.budget"] {
        let broken = [(); 2].map(|()| Upstream::start(|_| b"nonsense\r\n\r\n".to_vec()));
        let servers = broken.each_ref().map(|server| format!("\"http://{}\"", server.address())).join(", ");
        let gateway = Gateway::start(&format!(
            "[upstreams.up]\nservers = [{servers}]\neject = false\n[[routes]]\npath = \"/*\"\nupstream = \"up\"\n"
        ));
        let begun = Instant::now();
        (0..400).for_each(|_| assert_eq!(gateway.client().get("/").status, 502));
        let sent = gateway.metric("gateway_upstream_retries_total").unwrap();
        // Three a second may always be sent again.
        let always = 3.0 * (begun.elapsed().as_secs_f64() + 10.0);
        assert!((60.0..80.0 + always).contains(&sent), "{sent}");
    }

    nobody_waits_for_a_server_that_is_full: ["upstreams.NAME.max_waiting"] {
        let (up, release) = Upstream::holding();
        let route = "[[routes]]\npath = \"/*\"\nupstream = \"up\"\n";
        let gateway = Gateway::start(&(up.section() + "max_in_flight = 1\n" + route));
        let mut first = gateway.client();
        first.send("GET /held HTTP/1.1\r\nHost: h\r\n\r\n");
        up.wait_connections(1);
        assert_eq!(gateway.client().get("/").status, 503);
        drop(release);
    }

    a_client_is_always_sent_to_the_same_server: ["upstreams.NAME.hash_key"] {
        let servers = [(); 3].map(|()| Upstream::start(|_| reply(200, "")));
        let list = servers.each_ref().map(|server| format!("\"http://{}\"", server.address())).join(", ");
        let gateway = Gateway::start(&format!(
            "[upstreams.up]\nbalance = \"hash\"\nservers = [{list}]\n[[routes]]\npath = \"/*\"\nupstream = \"up\"\n"
        ));
        (0..20).for_each(|number| _ = gateway.client().get_with("/", format!("X-Api-Key: {number}\r\n")));
        assert_eq!(servers.iter().filter(|server| !server.received().is_empty()).count(), 1);
    }

    pages_of_others_send_no_credentials_and_read_nothing_more: ["routes.cors.credentials", "routes.cors.expose"] {
        let gateway = Gateway::start("[[routes]]\npath = \"/*\"\nrespond = {}\ncors = { origins = [\"https://page.test\"] }\n");
        let answer = gateway.client().get_with("/", "Origin: https://page.test\r\n");
        assert_eq!(answer.headers.must("access-control-allow-origin"), "https://page.test");
        assert_eq!(answer.headers.get("access-control-allow-credentials"), None);
        let exposed = answer.headers.joined("access-control-expose-headers");
        assert!(!exposed.contains('*') && !exposed.to_lowercase().contains("x-mine"), "{exposed}");
    }

    the_admin_listener_answers_to_localhost_only: ["admin.hosts"] {
        let gateway = Gateway::start("[[routes]]\npath = \"/*\"\nrespond = {}\n");
        let status = |host: &str| {
            let request = format!("GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n");
            Client::connect(gateway.admin).call(request).status
        };
        let port = gateway.admin.port();
        assert_eq!([format!("localhost:{port}"), format!("gateway.test:{port}")].each_ref().map(|host| status(host)), [200, 403]);
    }

    a_hundred_requests_of_a_key_are_held: ["limits.NAME.max_delayed"] {
        let delay = "strategy = \"moving-window\"\non_limit = \"delay\"\nmax_delay = \"5m\"";
        let gateway = Gateway::start(&limited("global", "1/2s", delay));
        let mut clients: Vec<_> = (0..140).map(|_| gateway.client()).collect();
        clients.iter_mut().for_each(|client| client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n"));
        // Some pass meanwhile, and others take their places only if they come later.
        let decided = |decision: &str| {
            gateway.metric(&format!("gateway_limit_decisions_total{{limit=\"l\",decision=\"{decision}\"}}")).unwrap()
        };
        let held = || gateway.metric("gateway_requests_held").unwrap();
        until("all are decided or held", PATIENCE, || decided("admitted") + decided("rejected") + held() >= 140.0);
        assert!(held() <= 100.0 && decided("rejected") + decided("admitted") >= 40.0, "{} {}", held(), decided("rejected"));
        assert!(decided("rejected") > 20.0, "{}", decided("rejected"));
    }

    connections_leave_file_handles_for_the_rest: ["server.max_connections"] {
        let route = "[[routes]]\npath = \"/*\"\nrespond = {}\n";
        let [few, more] = [200, 400].map(|handles| {
            let gateway = Gateway::with_handles(handles, "", route);
            gateway.metric("gateway_connections_max").unwrap() / f64::from(handles)
        });
        assert!((0.25..1.0).contains(&few) && (0.25..1.0).contains(&more), "{few} {more}");
    }

    a_connection_of_http2_has_250_requests_at_once: ["server.http2.max_streams"] {
        let gateway = Gateway::start("[[routes]]\npath = \"/*\"\nrespond = {}\n");
        let mut client = RawHttp2::connect(gateway.http, &[]);
        let settings = client.find("settings", |frame| frame.kind == kind::SETTINGS && frame.flags == 0).payload;
        let most = settings.chunks(6).find(|setting| setting[..2] == [0, 3]).unwrap();
        assert_eq!(most[2..], [0, 0, 0, 250]);
    }

    bodies_of_64_kib_can_be_sent_again: ["upstreams.NAME.retry.max_body"] {
        let broken = [(); 2].map(|()| Upstream::start(|_| b"nonsense\r\n\r\n".to_vec()));
        let servers = broken.each_ref().map(|server| format!("\"http://{}\"", server.address())).join(", ");
        let gateway = Gateway::start(&format!(
            "[upstreams.up]\nservers = [{servers}]\neject = false\n[[routes]]\npath = \"/*\"\nupstream = \"up\"\n"
        ));
        let sent = |size: usize| {
            let received = || broken.iter().map(|server| server.received().len()).sum::<usize>();
            let before = received();
            let head = format!("PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: {size}\r\n\r\n");
            assert_eq!(gateway.client().call(head + &"x".repeat(size)).status, 502);
            received() - before
        };
        assert_eq!([64 << 10, (64 << 10) + 1].map(sent), [2, 1]);
    }

    streams_are_asked_for_their_usage: ["limits.NAME.cost.ask_usage"] {
        let up = Upstream::start(|_| reply(200, ""));
        let limit = "[limits.l]\nkey = \"global\"\nrates = [\"1000000/d\"]\ncost = { tokens = \"auto\" }\n";
        let route = "[[routes]]\npath = \"/*\"\nlimits = [\"l\"]\nupstream = \"up\"\n";
        let gateway = Gateway::start(&(limit.to_owned() + &up.section() + route));
        let body = r#"{"model": "m", "stream": true, "messages": []}"#;
        let length = body.len();
        let head = format!("POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n");
        assert_eq!(gateway.client().call(head + body).status, 200);
        let sent = String::from_utf8(up.received().remove(0).body).unwrap();
        assert!(sent.contains("include_usage"), "{sent}");
    }

    until_the_response_says_it_a_cost_is_one: ["limits.NAME.cost.reserve"] {
        let (up, release) = Upstream::holding();
        let limit = "[limits.l]\nkey = \"global\"\nrates = [\"10/d\"]\ncost = { response_header = \"x-cost\" }\n";
        let route = "[[routes]]\npath = \"/*\"\nlimits = [\"l\"]\nupstream = \"up\"\n";
        let gateway = Gateway::start(&(limit.to_owned() + &up.section() + route));
        assert_eq!(gateway.used("l", "*"), 0);
        let mut client = gateway.client();
        client.send("GET /held HTTP/1.1\r\nHost: h\r\n\r\n");
        up.wait_connections(1);
        assert_eq!(gateway.used("l", "*"), 1);
        drop(release);
    }

    locations_of_the_server_become_the_clients: ["upstreams.NAME.rewrite_location"] {
        let up = Upstream::start(|request| {
            let host = request.headers.must("host");
            format!("HTTP/1.1 302 Found\r\nLocation: http://{host}/next\r\nContent-Length: 0\r\n\r\n").into_bytes()
        });
        let gateway = Gateway::start(&up.everything());
        let answer = gateway.client().call("GET / HTTP/1.1\r\nHost: site.test\r\n\r\n");
        assert_eq!(answer.headers.must("location"), "http://site.test/next");
    }

    refusals_are_429_for_other_proxies_too: ["decisions.refused_status"] {
        let gateway = Gateway::start(&("[decisions]\nlisten = \"127.0.0.1:0\"\n".to_owned() + &limited("global", "1/d", "")));
        let ask = || {
            let asked = "X-Forwarded-Method: GET\r\nX-Forwarded-Uri: /\r\nX-Forwarded-Host: h\r\n";
            Client::connect(gateway.decisions()).get_with("/", asked).status
        };
        assert_eq!([ask(), ask()], [200, 429]);
    }

    keys_are_masked_for_operators: ["admin.show_keys"] {
        let gateway = Gateway::start(&limited("header:x-api-key", "1/d", ""));
        (0..3).for_each(|_| drop(gateway.client().get_with("/", "x-api-key: customer-of-ours\r\n")));
        let shown = || gateway.admin("/api/limits").json()["limits"][0]["most_refused"].clone();
        until("it is counted", PATIENCE, || shown().as_array().is_some_and(|keys| !keys.is_empty()));
        let key = shown()[0]["key"].as_str().unwrap().to_owned();
        assert!(key.starts_with("cu\u{2026}rs#"), "{key}");
    }

    each_request_gets_a_line_of_json_and_details_none: ["log.access", "log.level", "log.format"] {
        let text = "[server]\nlisten = \"127.0.0.1:0\"\n[admin]\nlisten = \"127.0.0.1:0\"\n[[routes]]\npath = \"/*\"\nrespond = {}\n";
        let gateway = Gateway::from_text(text);
        gateway.client().get("/line");
        let line = gateway.wait_log("a line", |line| line["path"] == "/line");
        assert_eq!((&line["level"], &line["status"]), (&json!("INFO"), &json!(200)));
        // Standard error is a pipe here, not a terminal.
        let lines: Vec<Value> = gateway.log().iter().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(lines.iter().all(|line| line["level"] != "DEBUG"));
    }

    one_in_a_hundred_requests_is_traced: ["tracing.sample"] {
        let collector = harness::Collector::start();
        let gateway = Gateway::start(&(collector.section("") + "[[routes]]\npath = \"/*\"\nrespond = {}\n"));
        let mut client = gateway.client();
        (0..2_000).for_each(|_| drop(client.get("/")));
        // More than 80 of 2 000 are less likely than 10^-30.
        until("some are exported", PATIENCE, || !collector.spans().is_empty());
        assert!(collector.spans().len() < 2 * 80, "{}", collector.spans().len());
    }

    notices_are_sent_at_80_percent_and_at_the_whole_with_masked_keys: ["notices.at", "notices.full_keys"] {
        let hook = Hook::start();
        let gateway = Gateway::start(&(hook.section("") + &limited("header:x-api-key", "10/31d", "")));
        notices::ask(&gateway, "partner-7", 10);
        let told = hook.wait(2);
        assert_eq!([&told[0]["share"], &told[1]["share"]], [&json!(0.8), &json!(1.0)]);
        assert!(told.iter().all(|notice| notice["key"].as_str().unwrap().starts_with("pa\u{2026}-7#")), "{told:?}");
    }

    times_of_up_to_75_seconds: [
        "server.body_timeout", "server.idle_timeout", "server.drain_delay", "server.drain_timeout", "upstreams.NAME.timeout",
        "upstreams.NAME.read_timeout", "upstreams.NAME.max_idle", "upstreams.NAME.resolve_every",
        "upstreams.NAME.tunnel_idle_timeout", "upstreams.NAME.eject.for", "upstreams.NAME.health.interval",
        "upstreams.NAME.health.timeout", "store.timeout", "limits.NAME.quotas.timeout", "limits.NAME.quotas.cache_for",
        "tracing.timeout",
    ] {
        waits::all();
    }

    values_that_would_take_minutes_or_much_load_are_in_force: [
        "upstreams.NAME.max_age", "upstreams.NAME.eject.max_for", "upstreams.NAME.adaptive.min", "upstreams.NAME.adaptive.max",
    ] {
        let up = "[upstreams.up]\nservers = [\"http://127.0.0.1:9\"]\nadaptive = {}\neject = {}\n";
        let gateway = Gateway::start(&(up.to_owned() + "[[routes]]\npath = \"/*\"\nupstream = \"up\"\n"));
        let shown = gateway.admin("/api/config").json()["upstreams"]["up"].clone();
        assert_eq!((&shown["max_age"], &shown["eject"]["max_for"]), (&json!("10m"), &json!("5m")));
        assert_eq!(shown["adaptive"], json!({ "min": 4, "max": 1000 }));
    }

    bans_are_for_refusals_within_a_minute_and_last_a_day_at_most: ["limits.NAME.ban.within", "limits.NAME.ban.max_for"] {
        let bans = |ban: &str, seconds: &[u32]| {
            let more = format!("strategy = \"fixed-window\"\n{ban}");
            report(&limited("client-ip", "1/h", &more), seconds)["limits"]["l"]["bans"].clone()
        };
        // The first one passes, and more than 20 refusals are necessary.
        let begun = |later: u32| bans("ban = {}", &[[0].repeat(12), [later].repeat(10)].concat())["begun"].clone();
        assert_eq!([58, 62].map(begun), [json!(1), json!(0)]);
        // A ban of 20 hours, and another one that would last 40.
        let second = 20 * 3_600 + 60;
        let end = second + 86_400;
        let last = [&[0].repeat(3)[..], &[second].repeat(3), &[end - 5, end + 5]].concat();
        let seen = bans("ban = { after = 1, for = \"20h\" }", &last);
        assert_eq!((&seen["begun"], &seen["refused"]), (&json!(2), &json!(1)), "{seen}");
    }

    clients_connect_to_127_0_0_1_8080: ["server.listen"] {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(&file, "[[routes]]\npath = \"/*\"\nrespond = {}\n").unwrap();
        let path = file.path().to_str().unwrap();
        assert_eq!(run_json(&["check", "--json", path])["server"]["listen"][0]["address"], "127.0.0.1:8080");
        // If somebody else has the port, it may become free before the gateway asks for it.
        let Ok(_taken) = TcpListener::bind("127.0.0.1:8080") else { return };
        let output = run(&["--config", path]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains("127.0.0.1:8080"), "{said}");
    }

    what_is_shed_is_answered_503: ["server.shed.status"] {
        let up = Upstream::start(|_| {
            thread::sleep(Duration::from_millis(50));
            reply(200, "")
        });
        let gateway = Gateway::with_server("shed = { latency = \"1ms\" }", &up.everything());
        let (over, begun) = (AtomicBool::new(false), Instant::now());
        let ask = || {
            let mut client = gateway.client();
            let statuses = std::iter::repeat_with(|| client.get("/").status);
            let last = statuses.take_while(|_| !over.load(Ordering::SeqCst) && begun.elapsed() < PATIENCE);
            let refused = last.filter(|status| *status != 200).take(1).collect::<Vec<_>>();
            over.fetch_or(!refused.is_empty(), Ordering::SeqCst);
            refused
        };
        let refused: Vec<_> = thread::scope(|scope| {
            let clients: Vec<_> = (0..32).map(|_| scope.spawn(ask)).collect();
            clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
        });
        assert!(!refused.is_empty() && refused.iter().all(|status| *status == 503), "{refused:?}");
    }

    of_two_servers_the_less_busy_one_gets_a_request: ["upstreams.NAME.balance"] {
        let servers = [(); 2].map(|()| Upstream::holding());
        let list = servers.each_ref().map(|(up, _)| format!("\"http://{}\"", up.address())).join(", ");
        let gateway = Gateway::with_server("workers = 1", &format!(
            "[upstreams.up]\nservers = [{list}]\n[[routes]]\npath = \"/*\"\nupstream = \"up\"\n"
        ));
        let received = || servers.each_ref().map(|(up, _)| up.received().len());
        let mut first = gateway.client();
        first.send("GET /held HTTP/1.1\r\nHost: h\r\n\r\n");
        until("it is held", PATIENCE, || received().iter().sum::<usize>() == 1);
        (0..40).for_each(|_| assert_eq!(gateway.client().get("/").status, 200));
        // The previous request may still be on its way.
        let fewest = received().into_iter().min().unwrap();
        assert!((1..=10).contains(&fewest), "{fewest}");
    }

    bodies_that_are_read_before_the_decision_take_64_mib: ["server.inspect_memory"] {
        let gateway = Gateway::with_server("workers = 1", &limited("json:/model", "1000/d", ""));
        let head = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000001\r\n\r\n{";
        let mut clients: Vec<_> = (0..120).map(|_| gateway.client()).collect();
        // The gateway closes the connection of a body that it gives up.
        clients.iter_mut().for_each(|client| _ = client.wire.write((head.to_owned() + &" ".repeat(999_999)).as_bytes()));
        until("some are given up", PATIENCE, || gateway.metric("gateway_request_failures_total") >= Some(52.0));
        let end = |client: &mut Client| {
            client.wire.write(b"}").is_ok() && client.try_response(false).is_ok_and(|answer| answer.status == 200)
        };
        let kept = clients.iter_mut().filter_map(|client| end(client).then_some(())).count();
        // A body takes up to twice its size while it grows.
        assert!((30..=68).contains(&kept), "{kept}");
        assert_eq!(gateway.admin("/api/config").json()["server"]["inspect_memory"], "64MiB");
    }

    authorities_look_by_a_handshake_and_are_lets_encrypt: ["server.tls.acme.challenge", "server.tls.acme.directory"] {
        let (server, state) = (AcmeServer::start(), tempfile::tempdir().unwrap());
        server.set(AcmeMood::Looks);
        let text = server.config(&["a.test"], "", &acme::everything());
        let gateway = acme::start(state.path(), &text);
        until("it answers", PATIENCE, || shown(&gateway, "a.test", &["acme-tls/1"]).is_ok());
        let answer = gateway.client().get(&acme::challenge_path("a.test"));
        assert!(!answer.text().starts_with(&acme::token("a.test")), "{answer:?}");
        // No test may ask the real authority.
        let file = state.path().join("other.toml");
        fs::write(&file, text.lines().filter(|line| !line.starts_with("directory")).collect::<Vec<_>>().join("\n")).unwrap();
        let folder = state.path().to_str().unwrap();
        let checked = run_json(&["check", "--json", "--state-dir", folder, file.to_str().unwrap()]);
        assert_eq!(checked["server"]["tls"]["acme"]["directory"], "https://acme-v02.api.letsencrypt.org/directory");
    }

    calls_of_envoy_are_questions: ["decisions.descriptors.reports"] {
        let limit = "[limits.tokens]\nkey = \"descriptor:user\"\nrates = [\"1000/d\"]\n";
        for (more, used) in [("", 900), ("reports = true\n", 1_300)] {
            let gateway = envoy::deciding("", &(envoy::rule("user = \"*\"", "[\"tokens\"]") + more + limit));
            let mut caller = envoy::Caller::connect(gateway.decisions());
            [900, 400].into_iter().for_each(|hits| _ = caller.ask_one(&[("user", "ann")], hits));
            assert_eq!(gateway.used("tokens", "ann"), used, "{more}");
        }
    }

    calls_of_envoy_are_refused_over_a_limit: ["decisions.descriptors.quota_mode"] {
        let limit = "[limits.l]\nkey = \"descriptor:user\"\nrates = [\"1/d\"]\n";
        for (more, codes) in [("", [1, 2]), ("quota_mode = false\n", [1, 2]), ("quota_mode = true\n", [1, 1])] {
            let gateway = envoy::deciding("", &(envoy::rule("user = \"*\"", "[\"l\"]") + more + limit));
            let mut caller = envoy::Caller::connect(gateway.decisions());
            assert_eq!([(); 2].map(|()| caller.ask_one(&[("user", "ann")], 1).0), codes, "{more}");
        }
    }

    a_stream_that_needs_more_than_was_reserved_goes_on: ["limits.NAME.cost.on_exhausted"] {
        let answer = Answer { pieces: vec!["x".repeat(40); 30], usage: None, ..Answer::default() };
        let messages = json!([{ "role": "user", "content": "12345678" }]);
        let request = json!({ "messages": messages, "max_tokens": 5, "stream": true });
        for (cost, is_whole) in [("part = 1", true), ("part = 1, on_exhausted = \"cut\"", false)] {
            let server = ModelServer::start(answer.clone());
            let gateway = Gateway::start(&model_costs::limited(&server, 200, cost, ""));
            let response = model_costs::call(&gateway, model_costs::CHAT, &request);
            assert_eq!(response.text().contains("[DONE]"), is_whole, "{cost}: {}", response.text());
        }
    }

    gateways_that_share_a_memcached_do_not_confirm_each_admission: ["store.strict"] {
        for (more, expected) in [("", [200, 200]), ("strict = true\n", [429, 200])] {
            let memcached = Software::Memcached.start();
            let faults = [(); 2].map(|()| Fault::start(memcached.address, Mode::Pass));
            let gateways = faults.each_ref().map(|fault| {
                let servers = format!("servers = [\"{}\"]\ntimeout = \"10s\"\non_error = \"reject\"", fault.address);
                let store = format!("[store]\ntype = \"memcached\"\n{servers}\n{more}");
                Gateway::with_server("workers = 1", &(store + &limited("header:x-api-key", "1/d", "")))
            });
            let request = |key: &str| format!("GET / HTTP/1.1\r\nHost: h\r\nX-Api-Key: {key}\r\n\r\n");
            let [first, second] = gateways.each_ref();
            assert_eq!(first.client().call(request("other")).status, 200);
            until("it is counted", PATIENCE, || memcached.counted() == 1);
            let asked = memcached.commands();
            // While the answer to one gateway is on its way, the other one admits a request.
            faults[0].set(Mode::Hold);
            let mut client = first.client();
            client.send(request("k"));
            until("it is asked", PATIENCE, || memcached.commands() > asked);
            let status = second.client().call(request("k")).status;
            until("it is counted", PATIENCE, || memcached.counted() >= 2);
            faults[0].set(Mode::Pass);
            assert_eq!([status, client.response(false).status], expected, "{more}");
        }
    }

    the_gateway_exports_spans_under_its_own_name: ["tracing.headers", "tracing.service_name"] {
        let collector = harness::Collector::start();
        let gateway = Gateway::start(&(collector.section("sample = 1") + "[[routes]]\npath = \"/*\"\nrespond = {}\n"));
        assert_eq!(gateway.client().get("/").status, 200);
        until("it is exported", PATIENCE, || !collector.0.received().is_empty());
        let export = collector.0.received().remove(0);
        // The key, and a value that is a text of seven bytes.
        let name = b"service.name\x12\x09\x0a\x07gateway";
        assert!(export.body.windows(name.len()).any(|bytes| bytes == name));
        let mut names: Vec<_> = export.headers.0.iter().map(|(name, _)| &**name).collect();
        names.sort_unstable();
        assert_eq!(names, ["accept", "connection", "content-length", "content-type", "host", "user-agent"]);
    }
}

/// Fails unless `act` takes about so many seconds.
#[track_caller]
fn takes(seconds: u64, act: impl FnOnce()) {
    let begun = Instant::now();
    act();
    let took = begun.elapsed();
    assert!((Duration::from_secs(seconds)..Duration::from_secs(seconds + 15)).contains(&took), "{took:?}");
}

/// How many of ten requests at each of these seconds of a log are rejected by a limit of ten a minute.
fn simulated(more: &str, at: [u32; 2]) -> u64 {
    simulated_with("10/m", more, at)
}

fn simulated_with(rate: &str, more: &str, at: [u32; 2]) -> u64 {
    let report = report(&limited("client-ip", rate, more), &at.map(|second| [second].repeat(10)).concat());
    report["limits"]["l"]["rejected"].as_u64().unwrap()
}

/// The report about a log with a request at each of these seconds.
fn report(text: &str, seconds: &[u32]) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let (config, log) = (folder.path().join("gateway.toml"), folder.path().join("access.log"));
    fs::write(&config, text).unwrap();
    let line = |second: &u32| {
        let (day, hour, minute) = (2 + second / 86_400, second / 3_600 % 24, second / 60 % 60);
        let time = format!("{day:02}/May/2026:{hour:02}:{minute:02}:{:02}", second % 60);
        format!("192.0.2.1 - - [{time} +0000] \"GET / HTTP/1.1\" 200 5\n")
    };
    fs::write(&log, seconds.iter().map(line).collect::<String>()).unwrap();
    run_json(&["simulate", "--config", config.to_str().unwrap(), "--json", log.to_str().unwrap()])
}

/// All keys with a default, as `limits.NAME.cost`.
fn keys_with_a_default() -> BTreeSet<String> {
    let (schema, mut found) = (schema(), Vec::new());
    tables("", false, &schema, &mut found);
    let of_table = |(title, table): &(String, &Value)| {
        let path = title.trim_matches(['[', ']']).to_owned();
        let keys = table["properties"].as_object().unwrap().iter();
        // A table has no meaning besides that of its own keys.
        let is_table = |key: &Value| {
            [key, &key["items"], &key["additionalProperties"]].iter().any(|one| one["properties"].is_object())
        };
        let defaults = keys.filter(|(_, key)| key.get("default").is_some() && !is_table(key));
        defaults.map(|(key, _)| format!("{path}.{key}")).collect::<Vec<_>>()
    };
    found.iter().flat_map(of_table).collect()
}

#[test]
fn every_key_with_a_default_has_an_example() {
    let known: BTreeSet<_> = EXAMPLES.iter().map(|key| (*key).to_owned()).collect();
    assert_eq!(known.len(), EXAMPLES.len(), "a key is there twice");
    let all = keys_with_a_default();
    assert_eq!(all.difference(&known).collect::<Vec<_>>(), Vec::<&String>::new(), "they have no example");
    assert_eq!(
        known.difference(&all).collect::<Vec<_>>(),
        Vec::<&String>::new(),
        "there are no such keys with a default"
    );
}
