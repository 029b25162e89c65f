//! Secrets of a configuration in files and in environment variables: where they may be, when they are read, and that
//! nothing shows them.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::harness::{Client, Gateway, Response, Upstream, reply, until};

const PATIENCE: Duration = Duration::from_secs(30);
const HIDDEN: &str = "hidden";
const VARIABLES: [(&str, &str); 2] =
    [("SECRETS_TOKEN", "hidden-token"), ("SECRETS_UPSTREAM", "Bearer hidden-{upstream}")];

/// A folder with a configuration that has secrets wherever they may be, and with the files that it names.
fn folder(upstream: &Upstream) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let section = upstream.section();
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n[admin]\nlisten = \"127.0.0.1:0\"\ntoken = \"env:SECRETS_TOKEN\"\n
        [tracing]\nendpoint = \"http://127.0.0.1:9\"\nsample = 0.0\nheaders = {{ x-team = \"file:collector\" }}\n{section}
        [[routes]]\npath = \"/*\"\nupstream = \"up\"\nheaders = {{ x-origin = \"file:origin\" }}
        request_headers = {{ set = {{ x-from = \"env:SECRETS_UPSTREAM\" }}, add = {{ x-more = \"file:more\" }} }}
        response_headers = {{ set = {{ x-back = \"file:back\" }} }}\n"
    );
    fs::write(folder.path().join("gateway.toml"), text).unwrap();
    for name in ["collector", "origin", "more", "back"] {
        fs::write(folder.path().join(name), format!(" hidden-{name}\n")).unwrap();
    }
    folder
}

fn place(folder: &Path, text: &str) -> String {
    let path = folder.join("gateway.toml");
    let whole = fs::read_to_string(&path).unwrap();
    let (line, found) = whole.lines().enumerate().find(|(_, line)| line.contains(text)).unwrap();
    format!("{}:{}:{}", path.display(), line + 1, found.find(text).unwrap() + 1)
}

fn upstream() -> Upstream {
    Upstream::start(|_| reply(200, "ok"))
}

fn gateway(folder: &Path) -> Gateway {
    Gateway::with_source(&["--config", folder.join("gateway.toml").to_str().unwrap()], &VARIABLES)
}

fn get(gateway: &Gateway, origin: &str) -> Response {
    gateway.client().get_with("/a", format!("X-Origin: {origin}\r\n"))
}

fn admin(gateway: &Gateway, request: &str) -> Response {
    let host = gateway.admin;
    let head = format!("{request} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer hidden-token\r\n");
    Client::connect(host).call(head + "Content-Length: 0\r\n\r\n")
}

fn run(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gateway"));
    command.args(arguments).envs(variables.iter().copied()).stdin(Stdio::null()).output().unwrap()
}

fn texts(output: &Output) -> String {
    [&output.stdout[..], &output.stderr].map(String::from_utf8_lossy).concat()
}

#[test]
fn secrets_are_used() {
    let upstream = upstream();
    let folder = folder(&upstream);
    let gateway = gateway(folder.path());
    assert_eq!(admin(&gateway, "GET /api/config").status, 200);
    assert_eq!(gateway.admin("/api/config").status, 401);
    assert_eq!(get(&gateway, "wrong").status, 404);
    let response = get(&gateway, "hidden-origin");
    assert_eq!((response.status, response.headers.must("x-back")), (200, "hidden-back"));
    let received = upstream.received();
    let [received] = &received[..] else { panic!("{received:?}") };
    // A placeholder in a secret is plain text.
    assert_eq!(received.headers.must("x-from"), "Bearer hidden-{upstream}");
    assert_eq!(received.headers.must("x-more"), "hidden-more");
}

#[test]
fn secrets_are_read_again_by_each_reload() {
    let folder = folder(&upstream());
    let gateway = gateway(folder.path());
    let origin = folder.path().join("origin");
    fs::write(&origin, "hidden-other").unwrap();
    assert_eq!(get(&gateway, "hidden-origin").status, 200);
    assert_eq!(admin(&gateway, "POST /api/reload").status, 200);
    assert_eq!((get(&gateway, "hidden-origin").status, get(&gateway, "hidden-other").status), (404, 200));

    // A missing secret is refused, and the previous one stays in force.
    let place = place(folder.path(), "\"file:origin\"");
    for (write, why) in
        [("", "the file \"origin\" for the value of the header is empty"), ("hidden\0", "cannot be sent")]
    {
        fs::write(&origin, write).unwrap();
        let refused = admin(&gateway, "POST /api/reload");
        let problem = refused.json()["problems"][0].clone();
        assert_eq!((refused.status, &problem["place"]), (422, &place.as_str().into()), "{problem}");
        assert!(problem["message"].as_str().unwrap().contains(why), "{problem}");
    }
    fs::remove_file(&origin).unwrap();
    gateway.signal(Signal::HUP);
    let line =
        gateway.wait_log("refused", |line| line["problems"].as_str().is_some_and(|text| text.contains("No such file")));
    assert!(line["problems"].as_str().unwrap().contains(&place), "{line}");
    assert_eq!(get(&gateway, "hidden-other").status, 200);
}

#[test]
fn files_with_secrets_are_watched() {
    let folder = folder(&upstream());
    let config = folder.path().join("gateway.toml");
    let gateway = Gateway::with_source(&["--watch", "--config", config.to_str().unwrap()], &VARIABLES);
    assert_eq!(get(&gateway, "hidden-origin").status, 200);
    fs::write(folder.path().join("origin"), "hidden-other").unwrap();
    until("the file is read again", PATIENCE, || get(&gateway, "hidden-other").status == 200);
    assert_eq!(get(&gateway, "hidden-origin").status, 404);
}

#[test]
fn secrets_are_shown_nowhere() {
    let upstream = upstream();
    let folder = folder(&upstream);
    let config = folder.path().join("gateway.toml");
    let config = config.to_str().unwrap();
    let mut shown = String::new();
    for arguments in [
        &["check", config][..],
        &["check", "--json", config],
        &["check", config, "--against", config],
        &["explain", "--config", config, "-H", "x-origin: hidden-origin", "/a"],
        &["explain", "--config", config, "/a"],
    ] {
        let output = run(arguments, &VARIABLES);
        assert!(output.status.success(), "{arguments:?}: {}", texts(&output));
        shown += &texts(&output);
    }
    assert!(shown.contains("x-from: ***") && shown.contains("\"x-origin\": \"***\""), "{shown}");
    let mut gateway = gateway(folder.path());
    assert_eq!(get(&gateway, "hidden-origin").status, 200);
    for path in ["/api/config", "/api/source", "/api/limits", "/api/upstreams", "/metrics"] {
        let response = admin(&gateway, &format!("GET {path}"));
        assert_eq!(response.status, 200, "{path}");
        shown += response.text();
    }
    assert!(shown.contains("x-origin=file:origin"), "the name of the route says where the secret is: {shown}");
    fs::write(folder.path().join("more"), "hidden\x01").unwrap();
    shown += admin(&gateway, "POST /api/reload").text();
    assert!(shown.contains("cannot be sent"), "{shown}");
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.wait_exit().code(), Some(0));
    shown += &gateway.log().concat();
    assert!(!shown.contains(HIDDEN), "{shown}");
}

#[test]
fn urls_are_shown_without_their_secrets() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("gateway.toml");
    let limit = |name: &str, source: &str| {
        format!("[limits.{name}]\nkey = \"client-ip\"\nrates = [\"9/d\"]\nquotas = {{ source = \"{source}\" }}\n")
    };
    let query = "query = \"select rates from plans where key = $1\"";
    let text = [
        "[server]\nlisten = \"127.0.0.1:0\"\n[admin]\nlisten = \"127.0.0.1:0\"\n".to_owned(),
        "[jwt.a]\nissuer = \"a\"\njwks = \"http://127.0.0.1:9/keys?token=hidden\"\nalgorithms = [\"RS256\"]\n"
            .to_owned(),
        "[jwt.b]\nissuer = \"b\"\njwks = \"http://127.0.0.1:9/hid/den@x/hidden@y\"\nalgorithms = [\"RS256\"]\n"
            .to_owned(),
        limit("query", "http://127.0.0.1:9/v1/{key}?token=hidden"),
        limit("user", "http://127.0.0.1:9/hidden@plans.test/{key}"),
        limit("variable", "env:SECRETS_PLANS"),
        limit("file", "file:plans"),
        limit("postgres", "file:postgres").replace(" }", &format!(", {query} }}")),
        "[[routes]]\npath = \"/*\"\nlimits = [\"query\", \"user\", \"variable\", \"file\", \"postgres\"]\n".to_owned(),
        "respond = { status = 200 }\n".to_owned(),
        "[limits.c]\nkey = \"jwt:a:sub | jwt:b:sub\"\nrates = [\"9/d\"]\n".to_owned(),
        "[[routes]]\npath = \"/t\"\nlimits = [\"c\"]\nrespond = { status = 200 }\n".to_owned(),
    ]
    .concat();
    fs::write(&config, text).unwrap();
    fs::write(folder.path().join("plans"), "http://127.0.0.1:9/hidden/{key}\n").unwrap();
    fs::write(folder.path().join("postgres"), "postgres://hidden:hidden@127.0.0.1:9/hidden?sslmode=disable\n").unwrap();
    let variables = [("SECRETS_PLANS", "http://127.0.0.1:9/{key}/hidden?hidden")];
    let config = config.to_str().unwrap();
    let mut shown = String::new();
    for arguments in [
        &["check", config][..],
        &["check", "--json", config],
        &["explain", "--config", config, "/a"],
        &["explain", "--config", config, "/t"],
    ] {
        let output = run(arguments, &variables);
        assert!(output.status.success(), "{arguments:?}: {}", texts(&output));
        shown += &texts(&output);
    }
    for url in ["http://127.0.0.1:9/keys?***", "http://127.0.0.1:9/v1/{key}?***", "http://127.0.0.1:9/***"] {
        assert!(shown.contains(url), "{url}: {shown}");
    }
    let mut gateway = Gateway::with_source(&["--config", config], &variables);
    assert_eq!(["/a", "/t"].map(|path| gateway.client().get(path).status), [200, 200]);
    for path in ["/api/config", "/api/source", "/api/limits", "/api/upstreams", "/metrics"] {
        shown += gateway.admin(path).text();
    }
    gateway.wait_log("PostgreSQL", |line| line["server"].as_str().is_some_and(|url| url.starts_with("postgres://")));
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.wait_exit().code(), Some(0));
    shown += &gateway.log().concat();
    assert!(!shown.contains(HIDDEN), "{shown}");
}

#[test]
fn secrets_in_urls_are_not_shown_with_mistakes() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("gateway.toml");
    let jwks = "[jwt.a]\nissuer = \"a\"\nalgorithms = [\"RS256\"]\njwks = ";
    let source = "[limits.l]\nkey = \"client-ip\"\nrates = [\"9/d\"]\n[limits.l.quotas]\nsource = ";
    let servers = "[upstreams.up]\nservers = ";
    for text in [
        format!("{jwks}\"http://192.0.2.1/keys?token=hidden\""),
        format!("{jwks}\"https://user:hidden@a.test/keys\""),
        format!("{jwks}\"https://user:hidden/x@a.test/keys\""),
        format!("{jwks}\"https://user:hidden@a.test/keys"),
        format!("{source}\"http://192.0.2.1/{{key}}?token=hidden\""),
        format!("{source}\"https://user:hidden@a.test/{{key}}\""),
        format!("{source}\"https://user:hidden/x@a.test/{{key}}\""),
        format!("{source}\"postgres://db/plans?password=hidden&none=1\""),
        "[tracing]\nendpoint = \"http://user:hidden@127.0.0.1:9\"".to_owned(),
        "[tracing]\nendpoint = \"http://127.0.0.1:9?token=hidden\"".to_owned(),
        format!("{servers}[\"http://user:hidden@192.0.2.1\"]"),
        format!("{servers}[\"http://user:hidden/x@192.0.2.1\"]"),
        format!("{servers}[\"http://192.0.2.1?hidden\"]"),
        format!("{servers}\"http://user:hidden@192.0.2.1\""),
        "[store]\ntype = \"memcached\"\nservers = [\"memcached://user:hidden@192.0.2.1\"]".to_owned(),
    ] {
        fs::write(&config, format!("{text}\n")).unwrap();
        let output = run(&["check", config.to_str().unwrap()], &[]);
        let said = texts(&output);
        assert_eq!(output.status.code(), Some(2), "{text}: {said}");
        assert!(!said.contains(HIDDEN), "{text}: {said}");
    }
}

#[test]
fn secrets_of_the_configuration_itself_are_not_shown_with_mistakes() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("gateway.toml");
    let text = "[admin]\nlisten = \"[::]:1\"\ntoken = \"hidden token\"\n\
                [tracing]\nendpoint = \"http://127.0.0.1:9\"\nheaders = { a = \"hidden\", b = \"hidden\u{e9}\", c = 5 }\n\
                [[routes]]\npath = \"/*\"\nupstream = \"none\"\n\
                request_headers = { set = { authorization = \"hidden\", d = 5 } }\n";
    fs::write(&config, text).unwrap();
    let output = run(&["check", config.to_str().unwrap()], &[]);
    let said = texts(&output);
    assert_eq!(output.status.code(), Some(2));
    assert!(!said.contains(HIDDEN), "{said}");
    for shown in ["token = **************\n", "headers = { a = ********, b = *********, c = * }", "d = 5 } }"] {
        assert!(said.contains(shown), "{shown}: {said}");
    }
    let column =
        text.lines().find(|line| line.contains("c = 5")).unwrap().split("c = ").next().unwrap().chars().count();
    assert!(said.contains(&format!("gateway.toml:6:{}\n", column + "c = ".len() + 1)), "{said}");
}

#[test]
fn no_mistake_at_the_key_of_a_secret_shows_it() {
    const NUMBER: &str = "8231048231048231";
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("gateway.toml");
    let text = "[admin]\nlisten = \"127.0.0.1:1\"\ntoken = \"hidden-token\"\n[server]\n\
                [[notices]]\nurl = \"http://127.0.0.1:9/\"\nsecret = \"0123456789abcdef\"\n\
                [[routes]]\npath = \"/*\"\nrespond = { status = 200 }\n";
    let header = |what: &str| format!("[[routes]]\n{what}");
    for (old, new, said) in [
        ("token =", "token = \"hidden\"\ntoken =".to_owned(), "`token` is defined twice"),
        ("token =", "\"token\" = \"a\"\ntoken = \"hidden\"\ntokne =".to_owned(), "is defined twice"),
        ("token =", "tokne =".to_owned(), "unknown key `tokne`"),
        ("[server]", "[server]\npartition_secert = \"hidden\"".to_owned(), "unknown key `partition_secert`"),
        ("[server]", "[server]\npartition_secret = [\"hidden\"]".to_owned(), "must be a string, found a list"),
        ("\"0123456789abcdef\"", "[\"hidden\"]".to_owned(), "must be a string, found a list"),
        ("\"0123456789abcdef\"", NUMBER.to_owned(), "must be a string, found an integer"),
        ("\"0123456789abcdef\"", format!("0.{NUMBER}"), "must be a string, found a float"),
        ("[[routes]]", header("headers = { authorization = \"hidden\\u0001\" }"), "value of `authorization`"),
        (
            "[[routes]]",
            header("request_headers.set = { authorization = \"Bearer {hidden}\" }"),
            "the value of `authorization` is not valid",
        ),
        (
            "[[routes]]",
            header("request_headers.set = { cookie = \"a\", cookie = \"hidden\" }"),
            "`cookie` is defined twice",
        ),
    ] {
        fs::write(&config, text.replace(old, &new)).unwrap();
        let output = run(&["check", config.to_str().unwrap()], &[]);
        let all = texts(&output);
        assert_eq!(output.status.code(), Some(2), "{new}: {all}");
        let shows = [HIDDEN, NUMBER].iter().any(|secret| all.contains(secret));
        assert!(!shows && all.contains(said), "{new}: {all}");
    }
}

#[test]
fn a_variable_that_has_nothing_is_refused_at_its_place() {
    let folder = folder(&upstream());
    let config = folder.path().join("gateway.toml");
    let config = config.to_str().unwrap();
    let said = |value: &[(&str, &str)]| {
        let output = run(&["check", config], &[&VARIABLES[..1], value].concat());
        assert_eq!(output.status.code(), Some(2));
        texts(&output)
    };
    let place = place(folder.path(), "\"env:SECRETS_UPSTREAM\"");
    let missing = said(&[]);
    assert!(
        missing.contains("there is no environment variable \"SECRETS_UPSTREAM\" for the value of the header"),
        "{missing}"
    );
    assert!(missing.contains(&place), "{missing}");
    let empty = said(&[("SECRETS_UPSTREAM", "")]);
    assert!(
        empty.contains("the environment variable \"SECRETS_UPSTREAM\" for the value of the header is empty"),
        "{empty}"
    );
    assert!(empty.contains(&place), "{empty}");
    assert!(!(missing + &empty).contains(HIDDEN));
}
