//! What TLS listeners offer, and how a reload changes that. Open connections keep what they began with.
//!
//! A client is shown a certificate for the name that it asks for (RFC 6066, section 3), else the first one. An authority is
//! shown that the gateway answers for a name (tls-alpn-01, RFC 8737).

use std::io;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use aws_lc_rs::digest::{SHA256, digest};
use rcgen::{CertificateParams, CustomExtension, KeyPair};
use rustls::SignatureScheme;
use rustls::crypto::aws_lc_rs::Ticketer;
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::server::{ClientHello, NoServerSessionStorage, ProducesTickets, ResolvesServerCert, ServerConfig};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::{TLS12, TLS13};

use super::identity::Identity;
use super::tickets::ValidTickets;
use super::trust::ClientAuth;
use super::{ALPN_HTTP1, ALPN_HTTP2, provider};
use crate::base::metrics::SharedCounter;
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

#[derive(Default)]
pub struct ListenerTls {
    current: [ArcSwapOption<AppliedTls>; KINDS],
    pub handshakes: SharedCounter,
    pub failed_handshakes: SharedCounter,
}

/// What other settings need except certificates, which may change before it is applied. Nothing can fail afterwards.
pub struct PreparedTls([Option<ServerConfig>; KINDS]);

struct AppliedTls {
    /// With session tickets (RFC 5077; RFC 8446, section 4.6.1), whose keys are only in this process, and change every six hours.
    config: Arc<ServerConfig>,
    /// A ticket admits its client without another look at who has issued its certificate. So a ticket is valid only with the
    /// authorities for which it was issued.
    client_auth: Option<ClientAuth>,
}

impl ListenerTls {
    /// `None` for listeners without TLS. Fails when the settings contradict what the ciphers can do.
    pub fn new(settings: [Option<&TlsSettings>; KINDS]) -> io::Result<Self> {
        let new = Self::default();
        new.apply(new.prepare(settings)?, settings);
        Ok(new)
    }

    /// Does all that can fail, and changes nothing. Fails when the settings contradict what the ciphers can do.
    pub fn prepare(&self, settings: [Option<&TlsSettings>; KINDS]) -> io::Result<PreparedTls> {
        let mut prepared = [const { None }; KINDS];
        for (kind, (settings, prepared)) in settings.iter().zip(&mut prepared).enumerate() {
            let Some(settings) = settings else { continue };
            // The admin API speaks only HTTP/1.1.
            let protocols: &[&[u8]] = if kind == ADMIN { &[ALPN_HTTP1] } else { &[ALPN_HTTP2, ALPN_HTTP1] };
            let current = self.current[kind].load_full();
            let tickets = match current.filter(|current| current.client_auth == settings.client_auth) {
                Some(current) => current.config.ticketer.clone(),
                None => new_tickets(settings)?,
            };
            *prepared = Some(server_config(settings, tickets, protocols)?);
        }
        Ok(PreparedTls(prepared))
    }

    /// Applies other settings to new connections. `settings` may have other certificates than those that were prepared.
    pub fn apply(&self, PreparedTls(prepared): PreparedTls, settings: [Option<&TlsSettings>; KINDS]) {
        for (current, prepared) in self.current.iter().zip(prepared.into_iter().zip(settings)) {
            current.store(prepared.0.zip(prepared.1).map(|(mut config, settings)| {
                config.cert_resolver = Arc::new(CertificateChoice::new(settings));
                Arc::new(AppliedTls { config: Arc::new(config), client_auth: settings.client_auth.clone() })
            }));
        }
    }

    pub fn count<T>(&self, shaken: &io::Result<T>) {
        if shaken.is_ok() { self.handshakes.one() } else { self.failed_handshakes.one() }
    }

    pub fn current(&self, traffic: Traffic) -> Option<Arc<ServerConfig>> {
        self.config(traffic as usize)
    }

    pub fn admin(&self) -> Option<Arc<ServerConfig>> {
        self.config(ADMIN)
    }

    fn config(&self, kind: usize) -> Option<Arc<ServerConfig>> {
        self.current[kind].load().as_ref().map(|current| current.config.clone())
    }
}

fn new_tickets(settings: &TlsSettings) -> io::Result<Arc<dyn ProducesTickets>> {
    let tickets = Ticketer::new().map_err(io::Error::other)?;
    Ok(if settings.client_auth.is_some() { Arc::new(ValidTickets(tickets)) } else { tickets })
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
        Some(client_auth) => builder.with_client_cert_verifier(client_auth.verifier.clone()),
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
    identities: Vec<Identity>,
    /// Clients that ask for one of these names get its own certificate or none.
    awaited: Vec<String>,
}

impl CertificateChoice {
    fn new(TlsSettings { identities, awaited, .. }: &TlsSettings) -> Self {
        Self { identities: identities.clone(), awaited: awaited.clone() }
    }

    /// The first certificate for this name whose key can sign in one of these ways. Several certificates may have the same
    /// name, with keys of different kinds. A client that names no host of ours gets the first certificate, and decides for
    /// itself. A client that names a host whose certificate is awaited gets none, because any other would look like an attack.
    fn choose(&self, name: Option<&str>, schemes: &[SignatureScheme]) -> Option<&Arc<CertifiedKey>> {
        let exact = name.map(str::to_ascii_lowercase).unwrap_or_default();
        // It stands for one label (RFC 9525, section 6.3).
        let wildcard = exact.split_once('.').map(|(_, parent)| format!("*.{parent}")).unwrap_or_default();
        let others = if self.awaited.contains(&exact) { &[][..] } else { &self.identities };
        let mut candidates =
            self.named(&exact).chain(self.named(&wildcard)).chain(others).map(|identity| &identity.key);
        candidates.find(|key| key.key.choose_scheme(schemes).is_some())
    }

    fn named<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a Identity> {
        self.identities.iter().filter(move |identity| identity.names.iter().any(|own| own == name))
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

/// The configuration of a handshake that answers for a name. Nothing else may happen on its connection. Fails when there is no
/// random number for its key.
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
        let awaited = vec!["awaited.test".to_owned(), "x.wild.test".to_owned()];
        let choice = CertificateChoice { identities: identities.to_vec(), awaited };
        let chosen = |name, schemes| {
            let key = choice.choose(name, schemes)?;
            choice.identities.iter().position(|one| Arc::ptr_eq(&one.key, key))
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
