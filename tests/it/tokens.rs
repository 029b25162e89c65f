//! Limits by the claims of tokens: which tokens count, where they are, and what happens without one.

use std::fs;
use std::path::Path;

use http::Request;
use jsonwebtoken::Algorithm;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{Client, Gateway, Signer, Upstream, claims, key_set, limited, over_http2, reply, run, unix};

fn file(signers: &[&Signer]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("jwks.json"), key_set(signers)).unwrap();
    folder
}

fn section(name: &str, folder: &Path, more: &str) -> String {
    let jwks = folder.join("jwks.json").display().to_string();
    format!("[jwt.{name}]\nissuer = \"https://login.test/\"\naudience = [\"api\"]\njwks = {jwks:?}\n{more}\n")
}

const ES256: &str = "algorithms = [\"ES256\"]";

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}\r\n")
}

fn with(mut claims: Value, name: &str, value: Value) -> Value {
    claims[name] = value;
    claims
}

fn statuses(client: &mut Client, fields: &str) -> [u16; 3] {
    [(); 3].map(|()| client.get_with("/", fields).status)
}

const FRESH: [u16; 3] = [200, 200, 429];
const USED: [u16; 3] = [429; 3];

#[test]
fn each_subject_has_a_counter_whatever_its_token_is() {
    let signer = Signer::new(Algorithm::ES256, "a");
    let folder = file(&[&signer]);
    let gateway = Gateway::start(&(section("site", folder.path(), ES256) + &limited("jwt:sub", "2/d", "")));
    let client = &mut gateway.client();
    assert_eq!(statuses(client, &bearer(&signer.sign(&claims("alice")))), FRESH);
    assert_eq!(statuses(client, &bearer(&signer.sign(&claims("bob")))), FRESH);
    let another = signer.sign(&with(claims("alice"), "jti", json!("2")));
    assert_eq!(statuses(client, &bearer(&another)), USED, "another token of the same subject");
    assert_eq!(statuses(client, ""), FRESH, "those without one share a counter");
    assert_eq!(statuses(client, &bearer("alice")), USED, "an invalid token is none");
    // Two valid tokens were verified on some worker, and then known.
    let text = gateway.admin("/metrics");
    let count = |result: &str| {
        let line = format!("gateway_jwt_tokens_total{{jwt=\"site\",result=\"{result}\"}} ");
        let found = text.text().lines().find_map(|found| found.strip_prefix(&line).map(str::to_owned));
        found.unwrap().parse::<u64>().unwrap()
    };
    assert_eq!([count("verified"), count("cached"), count("missing"), count("malformed")], [3, 6, 3, 3]);
    assert_eq!(gateway.metric("gateway_jwks_keys"), None, "nothing is fetched");
}

#[test]
fn every_algorithm_works_if_it_is_listed() {
    use Algorithm::{ES256, ES384, EdDSA, HS256, HS384, HS512, PS256, PS384, PS512, RS256, RS384, RS512};
    let all = [RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, EdDSA, HS256, HS384, HS512];
    let signers: Vec<_> = all.iter().map(|algorithm| Signer::new(*algorithm, &format!("{algorithm:?}"))).collect();
    let folder = file(&signers.iter().collect::<Vec<_>>());
    let names: Vec<_> = all.iter().map(|algorithm| format!("{algorithm:?}")).collect();
    let more = format!("required = true\nalgorithms = {names:?}");
    let limit = limited("jwt:sub", "1000/d", "");
    let gateway = Gateway::start(&(section("site", folder.path(), &more) + &limit));
    let client = &mut gateway.client();
    for (signer, algorithm) in signers.iter().zip(all) {
        let status = client.get_with("/", bearer(&signer.sign(&claims("alice")))).status;
        assert_eq!(status, 200, "{algorithm:?}");
    }
    let more = "required = true\nalgorithms = [\"PS256\"]";
    let gateway = Gateway::start(&(section("site", folder.path(), more) + &limit));
    let client = &mut gateway.client();
    for (signer, algorithm) in signers.iter().zip(all) {
        let status = client.get_with("/", bearer(&signer.sign(&claims("alice")))).status;
        assert_eq!(status, if algorithm == PS256 { 200 } else { 401 }, "{algorithm:?}");
    }
}

#[test]
fn a_required_token_is_asked_for_before_anything_is_charged() {
    let (signer, other) = (Signer::new(Algorithm::ES256, "a"), Signer::new(Algorithm::ES256, "a"));
    let folder = file(&[&signer]);
    let more = format!("{ES256}\nrequired = true");
    let limits = "[limits.l]\nkey = \"jwt:site:sub\"\nrates = [\"2/d\"]\n[limits.all]\nkey = \"global\"\nrates = [\"2/d\"]\n\
                  [[routes]]\npath = \"/*\"\nlimits = [\"all\", \"l\"]\nrespond = { status = 200 }\n\
                  [[routes]]\npath = \"/open\"\nlimits = [\"all\"]\nrespond = { status = 200 }\n";
    let gateway = Gateway::start(&(section("site", folder.path(), &more) + limits));
    let client = &mut gateway.client();
    let now = unix().as_secs();
    let (head, rest) =
        signer.sign(&claims("alice")).split_once('.').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    let none = "eyJhbGciOiJub25lIn0";
    for (token, detail) in [
        (other.sign(&claims("alice")), "The signature of the token is not valid."),
        (
            Signer::new(Algorithm::ES256, "b").sign(&claims("alice")),
            "The token is signed with a key that is not known.",
        ),
        (signer.sign(&with(claims("alice"), "exp", json!(now - 61))), "The token has expired."),
        (signer.sign(&with(claims("alice"), "nbf", json!(now + 120))), "The token is not valid yet."),
        (signer.sign(&with(claims("alice"), "iss", json!("https://other.test/"))), "The token is from an issuer"),
        (signer.sign(&with(claims("alice"), "aud", json!("web"))), "The token is for another audience."),
        (signer.confuse(Algorithm::HS256, &claims("alice")), "The token is signed with an algorithm"),
        (format!("{none}.{}.", rest.split_once('.').unwrap().0), "The token is not a signed JSON Web Token."),
        (head, "The token is not a signed JSON Web Token."),
    ] {
        let response = client.get_with("/", bearer(&token));
        response.expect_problem(401);
        assert_eq!(response.headers.must("www-authenticate"), "Bearer error=\"invalid_token\"");
        assert!(response.json()["detail"].as_str().unwrap().starts_with(detail), "{}", response.text());
        assert!(!gateway.log().concat().contains(&token), "a token is in the log");
    }
    let response = client.get("/");
    response.expect_problem(401);
    assert_eq!(response.headers.must("www-authenticate"), "Bearer");
    assert_eq!(client.get("/open").status, 200, "no limit of this route uses a token");
    assert_eq!(client.get_with("/", bearer(&signer.sign(&claims("alice")))).status, 200);
    assert_eq!(client.get_with("/", bearer(&signer.sign(&claims("alice")))).status, 429, "the others were not charged");
    assert_eq!(gateway.metric("gateway_request_failures_total"), Some(10.0));
    let line = gateway.wait_log("the refusal", |line| line["reason"] == "invalid_token");
    assert_eq!((&line["status"], &line["outcome"]), (&json!(401), &json!("refused")));
}

#[test]
fn browsers_may_ask_without_a_token_whether_they_may_send_one() {
    let signer = Signer::new(Algorithm::ES256, "a");
    let folder = file(&[&signer]);
    let limit = limited("jwt:sub", "2/d", "") + "cors = { origins = [\"https://a.test\"] }\n";
    let gateway = Gateway::start(&(section("site", folder.path(), &format!("{ES256}\nrequired = true")) + &limit));
    let client = &mut gateway.client();
    let ask = "OPTIONS / HTTP/1.1\r\nHost: a\r\nOrigin: https://a.test\r\nAccess-Control-Request-Method: GET\r\n\r\n";
    let page = "Origin: https://a.test\r\n";
    for (response, status) in [
        (client.call(ask), 204),
        (client.get_with("/", page), 401),
        (client.get_with("/", bearer(&signer.sign(&claims("alice"))) + page), 200),
    ] {
        let allowed = response.headers.get("access-control-allow-origin");
        assert_eq!((response.status, allowed), (status, Some("https://a.test")));
    }
}

#[test]
fn tokens_are_required_in_http_2_and_of_websockets_too() {
    let signer = Signer::new(Algorithm::ES256, "a");
    let folder = file(&[&signer]);
    let more = format!("{ES256}\nrequired = true\nfrom = \"cookie:sid\"");
    let gateway = Gateway::start(&(section("site", folder.path(), &more) + &limited("jwt:sub", "2/d", "")));
    let [alice, bob] = ["alice", "bob"].map(|subject| format!("sid={}", signer.sign(&claims(subject))));
    let forged = format!("{alice}x");
    let request = |cookies: &[&str]| {
        let request = Request::get("http://test.example/");
        cookies.iter().fold(request, |request, cookie| request.header("cookie", *cookie)).body(()).unwrap()
    };
    // HTTP/2 clients may send each cookie in its own line.
    let requests = [
        &[][..],
        &["a=1", &alice, "b=2"],
        &[&alice, "a=1", &bob],
        &[&alice, &forged],
        &[&forged],
        &[&alice],
        &["a=1; b=2", &alice],
    ];
    let answers = over_http2(gateway.http, requests.map(request).into());
    let statuses: Vec<_> = answers.iter().map(|(status, _)| *status).collect();
    assert_eq!(statuses, [401, 200, 400, 400, 401, 200, 429]);

    let handshake = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                     Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    for (fields, status) in
        [(String::new(), 401), (format!("Cookie: {forged}\r\n"), 401), (format!("Cookie: {alice}\r\n"), 429)]
    {
        assert_eq!(gateway.client().get_with("/", format!("{handshake}{fields}")).status, status, "{fields}");
    }
}

#[test]
fn a_token_in_a_header_or_a_cookie_must_be_there_once() {
    let signer = Signer::new(Algorithm::ES256, "a");
    let folder = file(&[&signer]);
    let (alice, bob) = (signer.sign(&claims("alice")), signer.sign(&claims("bob")));
    for (from, one, two) in [
        ("bearer", bearer(&alice), format!("{}{}", bearer(&alice), bearer(&bob))),
        ("header:x-token", format!("X-Token: {alice}\r\n"), format!("X-Token: {alice}\r\nX-Token: {bob}\r\n")),
        ("header:x-token", format!("X-Token:  {alice} \r\n"), format!("X-Token: {alice}\r\nX_Token: {bob}\r\n")),
        ("cookie:sid", format!("Cookie: a=b; sid={alice}\r\n"), format!("Cookie: sid={alice}; sid={bob}\r\n")),
    ] {
        let more = format!("{ES256}\nfrom = {from:?}");
        let limit = limited("jwt:site:sub", "2/d", "missing = \"reject\"");
        let gateway = Gateway::start(&(section("site", folder.path(), &more) + &limit));
        let client = &mut gateway.client();
        assert_eq!(statuses(client, &two), [400; 3], "{two}");
        assert_eq!(statuses(client, &one), FRESH, "{one}");
        assert_eq!(client.get("/").status, 400, "no key");
    }
}

#[test]
fn without_a_valid_token_the_next_source_counts() {
    let signer = Signer::new(Algorithm::ES256, "a");
    let folder = file(&[&signer]);
    let config = section("site", folder.path(), ES256) + &limited("jwt:https://login.test/id | client-ip", "2/d", "");
    let gateway = Gateway::start(&config);
    let client = &mut gateway.client();
    let token = |id: Value| signer.sign(&with(claims("alice"), "https://login.test/id", id));
    assert_eq!(statuses(client, &bearer(&token(json!(7)))), FRESH);
    assert_eq!(statuses(client, &bearer(&token(json!(["a"])))), FRESH, "by address");
    assert_eq!(statuses(client, &bearer(&token(json!("")))), USED, "by address");
    assert_eq!(statuses(client, &bearer(&signer.sign(&claims("alice")))), USED, "by address");
    assert_eq!(statuses(client, &bearer(&token(json!("8")))), FRESH);
}

#[test]
fn tiers_are_claims_that_clients_cannot_choose() {
    let (signer, other) = (Signer::new(Algorithm::ES256, "a"), Signer::new(Algorithm::ES256, "a"));
    let folder = file(&[&signer]);
    let tiers = "tier = \"jwt:plan\"\n[limits.l.tiers.gold]\nrates = [\"4/d\"]";
    let gateway = Gateway::start(&(section("site", folder.path(), ES256) + &limited("jwt:sub", "1/d", tiers)));
    let client = &mut gateway.client();
    let mut admitted = |token: String| (0..6).filter(|_| client.get_with("/", bearer(&token)).status == 200).count();
    assert_eq!(admitted(signer.sign(&with(claims("alice"), "plan", json!("gold")))), 4);
    assert_eq!(admitted(signer.sign(&with(claims("bob"), "plan", json!("silver")))), 1);
    assert_eq!(admitted(other.sign(&with(claims("eve"), "plan", json!("gold")))), 1);
}

#[test]
fn tokens_of_two_issuers_in_one_place_are_alternatives() {
    let (one, two) = (Signer::new(Algorithm::ES256, "a"), Signer::new(Algorithm::RS256, "a"));
    let (first, second) = (file(&[&one]), file(&[&two]));
    let site = section("site", first.path(), &format!("{ES256}\nrequired = true"));
    let staff = section("staff", second.path(), "algorithms = [\"RS256\"]\nrequired = true");
    let staff = staff.replace("login.test", "staff.test");
    let gateway = Gateway::start(&(site + &staff + &limited("jwt:site:sub | jwt:staff:sub", "2/d", "")));
    let client = &mut gateway.client();
    let of_staff = |subject| with(claims(subject), "iss", json!("https://staff.test/"));
    assert_eq!(statuses(client, &bearer(&one.sign(&claims("alice")))), FRESH);
    assert_eq!(statuses(client, &bearer(&two.sign(&of_staff("alice")))), FRESH, "another issuer's alice");
    assert_eq!(statuses(client, &bearer(&two.sign(&claims("alice")))), [401; 3]);
    assert_eq!(statuses(client, &bearer(&one.sign(&of_staff("alice")))), [401; 3]);
    assert_eq!(statuses(client, ""), [401; 3]);
}

#[test]
fn an_upstream_can_be_balanced_by_a_claim() {
    let signer = Signer::new(Algorithm::ES256, "a");
    let folder = file(&[&signer]);
    let servers: Vec<_> = (0..4).map(|number| Upstream::start(move |_| reply(200, &number.to_string()))).collect();
    let urls: Vec<_> = servers.iter().map(|server| format!("http://{}", server.address())).collect();
    let upstream = format!("[upstreams.up]\nservers = {urls:?}\nbalance = \"hash\"\nhash_key = \"jwt:sub\"\n");
    let route = "[[routes]]\npath = \"/*\"\nupstream = \"up\"\n";
    let more = format!("{ES256}\nrequired = true");
    let gateway = Gateway::start(&(section("site", folder.path(), &more) + &upstream + route));
    let client = &mut gateway.client();
    let mut server_of = |subject: &str| client.get_with("/", bearer(&signer.sign(&claims(subject)))).text().to_owned();
    let subjects: Vec<_> = (0..16).map(|number| format!("user {number}")).collect();
    let first: Vec<_> = subjects.iter().map(|subject| server_of(subject)).collect();
    let second: Vec<_> = subjects.iter().map(|subject| server_of(subject)).collect();
    assert_eq!(first, second);
    assert!(first.iter().any(|server| *server != first[0]), "all of them have the same server");
    assert_eq!(client.get("/").status, 401);
    // No limit counts by the token, but the token decides whether the request passes.
    let [alice, bob] = ["alice", "bob"].map(|subject| bearer(&signer.sign(&claims(subject))));
    assert_eq!(client.get_with("/", format!("{alice}{bob}")).status, 400, "the server could use the other one");
    assert_eq!(client.get_with("/", format!("{alice}Authorization: Basic YTpi\r\n")).status, 400);
}

#[test]
fn check_and_explain_say_what_is_believed() {
    let signer = Signer::new(Algorithm::ES256, "a");
    let folder = file(&[&signer]);
    let path = folder.path().join("gateway.toml");
    let write = |more: &str| {
        let config = section("site", Path::new(""), more) + &limited("jwt:sub", "2/d", "");
        fs::write(&path, config).unwrap();
    };
    write(ES256);
    let said = |arguments: &[&str]| {
        let output = run(&[arguments, &["--config", path.to_str().unwrap()]].concat());
        String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap()
    };
    let text = said(&["check"]);
    for line in [
        "from bearer, of the issuer https://login.test/, for the audience api",
        "on routes that use it, requests without a valid token have no key",
        "2/d per jwt:site:sub",
    ] {
        assert!(text.lines().any(|shown| shown.trim() == line), "no {line:?} in:\n{text}");
    }
    assert!(text.contains("signed with ES256; 1 key(s) in "), "{text}");
    let valid = format!("Authorization: Bearer {}", signer.sign(&claims("alice")));
    let text = said(&["explain", "-H", &valid, "/"]);
    assert!(text.contains("site  valid, from bearer") && text.contains("*** from jwt:site:sub"), "{text}");
    assert!(!text.contains("alice"), "{text}");
    assert!(said(&["explain", "--show-keys", "-H", &valid, "/"]).contains("\"alice\" from jwt:site:sub"));
    let old = signer.sign(&with(claims("alice"), "exp", json!(7)));
    let text = said(&["explain", "-H", &format!("Authorization: Bearer {old}"), "/"]);
    assert!(text.contains("site  not valid, from bearer: The token has expired."), "{text}");
    assert!(text.contains("none: all requests without a key share one counter"), "{text}");
    assert!(said(&["explain", "/"]).contains("site  none in bearer"));
    write(&format!("{ES256}\nrequired = true"));
    assert!(said(&["explain", "/"]).contains("answered 401 and counted by no limit: The request has no token."));
    assert!(said(&["check"]).contains("requests without a valid token are answered 401"));
    let both = limited("jwt:sub", "2/d", "").replace("[\"l\"]", "[\"l\", \"a\"]");
    let first = "[limits.a]\nkey = \"client-ip\"\nrates = [\"3/d\"]\n";
    fs::write(&path, section("site", Path::new(""), &format!("{ES256}\nrequired = true")) + first + &both).unwrap();
    let text = said(&["explain", "/"]);
    for part in [
        "limits that come before tokens, checked together\n  a\n",
        "with empty counters: answered 401: The request has no token.",
        "ratelimit: \"a\";r=2;t=",
    ] {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
    assert!(!text.contains("\n  l\n"), "{text}");
    let text = said(&["explain", "-H", &valid, "/"]);
    assert!(text.contains("limits, checked together\n  l\n") && text.contains("\n  a\n"), "{text}");
}
