//! Answers to challenges that gateways leave for each other in a shared store, and forged answers there.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use rustls::ClientConfig;

use crate::harness::acme::{AcmeMood, AcmeServer, certificate_in, everything, start};
use crate::harness::{Gateway, Server, Software, TlsClient, unix, until, unverified, with_each_server};

const SECRET: &str = "challenge_secret = \"one that nobody guesses\"";

/// Whether a handshake like that of an authority is answered.
fn is_answered(gateway: &Gateway, name: &str) -> bool {
    let mut config = ClientConfig::clone(&*unverified());
    config.alpn_protocols = vec![b"acme-tls/1".to_vec()];
    TlsClient::connect(gateway.https(), &Arc::new(config), name).is_ok()
}

fn note_name(name: &str) -> String {
    format!("gw#note:{}", blake3::hash(name.as_bytes()).to_hex())
}

fn note(shared: &Server, name: &str) -> Option<String> {
    shared.get(&note_name(name))
}

fn whoever_writes_into_the_store_is_not_believed(software: Software) {
    for more in ["", SECRET] {
        let (server, state, shared) = (AcmeServer::start(), tempfile::tempdir().unwrap(), software.start());
        let text = server.config(&["a.test", "b.test"], more, &(shared.store() + &everything()));
        // There is an account, and the gateway's own note.
        server.set(AcmeMood::Looks);
        let gateway = start(state.path(), &text);
        until("the gateway leaves its answers", Duration::from_secs(30), || {
            ["a.test", "b.test"].iter().all(|name| note(&shared, name).is_some_and(|note| note.contains('.')))
        });
        let own = note(&shared, "b.test").unwrap();
        drop(gateway);
        server.set(AcmeMood::Says(403, "", "no"));
        let gateway = start(state.path(), &text);
        gateway.wait_message("cannot get a certificate: TLS handshakes for these names fail");
        let until_then = unix().as_secs() + 300;
        let code = "0".repeat(64);
        for forged in [
            "token.thumbprint".to_owned(),
            format!("{until_then} token.thumbprint {code}"),
            // The note of another name, and a note with a later end.
            own.clone(),
            format!("{until_then} {}", own.split_once(' ').unwrap().1),
        ] {
            // The gateway remembers a note for a second.
            shared.set(&note_name("a.test"), &forged);
            let asked = shared.lookups();
            until("the note is read", Duration::from_secs(20), || {
                assert!(!is_answered(&gateway, "a.test"), "{more:?} {forged}");
                shared.lookups() > asked
            });
        }
        assert_eq!(gateway.metric("gateway_acme_challenges_total{result=\"answered\"}"), Some(0.0));
    }
}

fn no_note_in_the_store_keeps_a_gateway_from_ordering(software: Software) {
    for (more, forged) in [("", ""), (SECRET, ""), (SECRET, "9999999999 - 00"), (SECRET, "token.thumbprint")] {
        let (server, state, shared) = (AcmeServer::start(), tempfile::tempdir().unwrap(), software.start());
        // Nothing ends the forged note.
        shared.set(&note_name("a.test"), forged);
        let gateway = start(state.path(), &server.config(&["a.test"], more, &(shared.store() + &everything())));
        server.wait_orders(1);
        has_ordered(&gateway);
        assert_eq!(note(&shared, "a.test"), None, "it is taken back");
    }
}

const OK: &str = "gateway_acme_orders_total{result=\"ok\"}";
const IS_ORDERED: &str = "a certificate is ordered";
const ANOTHER_ORDERS: &str = "another gateway that shares the store is ordering a certificate";

/// Starts a gateway that has left its answer for `a.test` in the store, and waits for the authority.
fn start_within_an_order(server: &AcmeServer, state: &Path, shared: &Server, text: &str) -> Gateway {
    server.set(AcmeMood::Looks);
    let gateway = start(state, text);
    let left = || note(shared, "a.test").is_some_and(|note| note.contains('.'));
    until("the answer is left", Duration::from_secs(30), left);
    gateway
}

#[track_caller]
fn has_ordered(gateway: &Gateway) {
    until("there is a certificate", Duration::from_secs(30), || gateway.metric(OK) == Some(1.0));
}

fn count(gateway: &Gateway, message: &str) -> usize {
    let message = format!("\"message\":\"{message}\"");
    gateway.log().iter().filter(|line| line.contains(&message)).count()
}

fn a_gateway_that_ends_within_an_order_orders_again_at_its_start(software: Software) {
    for is_killed in [true, false] {
        let (server, state, shared) = (AcmeServer::start(), tempfile::tempdir().unwrap(), software.start());
        let text = server.config(&["a.test", "b.test"], SECRET, &(shared.store() + &everything()));
        let mut gateway = start_within_an_order(&server, state.path(), &shared, &text);
        if !is_killed {
            gateway.signal(Signal::TERM);
            gateway.wait_exit();
        }
        drop(gateway);
        server.set(AcmeMood::Issues);
        let gateway = start(state.path(), &text);
        has_ordered(&gateway);
        gateway.wait_message(IS_ORDERED);
        assert_eq!((count(&gateway, IS_ORDERED), count(&gateway, ANOTHER_ORDERS)), (1, 0));
        until("it is taken back", Duration::from_secs(30), || note(&shared, "a.test").is_none());
    }
}

fn a_reload_within_an_order_orders_at_once(software: Software) {
    let (server, other, shared) = (AcmeServer::start(), AcmeServer::start(), software.start());
    let rest = shared.store() + &everything();
    let text = |server: &AcmeServer, names: &[&str]| server.config(names, SECRET, &rest);
    for (next, names) in [(&server, &["a.test", "b.test"][..]), (&other, &["a.test"]), (&server, &["b.test"])] {
        let state = tempfile::tempdir().unwrap();
        other.set(AcmeMood::Looks);
        let gateway = start_within_an_order(&server, state.path(), &shared, &text(&server, &["a.test"]));
        fs::write(state.path().join("gateway.toml"), text(next, names)).unwrap();
        gateway.signal(Signal::HUP);
        gateway.wait_message("reloaded");
        next.set(AcmeMood::Issues);
        has_ordered(&gateway);
        until("all is taken back", Duration::from_secs(30), || note(&shared, "a.test").is_none());
    }
}

fn a_gateway_with_a_copy_of_the_folder_of_another_one_waits_for_its_order(software: Software) {
    let (server, shared) = (AcmeServer::start(), software.start());
    let folders = tempfile::tempdir().unwrap();
    let [first, copy] = ["first", "copy"].map(|name| folders.path().join(name));
    fs::create_dir(&first).unwrap();
    let text = server.config(&["a.test"], SECRET, &(shared.store() + &everything()));
    let gateway = start(&first, &text);
    has_ordered(&gateway);
    drop(gateway);
    fs::remove_file(certificate_in(&first)).unwrap();
    assert!(Command::new("cp").arg("-a").args([&first, &copy]).status().unwrap().success());

    let first = start_within_an_order(&server, &first, &shared, &text);
    let second = start(&copy, &text);
    second.wait_message(ANOTHER_ORDERS);
    let asked = shared.lookups();
    until("it asks several times", Duration::from_secs(30), || shared.lookups() > asked + 3);
    assert_eq!(server.orders().len(), 2);
    server.set(AcmeMood::Issues);
    has_ordered(&first);
    has_ordered(&second);
    second.wait_message(IS_ORDERED);
    assert_eq!((count(&second, IS_ORDERED), count(&second, ANOTHER_ORDERS)), (1, 1));
}

fn gateways_with_one_secret_or_one_folder_answer_for_each_other(software: Software) {
    for (more, is_one_folder, is_known) in [(SECRET, false, true), ("", true, true), ("", false, false)] {
        let (server, shared) = (AcmeServer::start(), software.start());
        let states = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let rest = shared.store() + &everything();
        server.set(AcmeMood::Looks);
        let first = start(states[0].path(), &server.config(&["a.test"], more, &rest));
        server.wait_orders(1);
        let left = || note(&shared, "a.test").is_some_and(|note| note.contains('.'));
        until("the answer is left", Duration::from_secs(30), left);
        let folder = &states[usize::from(!is_one_folder)];
        // Without a secret the second gateway may order, too, and answers for itself. So its authority refuses its order,
        // which must leave the first one's answer in the store. The first one's authority must go on looking: the first one
        // takes its answer back when its order ends.
        let refusing = AcmeServer::start();
        refusing.set(AcmeMood::Says(403, "", "no"));
        let authority = if is_known { &server } else { &refusing };
        let second = start(folder.path(), &authority.config(&["a.test"], more, &rest));
        if is_known {
            until("the second one answers", Duration::from_secs(30), || is_answered(&second, "a.test"));
            assert_eq!(server.orders().len(), 1, "it waits for the first one");
        } else {
            second.wait_message("cannot get a certificate: TLS handshakes for these names fail");
            // The order has ended before that.
            assert!(left(), "the second one removes no answer of the first one");
            assert!(!is_answered(&second, "a.test"));
            second.wait_message(
                "an answer in the store is not trusted: no gateway with this state folder or challenge_secret left it",
            );
        }
        drop(first);
    }
}

with_each_server! {
    whoever_writes_into_the_store_is_not_believed
    no_note_in_the_store_keeps_a_gateway_from_ordering
    a_gateway_that_ends_within_an_order_orders_again_at_its_start
    a_reload_within_an_order_orders_at_once
    a_gateway_with_a_copy_of_the_folder_of_another_one_waits_for_its_order
    gateways_with_one_secret_or_one_folder_answer_for_each_other
}
