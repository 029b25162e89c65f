//! `cors` of a route: preflights are answered without a charge, and pages of allowed origins can read responses.

use http::{HeaderMap, Request};

use crate::harness::{Client, Gateway, Response, Upstream, over_http2, reply, run};

const PAGE: &str = "https://app.example.com";
const EXPOSED: &str = "retry-after, ratelimit, ratelimit-policy, x-ratelimit-limit, x-ratelimit-remaining, \
                       x-ratelimit-reset, ratelimit-shadow, x-request-id, www-authenticate, date, grpc-status, grpc-message, \
                       grpc-status-details-bin";

/// One route for GET that each address may use once.
fn once(up: &Upstream, cors: &str) -> String {
    format!(
        "{}\n[limits.l]\nkey = \"client-ip\"\nrates = [\"1/d\"]\n[[routes]]\npath = \"/v1/*\"\nmethods = [\"GET\"]\n\
         upstream = \"up\"\nlimits = [\"l\"]\ncors = {cors}\n",
        up.section()
    )
}

fn ask(client: &mut Client, path: &str, origin: &str, method: &str) -> Response {
    client.call(format!(
        "OPTIONS {path} HTTP/1.1\r\nHost: test.example\r\nOrigin: {origin}\r\n\
         Access-Control-Request-Method: {method}\r\nAccess-Control-Request-Headers: x-a\r\n\r\n"
    ))
}

fn get(client: &mut Client, path: &str, origin: &str) -> Response {
    client.get_with(path, format!("Origin: {origin}\r\n"))
}

fn allowed(response: &Response) -> Option<&str> {
    response.headers.get("access-control-allow-origin")
}

#[test]
fn a_page_can_read_why_its_call_of_grpc_was_refused() {
    let up = Upstream::start(|_| reply(200, ""));
    let gateway =
        Gateway::start(&once(&up, "{ origins = [\"https://app.example.com\"] }").replace("\"GET\"", "\"POST\""));
    let mut client = gateway.client();
    let kind = "Content-Type: application/grpc-web+proto\r\nContent-Length: 0";
    let call = format!("POST /v1/a HTTP/1.1\r\nHost: a\r\nOrigin: {PAGE}\r\n{kind}\r\n\r\n");
    assert_eq!(client.call(&call).headers.get("grpc-status"), None);
    let refused = client.call(&call);
    assert_eq!(refused.headers.must("grpc-status"), "8");
    let exposed = refused.headers.must("access-control-expose-headers");
    let safe =
        ["content-type", "content-length", "access-control-allow-origin", "access-control-expose-headers", "vary"];
    for (name, _) in refused.headers.0.iter().filter(|(name, _)| !safe.contains(&name.as_str())) {
        assert!(exposed.split(", ").any(|exposed| exposed == name), "{name} is not in {exposed}");
    }
}

#[test]
fn preflights_are_answered_and_never_charged_and_refusals_can_be_read() {
    let up = Upstream::start(|_| {
        b"HTTP/1.1 200 OK\r\nAccess-Control-Allow-Origin: *\r\nAccess-Control-Allow-Methods: DELETE\r\n\
          Vary: Accept\r\nContent-Length: 0\r\n\r\n"
            .to_vec()
    });
    let cors = "{ origins = [\"https://app.example.com\", \"https://*.example.org\"], max_age = \"10m\" }";
    let gateway = Gateway::start(&once(&up, cors));
    let mut client = gateway.client();
    for origin in [PAGE, PAGE, "https://a.b.example.org"] {
        let answer = ask(&mut client, "/v1/users", origin, "GET");
        assert_eq!((answer.status, allowed(&answer)), (204, Some(origin)), "{answer:?}");
        assert_eq!(answer.headers.must("access-control-allow-methods"), "GET");
        assert_eq!(answer.headers.must("access-control-allow-headers"), "x-a");
        assert_eq!(answer.headers.must("access-control-max-age"), "600");
        assert_eq!(answer.headers.get("access-control-allow-credentials"), None);
        assert_eq!(answer.headers.get("ratelimit"), None);
        assert!(answer.headers.get("x-request-id").is_some());
        let depends = "origin, access-control-request-method, access-control-request-headers";
        assert_eq!((answer.headers.must("vary"), answer.headers.get("content-length")), (depends, None));
    }
    for origin in ["https://evil.test", "https://app.example.com:8443", "http://app.example.com", "null", "*"] {
        let answer = ask(&mut client, "/v1/users", origin, "GET");
        assert_eq!((answer.status, allowed(&answer)), (204, None), "{origin}");
        assert_eq!(answer.headers.get("access-control-allow-methods"), None, "{origin}");
    }
    assert_eq!(up.connections(), 0, "the upstream gets no preflight");

    let first = get(&mut client, "/v1/users", PAGE);
    assert_eq!((first.status, allowed(&first)), (200, Some(PAGE)), "preflights are free");
    assert_eq!(first.headers.joined("vary"), "Accept, origin");
    assert_eq!(first.headers.must("access-control-expose-headers"), EXPOSED);
    assert_eq!(first.headers.get("access-control-allow-methods"), None, "the upstream's is replaced");
    for (origin, expected) in [(PAGE, Some(PAGE)), ("https://evil.test", None)] {
        let refused = get(&mut client, "/v1/users", origin);
        refused.expect_problem(429);
        assert!(refused.headers.get("retry-after").is_some());
        assert_eq!((allowed(&refused), refused.headers.must("vary")), (expected, "origin"));
    }
    assert_eq!(client.get("/v1/users").headers.must("vary"), "origin", "caches have to know it");
    assert_eq!(ask(&mut client, "/v1/users", PAGE, "GET").status, 204, "over the limit, too");
    assert_eq!(up.received().len(), 1);
}

#[test]
fn what_is_no_preflight_of_the_route_is_a_request_like_any_other() {
    let up = Upstream::start(|_| reply(200, ""));
    let all = format!("{}cors = {{ origins = [\"{PAGE}\"] }}\n", up.everything());
    let own = "[[routes]]\npath = \"/own/*\"\nmethods = [\"POST\", \"OPTIONS\"]\nupstream = \"up\"\n\
               [[routes]]\npath = \"/post\"\nmethods = [\"POST\"]\nupstream = \"up\"\n";
    let gateway = Gateway::start(&format!("{all}{own}"));
    let mut client = gateway.client();
    assert_eq!(ask(&mut client, "/other", PAGE, "DELETE").status, 204);
    assert_eq!(up.received().len(), 0);
    let plain = [
        format!("OPTIONS /other HTTP/1.1\r\nHost: h\r\nOrigin: {PAGE}\r\n\r\n"),
        "OPTIONS /other HTTP/1.1\r\nHost: h\r\nAccess-Control-Request-Method: GET\r\n\r\n".to_owned(),
        format!("GET /other HTTP/1.1\r\nHost: h\r\nOrigin: {PAGE}\r\nAccess-Control-Request-Method: GET\r\n\r\n"),
    ];
    for (at, request) in plain.iter().enumerate() {
        assert_eq!(client.call(request).status, 200, "{request}");
        assert_eq!(up.received().len(), at + 1, "{request}");
    }
    // A route without `cors` leaves preflights to its upstream.
    assert_eq!(ask(&mut client, "/own/a", PAGE, "POST").status, 200);
    // The wide route takes OPTIONS, but may not allow what the narrow route forbids.
    let other = ask(&mut client, "/post", PAGE, "POST");
    assert_eq!((other.status, allowed(&other)), (200, None));
    assert_eq!(up.received().len(), plain.len() + 2);
}

#[test]
fn every_own_answer_of_the_route_can_be_read() {
    let (_socket, closed) = crate::harness::closed_port();
    let routes = format!(
        "[upstreams.gone]\nservers = [\"http://{closed}\"]\n\
         [[routes]]\npath = \"/gone\"\nupstream = \"gone\"\ncors = {{ origins = [\"*\"] }}\n\
         [[routes]]\npath = \"/large\"\nmax_body_size = \"1B\"\nupstream = \"gone\"\ncors = {{ origins = [\"*\"] }}\n\
         [[routes]]\npath = \"/moved\"\nredirect = {{ to = \"/gone\" }}\ncors = {{ origins = [\"*\"] }}\n\
         [[routes]]\npath = \"/own\"\nrespond = {{ body = \"hi\" }}\nresponse_headers = {{ set = {{ vary = \"x-b\" }} }}\n\
         cors = {{ origins = [\"{PAGE}\"], credentials = true, expose = [\"X-Total\"], headers = [\"x-b\"] }}\n"
    );
    let gateway = Gateway::start(&routes);
    let mut client = gateway.client();
    for (path, status) in [("/gone", 502), ("/moved", 308)] {
        let response = get(&mut client, path, PAGE);
        assert_eq!((response.status, allowed(&response)), (status, Some("*")), "{path}");
        assert_eq!(response.headers.get("vary"), None, "{path}");
    }
    let large = client.call("POST /large HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nhi");
    assert_eq!((large.status, allowed(&large)), (413, Some("*")));
    let mut client = gateway.client();
    let own = get(&mut client, "/own", PAGE);
    assert_eq!((own.status, allowed(&own), own.headers.joined("vary").as_str()), (200, Some(PAGE), "x-b, origin"));
    assert_eq!(own.headers.must("access-control-allow-credentials"), "true");
    assert_eq!(own.headers.must("access-control-expose-headers"), format!("{EXPOSED}, x-total"));
    let preflight = ask(&mut client, "/own", PAGE, "POST");
    assert_eq!(preflight.headers.must("access-control-allow-headers"), "x-b", "not what was asked for");
    assert_eq!(preflight.headers.must("access-control-allow-methods"), "GET, HEAD, POST");
    assert_eq!(preflight.headers.must("access-control-allow-credentials"), "true");
}

#[test]
fn a_reload_changes_what_is_allowed() {
    let up = Upstream::start(|_| reply(200, ""));
    let gateway = Gateway::start(&once(&up, &format!("{{ origins = [\"{PAGE}\"] }}")));
    let mut client = gateway.client();
    assert_eq!(allowed(&ask(&mut client, "/v1/a", PAGE, "GET")), Some(PAGE));
    gateway.reload("", &once(&up, "{ origins = [\"https://other.example.com\"] }"));
    gateway.wait_message("reloaded");
    assert_eq!(allowed(&ask(&mut client, "/v1/a", PAGE, "GET")), None);
}

#[test]
fn check_and_explain_show_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gateway.toml");
    let up = Upstream::start(|_| reply(200, ""));
    std::fs::write(
        &file,
        once(&up, "{ origins = [\"https://*.example.com\"], headers = [\"x-b\"], expose = [\"x-c\"] }"),
    )
    .unwrap();
    let output = |arguments: &[&str]| {
        let output = run(&[&[arguments[0], "--config", file.to_str().unwrap()], &arguments[1..]].concat());
        String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap()
    };
    let check = output(&["check"]);
    for line in [
        "    answers preflights, and charges them to no limit\n",
        "    allows pages of https://*.example.com to send GET with the headers x-b\n",
        "    lets these pages read the response headers x-c\n",
    ] {
        assert!(check.contains(line), "{line:?} is not in:\n{check}");
    }
    let origin = format!("origin: {PAGE}");
    let preflight = output(&[
        "explain",
        "-X",
        "OPTIONS",
        "-H",
        &origin,
        "-H",
        "access-control-request-method: GET",
        "http://h/v1/a",
    ]);
    assert!(preflight.contains("answered 204 by `cors`, and counted by no limit"), "{preflight}");
    assert!(preflight.contains(&format!("access-control-allow-origin: {PAGE}")), "{preflight}");
    let request = output(&["explain", "-H", &origin, "http://h/v1/a"]);
    assert!(request.contains(&format!("access-control-allow-origin: {PAGE}")), "{request}");
}

#[test]
fn the_same_holds_in_http_2() {
    let up = Upstream::start(|_| reply(200, ""));
    let gateway = Gateway::start(&once(&up, &format!("{{ origins = [\"{PAGE}\"], credentials = true }}")));
    let request = |method: &str, origins: &[&str], asked: &[&str]| {
        let mut request = Request::builder().method(method).uri("http://test.example/v1/users");
        for origin in origins {
            request = request.header("origin", *origin);
        }
        for method in asked {
            request = request.header("access-control-request-method", *method);
        }
        request.body(()).unwrap()
    };
    let preflight = || request("OPTIONS", &[PAGE], &["GET"]);
    let requests = vec![
        preflight(),
        request("OPTIONS", &[PAGE, "https://evil.test"], &["GET"]),
        // This is no preflight, and no route takes it.
        request("OPTIONS", &[PAGE], &["GET", "GET"]),
        request("GET", &[PAGE], &[]),
        request("GET", &[PAGE], &["GET"]),
        request("GET", &["https://evil.test"], &[]),
        preflight(),
    ];
    let answers = over_http2(gateway.http, requests);
    let told = |(status, headers): &(u16, HeaderMap)| {
        let allowed = headers.get("access-control-allow-origin").map(|origin| origin.to_str().unwrap().to_owned());
        assert_eq!(headers.contains_key("access-control-allow-credentials"), allowed.is_some());
        (*status, allowed)
    };
    let to_page = Some(PAGE.to_owned());
    let expected =
        [(204, &to_page), (204, &None), (405, &None), (200, &to_page), (429, &to_page), (429, &None), (204, &to_page)];
    let answers: Vec<_> = answers.iter().map(told).collect();
    assert_eq!(answers, expected.map(|(status, origin)| (status, origin.clone())));
    assert_eq!(up.received().len(), 1);
}
