//! Certificates for tests, and TLS clients.

use std::io::{Read, Result, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, PublicKeyData};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{ServerConfig, WebPkiClientVerifier};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, Error, HandshakeKind, RootCertStore, ServerConnection,
    SignatureScheme, StreamOwned,
};
use tempfile::TempDir;

/// A folder with an authority, and with its certificates.
pub(crate) struct Authority {
    folder: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key, as files.
#[derive(Clone, Debug)]
pub(crate) struct Issued {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // Each authority has another name.
        let name = format!("authority of a test in {}", folder.path().display());
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        std::fs::write(folder.path().join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        Self { folder, issuer: Issuer::new(params, key) }
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn ca(&self) -> PathBuf {
        self.folder().join("ca.pem")
    }

    /// Issues a certificate with this common name and these DNS names into the files `FILE.pem` and `FILE.key`.
    pub(crate) fn issue(&self, file: &str, subject: &str, names: &[&str]) -> Issued {
        self.issue_with(file, subject, names, |_| {})
    }

    pub(crate) fn issue_with(
        &self,
        file: &str,
        subject: &str,
        names: &[&str],
        change: impl FnOnce(&mut CertificateParams),
    ) -> Issued {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, subject);
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let issued =
            Issued { cert: self.folder().join(format!("{file}.pem")), key: self.folder().join(format!("{file}.key")) };
        std::fs::write(&issued.cert, params.signed_by(&key, &self.issuer).unwrap().pem()).unwrap();
        std::fs::write(&issued.key, key.serialize_pem()).unwrap();
        issued
    }

    pub(crate) fn sign(&self, params: &CertificateParams, key: &impl PublicKeyData) -> String {
        params.signed_by(key, &self.issuer).unwrap().pem()
    }

    /// Trusts this authority, and shows `own` if there is one.
    pub(crate) fn client(&self, own: Option<&Issued>) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.ca()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let builder = builder.with_root_certificates(roots);
        Arc::new(match own {
            Some(Issued { cert, key }) => {
                let chain = vec![CertificateDer::from_pem_file(cert).unwrap()];
                builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(key).unwrap()).unwrap()
            }
            None => builder.with_no_client_auth(),
        })
    }

    /// Shows `own`, and may ask clients for a certificate of this authority.
    pub(crate) fn server(&self, own: &Issued, asks: bool) -> ServerConfig {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder =
            ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions().unwrap();
        let builder = if asks {
            let mut roots = RootCertStore::empty();
            roots.add(CertificateDer::from_pem_file(self.ca()).unwrap()).unwrap();
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.build().unwrap())
        } else {
            builder.with_no_client_auth()
        };
        let chain = vec![CertificateDer::from_pem_file(&own.cert).unwrap()];
        let mut config = builder.with_single_cert(chain, PrivateKeyDer::from_pem_file(&own.key).unwrap()).unwrap();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        config
    }
}

pub(crate) type TlsStream = StreamOwned<ServerConnection, TcpStream>;

/// A handshake as a server saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Handshake {
    /// The requested name.
    pub(crate) name: Option<String>,
    pub(crate) protocol: Option<String>,
    pub(crate) is_resumed: bool,
    pub(crate) has_certificate: bool,
}

/// Runs in a thread for as long as the tests run.
pub(crate) struct TlsServer {
    pub(crate) address: SocketAddr,
    handshakes: Arc<Mutex<Vec<Handshake>>>,
    failed: Arc<Mutex<Vec<String>>>,
}

impl TlsServer {
    /// Passes every connection after its handshake to `serve`, with its number from 0.
    pub(crate) fn raw(config: ServerConfig, serve: impl Fn(TlsStream, usize) + Send + Sync + 'static) -> Self {
        let (config, serve) = (Arc::new(config), Arc::new(serve));
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let (handshakes, failed) = (Arc::<Mutex<Vec<_>>>::default(), Arc::<Mutex<Vec<_>>>::default());
        let server =
            Self { address: listener.local_addr().unwrap(), handshakes: handshakes.clone(), failed: failed.clone() };
        std::thread::spawn(move || {
            for (number, socket) in listener.incoming().enumerate() {
                let (config, serve) = (config.clone(), serve.clone());
                let (handshakes, failed) = (handshakes.clone(), failed.clone());
                std::thread::spawn(move || match accept(socket.unwrap(), config) {
                    Ok(stream) => {
                        handshakes.lock().unwrap().push(handshake(&stream.conn));
                        serve(stream, number);
                    }
                    Err(error) => failed.lock().unwrap().push(error.to_string()),
                });
            }
        });
        server
    }

    /// Answers every request with its path, and keeps connections open.
    pub(crate) fn start(config: ServerConfig) -> Self {
        Self::raw(config, |mut stream, _| {
            while let Some((path, _)) = read_request(&mut stream) {
                let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{path}", path.len());
                if stream.write_all(answer.as_bytes()).is_err() {
                    return;
                }
            }
        })
    }

    /// `[upstreams.up]` with this server, and more keys for it.
    pub(crate) fn section(&self, keys: &str) -> String {
        format!("[upstreams.up]\nservers = [\"https://{}\"]\n{}{keys}\n", self.address, time_to_connect(keys))
    }

    /// With a route that sends everything to it.
    pub(crate) fn everything(&self, keys: &str) -> String {
        format!("{}[[routes]]\npath = \"/*\"\nupstream = \"up\"\n", self.section(keys))
    }

    pub(crate) fn handshakes(&self) -> Vec<Handshake> {
        self.handshakes.lock().unwrap().clone()
    }

    /// Why the others failed. Nothing of a request can have come over these connections.
    pub(crate) fn failed(&self) -> Vec<String> {
        self.failed.lock().unwrap().clone()
    }
}

/// Time for a handshake with a thread of the test, unless `keys` limit it.
pub(super) fn time_to_connect(keys: &str) -> &'static str {
    if keys.contains("connect_timeout") { "" } else { "connect_timeout = \"10s\"\n" }
}

fn accept(socket: TcpStream, config: Arc<ServerConfig>) -> Result<TlsStream> {
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(Duration::from_secs(20)))?;
    let mut stream = StreamOwned::new(ServerConnection::new(config).unwrap(), socket);
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock)?;
    }
    Ok(stream)
}

fn handshake(connection: &ServerConnection) -> Handshake {
    Handshake {
        name: connection.server_name().map(str::to_owned),
        protocol: connection.alpn_protocol().map(|protocol| String::from_utf8(protocol.to_vec()).unwrap()),
        is_resumed: connection.handshake_kind() == Some(HandshakeKind::Resumed),
        has_certificate: connection.peer_certificates().is_some(),
    }
}

/// The path and the body of the next request; `None` at the end of the connection.
pub(crate) fn read_request(stream: &mut TlsStream) -> Option<(String, Vec<u8>)> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
    stream.read_exact(&mut body).ok()?;
    Some((head.split(' ').nth(1)?.to_owned(), body))
}

/// The least that can be stapled: OCSPResponse { successful, [0] { ResponseBytes { 1.3, OCTET STRING } } }.
pub(crate) const OCSP_RESPONSE: &[u8] = b"\x30\x0d\x0a\x01\x00\xa0\x08\x30\x06\x06\x01\x2b\x04\x01x";

impl Issued {
    pub(crate) fn toml(&self) -> String {
        format!("{{ cert = \"{}\", key = \"{}\" }}", self.cert.display(), self.key.display())
    }
}

pub(crate) struct TlsClient {
    pub(crate) stream: StreamOwned<ClientConnection, TcpStream>,
}

impl TlsClient {
    /// Connects, and expects a certificate for `name`.
    pub(crate) fn connect(address: SocketAddr, config: &Arc<ClientConfig>, name: &str) -> Result<Self> {
        Self::over(TcpStream::connect_timeout(&address, Duration::from_secs(5))?, config, name)
    }

    /// On a connection on which something may have been sent before.
    pub(crate) fn over(socket: TcpStream, config: &Arc<ClientConfig>, name: &str) -> Result<Self> {
        socket.set_read_timeout(Some(Duration::from_secs(20)))?;
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let connection = ClientConnection::new(config.clone(), name).unwrap();
        let mut stream = StreamOwned::new(connection, socket);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        Ok(Self { stream })
    }

    /// Sends a GET and reads its response: its head, and its body of a stated length.
    pub(crate) fn get(&mut self, path: &str) -> Result<(String, String)> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: test.example\r\n\r\n");
        self.stream.write_all(request.as_bytes())?;
        self.response()
    }

    pub(crate) fn response(&mut self) -> Result<(String, String)> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            self.stream.read_exact(&mut byte)?;
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).unwrap();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
        self.stream.read_exact(&mut body)?;
        Ok((head, String::from_utf8(body).unwrap()))
    }
}

pub(crate) fn curl<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Output {
    Command::new("curl").args(["--silent", "--show-error", "--max-time", "20"]).args(arguments).output().unwrap()
}

/// A client that accepts any certificate, to look at it.
pub(crate) fn unverified() -> Arc<ClientConfig> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions().unwrap();
    let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(Unverified(provider)));
    Arc::new(builder.with_no_client_auth())
}

#[derive(Debug)]
struct Unverified(Arc<CryptoProvider>);

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> std::result::Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
