//! Headers that belong to a connection, come too late, or could be forged: both protocols treat each alike, in both
//! directions and as a trailer, as docs/routes.md says.

use std::collections::{BTreeMap, BTreeSet};

use gateway::base::http::header_rules::{Rule, TABLE};
use h2::server::Builder;
use http::Response;

use crate::harness::http2_server::Http2Server;
use crate::harness::{Gateway, Upstream, reply};

#[test]
fn the_page_has_each_header_with_its_rules() {
    let page = include_str!("../../docs/routes.md").split("## Rules of names").nth(1).unwrap();
    let mut listed = BTreeMap::new();
    for row in page.lines().filter_map(|line| line.strip_prefix("| `")) {
        let [names, rules] = row.trim_end_matches(" |").split(" | ").collect::<Vec<_>>()[..] else { panic!("{row}") };
        for name in names.split('`').step_by(2) {
            let rules: BTreeSet<_> = rules.split(", ").map(str::to_owned).collect();
            assert_eq!(listed.insert(name.to_lowercase(), rules), None, "{name} is there twice");
        }
    }
    let table: BTreeMap<_, BTreeSet<_>> =
        TABLE.iter().map(|(name, rules)| ((*name).to_owned(), rules.iter().copied().map(words).collect())).collect();
    assert_eq!(listed, table);
    let explained = page.lines().filter_map(|line| line.strip_prefix("- **")?.split("**").next());
    assert_eq!(explained.map(str::to_owned).collect::<BTreeSet<_>>(), table.into_values().flatten().collect());
}

/// `HopByHop` is "hop by hop".
fn words(rule: Rule) -> String {
    let spaced: String =
        format!("{rule:?}").chars().flat_map(|c| [' ', c].into_iter().skip(usize::from(!c.is_uppercase()))).collect();
    spaced.trim().to_lowercase()
}

#[test]
fn the_settings_of_an_upgrade_are_not_forwarded() {
    let up = Upstream::start(|_| reply(200, ""));
    let gateway = Gateway::start(&up.everything());
    assert_eq!(gateway.client().get_with("/", "HTTP2-Settings: AAMAAABk\r\nX-End: 1\r\n").status, 200);
    let headers = &up.received()[0].headers;
    assert_eq!((headers.get("http2-settings"), headers.get("x-end")), (None, Some("1")));
}

#[test]
fn a_response_has_no_header_of_the_upstreams_connection() {
    let up = Upstream::start(|_| {
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nTE: trailers\r\nHTTP2-Settings: x\r\nX-End: 1\r\n\r\n".to_vec()
    });
    let over_http2 = Http2Server::start(None, Builder::new(), |_, mut respond| async move {
        let response = Response::builder().header("te", "trailers").header("http2-settings", "x").header("x-end", "1");
        respond.send_response(response.body(()).unwrap(), true).unwrap();
    });
    for config in [up.everything(), over_http2.everything("http", "")] {
        let headers = Gateway::start(&config).client().get("/").headers;
        assert_eq!((headers.get("te"), headers.get("http2-settings"), headers.get("x-end")), (None, None, Some("1")));
    }
}

#[test]
fn a_client_of_http_1_gets_no_trailer_that_is_none() {
    let up = Upstream::start(|_| {
        let names =
            ["connection", "keep-alive", "upgrade", "x-hop", "content-type", "content-language", "range", "x-sum"];
        let trailers = names.map(|name| format!("{name}: 7\r\n")).concat();
        let head = format!("Connection: X-Hop\r\nTransfer-Encoding: chunked\r\nTrailer: {}", names.join(", "));
        format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n2\r\nok\r\n0\r\n{trailers}\r\n").into_bytes()
    });
    let gateway = Gateway::start(&up.everything());
    let mut client = gateway.client();
    for _ in 0..2 {
        let response = client.get_with("/", "TE: trailers\r\nConnection: TE\r\n");
        let trailers: Vec<_> = response.trailers.0.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!((response.text(), trailers), ("ok", vec!["x-sum"]));
    }
}

#[test]
fn a_certificate_is_never_forwarded_in_another_spelling() {
    let up = Upstream::start(|_| reply(200, ""));
    let gateway = Gateway::with_server("trusted_proxies = [\"127.0.0.1\"]", &up.everything());
    gateway.client().get_with("/", "X-Forwarded-Client-Cert: a\r\nX_Forwarded_Client_Cert: b\r\n");
    let headers = &up.received()[0].headers;
    assert_eq!(headers.joined("x-forwarded-client-cert"), "a");
    assert_eq!(headers.get("x_forwarded_client_cert"), None);
}
