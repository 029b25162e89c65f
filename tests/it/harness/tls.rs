//! Certificates for tests, and clients that speak TLS.

use std::io::{Read, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tempfile::TempDir;

/// A folder with an authority, and with the certificates that it has issued.
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
        params.distinguished_name.push(DnType::CommonName, "authority of a test");
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

    /// The same with other parameters.
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

    /// What a client trusts, and shows if it has a certificate.
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
}

impl Issued {
    /// As an element of `certificates`.
    pub(crate) fn toml(&self) -> String {
        format!("{{ cert = \"{}\", key = \"{}\" }}", self.cert.display(), self.key.display())
    }
}

/// One connection in TLS.
pub(crate) struct TlsClient {
    pub(crate) stream: StreamOwned<ClientConnection, TcpStream>,
}

impl TlsClient {
    /// Connects and shakes hands with who has a certificate for `name`.
    pub(crate) fn connect(address: SocketAddr, config: &Arc<ClientConfig>, name: &str) -> Result<Self> {
        let socket = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
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

    /// The head and the body of the next response.
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

/// Runs curl with these arguments.
pub(crate) fn curl<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Output {
    Command::new("curl").args(["--silent", "--show-error", "--max-time", "20"]).args(arguments).output().unwrap()
}
