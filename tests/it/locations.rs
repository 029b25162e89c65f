//! Redirects of applications that only know the name of their server.

use crate::harness::{Gateway, Upstream};

#[test]
fn a_location_of_the_server_becomes_one_of_the_client() {
    // The upstream redirects to the host of the request.
    let up = Upstream::start(|request| {
        let own = format!("http://{}", request.headers.must("host"));
        let location = request.target.trim_start_matches("/?").replace("OWN", &own);
        format!(
            "HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Location: {own}/here\r\nContent-Length: 0\r\n\r\n"
        )
        .into_bytes()
    });
    let text = |upstream: &str, route: &str| {
        format!(
            "[upstreams.u]\nservers = [\"http://{}\"]\n{upstream}\n[[routes]]\npath = \"/*\"\nupstream = \"u\"\n{route}\n",
            up.address()
        )
    };
    let own = format!("http://{}", up.address());
    let get = |gateway: &Gateway, target: &str| {
        let answer = gateway.client().call(format!("GET /?{target} HTTP/1.1\r\nHost: shop.example:81\r\n\r\n"));
        (answer.headers.must("location").to_owned(), answer.headers.must("content-location").to_owned())
    };
    let here = "http://shop.example:81/here".to_owned();
    let gateway = Gateway::start(&text("", ""));
    assert_eq!(get(&gateway, "OWN/login?a=b"), ("http://shop.example:81/login?a=b".to_owned(), here.clone()));
    for other in ["/login", "http://other.example/login", "//x/"] {
        assert_eq!(get(&gateway, other), (other.to_owned(), here.clone()));
    }
    for (upstream, route, is_rewritten) in [
        ("rewrite_location = false", "", false),
        ("rewrite_location = false", "rewrite_location = true", true),
        ("", "rewrite_location = false", false),
    ] {
        let gateway = Gateway::start(&text(upstream, route));
        let expected = if is_rewritten { "http://shop.example:81/x".to_owned() } else { format!("{own}/x") };
        assert_eq!(get(&gateway, "OWN/x").0, expected, "{upstream} {route}");
    }
    let gateway = Gateway::start(&text("", "preserve_host = true"));
    assert_eq!(get(&gateway, "OWN/x").0, "http://shop.example:81/x");
}
