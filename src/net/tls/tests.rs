//! Handshakes with the clients of rustls, in memory.

use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_RSA_SHA256,
    date_time_ymd,
};
use rustls::client::{ClientConfig, ClientConnection, Resumption};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::server::{ServerConfig, ServerConnection};
use rustls::{Error, HandshakeKind, RootCertStore};

use super::*;
use crate::base::clock::{self, Time};
use crate::net::Traffic;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Algorithm {
    Rsa,
    Ecdsa,
}

fn key(algorithm: Algorithm) -> KeyPair {
    let algorithm = match algorithm {
        Algorithm::Rsa => &PKCS_RSA_SHA256,
        Algorithm::Ecdsa => &PKCS_ECDSA_P256_SHA256,
    };
    KeyPair::generate_for(algorithm).unwrap()
}

fn params(names: &[&str]) -> CertificateParams {
    CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).unwrap()
}

fn der(key: &KeyPair) -> PrivateKeyDer<'static> {
    PrivatePkcs8KeyDer::from(key.serialize_der()).into()
}

/// Self-signed.
pub(super) fn identity(names: &[&str], algorithm: Algorithm) -> Identity {
    let key = key(algorithm);
    let certificate = params(names).self_signed(&key).unwrap();
    Identity::new("a.pem".to_owned(), vec![certificate.der().clone()], der(&key), None).unwrap()
}

pub(super) struct Authority {
    certificate: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(super) fn new(name: &str) -> Self {
        let mut params = params(&[]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = key(Algorithm::Ecdsa);
        let certificate = params.self_signed(&key).unwrap().der().clone();
        Self { certificate, issuer: Issuer::new(params, key) }
    }

    pub(super) fn issue(&self, subject: &[(DnType, &str)]) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        self.issue_with(subject, |_| {})
    }

    fn issue_with(
        &self,
        subject: &[(DnType, &str)],
        change: impl FnOnce(&mut CertificateParams),
    ) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        let mut params = params(&[]);
        change(&mut params);
        params.distinguished_name = rcgen::DistinguishedName::new();
        subject.iter().for_each(|(kind, value)| params.distinguished_name.push(kind.clone(), *value));
        let key = key(Algorithm::Ecdsa);
        (vec![params.signed_by(&key, &self.issuer).unwrap().der().clone()], der(&key))
    }
}

fn settings(identities: Vec<Identity>) -> TlsSettings {
    TlsSettings { identities, awaited: Vec::new(), client_auth: None, min_version: MinVersion::Tls12 }
}

/// Those of a server that asks its clients for certificates of this authority.
pub(super) fn asking(identity: &Identity, authority: &Authority, is_required: bool) -> TlsSettings {
    let authorities = Authorities::new(vec![authority.certificate.clone()]).unwrap();
    TlsSettings {
        client_auth: Some(ClientAuth::new(authorities, is_required).unwrap()),
        ..settings(vec![identity.clone()])
    }
}

/// A client that trusts this server, and shows `own` if it has a certificate.
pub(super) fn client(
    server: &Identity,
    own: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(server.key.cert[0].clone()).unwrap();
    let builder = ClientConfig::builder_with_provider(provider().clone()).with_protocol_versions(versions).unwrap();
    let builder = builder.with_root_certificates(roots);
    let mut config = match own {
        Some((chain, key)) => builder.with_client_auth_cert(chain, key).unwrap(),
        None => builder.with_no_client_auth(),
    };
    config.resumption = Resumption::in_memory_sessions(8);
    Arc::new(config)
}

fn apply(tls: &ListenerTls, settings: [Option<&TlsSettings>; 3]) {
    tls.apply(tls.prepare(settings).unwrap(), settings);
}

fn shake_hands(tls: &ListenerTls, config: &Arc<ClientConfig>, name: &str) -> Result<ServerConnection, Error> {
    shake_hands_at(tls, Traffic::Requests, config, name)
}

fn shake_hands_at(
    tls: &ListenerTls,
    traffic: Traffic,
    config: &Arc<ClientConfig>,
    name: &str,
) -> Result<ServerConnection, Error> {
    shake_hands_with(tls.current(traffic).unwrap(), config, name)
}

/// Shakes hands, and passes on what either side sends afterwards.
pub(super) fn shake_hands_with(
    server: Arc<ServerConfig>,
    config: &Arc<ClientConfig>,
    name: &str,
) -> Result<ServerConnection, Error> {
    let mut client = ClientConnection::new(config.clone(), ServerName::try_from(name.to_owned()).unwrap()).unwrap();
    let mut server = ServerConnection::new(server).unwrap();
    while client.wants_write() || server.wants_write() {
        let mut bytes = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut bytes).unwrap();
        }
        let mut unread = &bytes[..];
        while !unread.is_empty() {
            server.read_tls(&mut unread).unwrap();
            server.process_new_packets()?;
        }
        let mut bytes = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut bytes).unwrap();
        }
        let mut unread = &bytes[..];
        while !unread.is_empty() {
            client.read_tls(&mut unread).unwrap();
            client.process_new_packets()?;
        }
    }
    assert!(!server.is_handshaking() && !client.is_handshaking());
    Ok(server)
}

pub(super) const BOTH: &[&rustls::SupportedProtocolVersion] = &[&rustls::version::TLS13, &rustls::version::TLS12];

#[test]
fn files_that_are_no_identity_are_refused() {
    let (one, other) = (key(Algorithm::Ecdsa), key(Algorithm::Rsa));
    let certificate = params(&["a.test"]).self_signed(&one).unwrap();
    let pem = certificate.pem() + &one.serialize_pem();
    assert_eq!(certificates(pem.as_bytes()).unwrap(), [certificate.der().clone()]);
    let chain = certificates(pem.as_bytes()).unwrap();
    assert!(Identity::new("a.pem".to_owned(), chain.clone(), private_key(pem.as_bytes()).unwrap(), None).is_ok());

    let refused = |chain, key| Identity::new("a.pem".to_owned(), chain, key, None).unwrap_err();
    assert_eq!(refused(chain.clone(), der(&other)), PemError::Mismatch);
    let garbage = CertificateDer::from(b"no certificate".to_vec());
    assert!(matches!(refused(vec![garbage], der(&one)), PemError::Certificate(1, _)));
    let no_key = PrivatePkcs8KeyDer::from(b"no key".to_vec());
    assert!(matches!(refused(chain, no_key.into()), PemError::Key(_)));

    assert_eq!(certificates(b"").unwrap_err(), PemError::Missing("certificate"));
    assert_eq!(certificates(one.serialize_pem().as_bytes()).unwrap_err(), PemError::Missing("certificate"));
    assert_eq!(private_key(certificate.pem().as_bytes()).unwrap_err(), PemError::Missing("private key"));
    assert_eq!(
        certificates(b"-----BEGIN CERTIFICATE-----\nAAAA\n").unwrap_err().to_string(),
        "it is not PEM: a section has no end line"
    );
    for encrypted in [
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n",
        "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,00\n\nAAAA\n-----END RSA PRIVATE KEY-----\n",
    ] {
        assert_eq!(private_key(encrypted.as_bytes()).unwrap_err(), PemError::Encrypted);
    }
}

#[test]
fn only_an_answer_of_an_ocsp_responder_is_stapled() {
    let key = key(Algorithm::Ecdsa);
    let certificate = params(&["a.test"]).self_signed(&key).unwrap();
    let stapled = |ocsp: &[u8]| {
        let chain = vec![certificate.der().clone()];
        Identity::new("a.pem".to_owned(), chain, der(&key), Some(ocsp.to_vec())).map_err(|error| error.to_string())
    };
    // OCSPResponse { successful, [0] { ResponseBytes { 1.3, OCTET STRING } } }
    let good = b"\x30\x0d\x0a\x01\x00\xa0\x08\x30\x06\x06\x01\x2b\x04\x01x";
    assert_eq!(stapled(good).unwrap().key.ocsp.as_deref(), Some(&good[..]));
    let later = b"\x30\x03\x0a\x01\x03";
    let why = "it is no OCSP response to staple: its status is 3, not 0 (successful)";
    assert_eq!(stapled(later).unwrap_err(), why);
    for broken in [
        &b""[..],
        b"garbage",
        b"-----BEGIN CERTIFICATE-----",
        b"\x30\x00",
        b"\x30\x84\x00\x10\x00\x00xxxx",
        b"\x30\x03\x0a\x01\x00",
        b"\x30\x03\x02\x01\x00",
        b"\x30\x07\x0a\x01\x00\xa0\x02\x05\x00",
        b"\x30\x07\x0a\x01\x00\xa1\x02\x30\x00",
        &[&good[..], b"x"].concat(),
        &good[..good.len() - 1],
        certificate.der(),
    ] {
        let why = stapled(broken).unwrap_err();
        assert!(why.starts_with("it is no OCSP response to staple: "), "{why}");
    }
}

#[test]
fn a_chain_expires_with_its_first_certificate_that_does() {
    let (key, mut params) = (key(Algorithm::Ecdsa), params(&["a.test"]));
    params.not_after = date_time_ymd(2030, 1, 2);
    let early = params.self_signed(&key).unwrap();
    params.not_after = date_time_ymd(2031, 1, 2);
    let late = params.self_signed(&key).unwrap();
    for chain in [[&early, &late], [&late, &early]] {
        let chain = chain.map(|certificate| certificate.der().clone()).to_vec();
        let identity = Identity::new("a.pem".to_owned(), chain, der(&key), None).unwrap();
        assert_eq!(identity.not_after, Time::from_micros(1_893_542_400_000_000));
    }
}

#[test]
fn clients_of_both_versions_come_in_and_come_back_with_a_ticket() {
    let identity = identity(&["a.test"], Algorithm::Ecdsa);
    let tls = ListenerTls::new([Some(&settings(vec![identity.clone()])), None, None]).unwrap();
    for version in BOTH {
        let client = client(&identity, None, &[version]);
        let kinds = [0, 1].map(|_| shake_hands(&tls, &client, "a.test").unwrap().handshake_kind().unwrap());
        assert_eq!(kinds, [HandshakeKind::Full, HandshakeKind::Resumed], "{version:?}");
        apply(&tls, [Some(&settings(vec![identity.clone()])), None, None]);
        let kind = shake_hands(&tls, &client, "a.test").unwrap().handshake_kind();
        assert_eq!(kind, Some(HandshakeKind::Resumed), "{version:?}");
    }
    let modern = TlsSettings { min_version: MinVersion::Tls13, ..settings(vec![identity.clone()]) };
    apply(&tls, [Some(&modern), None, None]);
    assert!(shake_hands(&tls, &client(&identity, None, &BOTH[1..]), "a.test").is_err());
    assert!(shake_hands(&tls, &client(&identity, None, BOTH), "a.test").is_ok());
}

#[test]
fn a_certificate_of_a_client_is_verified_and_no_ticket_outlives_its_authority() {
    let identity = identity(&["a.test"], Algorithm::Ecdsa);
    let (ours, others) = (Authority::new("ours"), Authority::new("others"));
    let subject = [(DnType::OrganizationName, "A, B+C"), (DnType::CommonName, "reports")];
    let auth = |authority: &Authority, is_required| asking(&identity, authority, is_required);
    let tls = ListenerTls::new([Some(&auth(&ours, true)), None, None]).unwrap();
    for version in BOTH {
        apply(&tls, [Some(&auth(&ours, true)), None, None]);
        let (known, unknown, none) = (
            client(&identity, Some(ours.issue(&subject)), &[version]),
            client(&identity, Some(others.issue(&subject)), &[version]),
            client(&identity, None, &[version]),
        );
        let server = shake_hands(&tls, &known, "a.test").unwrap();
        let shown = ClientCertificate::read(&server.peer_certificates().unwrap()[0]);
        assert_eq!(shown.subject.as_deref(), Some(r"CN=reports,O=A\, B\+C"));
        assert_eq!(shown.sha256.len(), 64);
        assert!(shake_hands(&tls, &unknown, "a.test").is_err());
        assert!(shake_hands(&tls, &none, "a.test").is_err());
        let back = shake_hands(&tls, &known, "a.test").unwrap();
        assert_eq!(back.handshake_kind(), Some(HandshakeKind::Resumed));
        assert!(back.peer_certificates().is_some(), "a ticket remembers the certificate");

        apply(&tls, [Some(&auth(&others, true)), None, None]);
        assert!(shake_hands(&tls, &known, "a.test").is_err(), "its authority is not ours any more");

        apply(&tls, [Some(&auth(&ours, false)), None, None]);
        assert!(shake_hands(&tls, &none, "a.test").unwrap().peer_certificates().is_none());
        assert!(shake_hands(&tls, &unknown, "a.test").is_err(), "a certificate that is shown has to be valid");
    }
}

#[test]
fn no_ticket_outlives_the_certificate_of_its_client() {
    let (identity, authority) = (identity(&["a.test"], Algorithm::Ecdsa), Authority::new("ours"));
    let cases = [(BOTH[0], true), (BOTH[0], false), (BOTH[1], true), (BOTH[1], false)];
    let mut life = Duration::from_secs(2);
    // A slow machine needs a longer life for the first handshakes.
    let (clients, expiry) = loop {
        let expiry = clock::now().seconds_up() + life.as_secs();
        let certificate = authority.issue_with(&[(DnType::CommonName, "reports")], |params| {
            params.not_after = date_time_ymd(1970, 1, 1) + Duration::from_secs(expiry);
        });
        let clients = cases.map(|(version, is_required)| {
            let tls = ListenerTls::new([Some(&asking(&identity, &authority, is_required)), None, None]).unwrap();
            let own = (certificate.0.clone(), certificate.1.clone_key());
            let client = client(&identity, Some(own), &[version]);
            let is_admitted = [0, 1].map(|_| shake_hands(&tls, &client, "a.test").is_ok()) == [true; 2];
            (tls, client, is_admitted)
        });
        if clients.iter().all(|(.., is_admitted)| *is_admitted) {
            break (clients, expiry);
        }
        life *= 2;
    };
    while clock::now().seconds() <= expiry {
        sleep(Duration::from_millis(100));
    }
    for ((tls, client, _), case) in clients.iter().zip(cases) {
        assert!(shake_hands(tls, client, "a.test").is_err(), "{case:?}");
    }
}

#[test]
fn a_ticket_of_one_listener_lets_nobody_in_at_another() {
    let identity = identity(&["a.test"], Algorithm::Ecdsa);
    let authority = Authority::new("ours");
    let (open, closed) = (settings(vec![identity.clone()]), asking(&identity, &authority, true));
    let tls = ListenerTls::new([Some(&open), Some(&closed), None]).unwrap();
    for version in BOTH {
        let client = client(&identity, None, &[version]);
        assert!(shake_hands_at(&tls, Traffic::Requests, &client, "a.test").is_ok());
        let back = shake_hands_at(&tls, Traffic::Requests, &client, "a.test").unwrap();
        assert_eq!(back.handshake_kind(), Some(HandshakeKind::Resumed), "{version:?}");
        assert!(shake_hands_at(&tls, Traffic::Decisions, &client, "a.test").is_err(), "{version:?}");
    }
    apply(&tls, [None, Some(&closed), None]);
    assert!(tls.current(Traffic::Requests).is_none() && tls.current(Traffic::Decisions).is_some());
}

#[test]
fn what_is_prepared_changes_nothing_before_it_is_applied_and_then_has_the_certificates_of_that_moment() {
    let names = ["old.test", "prepared.test", "issued.test"];
    let identities = names.map(|name| identity(&[name], Algorithm::Ecdsa));
    let [old, prepared, issued] = identities.each_ref().map(|identity| settings(vec![identity.clone()]));
    let modern = |settings: TlsSettings| TlsSettings { min_version: MinVersion::Tls13, ..settings };
    let tls = ListenerTls::new([Some(&old), None, None]).unwrap();
    let shakes = |index: usize, versions| shake_hands(&tls, &client(&identities[index], None, versions), names[index]);
    let next = tls.prepare([Some(&modern(prepared)), Some(&old), None]).unwrap();
    assert!(shakes(0, &BOTH[1..]).is_ok() && tls.current(Traffic::Decisions).is_none());
    tls.apply(next, [Some(&modern(issued)), Some(&old), None]);
    assert!(shakes(2, BOTH).is_ok() && shakes(2, &BOTH[1..]).is_err());
    assert!(shakes(0, BOTH).is_err() && shakes(1, BOTH).is_err());
    assert!(tls.current(Traffic::Decisions).is_some());
}
