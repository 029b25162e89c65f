//! Bodies that are JSON arrays, such as batches of JSON-RPC: each item counts under its own key, in one decision.

use serde_json::json;

use crate::harness::{Client, Gateway, Response, every_store, run};

/// Requests for the tools of one client, on a route that answers itself.
fn config(store: &str, key: &str, rest: &str) -> String {
    format!(
        "{store}[limits.tools]\nkey = {key}\n{rest}\n\
         [[routes]]\npath = \"/*\"\nlimits = [\"tools\"]\nrespond = {{ status = 200 }}\n"
    )
}

const BY_NAME: &str = "\"json:/params/name\"";
const THREE: &str = "rates = [\"3/d\"]";

fn call(client: &mut Client, body: &str) -> Response {
    let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: ";
    client.call(format!("{head}{}\r\n\r\n{body}", body.len()))
}

fn batch(names: &[&str]) -> String {
    let calls = names.iter().enumerate();
    let calls = calls
        .map(|(id, name)| json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": { "name": name } }));
    calls.collect::<serde_json::Value>().to_string()
}

#[test]
fn each_item_counts_under_its_own_key() {
    every_store(|store| {
        let gateway = Gateway::start(&config(store, BY_NAME, THREE));
        let mut client = gateway.client();
        let mut status = |names: &[&str]| call(&mut client, &batch(names)).status;
        assert_eq!(status(&["a", "b", "a"]), 200, "{store}");
        assert_eq!([gateway.used("tools", "a"), gateway.used("tools", "b")], [2, 1], "{store}");
        assert_eq!(status(&["b", "a", "c", "a"]), 429, "all or nothing, {store}");
        assert_eq!(["a", "b", "c"].map(|name| gateway.used("tools", name)), [2, 1, 0], "{store}");
        assert_eq!([status(&["a"]), status(&["a"]), status(&["b"])], [200, 429, 200], "{store}");
        assert_eq!(status(&["b", "c"]), 200, "{store}");
    });
}

#[test]
fn a_batch_is_one_decision_of_what_does_not_fit_and_what_never_fits() {
    every_store(|store| {
        let gateway = Gateway::start(&config(store, BY_NAME, THREE));
        let mut client = gateway.client();
        call(&mut client, &batch(&["full"; 4])).expect_problem(413);
        assert_eq!(call(&mut client, &batch(&["full"; 3])).status, 200, "{store}");
        let refused = call(&mut client, &batch(&["other", "full"]));
        assert_eq!(refused.status, 429, "{store}");
        assert!(refused.headers.get("retry-after").is_some(), "{store}");
        assert_eq!(gateway.used("tools", "other"), 0, "{store}");
    });
}

#[test]
fn a_body_that_is_no_array_counts_as_before() {
    let gateway = Gateway::start(&config("", BY_NAME, THREE));
    let mut client = gateway.client();
    let one = r#"{"params": {"name": "a"}, "list": [{"params": {"name": "b"}}]}"#;
    assert_eq!(call(&mut client, one).status, 200);
    assert_eq!(call(&mut client, &format!("[{one}]")).status, 200);
    assert_eq!([gateway.used("tools", "a"), gateway.used("tools", "b")], [2, 0]);
    assert_eq!(call(&mut client, "[]").status, 200, "nothing of it has a key");
    assert_eq!(
        call(&mut client, &format!("[[{one}], {one}]")).status,
        200,
        "what is in an item that is an array is no key"
    );
    assert_eq!(gateway.used("tools", "a"), 3);
}

#[test]
fn an_item_without_a_key_is_treated_as_a_request_without_one() {
    let without = r#"[{"params": {"name": "a"}}, {"params": {}}, 7, null]"#;
    for (missing, statuses, used) in
        [("skip", [200, 200, 200, 429], 3), ("reject", [400, 400, 400, 400], 0), ("shared", [200, 429, 429, 429], 1)]
    {
        let gateway = Gateway::start(&config("", BY_NAME, &format!("{THREE}\nmissing = {missing:?}")));
        let mut client = gateway.client();
        assert_eq!([(); 4].map(|()| call(&mut client, without).status), statuses, "{missing}");
        assert_eq!(gateway.used("tools", "a"), used, "{missing}");
    }
}

#[test]
fn no_spelling_of_a_batch_hides_an_item() {
    let gateway = Gateway::start(&config("", BY_NAME, "rates = [\"1/d\"]"));
    let mut client = gateway.client();
    assert_eq!(call(&mut client, r#"{"params": {"name": "a"}}"#).status, 200);
    for body in [
        r#"[{"params": {"name": "b"}}, {"params": {"name": "a"}}]"#,
        r#" [ {"PARAMS": {"n\u0061me": "a"}} ] "#,
        "\u{feff}[{\"params\": {\"name\": \"a\"}}]",
        r#"[{}, {"params": {"name": "a"}}]"#,
    ] {
        assert_eq!(call(&mut client, body).status, 429, "{body}");
    }
    for (body, status) in [
        (r#"[{"params": {"name": "c", "name": "a"}}]"#, 400),
        (r#"[{"params": {"name": "c"}, "params": {"name": "a"}}]"#, 400),
        (r#"[{"params": {"name": "c"}}, {"params": {"name": "a"}}"#, 400),
        (r#"[{"params": {"name": "c"}}] [{"params": {"name": "a"}}]"#, 400),
        (r#"[{"params": {"name": NaN}}, {"params": {"name": "c"}},]"#, 400),
    ] {
        call(&mut client, body).expect_problem(status);
    }
    assert_eq!(gateway.used("tools", "c"), 0);
}

#[test]
fn a_batch_with_too_many_keys_or_items_is_refused() {
    let gateway = Gateway::start(&config("", BY_NAME, "rates = [\"5000/d\"]"));
    let mut client = gateway.client();
    let names: Vec<String> = (0..65).map(|number| format!("tool-{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    call(&mut client, &batch(&names)).expect_problem(413);
    assert_eq!(call(&mut client, &batch(&names[..64])).status, 200);
    assert_eq!(call(&mut client, &batch(&["a"; 1000])).status, 200);
    call(&mut client, &batch(&["a"; 1001])).expect_problem(413);
    assert_eq!(["a", "tool-0", "tool-64"].map(|name| gateway.used("tools", name)), [1000, 1, 0]);
}

#[test]
fn a_body_that_is_nested_too_deeply_is_refused_whatever_it_claims_to_be() {
    let deep = ["[".repeat(70_000), "]".repeat(70_000)].concat();
    let one = r#"{"params": {"name": "a"}}"#;
    for (key, rest) in [(BY_NAME, THREE), ("\"global\"", "rates = [\"3/d\"]\ncost = { elements = true }")] {
        let gateway = Gateway::start(&config("", key, rest));
        let mut client = gateway.client();
        for body in [
            format!(r#"{{"z": {deep}, "params": {{"name": "a"}}}}"#),
            format!(r#"{{"params": {{"name": "a"}}, "z": {deep}}}"#),
            format!("[{one}, {one}, {deep}]"),
        ] {
            for kind in ["application/json", "text/plain"] {
                let head = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Type: {kind}\r\n");
                let answer = client.call(format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()));
                answer.expect_problem(400);
                assert!(answer.text().contains("nested too deeply"), "{}", answer.text());
            }
        }
        assert_eq!(call(&mut client, one).status, 200, "nothing was counted");
    }
}

#[test]
fn each_item_costs_what_a_request_costs() {
    every_store(|store| {
        let gateway = Gateway::start(&config(store, BY_NAME, "rates = [\"10/d\"]\ncost = 2"));
        let mut client = gateway.client();
        assert_eq!(call(&mut client, &batch(&["a", "a", "b"])).status, 200, "{store}");
        assert_eq!([gateway.used("tools", "a"), gateway.used("tools", "b")], [4, 2], "{store}");
    });
}

#[test]
fn a_batch_costs_as_many_as_it_has_items() {
    every_store(|store| {
        let rest = "rates = [\"12/d\"]\ncost = { elements = true }";
        let gateway = Gateway::start(&config(store, "\"header:x-api-key\"\nmissing = \"shared\"", rest));
        let mut client = gateway.client();
        for (body, used) in [("{}", 1), ("[]", 2), ("[{}, {}, [1, 2]]", 5), ("", 6), ("not JSON", 6), ("[1, 2, 3]", 9)]
        {
            call(&mut client, body);
            assert_eq!(gateway.used("tools", ""), used, "{body}, {store}");
        }
        // A lenient server may read it, and its type does not say JSON.
        client.call("POST / HTTP/1.1\r\nHost: a\r\nContent-Type: text/plain\r\nContent-Length: 7\r\n\r\n[1, 2,]");
        assert_eq!(gateway.used("tools", ""), 11, "{store}");
        assert_eq!(call(&mut client, "[1, 2]").status, 429, "{store}");
        call(&mut client, &batch(&["a"; 13])).expect_problem(413);
        assert_eq!(gateway.used("tools", ""), 11, "{store}");
    });
}

#[test]
fn a_key_is_banned_for_its_items_in_batches() {
    let ban = "rates = [\"1/d\"]\nban = { after = 2, within = \"1m\", for = \"1h\" }";
    let gateway = Gateway::start(&config("", BY_NAME, ban));
    let mut client = gateway.client();
    let mut status = |names: &[&str]| call(&mut client, &batch(names)).status;
    assert_eq!(status(&["a", "b"]), 200);
    assert_eq!([(); 3].map(|()| status(&["c", "a"])), [429; 3]);
    assert_eq!([status(&["c"]), status(&["a"])], [200, 429]);
    assert_eq!(gateway.metric("gateway_bans_total{limit=\"tools\"}"), Some(1.0));
}

#[test]
fn what_an_item_lacks_comes_from_the_pool_of_its_client() {
    every_store(|store| {
        let gateway = Gateway::start(&format!(
            "{store}[limits.tools]\nkey = {BY_NAME}\n{THREE}\noverflow = \"pool\"\n\
             [limits.pool]\nkey = \"header:x-api-key\"\nrates = [\"2/d\"]\n\
             [[routes]]\npath = \"/*\"\nlimits = [\"tools\"]\nrespond = {{ status = 200 }}\n"
        ));
        let mut client = gateway.client();
        let mut status = |names: &[&str]| {
            let body = batch(names);
            let head =
                "POST / HTTP/1.1\r\nHost: a\r\nX-Api-Key: k\r\nContent-Type: application/json\r\nContent-Length: ";
            client.call(format!("{head}{}\r\n\r\n{body}", body.len())).status
        };
        assert_eq!(status(&["a", "a", "a"]), 200, "{store}");
        assert_eq!(status(&["a", "b"]), 200, "the pool takes what a lacks, {store}");
        assert_eq!([gateway.used("tools", "b"), gateway.used("pool", "k")], [1, 1], "{store}");
        assert_eq!(status(&["a", "a", "b"]), 429, "{store}");
        assert_eq!([gateway.used("tools", "b"), gateway.used("pool", "k")], [1, 1], "{store}");
        assert_eq!(status(&["b", "b", "c", "c", "c"]), 200, "{store}");
        assert_eq!(status(&["a", "b"]), 429, "the pool has room for one of them, {store}");
        assert_eq!(status(&["b"]), 200, "{store}");
        assert_eq!(gateway.used("pool", "k"), 2, "{store}");
    });
}

#[test]
fn names_that_some_servers_read_as_those_of_the_body_count_as_those() {
    let gateway = Gateway::start(&config("", "\"client-ip\"", "rates = [\"5/d\"]\ncost = { elements = true }"));
    let mut client = gateway.client();
    for (header, body, status) in [
        ("content_encoding: deflate", "x\u{9c}", 415),
        ("content.encoding: gzip", "\u{1f}x", 415),
        ("content_type: application/json", "[{a: 1}, {a: 2}]", 400),
        ("content_type: application/json", "[1, 2]", 200),
    ] {
        let head = format!("POST / HTTP/1.1\r\nHost: a\r\n{header}\r\nContent-Length: {}\r\n\r\n", body.len());
        assert_eq!(client.call(head + body).status, status, "{header} {body}");
    }
}

#[test]
fn items_of_other_tiers_have_counters_of_their_own() {
    let tiers = "tier = \"json:/plan\"\ntiers = { gold = { rates = [\"5/d\"] } }";
    let gateway = Gateway::start(&config("", "\"json:/user\"", &format!("rates = [\"1/d\"]\n{tiers}")));
    let mut client = gateway.client();
    let mut status = |body: &str| call(&mut client, body).status;
    assert_eq!(status(r#"[{"user": "u", "plan": "gold"}, {"user": "u"}, {"user": "u", "plan": "gold"}]"#), 200);
    assert_eq!(status(r#"[{"user": "u", "plan": "gold"}, {"user": "u"}]"#), 429);
    assert_eq!(status(&format!("[{}]", [r#"{"user": "u", "plan": "gold"}"#; 2].join(","))), 200);
    assert_eq!(status(r#"[{"user": "u", "plan": "gold"}]"#), 429);
}

#[test]
fn a_pointer_to_an_item_reads_the_array_as_one_document() {
    let gateway = Gateway::start(&config("", "\"json:/0/user\"", "rates = [\"1/d\"]"));
    let mut client = gateway.client();
    assert_eq!(call(&mut client, r#"[{"user": "a"}, {"user": "b"}]"#).status, 200);
    assert_eq!([gateway.used("tools", "a"), gateway.used("tools", "b")], [1, 0]);
}

#[test]
fn explain_names_the_key_of_each_item() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gateway.toml");
    std::fs::write(&file, config("", BY_NAME, THREE)).unwrap();
    let body = batch(&["a", "b", "a"]);
    let output = run(&["explain", "--config", file.to_str().unwrap(), "--show-keys", "-d", &body, "http://a/"]);
    let text = String::from_utf8(output.stdout).unwrap();
    for line in [
        r#"    key      "a" from json:/params/name"#,
        r#"    key      "b" from json:/params/name"#,
        "    cost     2",
        "    cost     1",
    ] {
        assert_eq!(text.lines().filter(|found| *found == line).count(), 1, "{line}\n{text}");
    }
}
