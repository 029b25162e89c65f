//! Spellings that some servers read as the same path: each is limited like the path, or refused.

use crate::harness::http2::{END_STREAM, RawHttp2, Reaction, headers};
use crate::harness::{Gateway, Upstream, reply, run};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// The route of `/v1/login` takes it.
    Same,
    /// It gets 400.
    Refused,
    Other,
}
use Fate::{Other, Refused, Same};

/// A spelling, the servers that read it as `/v1/login`, and how the gateway treats it by default, with `path_matching =
/// "exact"`, with `escaped_slashes = "keep"` and with `escaped_slashes = "decode"`.
const SPELLINGS: &[(&str, &str, [Fate; 4])] = &[
    ("/v1/login", "everybody", [Same, Same, Same, Same]),
    ("/v1/login/", "Express, Rails, Spring before 6", [Same, Other, Same, Same]),
    ("/v1/login//", "Express behind nginx, which merges slashes", [Same, Other, Same, Same]),
    ("//v1/login", "nginx, Tomcat", [Same, Same, Same, Same]),
    ("/v1//login", "nginx, Tomcat, Apache httpd", [Same, Same, Same, Same]),
    ("/v1/login;x", "Tomcat, Jetty, Spring", [Same, Other, Same, Same]),
    ("/v1/login;jsessionid=1", "Tomcat, Jetty", [Same, Other, Same, Same]),
    ("/v1;a/login", "Tomcat, Jetty, Spring", [Same, Other, Same, Same]),
    ("/;a/v1/login", "Tomcat", [Same, Other, Same, Same]),
    ("/v1/login%3Bx", "servers that decode before they look for parameters", [Same, Other, Same, Same]),
    ("/v1/login/;x", "Tomcat", [Same, Other, Same, Same]),
    ("/v1%2Flogin", "nginx, WSGI, PHP behind nginx: they decode first", [Refused, Refused, Other, Same]),
    ("/v1%2flogin", "the same", [Refused, Refused, Other, Same]),
    ("/v1%5Clogin", "IIS", [Refused, Refused, Other, Same]),
    ("/v1\\login", "IIS, and who parses it like a browser: new URL() of Node.js", [Refused, Refused, Refused, Same]),
    ("/x%2F..%2Fv1/login", "nginx, WSGI, IIS", [Refused, Refused, Refused, Refused]),
    ("/x/..%5Cv1/login", "IIS", [Refused, Refused, Refused, Refused]),
    ("/x/../v1/login", "everybody", [Refused, Refused, Refused, Refused]),
    ("/x/%2e%2e/v1/login", "everybody", [Refused, Refused, Refused, Refused]),
    ("/v1/./login", "everybody", [Refused, Refused, Refused, Refused]),
    ("/x/..;/v1/login", "Tomcat", [Refused, Refused, Refused, Refused]),
    ("/x/..;a=b/v1/login", "Tomcat", [Refused, Refused, Refused, Refused]),
    ("/x/%2e%2e%3b/v1/login", "Tomcat behind a server that decodes", [Refused, Refused, Refused, Refused]),
    ("/v1/login%00", "servers in C, at which a string ends there", [Refused, Refused, Refused, Refused]),
    ("/v1/login%0A", "regular expressions ending in $: nginx, Django", [Refused, Refused, Refused, Refused]),
    ("/v1/login%0d", "who trims lines", [Refused, Refused, Refused, Refused]),
    ("/v1/login%7F", "nobody is known; it is invisible in logs", [Refused, Refused, Refused, Refused]),
    ("/v1/login\u{7f}", "the same", [Refused, Refused, Refused, Refused]),
    ("/v1/l%6Fgin", "everybody", [Same, Same, Same, Same]),
    ("/%76%31/%6cogin", "everybody", [Same, Same, Same, Same]),
    ("/v1/%256Cogin", "who decodes twice: IIS in old versions, mod_rewrite", [Refused, Refused, Refused, Refused]),
    ("/v1%252Flogin", "who decodes twice", [Refused, Refused, Other, Refused]),
    ("/x/%252e%252e/v1/login", "who decodes twice", [Refused, Refused, Refused, Refused]),
    (
        "/v1%c0%aflogin",
        "decoders of UTF-8 that take overlong forms: IIS 5, old Java",
        [Refused, Refused, Refused, Refused],
    ),
    ("/x/%c0%ae%c0%ae/v1/login", "the same", [Refused, Refused, Refused, Refused]),
    ("/v1%u002flogin", "IIS", [Refused, Refused, Refused, Refused]),
    ("/v1/login?x=/", "everybody", [Same, Same, Same, Same]),
    ("/V1/Login", "IIS; needs ignore_case on the route", [Other, Other, Other, Other]),
    ("/v1/loginx", "nobody", [Other, Other, Other, Other]),
    ("/v1/login/x", "nobody", [Other, Other, Other, Other]),
];

const SETTINGS: [&str; 4] =
    ["", "path_matching = \"exact\"", "escaped_slashes = \"keep\"", "escaped_slashes = \"decode\""];

/// `/v1/login` has a limit of one request a day, and other paths have none. All requests are forwarded.
fn routes(up: &Upstream, more: &str) -> String {
    let limit = "[limits.l]\nkey = \"global\"\nrates = [\"1/d\"]\n";
    let route = format!("[[routes]]\npath = \"/v1/login\"\nupstream = \"up\"\nlimits = [\"l\"]\n{more}\n");
    format!("{limit}{}{route}", up.everything())
}

#[test]
fn every_spelling_is_limited_or_refused() {
    let up = Upstream::start(|_| reply(200, ""));
    let mut wrong = Vec::new();
    for (at, server) in SETTINGS.iter().enumerate() {
        let gateway = Gateway::with_server(server, &routes(&up, ""));
        assert_eq!(gateway.client().get("/v1/login").status, 200);
        for (path, who, fates) in SPELLINGS {
            let seen = up.received().len();
            let status = gateway.client().get(path).status;
            let expected = match fates[at] {
                Same => 429,
                Refused => 400,
                Other => 200,
            };
            let forwarded = up.received().len() - seen;
            if status != expected || forwarded != usize::from(expected == 200) {
                wrong.push(format!(
                    "{path} ({who}) with {server:?}: {status} instead of {expected}, {forwarded} sent on"
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What clients send although it should be escaped, its escape, and whether the library of HTTP/2 accepts it, in a path and in a
/// query.
const UNESCAPED: &[(&[u8], &str, [bool; 2])] = &[
    (b"\"", "%22", [true, false]),
    (b"<", "%3C", [false, false]),
    (b">", "%3E", [false, false]),
    (b"^", "%5E", [true, true]),
    (b"`", "%60", [false, true]),
    (b"{", "%7B", [true, true]),
    (b"|", "%7C", [true, true]),
    (b"}", "%7D", [true, true]),
    ("\u{e9}".as_bytes(), "%C3%A9", [true, true]),
    (b"\xe9", "%E9", [false, false]),
];

fn targets(text: &[u8], escape: &str) -> [Vec<u8>; 2] {
    let around = [("/p/", "x"), ("/q?q=", "&n=")];
    around.map(|(before, after)| [before.as_bytes(), text, after.as_bytes(), &escape.as_bytes()[1..]].concat())
}

#[test]
fn what_should_be_escaped_counts_as_its_escape_everywhere() {
    let up = Upstream::start(|_| reply(200, ""));
    let limit = "[limits.l]\nkey = [\"path\", \"query:q\"]\nrates = [\"4/d\"]\nmissing = \"shared\"\n";
    let route = "[[routes]]\npath = \"/*\"\nupstream = \"up\"\nlimits = [\"l\"]\n";
    let decisions = "[decisions]\nlisten = \"127.0.0.1:0\"\n";
    let gateway = Gateway::start(&format!("{decisions}{limit}{}{route}", up.section()));
    let ask = |address, start: &[u8], fields: &[u8]| {
        let mut client = crate::harness::Client::connect(address);
        client.call([b"GET ", start, b" HTTP/1.1\r\nHost: a\r\n", fields, b"\r\n"].concat()).status
    };
    for (text, escape, in_http2) in UNESCAPED {
        let plain = targets(escape.as_bytes(), escape);
        for (place, target) in targets(text, escape).into_iter().enumerate() {
            let what = String::from_utf8_lossy(&target).into_owned();
            assert_eq!(ask(gateway.http, &target, b""), 200, "{what}");
            let field = [b"X-Original-URI: ", &target[..], b"\r\n"].concat();
            assert_eq!(ask(gateway.decisions(), b"/", &field), 200, "asked about {what}");
            let mut http2 = RawHttp2::connect(gateway.http, &[]);
            let fields: [(&[u8], &[u8]); 4] =
                [(b":method", b"GET"), (b":scheme", b"http"), (b":authority", b"a"), (b":path", &target)];
            http2.send(&headers(1, END_STREAM, &fields)).unwrap();
            assert_eq!(http2.reaction(1) == Reaction::Status(200), in_http2[place], "{what} in HTTP/2");
            let left = 4 - 2 - usize::from(in_http2[place]);
            for _ in 0..left {
                assert_eq!(ask(gateway.http, &plain[place], b""), 200, "the escape of {what}");
            }
            assert_eq!(ask(gateway.http, &plain[place], b""), 429, "the escape of {what}");
            assert_eq!(ask(gateway.http, &target, b""), 429, "{what}");
        }
    }
    // Servers get the written bytes if the library can hold them, and else escapes.
    let sent: Vec<_> = up.received().into_iter().map(|request| request.target).collect();
    for target in ["/p/{x7B", "/q?q=%3C&n=3C", "/p/%E9xE9", "/q?q=%22&n=22"] {
        assert!(sent.iter().any(|sent| sent == target), "{target} in {sent:?}");
    }
}

#[test]
fn a_fragment_is_refused_or_not_there() {
    let up = Upstream::start(|request| reply(200, &request.target));
    let gateway = Gateway::start(&format!("[decisions]\nlisten = \"127.0.0.1:0\"\n{}", up.everything()));
    for target in ["/k#f", "/k?q#f", "/#", "http://test.example/k#f"] {
        gateway.client().get(target).expect_problem(400);
    }
    let mut asker = crate::harness::Client::connect(gateway.decisions());
    asker.get_with("/", "X-Original-URI: /k#f\r\n").expect_problem(400);
    assert!(up.received().is_empty(), "{:?}", up.received());
    // After the handshake of another protocol, anything may follow.
    let upgrading = "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n";
    assert_eq!(gateway.client().call(upgrading).text(), "/");
}

#[test]
fn the_upstream_gets_the_path_that_was_matched() {
    let up = Upstream::start(|request| reply(200, &request.target));
    let strip = "[[routes]]\npath = \"/s/*\"\nupstream = \"up\"\nstrip_prefix = \"/s\"\n";
    for (server, cases) in [
        (
            "",
            &[
                // The upstream gets the path as the client wrote it, and applies its own rules.
                ("/a/b/", "/a/b/"),
                ("/a;x=1/b;y", "/a;x=1/b;y"),
                ("/a//b?c//d", "/a//b?c//d"),
                ("/%61/%C3%A9?%2F", "/%61/%C3%A9?%2F"),
                // PHP's parse_url and new URL() of Node.js read two slashes at the beginning as a host.
                ("//v1/login2", "/v1/login2"),
                ("///x?y", "/x?y"),
                ("/s//x/login", "/x/login"),
                ("/s;a/x", "/x"),
                ("/;a/s/x", "/x"),
                ("/s", "/"),
                ("/s/", "/"),
                ("/s?q", "/?q"),
            ][..],
        ),
        ("escaped_slashes = \"keep\"", &[("/a%2Fb", "/a%2Fb"), ("/s%2Fa", "/s%2Fa"), ("/s/a%5cb", "/a%5cb")]),
        (
            "escaped_slashes = \"decode\"",
            &[
                ("/a%2Fb", "/a/b"),
                ("/a%5cb\\c", "/a/b/c"),
                ("/s%2Fx?%2F", "/x?%2F"),
                ("/%2fx/login", "/x/login"),
                ("/s%2f%2fx", "/x"),
                ("/plain%20", "/plain%20"),
            ],
        ),
    ] {
        let gateway = Gateway::with_server(server, &(up.everything() + strip));
        let mut client = gateway.client();
        for (path, forwarded) in cases {
            let response = client.get(path);
            assert_eq!((response.status, response.text()), (200, *forwarded), "{path} with {server:?}");
        }
    }
}

#[test]
fn the_case_of_a_path_can_be_ignored() {
    let up = Upstream::start(|_| reply(200, ""));
    let gateway = Gateway::start(&routes(&up, "ignore_case = true"));
    assert_eq!(gateway.client().get("/V1/login").status, 200);
    for path in ["/v1/login", "/V1/LOGIN", "/v1/%4Cogin", "/V1/Login/", "/V1;A/login"] {
        assert_eq!(gateway.client().get(path).status, 429, "{path}");
    }
    assert_eq!(gateway.client().get("/v1/logins").status, 200);
}

#[test]
fn routes_may_differ_in_whether_they_ignore_case() {
    let route = |path: &str, more: &str, body: usize| {
        format!("[[routes]]\npath = \"{path}\"\n{more}\nrespond = {{ status = 200, body = \"{body}\" }}\n")
    };
    let gateway = Gateway::start(
        &[
            route("/v1/login", "ignore_case = true", 0),
            route("/v1/login", "", 1),
            route("/v1/{tenant}", "", 2),
            route("/V1/*", "", 3),
            route("/v1/Admin/{x}", "ignore_case = true", 4),
            route("/*", "", 5),
        ]
        .concat(),
    );
    let mut client = gateway.client();
    for (path, body) in [
        ("/v1/login", "1"),
        ("/v1/Login", "0"),
        ("/V1/login", "0"),
        ("/v1/other", "2"),
        ("/V1/other", "3"),
        ("/V1/admin/X", "4"),
        ("/v1/ADMIN/x", "4"),
        ("/v1/other/x", "5"),
    ] {
        assert_eq!(client.get(path).text(), body, "{path}");
    }
}

/// How many requests are admitted if each path gets one request, and each key may send one.
fn admitted(server: &str, route: &str, key: &str, paths: &[&str]) -> usize {
    let limit = format!("[limits.l]\nkey = \"{key}\"\nrates = [\"1/d\"]\n");
    let route = format!("[[routes]]\n{route}\nlimits = [\"l\"]\nrespond = {{ status = 200 }}\n");
    let gateway = Gateway::with_server(server, &(limit + &route));
    paths.iter().filter(|path| gateway.client().get(path).status == 200).count()
}

#[test]
fn spellings_of_a_path_share_their_counters() {
    let spellings = ["/t/acme", "/t/acme/", "/t/acme;x", "/t;x/acme", "/t/%61cme", "//t//acme", "/t/acme%3B1"];
    for key in ["path", "path:tenant"] {
        let route = "path = \"/t/{tenant}\"";
        assert_eq!(admitted("", route, key, &spellings), 1, "{key}");
        let cased = ["/t/acme", "/T/acme", "/t/ACME", "/t/Acme/", "/t/%41cme"];
        assert_eq!(admitted("", &format!("{route}\nignore_case = true"), key, &cased), 1, "{key}");
        assert_eq!(admitted("", route, key, &["/t/acme", "/t/Acme"]), 2, "{key}");
    }
    let slashes = ["/t/a%2Fb", "/t/a%2fb", "/t/a"];
    assert_eq!(admitted("escaped_slashes = \"keep\"", "path = \"/t/{tenant}\"", "path:tenant", &slashes), 2);
    // With exact matching they are other paths, as they are for the upstream.
    let exact = ["/t/acme", "/t/acme/", "/t/acme;x", "/t/%61cme"];
    assert_eq!(admitted("path_matching = \"exact\"", "path = \"/t/*\"", "path", &exact), 3);
}

#[test]
fn a_final_slash_can_have_a_route_of_its_own() {
    let route =
        |path: &str| format!("[[routes]]\npath = \"{path}\"\nrespond = {{ status = 200, body = \"{path}\" }}\n");
    let gateway = Gateway::start(&["/docs", "/docs/", "/docs/*", "/only/", "/x/*"].map(route).concat());
    let mut client = gateway.client();
    for (path, taken) in [
        ("/docs", "/docs"),
        ("/docs/", "/docs/"),
        ("/docs/a", "/docs/*"),
        ("/only/", "/only/"),
        ("/only", "/only/"),
        ("/x", "/x/*"),
        ("/x/", "/x/*"),
    ] {
        assert_eq!(client.get(path).text(), taken, "{path}");
    }
}

#[test]
fn the_rules_for_paths_change_on_reload() {
    let up = Upstream::start(|_| reply(200, ""));
    let gateway = Gateway::start(&routes(&up, ""));
    assert_eq!([0; 2].map(|_| gateway.client().get("/v1/login/").status), [200, 429]);
    assert_eq!(gateway.client().get("/v1%2Flogin").status, 400);
    gateway.reload("path_matching = \"exact\"\nescaped_slashes = \"keep\"", &routes(&up, ""));
    gateway.wait_message("reloaded");
    assert_eq!([0; 2].map(|_| gateway.client().get("/v1/login/").status), [200, 200]);
    assert_eq!(gateway.client().get("/v1%2Flogin").status, 200);
}

#[test]
fn explain_reads_paths_as_the_gateway_does() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gateway.toml");
    let limit = "[limits.l]\nkey = \"path\"\nrates = [\"1/d\"]\n";
    let route = "[[routes]]\npath = \"/v1/login\"\nignore_case = true\nlimits = [\"l\"]\nrespond = { status = 200 }\n";
    std::fs::write(&file, limit.to_owned() + route).unwrap();
    let explain = |target: &str| run(&["explain", "--config", file.to_str().unwrap(), target]);
    let output = explain("http://a/V1;x/Login/");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("route /v1/login") && text.contains("\"/v1/login\" from path"), "{text}");
    let output = explain("http://a/v1%2Flogin");
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && text.contains("400") && text.contains("encoded slash"), "{text}");
}
