//! Answers to challenges that gateways leave for each other in a shared store, and forged answers there.

use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;

use crate::harness::acme::{AcmeMood, AcmeServer, everything, start};
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
        // Without this, the gateway's claim would hold for some minutes.
        shared.flush();
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
        let ok = "gateway_acme_orders_total{result=\"ok\"}";
        until("there is a certificate", Duration::from_secs(30), || gateway.metric(ok) == Some(1.0));
        assert_eq!(note(&shared, "a.test"), None, "it is taken back");
    }
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
    gateways_with_one_secret_or_one_folder_answer_for_each_other
}
