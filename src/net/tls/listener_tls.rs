//! What TLS listeners offer, and how a reload changes that. Open connections keep what they began with.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use rustls::crypto::aws_lc_rs::Ticketer;
use rustls::server::{NoServerSessionStorage, ProducesTickets, ServerConfig};
use rustls::version::{TLS12, TLS13};

use super::certificate_choice::CertificateChoice;
use super::client_auth::ClientAuth;
use super::identity::Identity;
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
    tickets: Mutex<[Tickets; KINDS]>,
    handshakes: AtomicU64,
    failed: AtomicU64,
}

/// Session tickets (RFC 5077; RFC 8446, section 4.6.1). Their keys are only in this process, and change every six hours.
#[derive(Debug)]
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
        let tickets = || Ok::<_, io::Error>(Tickets { issuer: ticket_issuer()?, client_auth: None });
        let new = Self {
            current: [const { ArcSwapOption::const_empty() }; KINDS],
            tickets: Mutex::new([tickets()?, tickets()?, tickets()?]),
            handshakes: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        };
        new.apply(settings)?;
        Ok(new)
    }

    /// Applies other settings to new connections.
    ///
    /// # Errors
    /// When the settings contradict what the ciphers can do; then nothing changes.
    pub fn apply(&self, settings: [Option<&TlsSettings>; KINDS]) -> io::Result<()> {
        let mut configs = [const { None }; KINDS];
        let mut tickets = self.tickets.lock();
        let all = settings.iter().zip(&mut *tickets).zip(&mut configs);
        for (kind, ((settings, tickets), config)) in all.enumerate() {
            let Some(settings) = settings else { continue };
            // The admin API speaks only HTTP/1.1.
            let protocols: &[&[u8]] = if kind == ADMIN { &[ALPN_HTTP1] } else { &[ALPN_HTTP2, ALPN_HTTP1] };
            if tickets.client_auth != settings.client_auth {
                *tickets = Tickets { issuer: ticket_issuer()?, client_auth: settings.client_auth.clone() };
            }
            *config = Some(server_config(settings, tickets.issuer.clone(), protocols)?);
        }
        self.current.iter().zip(configs).for_each(|(current, config)| current.store(config));
        Ok(())
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
) -> io::Result<Arc<ServerConfig>> {
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
    let mut config =
        builder.with_cert_resolver(Arc::new(CertificateChoice::new(&settings.identities, &settings.awaited)));
    config.ticketer = tickets;
    // Without a ticket a client begins anew: the gateway keeps no sessions.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    Ok(Arc::new(config))
}
