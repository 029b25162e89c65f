//! Routes that redirect or change response headers, and clients without TLS on TLS listeners.

use crate::harness::{Authority, Gateway, TlsClient, Upstream, curl, reply};

fn server(authority: &Authority) -> String {
    let site = authority.issue("site", "site", &["site.test"]).toml();
    let listen = "listen = [{ address = \"127.0.0.1:0\", tls = false }, { address = \"127.0.0.1:0\" }]";
    format!("{listen}\n[server.tls]\ncertificates = [{site}]\n")
}

const TO_HTTPS: &str = r#"
[[routes]]
path = "/*"
scheme = "http"
redirect = { to = "https://{host}{path}" }
"#;

#[test]
fn plain_http_is_sent_to_https_and_nothing_else_is() {
    let authority = Authority::new();
    let up = Upstream::start(|_| reply(200, "hello"));
    let rest = format!(
        "{}response_headers = {{ set = {{ strict-transport-security = \"max-age=31536000\" }} }}\n{TO_HTTPS}\
         response_headers = {{ set = {{ strict-transport-security = \"max-age=31536000\", x-a = \"b\" }} }}\n",
        up.everything()
    );
    let gateway = Gateway::with_server(&server(&authority), &rest);
    let mut client = gateway.client();
    for (target, location) in [
        ("/", "https://test.example/"),
        ("//evil.example/%41;a=1?q=%20&x", "https://test.example/evil.example/%41;a=1?q=%20&x"),
        ("http://test.example?q", "https://test.example/?q"),
    ] {
        let response = client.get(target);
        assert_eq!((response.status, response.headers.must("location")), (308, location), "{response:?}");
        assert_eq!(response.headers.must("x-a"), "b");
        assert_eq!(response.headers.get("strict-transport-security"), None, "browsers must not see it here");
    }
    let response = client.call("POST /a//b/;c=1?d HTTP/1.1\r\nHost: Test.Example:8080\r\nContent-Length: 2\r\n\r\nhi");
    assert_eq!(response.headers.must("location"), "https://test.example/a//b/;c=1?d");
    client.call("GET / HTTP/1.0\r\n\r\n").expect_problem(400);
    assert_eq!(up.connections(), 0);

    let mut client = TlsClient::connect(gateway.https(), &authority.client(None), "site.test").unwrap();
    let (head, body) = client.get("/").unwrap();
    assert!(head.contains("\r\nstrict-transport-security: max-age=31536000\r\n") && body == "hello", "{head}");
}

#[test]
fn a_trusted_proxy_says_whether_a_client_used_tls() {
    let up = Upstream::start(|_| reply(200, "hello"));
    let rest = format!("{}{TO_HTTPS}", up.everything());
    let by_forwarded = "Forwarded: for=192.0.2.1;proto=https\r\n";
    let contradicted = format!("{by_forwarded}X-Forwarded-Proto: http\r\n");
    for (trusted, fields, status) in [
        ("127.0.0.0/8", "X-Forwarded-Proto: https\r\n", 200),
        ("127.0.0.0/8", "X-Forwarded-Proto: HTTPS, http\r\n", 200),
        ("127.0.0.0/8", "X-Forwarded-Proto: http\r\n", 308),
        ("10.0.0.0/8", "X-Forwarded-Proto: https\r\n", 308),
        ("127.0.0.0/8", by_forwarded, 200),
        ("127.0.0.0/8", "Forwarded: for=192.0.2.1;proto=https, for=192.0.2.2;proto=http\r\n", 308),
        ("127.0.0.0/8", &contradicted, 308),
        ("10.0.0.0/8", by_forwarded, 308),
    ] {
        let gateway = Gateway::with_server(&format!("trusted_proxies = [{trusted:?}]"), &rest);
        let response = gateway.client().get_with("/", fields);
        assert_eq!(response.status, status, "{trusted} {fields}");
        if status == 200 {
            assert_eq!(
                up.received().pop().unwrap().headers.joined("x-forwarded-proto").to_lowercase().get(..5),
                Some("https"),
                "{fields}"
            );
        }
    }
}

#[test]
fn captures_are_put_in_and_limits_hold_before_the_redirect() {
    let gateway = Gateway::start(
        "[limits.l]\nkey = \"path:tenant\"\nrates = [\"2/h\"]\n[[routes]]\npath = \"/v1/{tenant}/*\"\nlimits = [\"l\"]\n\
         redirect = { to = \"/{tenant}/{rest}?from={path}\", status = 302 }\n\
         response_headers = { set = { cache-control = \"no-store\" }, remove = [\"ratelimit-policy\"] }\n",
    );
    let mut client = gateway.client();
    let response = client.get("/v1/ac%6de/x&y?q");
    assert_eq!((response.status, response.headers.must("location")), (302, "/acme/x&y?from=/v1/ac%256de/x%26y"));
    assert_eq!(
        client.get("/v1/acme//evil.example").headers.must("location"),
        "/acme/evil.example?from=/v1/acme//evil.example"
    );
    let refused = client.get("/v1/acme/x");
    refused.expect_problem(429);
    assert_eq!(refused.headers.must("cache-control"), "no-store");
    assert!(refused.headers.get("ratelimit").is_some() && refused.headers.get("ratelimit-policy").is_none());
    assert_eq!(client.get("/v1/other/x").status, 302);
}

#[test]
fn headers_of_responses_are_set_added_and_removed() {
    let up = Upstream::start(|_| {
        b"HTTP/1.1 200 OK\r\nServer: secret\r\nX-Frame-Options: ALLOW\r\nSet-Cookie: a=1\r\nContent-Length: 0\r\n\r\n"
            .to_vec()
    });
    let gateway = Gateway::start(&format!(
        "{}response_headers = {{ set = {{ X-Frame-Options = \"DENY\" }}, add = {{ set-cookie = \"b=2\" }}, \
         remove = [\"server\"] }}\n",
        up.everything()
    ));
    let response = gateway.client().get("/");
    assert_eq!(response.headers.joined("x-frame-options"), "DENY");
    assert_eq!(response.headers.joined("set-cookie"), "a=1, b=2");
    assert_eq!(response.headers.get("server"), None);
}

#[test]
#[ignore = "needs curl"]
fn plain_http_on_a_tls_port_is_told_so() {
    let authority = Authority::new();
    let gateway = Gateway::with_server(&server(&authority), TO_HTTPS);
    let url = format!("http://127.0.0.1:{}/", gateway.https().port());
    let output = curl(["--include", &url, "--data", &"x".repeat(100_000)]);
    let (answer, error) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("use https instead of http"), "{answer}{error}");
    gateway.wait_log("the refusal", |line| line["reason"] == "plain_http");
    assert_eq!(gateway.metric("gateway_tls_handshakes_total{result=\"failed\"}"), Some(1.0));
    TlsClient::connect(gateway.https(), &authority.client(None), "site.test").unwrap();
}
