//! Certificates of Pebble, a foreign authority that checks what it gets.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use rustls::ClientConfig;
use rustls::client::Resumption;

use crate::harness::acme::{everything, start};
use crate::harness::pebble::Pebble;
use crate::harness::{Gateway, Software, TlsClient, until};

const DAYS: u64 = 90 * 86_400;

/// The certificate for a name, after a request over TLS.
fn shown(gateway: &Gateway, client: &Arc<ClientConfig>, name: &str) -> Option<Vec<u8>> {
    // A ticket would skip the next look at the certificate.
    let mut config = ClientConfig::clone(client);
    config.resumption = Resumption::disabled();
    let mut client = TlsClient::connect(gateway.https(), &Arc::new(config), name).ok()?;
    assert!(client.get("/").unwrap().0.starts_with("HTTP/1.1 200"));
    Some(client.stream.conn.peer_certificates().unwrap()[0].to_vec())
}

#[track_caller]
fn serves(gateway: &Gateway, client: &Arc<ClientConfig>, name: &str) -> Vec<u8> {
    let mut found = None;
    until(&format!("{name} has a certificate"), Duration::from_secs(60), || {
        found = shown(gateway, client, name);
        found.is_some()
    });
    found.unwrap()
}

#[test]
#[ignore = "needs pebble and curl"]
fn both_challenges_convince_the_authority() {
    for challenge in ["tls-alpn-01", "http-01"] {
        let (pebble, state) = (Pebble::start(DAYS), tempfile::tempdir().unwrap());
        let more = format!("email = \"ops@a.test\"\nchallenge = \"{challenge}\"");
        let gateway = start(state.path(), &pebble.config(&["a.test", "b.test", "c.b.test"], &more, &everything()));
        let client = pebble.client();
        let certificates = ["a.test", "b.test", "c.b.test"].map(|name| serves(&gateway, &client, name));
        assert!(certificates.iter().all(|one| *one == certificates[0]), "one certificate for all names");
        assert!(gateway.metric("gateway_acme_challenges_total{result=\"answered\"}").unwrap() >= 3.0, "{challenge}");
        // More names need another certificate.
        let more = pebble.config(&["a.test", "d.test"], &more, &everything());
        fs::write(state.path().join("gateway.toml"), more).unwrap();
        gateway.signal(Signal::HUP);
        assert_eq!(serves(&gateway, &client, "d.test"), serves(&gateway, &client, "a.test"));
    }
}

#[test]
#[ignore = "needs pebble and curl"]
fn an_authority_that_loses_nonces_is_asked_again() {
    let (mut pebble, state) = (Pebble::start(DAYS), tempfile::tempdir().unwrap());
    pebble.end();
    pebble.run(&[("PEBBLE_WFE_NONCEREJECT", "25"), ("PEBBLE_AUTHZREUSE", "100")]);
    let gateway = start(state.path(), &pebble.config(&["a.test", "b.test"], "", &everything()));
    serves(&gateway, &pebble.client(), "a.test");
}

#[test]
#[ignore = "needs pebble and curl"]
fn a_certificate_is_renewed_before_it_ends_also_by_an_authority_that_was_away() {
    let (mut pebble, state) = (Pebble::start(30), tempfile::tempdir().unwrap());
    let gateway = start(state.path(), &pebble.config(&["a.test"], "", &everything()));
    let client = pebble.client();
    let first = serves(&gateway, &client, "a.test");
    until("it is renewed", Duration::from_secs(60), || shown(&gateway, &client, "a.test").unwrap() != first);
    let second = serves(&gateway, &client, "a.test");
    pebble.end();
    let away = "\"reason\":\"away\"";
    until("it is to be renewed", Duration::from_secs(60), || gateway.log().iter().any(|line| line.contains(away)));
    assert_eq!(shown(&gateway, &client, "a.test").unwrap(), second);
    // The authority comes back, and knows neither the account nor its own root.
    pebble.run(&[]);
    let client = pebble.client();
    serves(&gateway, &client, "a.test");
}

#[test]
#[ignore = "needs pebble and curl"]
fn any_gateway_that_shares_the_store_answers_the_authority() {
    for challenge in ["tls-alpn-01", "http-01"] {
        let (pebble, memcached) = (Pebble::start(DAYS), Software::Memcached.start());
        let states = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let more = format!("challenge = \"{challenge}\"\nchallenge_secret = \"sixteen letters!\"");
        let rest = memcached.store() + &everything();
        // The authority always asks the first gateway. Both order their own certificates.
        let first = start(states[0].path(), &pebble.config(&["a.test", "b.test"], &more, &rest));
        let second =
            start(states[1].path(), &pebble.config_at(&["a.test", "b.test"], &more, ["127.0.0.1:0"; 2], &rest));
        let client = pebble.client();
        assert_ne!(serves(&first, &client, "a.test"), serves(&second, &client, "a.test"), "{challenge}");
    }
}
