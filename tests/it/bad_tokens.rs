//! Invalid tokens: the charge for their clients, and the bound on checks of signatures.

use std::fs;
use std::time::Duration;

use jsonwebtoken::Algorithm;
use tempfile::TempDir;

use crate::harness::{Client, Gateway, Signer, claims, every_store, key_set, until};

/// An issuer, a forger without its key, and a configuration with the issuer's keys.
struct Issuer {
    signer: Signer,
    forger: Signer,
    folder: TempDir,
}

impl Issuer {
    fn new() -> Self {
        let [signer, forger] = [(); 2].map(|()| Signer::new(Algorithm::ES256, "a"));
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("jwks.json"), key_set(&[&signer])).unwrap();
        Self { signer, forger, folder }
    }

    fn gateway(&self, store: &str, required: bool, limits: &str, names: &str) -> Gateway {
        let jwks = self.folder.path().join("jwks.json").display().to_string();
        Gateway::start(&format!(
            "{store}[jwt.site]\nissuer = \"https://login.test/\"\naudience = [\"api\"]\njwks = {jwks:?}\n\
             algorithms = [\"ES256\"]\nrequired = {required}\n{limits}\
             [[routes]]\npath = \"/*\"\nlimits = [{names}]\nrespond = {{ status = 200 }}\n"
        ))
    }
}

const PER_ADDRESS: &str = "[limits.per-address]\nkey = \"client-ip\"\nrates = [\"5/d\"]\n";
const PER_USER: &str = "[limits.per-user]\nkey = \"jwt:sub\"\nrates = [\"2/d\"]\n";

/// The status of a request with a token of this signer, and the limits in the response.
fn send(client: &mut Client, signer: &Signer, subject: &str) -> (u16, Option<String>) {
    let response = client.get_with("/", format!("Authorization: Bearer {}\r\n", signer.sign(&claims(subject))));
    (response.status, response.headers.get("ratelimit").map(str::to_owned))
}

fn wrong(gateway: &Gateway) -> Option<f64> {
    gateway.metric("gateway_jwt_tokens_total{jwt=\"site\",result=\"signature\"}")
}

fn decisions(gateway: &Gateway, limit: &str, decision: &str) -> Option<f64> {
    gateway.metric(&format!("gateway_limit_decisions_total{{limit=\"{limit}\",decision=\"{decision}\"}}"))
}

#[test]
fn wrong_tokens_above_the_limit_of_their_address_are_not_verified() {
    let issuer = Issuer::new();
    every_store(|store| {
        let gateway = issuer.gateway(store, true, &format!("{PER_ADDRESS}{PER_USER}"), "\"per-user\", \"per-address\"");
        let client = &mut gateway.client();
        for left in (0..5).rev() {
            let (status, told) = send(client, &issuer.forger, "eve");
            assert_eq!(status, 401);
            assert!(told.unwrap().starts_with(&format!("\"per-address\";r={left};")), "{store}");
        }
        assert_eq!(send(client, &issuer.forger, "eve").0, 429);
        let verified = wrong(&gateway);
        for subject in ["eve", "alice"] {
            for signer in [&issuer.forger, &issuer.signer] {
                let (status, told) = send(client, signer, subject);
                assert_eq!(status, 429);
                assert!(told.unwrap().starts_with("\"per-address\";r=0;"), "{store}");
            }
        }
        assert_eq!((wrong(&gateway), client.get("/").status), (verified, 429), "{store}");
        assert!(verified <= Some(6.0), "{verified:?}");
        assert_eq!(gateway.metric("gateway_jwt_tokens_total{jwt=\"site\",result=\"verified\"}"), Some(0.0), "{store}");
        assert_eq!(decisions(&gateway, "per-address", "admitted"), Some(5.0));
        assert_eq!(decisions(&gateway, "per-address", "rejected"), Some(6.0));
        assert_eq!(decisions(&gateway, "per-user", "admitted"), Some(0.0), "it was never asked");
    });
}

#[test]
fn a_wrong_token_is_not_verified_when_as_many_requests_are_held_as_may_be() {
    let issuer = Issuer::new();
    let per_address = "[limits.per-address]\nkey = \"client-ip\"\nrates = [\"2/m burst 1\"]\n\
                       strategy = \"token-bucket\"\non_limit = \"delay\"\nmax_delay = \"60s\"\nmax_delayed = 1\n";
    every_store(|store| {
        let limits = format!("{per_address}{PER_USER}");
        let gateway = issuer.gateway(store, true, &limits, "\"per-user\", \"per-address\"");
        let client = &mut gateway.client();
        assert_eq!(send(client, &issuer.forger, "eve").0, 401);
        let mut held = gateway.client();
        let token = issuer.forger.sign(&claims("eve"));
        held.send(format!("GET / HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {token}\r\n\r\n"));
        until("it is held", Duration::from_secs(10), || decisions(&gateway, "per-address", "delayed") == Some(1.0));
        assert_eq!(wrong(&gateway), Some(2.0), "a held request may pass");
        assert_eq!(send(client, &issuer.forger, "eve").0, 429, "{store}");
        assert_eq!(wrong(&gateway), Some(2.0), "{store}");
    });
}

#[test]
fn a_wrong_token_that_is_ignored_is_charged_whatever_other_limits_say() {
    let issuer = Issuer::new();
    let other = PER_USER.replace("jwt:sub", "jwt:sub | client-ip");
    every_store(|store| {
        let gateway = issuer.gateway(store, false, &format!("{PER_ADDRESS}{other}"), "\"per-user\", \"per-address\"");
        let client = &mut gateway.client();
        let statuses = [(); 5].map(|()| send(client, &issuer.forger, "eve").0);
        assert_eq!(statuses, [200, 200, 429, 429, 429]);
        assert_eq!(decisions(&gateway, "per-address", "admitted"), Some(5.0), "{store}");
        assert_eq!(send(client, &issuer.forger, "eve").0, 429);
        let verified = wrong(&gateway);
        let (status, told) = send(client, &issuer.forger, "eve");
        assert!(status == 429 && told.unwrap().starts_with("\"per-address\";r=0;"), "{store}");
        assert_eq!(wrong(&gateway), verified, "{store}");
    });
}

/// With an API key, such a limit charges requests with wrong tokens. Those without one share a counter.
#[test]
fn wrong_tokens_use_up_no_counter_that_clients_without_a_key_share() {
    let issuer = Issuer::new();
    for (key, required) in
        [("header:x-api-key", true), ("cookie:sid | global", true), ("header:x-api-key | path", false)]
    {
        let limits = format!("[limits.api]\nkey = {key:?}\nrates = [\"3/d\"]\n{PER_USER}")
            .replace("\"jwt:sub\"", "\"jwt:sub | client-ip\"");
        every_store(|store| {
            let gateway = issuer.gateway(store, required, &limits, "\"per-user\", \"api\"");
            let client = &mut gateway.client();
            let statuses = [(); 8].map(|()| send(client, &issuer.forger, "eve").0);
            let expected = if required { [401; 8] } else { [200, 200, 429, 429, 429, 429, 429, 429] };
            assert_eq!(statuses, expected, "{key}, {store}");
            assert_eq!(send(client, &issuer.signer, "alice").0, 200, "{key}, {store}");
            let charged = if required { 1.0 } else { 3.0 };
            assert_eq!(decisions(&gateway, "api", "admitted"), Some(charged), "{key}, {store}");
        });
    }
}

#[test]
fn a_valid_token_is_charged_by_all_limits_or_by_none() {
    let issuer = Issuer::new();
    every_store(|store| {
        let gateway = issuer.gateway(store, true, &format!("{PER_ADDRESS}{PER_USER}"), "\"per-user\", \"per-address\"");
        let client = &mut gateway.client();
        // Signatures differ each time, so none of these tokens was seen before.
        let statuses = [(); 4].map(|()| send(client, &issuer.signer, "alice").0);
        assert_eq!(statuses, [200, 200, 429, 429], "{store}");
        assert_eq!(decisions(&gateway, "per-address", "admitted"), Some(2.0), "{store}");
        let bob = format!("Authorization: Bearer {}\r\n", issuer.signer.sign(&claims("bob")));
        assert_eq!([(); 4].map(|()| client.get_with("/", &bob).status), [200, 200, 429, 429], "{store}");
        assert_eq!(decisions(&gateway, "per-address", "admitted"), Some(4.0), "{store}");
        assert_eq!(send(client, &issuer.signer, "carol").0, 200, "{store}");
        if store.contains("memcached") {
            assert_eq!(gateway.metric("gateway_store_decisions_total"), Some(9.0), "one for each request");
        }
    });
}
