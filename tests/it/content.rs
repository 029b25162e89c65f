//! The content type of bodies from the configuration.

use crate::harness::Gateway;

/// The content types of the answers of the route and the limit, both with this body and these keys.
fn kinds(body: &str, more: &str) -> [String; 2] {
    let more_of_limit = more.replace(", ", "\n");
    let gateway = Gateway::start(&format!(
        "[limits.l]\nkey = \"global\"\nrates = [\"1/d\"]\nbody = '{body}'\n{more_of_limit}\n
        [[routes]]\npath = \"/\"\nlimits = [\"l\"]\nrespond = {{ status = 200, body = '{body}'{more} }}\n"
    ));
    let mut client = gateway.client();
    [200, 429].map(|status| {
        let response = client.get("/");
        assert_eq!((response.status, response.text()), (status, body), "{response:?}");
        response.headers.must("content-type").to_owned()
    })
}

#[test]
fn json_is_recognised_and_everything_else_is_text() {
    for body in ["{\"error\": \"slow down\"}", "[]"] {
        assert_eq!(kinds(body, ""), ["application/json"; 2], "{body}");
    }
    for body in ["slow down", "429", "{slow: down}"] {
        assert_eq!(kinds(body, ""), ["text/plain; charset=utf-8"; 2], "{body}");
    }
}

#[test]
fn it_can_be_set() {
    let more = ", content_type = \"application/vnd.api+json\"";
    assert_eq!(kinds("{}", more), ["application/vnd.api+json"; 2]);
    assert_eq!(kinds("<p>", ", content_type = \"text/html; charset=utf-8\""), ["text/html; charset=utf-8"; 2]);
}

#[test]
fn a_silent_response_has_it_too() {
    let gateway = Gateway::start(
        "[limits.l]\nkey = \"global\"\nrates = [\"1/d\"]\non_limit = \"silent\"\nbody = '[]'\n
        [[routes]]\npath = \"/\"\nlimits = [\"l\"]\nrespond = { status = 200 }\n",
    );
    let mut client = gateway.client();
    client.get("/");
    assert_eq!(client.get("/").headers.must("content-type"), "application/json");
}
