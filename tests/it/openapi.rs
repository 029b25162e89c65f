//! The OpenAPI document agrees with the server: all its paths, methods, statuses and bodies occur, and no others.

use std::collections::BTreeSet;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{Authority, Client, Framing, Gateway, Response, Software, limited, until};

/// The document, and which parts of it have occurred.
struct Contract {
    document: Value,
    seen: BTreeSet<(String, String, String)>,
}

impl Contract {
    fn of(gateway: &Gateway) -> Self {
        let document = call(gateway, "GET", "/api/openapi.json", &[], "").json();
        Self { document, seen: BTreeSet::new() }
    }

    fn operations(&self) -> Vec<(String, String)> {
        let methods = |(path, item): (&String, &Value)| {
            let named = item.as_object().unwrap().keys().filter(|key| *key != "parameters");
            named.map(|method| (path.clone(), method.to_uppercase())).collect::<Vec<_>>()
        };
        self.document["paths"].as_object().unwrap().iter().flat_map(methods).collect()
    }

    fn responses(&self) -> BTreeSet<(String, String, String)> {
        let responses = |(path, method): (String, String)| {
            let statuses = self.document["paths"][&path][method.to_lowercase()]["responses"].as_object().unwrap();
            let kinds = |(status, response): (&String, &Value)| {
                let content = response["content"].as_object().unwrap();
                content.keys().map(|kind| format!("{status} {kind}")).collect::<Vec<_>>()
            };
            statuses.iter().flat_map(kinds).map(|kind| (path.clone(), method.clone(), kind)).collect::<Vec<_>>()
        };
        self.operations().into_iter().flat_map(responses).collect()
    }

    /// Sends a request and compares the response with the document.
    #[track_caller]
    fn check(&mut self, gateway: &Gateway, method: &str, path: &str, headers: &[&str], body: &str, status: u16) {
        let response = call(gateway, method, &concrete(path), headers, body);
        assert_eq!(response.status, status, "{method} {path}: {}", response.text());
        self.hold(method, path, &response);
    }

    #[track_caller]
    fn hold(&mut self, method: &str, path: &str, response: &Response) {
        let place = format!("{method} {path} {}", response.status);
        let status = response.status.to_string();
        let described = &self.document["paths"][path][method.to_lowercase()]["responses"][&status];
        let content = described["content"].as_object().unwrap_or_else(|| panic!("{place} is not in the document"));
        let sent = response.headers.must("content-type");
        let content = content.get(sent).unwrap_or_else(|| panic!("{place}: {sent} is not in the document"));
        let value = if sent.contains("json") { response.json() } else { json!(response.text()) };
        self.validate(&place, &content["schema"], &value);
        self.seen.insert((path.to_owned(), method.to_owned(), format!("{status} {sent}")));
    }

    #[track_caller]
    fn validate(&self, place: &str, schema: &Value, value: &Value) {
        let mut schema = schema.as_object().unwrap().clone();
        schema.insert("components".to_owned(), self.document["components"].clone());
        let validator = jsonschema::draft202012::new(&Value::Object(schema)).unwrap();
        let errors: Vec<_> = validator.iter_errors(value).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "{place}: {errors:#?} in {value:#}");
    }

    /// Compares the first events of a stream with the document.
    #[track_caller]
    fn hold_events(&self, gateway: &Gateway) {
        let stream = call(gateway, "GET", "/api/events", &[], "");
        let mut names = Vec::new();
        for event in stream.text().split("\n\n").filter(|event| event.starts_with("event: ")) {
            let (name, data) = event.strip_prefix("event: ").unwrap().split_once("\ndata: ").unwrap();
            let schema = if name == "history" { "History" } else { "Numbers" };
            let schema = json!({ "$ref": format!("#/components/schemas/{schema}") });
            self.validate(name, &schema, &serde_json::from_str(data).unwrap());
            names.push(name.to_owned());
        }
        assert_eq!(names, ["history", "numbers"]);
    }
}

fn concrete(path: &str) -> String {
    path.replace("{limit}", "l").replace("{key}", "k")
}

fn call(gateway: &Gateway, method: &str, path: &str, headers: &[&str], body: &str) -> Response {
    let host = format!("Host: {}", gateway.admin);
    let headers = if headers.is_empty() { vec![host.as_str()] } else { headers.to_vec() };
    let (headers, length) = (headers.join("\r\n"), body.len());
    let request = format!("{method} {path} HTTP/1.1\r\n{headers}\r\nContent-Length: {length}\r\n\r\n{body}");
    let mut client = Client::connect(gateway.admin);
    if path == "/api/events" && method == "GET" {
        client.send(request);
        return first_chunk(client);
    }
    client.call(request)
}

/// A response with only the first chunk of its endless body.
fn first_chunk(mut client: Client) -> Response {
    let (mut response, framing) = client.try_head().unwrap();
    let size = match framing {
        Framing::Chunked => usize::from_str_radix(&client.wire.first_line().unwrap().unwrap(), 16).unwrap(),
        Framing::Length(length) => usize::try_from(length).unwrap(),
        Framing::UntilClose => panic!("no length"),
    };
    response.body.resize(size, 0);
    client.wire.read_exact(&mut response.body).unwrap();
    response
}

const LEVEL: &str = r#"{"level": "info"}"#;
const OF_KEY: &str = "/api/limits/{limit}/keys/{key}";

fn body(path: &str) -> &'static str {
    if path == OF_KEY { r#"{"rates": ["9/d"], "for": "1h"}"# } else { LEVEL }
}

#[test]
fn the_document_says_what_the_server_does() {
    let authority = Authority::new();
    let certificates = format!("certificates = [{}]", authority.issue("site", "site", &["site.test"]).toml());
    let decisions = format!("[decisions]\nlisten = \"127.0.0.1:0\"\ntls = {{ {certificates} }}\n");
    let text = limited("header:x-api-key", "5/d", "overrides = [{ keys = [\"in-file\"], block = true }]")
        + "[upstreams.up]\nservers = [\"http://127.0.0.1:9\"]\n[[routes]]\npath = \"/up\"\nupstream = \"up\"\n"
        + "[limits.tokens]\nkey = \"global\"\nrates = [\"100000/d\"]\ncost = { tokens = \"auto\" }\n\
           [[routes]]\npath = \"/tokens\"\nlimits = [\"tokens\"]\nrespond = { status = 200 }\n"
        + &decisions;
    let gateway = Gateway::start(&text);
    assert_eq!(gateway.client().get("/tokens").status, 200);
    assert_eq!(gateway.client().get_with("/", "x-api-key: k\r\n").status, 200);
    assert_eq!(gateway.client().get("/up").status, 502);
    let mut contract = Contract::of(&gateway);
    let operations = contract.operations();
    for (path, method) in &operations {
        contract.check(&gateway, method, path, &[], body(path), 200);
        if path == "/api/drain" && method == "POST" {
            assert_eq!(call(&gateway, "DELETE", path, &[], "").status, 200);
        }
        contract.check(&gateway, method, path, &["X-No-Host: 1"], "", 400);
        contract.check(&gateway, method, path, &["Host: evil.example"], "", 403);
    }
    contract.hold_events(&gateway);
    let streams: Vec<_> = (0..8)
        .map(|_| {
            let mut client = Client::connect(gateway.admin);
            client.send(format!("GET /api/events HTTP/1.1\r\nHost: {}\r\n\r\n", gateway.admin));
            client.try_head().unwrap();
            client
        })
        .collect();
    contract.check(&gateway, "GET", "/api/events", &[], "", 503);
    drop(streams);
    for method in ["GET", "PUT", "DELETE"] {
        let response = call(&gateway, method, "/api/limits/other/keys/k", &[], body(OF_KEY));
        contract.hold(method, OF_KEY, &response);
    }
    let response = call(&gateway, "GET", "/api/limits/other/bans", &[], "");
    contract.hold("GET", "/api/limits/{limit}/bans", &response);
    let response = call(&gateway, "GET", "/api/limits/other/overrides", &[], "");
    contract.hold("GET", "/api/limits/{limit}/overrides", &response);
    for wanted in [r#"{"exempt": true, "for": "1h"}"#, r#"{"block": true, "for": "1h"}"#] {
        contract.check(&gateway, "PUT", OF_KEY, &[], wanted, 200);
        contract.check(&gateway, "GET", OF_KEY, &[], "", 200);
    }
    contract.check(&gateway, "PUT", OF_KEY, &[], "{}", 422);
    let response = call(&gateway, "PUT", "/api/limits/l/keys/in-file", &[], body(OF_KEY));
    assert_eq!(response.status, 409, "{}", response.text());
    contract.hold("PUT", OF_KEY, &response);
    assert_eq!(call(&gateway, "POST", "/api/drain", &[], "").status, 200);
    contract.check(&gateway, "GET", "/readyz", &[], "", 503);
    contract.check(&gateway, "PUT", "/api/log-level", &[], r#"{"level": "loud"}"#, 422);
    let with_body = ["/api/log-level", OF_KEY];
    let slow = with_body.map(|path| {
        contract.check(&gateway, "PUT", path, &[], &" ".repeat(70_000), 413);
        let (mut slow, path) = (Client::connect(gateway.admin), concrete(path));
        slow.send(format!("PUT {path} HTTP/1.1\r\nHost: {}\r\nContent-Length: 9\r\n\r\n{{", gateway.admin));
        // The server waits for ten seconds.
        slow.wire.stream().set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        slow
    });
    for (path, mut slow) in with_body.into_iter().zip(slow) {
        contract.hold("PUT", path, &slow.response(false));
    }
    gateway.write_config("this is no toml");
    contract.check(&gateway, "POST", "/api/reload", &[], "", 422);

    let guarded = Gateway::with_admin("token = \"secret\"", &text);
    let is_open = |path: &str| ["/", "/healthz", "/readyz"].contains(&path);
    for (path, method) in operations.iter().filter(|(path, _)| !is_open(path)) {
        contract.check(&guarded, method, path, &[], "", 401);
    }

    let stopping = Gateway::with_server("drain_delay = \"60s\"", &text);
    stopping.signal(Signal::TERM);
    stopping.wait_message("not ready");
    contract.check(&stopping, "DELETE", "/api/drain", &[], "", 409);
    contract.check(&stopping, "POST", "/api/reload", &[], "", 503);
    contract.check(&stopping, "PUT", OF_KEY, &[], body(OF_KEY), 503);

    let mut memcached = Software::Memcached.start();
    let away = Gateway::start(&(memcached.store() + &limited("header:x-api-key", "5/d", "")));
    memcached.kill();
    until("the store is away", Duration::from_secs(10), || {
        call(&away, "GET", &concrete(OF_KEY), &[], "").status == 503
    });
    contract.hold_events(&away);
    for method in ["GET", "DELETE"] {
        contract.check(&away, method, OF_KEY, &[], "", 503);
    }

    let never: Vec<_> = contract.responses().difference(&contract.seen).cloned().collect();
    assert!(never.is_empty(), "the document names responses that do not occur: {never:#?}");
}

#[test]
fn the_server_takes_no_other_method_and_has_no_other_path() {
    let gateway = Gateway::start(&limited("header:x-api-key", "5/d", ""));
    let contract = Contract::of(&gateway);
    let operations = contract.operations();
    let paths: BTreeSet<_> = operations.iter().map(|(path, _)| path.as_str()).collect();
    for path in &paths {
        for method in ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"] {
            let wanted = if method == "HEAD" { "GET" } else { method };
            let is_named = operations.contains(&((*path).to_owned(), wanted.to_owned()));
            let status = call(&gateway, method, &concrete(path), &[], body(path)).status;
            assert_eq!(status != 405, is_named, "{method} {path}: {status}");
        }
    }
    // The paths in the code, each of which is written once.
    let code = std::fs::read_to_string(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/admin.rs")).unwrap();
    let written: BTreeSet<_> = code
        .lines()
        .filter_map(|line| line.trim().strip_prefix('"')?.split_once("\" => Some("))
        .map(|(path, _)| path)
        .collect();
    assert!(written.len() > 5, "{written:?}");
    let unnamed: Vec<_> = written.difference(&paths).collect();
    assert!(unnamed.is_empty(), "the document does not name {unnamed:?}");
}
