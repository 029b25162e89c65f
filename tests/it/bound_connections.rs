//! Servers that authenticate a connection instead of a request, as with NTLM and Negotiate: no other client gets such a
//! connection.

use bytes::Bytes;
use h2::server::Builder;
use http::{Response, StatusCode};

use crate::harness::http2_server::Http2Server;
use crate::harness::{Client, Gateway, Upstream};

/// A connection belongs to a client once `NTLM 3` or `Negotiate` has come with a name.
fn authenticating() -> Upstream {
    Upstream::raw(|mut wire, _| {
        let mut user = String::new();
        while let Ok(Some((_, headers))) = wire.head() {
            let credentials = headers.get("authorization").unwrap_or_default();
            let (scheme, rest) = credentials.split_once(' ').unwrap_or(("NTLM", ""));
            let challenge = match (scheme, rest.split_once(' ').unwrap_or((rest, ""))) {
                ("NTLM", ("3", name)) | ("Negotiate", (name, _)) => {
                    name.clone_into(&mut user);
                    ""
                }
                ("NTLM", ("1", _)) => "NTLM 2",
                _ if user.is_empty() => "NTLM",
                _ => "",
            };
            let status = if challenge.is_empty() { "200 OK" } else { "401 Unauthorized\r\nWWW-Authenticate: " };
            let length = user.len();
            let answer = format!("HTTP/1.1 {status}{challenge}\r\nContent-Length: {length}\r\n\r\n{user}");
            if wire.write(answer.as_bytes()).is_err() {
                return;
            }
        }
    })
}

fn ask(client: &mut Client, fields: &str) -> (u16, String) {
    let response = client.get_with("/a", fields);
    (response.status, response.text().to_owned())
}

fn steps(client: &mut Client, more: &str, name: &str) -> Vec<u16> {
    let step = |step: &str| ask(client, &format!("{more}Authorization: NTLM {step}\r\n")).0;
    ["1 x".to_owned(), format!("3 {name}")].iter().map(String::as_str).map(step).collect()
}

#[test]
fn nobody_gets_a_connection_that_another_client_has_authenticated() {
    let up = authenticating();
    let gateway = Gateway::with_server("workers = 1", &up.everything());
    let (mut alice, mut bob) = (gateway.client(), gateway.client());
    assert_eq!(ask(&mut alice, "").0, 401);
    assert_eq!(steps(&mut alice, "", "alice"), [401, 200]);
    for _ in 0..3 {
        assert_eq!(ask(&mut alice, ""), (200, "alice".to_owned()), "it is still her connection");
        assert_eq!(ask(&mut bob, "").0, 401);
    }
    assert_eq!(steps(&mut bob, "", "bob"), [401, 200]);
    assert_eq!([&mut alice, &mut bob].map(|client| ask(client, "").1), ["alice", "bob"]);
    drop(alice);
    let mut carol = gateway.client();
    assert_eq!(ask(&mut carol, "").0, 401, "what was hers ends with her connection");
    assert_eq!(ask(&mut carol, "Authorization: Negotiate carol\r\n"), (200, "carol".to_owned()));
    let mut dave = gateway.client();
    assert_eq!(ask(&mut dave, "").0, 401, "one step is enough");
}

#[test]
fn a_connection_of_several_clients_authenticates_no_other_request() {
    let up = authenticating();
    let trusting = Gateway::with_server("workers = 1\ntrusted_proxies = [\"127.0.0.1\"]", &up.everything());
    let strange = Gateway::with_server("workers = 1", &up.everything());
    for (gateway, more) in [
        (&trusting, "X-Forwarded-For: 192.0.2.1\r\n"),
        (&strange, "Via: 1.1 front\r\n"),
        (&strange, "X-Forwarded-For: 192.0.2.1\r\n"),
    ] {
        let mut proxy = gateway.client();
        let negotiate = format!("{more}Authorization: Negotiate alice\r\n");
        assert_eq!(ask(&mut proxy, &negotiate), (200, "alice".to_owned()));
        assert_eq!(ask(&mut proxy, more).0, 401, "{more}");
        assert_eq!(ask(&mut gateway.client(), "").0, 401, "{more}");
    }
}

#[test]
fn a_shared_connection_of_http_2_carries_no_request_after_such_credentials() {
    let up = Http2Server::start(None, Builder::new(), |request, mut respond| async move {
        let mut response = Response::new(());
        if request.uri().path() == "/challenge" {
            *response.status_mut() = StatusCode::UNAUTHORIZED;
            response.headers_mut().insert("www-authenticate", "Negotiate".parse().unwrap());
        }
        let mut sender = respond.send_response(response, false).unwrap();
        let _ = sender.send_data(Bytes::new(), true);
    });
    let gateway = Gateway::with_server("workers = 1", &up.everything("http", ""));
    let mut client = gateway.client();
    for (path, fields, connections) in [
        ("/", "", 1),
        ("/", "Authorization: Basic YTpi\r\n", 1),
        ("/", "Authorization: Negotiate YII\r\n", 1),
        ("/", "", 2),
        ("/challenge", "", 2),
        ("/", "", 3),
        ("/", "", 3),
    ] {
        client.get_with(path, fields);
        assert_eq!(up.connections(), connections, "{path} {fields}");
    }
}
