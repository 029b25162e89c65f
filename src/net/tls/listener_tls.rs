//! What TLS listeners offer, and how a reload changes that. Open connections keep what they began with.
//!
//! A client is shown a certificate for the name that it asks for (RFC 6066, section 3), else the first one. An authority is
//! shown that the gateway answers for a name (tls-alpn-01, RFC 8737).

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwapOption;
use aws_lc_rs::digest::{SHA256, digest};
use parking_lot::Mutex;
use rcgen::{CertificateParams, CustomExtension, KeyPair};
use rustls::SignatureScheme;
use rustls::crypto::aws_lc_rs::Ticketer;
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::server::{ClientHello, NoServerSessionStorage, ProducesTickets, ResolvesServerCert, ServerConfig};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::{TLS12, TLS13};

use super::identity::Identity;
use super::trust::ClientAuth;
use super::{ALPN_HTTP1, ALPN_HTTP2, provider};
use crate::net::Traffic;

#[derive(Clone, Debug, PartialEq)]
pub struct TlsSettings {
    /// The first one is for clients that ask for none of the names.
    pub identities: Vec<Identity>,
    /// Names whose own certificate is awaited. They get no other one.
    pub awaited: Vec<String>,
    /// `None` asks for no certificate.
    pub client_auth: Option<ClientAuth>,
    pub min_version: MinVersion,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MinVersion {
    /// RFC 5246
    #[default]
    Tls12,
    /// RFC 8446
    Tls13,
}

/// One for each kind of [`Traffic`], and the admin listener.
const KINDS: usize = 3;
const ADMIN: usize = 2;

#[derive(Debug)]
pub struct ListenerTls {
    current: [ArcSwapOption<ServerConfig>; KINDS],
    /// `None` before the first settings with TLS.
    tickets: Mutex<[Option<Tickets>; KINDS]>,
    handshakes: AtomicU64,
    failed: AtomicU64,
}

/// What other settings need except certificates, which may change before it is applied. Nothing can fail afterwards.
#[derive(Debug)]
pub struct PreparedTls([Option<(ServerConfig, Tickets)>; KINDS]);

/// Session tickets (RFC 5077; RFC 8446, section 4.6.1). Their keys are only in this process, and change every six hours.
#[derive(Clone, Debug)]
struct Tickets {
    issuer: Arc<dyn ProducesTickets>,
    /// A ticket admits its client without another look at its certificate. So a ticket is valid only with the authorities
    /// for which it was issued.
    client_auth: Option<ClientAuth>,
}

impl ListenerTls {
    /// `None` for listeners without TLS.
    ///
    /// # Errors
    /// When the settings contradict what the ciphers can do.
    pub fn new(settings: [Option<&TlsSettings>; KINDS]) -> io::Result<Self> {
        let new = Self {
            current: [const { ArcSwapOption::const_empty() }; KINDS],
            tickets: Mutex::default(),
            handshakes: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        };
        new.apply(new.prepare(settings)?, settings);
        Ok(new)
    }

    /// Does all that can fail, and changes nothing.
    ///
    /// # Errors
    /// When the settings contradict what the ciphers can do.
    pub fn prepare(&self, settings: [Option<&TlsSettings>; KINDS]) -> io::Result<PreparedTls> {
        let mut prepared = [const { None }; KINDS];
        let current = self.tickets.lock().clone();
        for (kind, ((settings, current), prepared)) in settings.iter().zip(current).zip(&mut prepared).enumerate() {
            let Some(settings) = settings else { continue };
            // The admin API speaks only HTTP/1.1.
            let protocols: &[&[u8]] = if kind == ADMIN { &[ALPN_HTTP1] } else { &[ALPN_HTTP2, ALPN_HTTP1] };
            let tickets = match current.filter(|tickets| tickets.client_auth == settings.client_auth) {
                Some(tickets) => tickets,
                None => Tickets { issuer: ticket_issuer()?, client_auth: settings.client_auth.clone() },
            };
            *prepared = Some((server_config(settings, tickets.issuer.clone(), protocols)?, tickets));
        }
        Ok(PreparedTls(prepared))
    }

    /// Applies other settings to new connections. `settings` may have other certificates than those that were prepared.
    pub fn apply(&self, PreparedTls(prepared): PreparedTls, settings: [Option<&TlsSettings>; KINDS]) {
        let mut all_tickets = self.tickets.lock();
        for (kind, (prepared, settings)) in prepared.into_iter().zip(settings).enumerate() {
            let config = prepared.zip(settings).map(|((mut config, tickets), settings)| {
                config.cert_resolver = Arc::new(CertificateChoice::new(&settings.identities, &settings.awaited));
                all_tickets[kind] = Some(tickets);
                Arc::new(config)
            });
            self.current[kind].store(config);
        }
    }

    pub fn count<T>(&self, shaken: &io::Result<T>) {
        let count = if shaken.is_ok() { &self.handshakes } else { &self.failed };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// Succeeded and failed ones.
    pub fn handshakes(&self) -> (u64, u64) {
        (self.handshakes.load(Ordering::Relaxed), self.failed.load(Ordering::Relaxed))
    }

    pub fn current(&self, traffic: Traffic) -> Option<Arc<ServerConfig>> {
        self.current[traffic as usize].load_full()
    }

    pub fn admin(&self) -> Option<Arc<ServerConfig>> {
        self.current[ADMIN].load_full()
    }
}

fn ticket_issuer() -> io::Result<Arc<dyn ProducesTickets>> {
    Ticketer::new().map_err(io::Error::other)
}

fn server_config(
    settings: &TlsSettings,
    tickets: Arc<dyn ProducesTickets>,
    protocols: &[&[u8]],
) -> io::Result<ServerConfig> {
    let versions: &[_] = match settings.min_version {
        MinVersion::Tls12 => &[&TLS13, &TLS12],
        MinVersion::Tls13 => &[&TLS13],
    };
    let builder = ServerConfig::builder_with_provider(provider().clone());
    let builder = builder.with_protocol_versions(versions).map_err(io::Error::other)?;
    let builder = match &settings.client_auth {
        Some(client_auth) => builder.with_client_cert_verifier(client_auth.verifier()),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(Arc::new(CertificateChoice::default()));
    config.ticketer = tickets;
    // Without a ticket a client begins anew: the gateway keeps no sessions.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    Ok(config)
}

#[derive(Debug, Default)]
struct CertificateChoice {
    /// In the order of the configuration.
    all: Vec<Arc<CertifiedKey>>,
    exact: HashMap<String, Vec<Arc<CertifiedKey>>>,
    /// By the part after `*.`, which stands for one label (RFC 9525, section 6.3).
    wildcard: HashMap<String, Vec<Arc<CertifiedKey>>>,
    /// Clients that ask for one of these names get its own certificate or none.
    awaited: HashSet<String>,
}

impl CertificateChoice {
    pub(super) fn new(identities: &[Identity], awaited: &[String]) -> Self {
        let (mut exact, mut wildcard) = (HashMap::<_, Vec<_>>::new(), HashMap::<_, Vec<_>>::new());
        for identity in identities {
            for name in &identity.names {
                let (by_name, name) = match name.strip_prefix("*.") {
                    Some(parent) => (&mut wildcard, parent),
                    None => (&mut exact, name.as_str()),
                };
                by_name.entry(name.to_owned()).or_default().push(identity.key.clone());
            }
        }
        let all = identities.iter().map(|identity| identity.key.clone()).collect();
        Self { all, exact, wildcard, awaited: awaited.iter().cloned().collect() }
    }

    /// The first certificate for this name whose key can sign in one of these ways. Several certificates may have the same
    /// name, with keys of different kinds. A client that names no host of ours gets the first certificate, and decides for
    /// itself. A client that names a host whose certificate is awaited gets none, because any other would look like an attack.
    fn choose(&self, name: Option<&str>, schemes: &[SignatureScheme]) -> Option<&Arc<CertifiedKey>> {
        let name = name.map(str::to_ascii_lowercase);
        let exact = name.as_ref().and_then(|name| self.exact.get(name));
        let wildcard = name.as_ref().and_then(|name| self.wildcard.get(name.split_once('.')?.1));
        let is_awaited = name.as_ref().is_some_and(|name| self.awaited.contains(name));
        let others = (!is_awaited).then_some(&self.all);
        let candidates = exact.into_iter().chain(wildcard).chain(others).flatten();
        candidates.into_iter().find(|key| key.key.choose_scheme(schemes).is_some())
    }
}

impl ResolvesServerCert for CertificateChoice {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.choose(hello.server_name(), hello.signature_schemes()).cloned()
    }
}

const ALPN_ACME: &[u8] = b"acme-tls/1";

/// The name that an authority asks about; `None` for other clients. An authority offers no other protocol.
pub(crate) fn asked_name(hello: &ClientHello<'_>) -> Option<String> {
    let mut offered = hello.alpn()?;
    let is_challenge = offered.next() == Some(ALPN_ACME) && offered.next().is_none();
    hello.server_name().filter(|_| is_challenge).map(str::to_ascii_lowercase)
}

/// The configuration of a handshake that answers for a name. Nothing else may happen on its connection.
///
/// # Errors
/// When there is no random number for its key.
pub fn challenge_config(name: &str, key_authorization: &str) -> Result<Arc<ServerConfig>, Box<dyn std::error::Error>> {
    let mut params = CertificateParams::new([name.to_owned()])?;
    let digest = digest(&SHA256, key_authorization.as_bytes());
    params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest.as_ref())];
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?.der().clone();
    let builder = ServerConfig::builder_with_provider(provider().clone());
    let builder = builder.with_protocol_versions(&[&TLS13, &TLS12])?.with_no_client_auth();
    let key = provider().key_provider.load_private_key(PrivatePkcs8KeyDer::from(key.serialize_der()).into())?;
    // Only the authority understands the certificate, and the builder would check it.
    let shown = SingleCertAndKey::from(CertifiedKey::new(vec![certificate], key));
    let mut config = builder.with_cert_resolver(Arc::new(shown));
    config.alpn_protocols = vec![ALPN_ACME.to_vec()];
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::tls::tests::{Algorithm, identity};

    const BOTH: &[SignatureScheme] = &[SignatureScheme::RSA_PSS_SHA256, SignatureScheme::ECDSA_NISTP256_SHA256];

    #[test]
    fn the_name_decides_and_then_the_kind_of_key() {
        let identities = [
            identity(&["first.test"], Algorithm::Ecdsa),
            identity(&["*.wild.test", "wild.test"], Algorithm::Ecdsa),
            identity(&["a.wild.test"], Algorithm::Ecdsa),
            identity(&["both.test"], Algorithm::Rsa),
            identity(&["both.test"], Algorithm::Ecdsa),
        ];
        let choice = CertificateChoice::new(&identities, &["awaited.test".to_owned(), "x.wild.test".to_owned()]);
        let chosen = |name, schemes| {
            let key = choice.choose(name, schemes)?;
            choice.all.iter().position(|one| Arc::ptr_eq(one, key))
        };
        for (name, expected) in [
            ("first.test", 0),
            ("a.wild.test", 2),
            ("A.Wild.Test", 2),
            ("b.wild.test", 1),
            ("B.WILD.TEST", 1),
            ("wild.test", 1),
            ("a.b.wild.test", 0),
            ("other.test", 0),
            ("test", 0),
        ] {
            assert_eq!(chosen(Some(name), BOTH), Some(expected), "{name}");
        }
        assert_eq!(chosen(None, BOTH), Some(0));
        assert_eq!(["awaited.test", "Awaited.Test"].map(|name| chosen(Some(name), BOTH)), [None; 2]);
        assert_eq!(chosen(Some("x.wild.test"), BOTH), Some(1));
        assert_eq!(chosen(Some("both.test"), BOTH), Some(3));
        assert_eq!(chosen(Some("both.test"), &BOTH[1..]), Some(4));
        // A client that accepts only RSA gets the one certificate that it can use.
        assert_eq!(chosen(Some("first.test"), &BOTH[..1]), Some(3));
        assert_eq!(chosen(Some("first.test"), &[SignatureScheme::ED448]), None);
    }
}
