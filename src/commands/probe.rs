//! Asks a running gateway about its state, for containers without a shell and an HTTP client.

use std::fmt;
use std::io;
use std::time::Duration;

use tokio::runtime::Builder;

use crate::commands::admin_client::{AdminClient, AdminLocation, AskError, TokenSource};
use crate::config::Admin;
use crate::net::tls::ConnectorTls;

const LIMIT: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// Whether the gateway answers at all: `/healthz`.
    Live,
    /// Whether the gateway takes requests: `/readyz`.
    Ready,
}

#[derive(Debug)]
pub enum ProbeError {
    NoAdmin,
    /// The system chooses the port of the admin listener, so nobody knows it.
    AnyPort,
    /// The system refuses what the request needs.
    System(io::Error),
    /// The gateway at this location does not answer, or it answers no.
    AdminResponse(String, AskError),
}

impl fmt::Display for ProbeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAdmin => f.write_str(
                "the file has no [admin] section, so the gateway cannot be asked: add [admin] with listen = \
                 \"127.0.0.1:9901\"",
            ),
            Self::AnyPort => f.write_str(
                "the port of [admin] is 0, which is any free one, so the gateway cannot be found: choose a port, or a Unix \
                 socket",
            ),
            Self::System(error) => write!(f, "cannot ask the gateway: {error}"),
            Self::AdminResponse(location, error) => write!(f, "{location}: {error}"),
        }
    }
}

impl std::error::Error for ProbeError {}

impl ProbeError {
    /// Whether the configuration is the reason, not the gateway.
    pub fn is_configuration(&self) -> bool {
        matches!(self, Self::NoAdmin | Self::AnyPort)
    }
}

impl Probe {
    /// Asks the gateway with this section. Probes need no token.
    ///
    /// # Errors
    /// When the gateway does not say yes within 2 seconds.
    pub fn ask(self, admin: Option<&Admin>) -> Result<(), ProbeError> {
        let admin = admin.ok_or(ProbeError::NoAdmin)?;
        let location = AdminLocation::of(&admin.listen, admin.tls.is_some()).ok_or(ProbeError::AnyPort)?;
        let mut client = AdminClient::new(location, TokenSource::None);
        if let Some(tls) = &admin.tls {
            // The certificate of the gateway need not have the address that the probe uses.
            let tls = ConnectorTls::pinned(&tls.settings.identities);
            client = client.with_tls(tls.map_err(|error| ProbeError::System(io::Error::other(error)))?);
        }
        let runtime = Builder::new_current_thread().enable_all().build().map_err(ProbeError::System)?;
        let path = match self {
            Self::Live => "/healthz",
            Self::Ready => "/readyz",
        };
        let answered = runtime
            .block_on(client.get(path, LIMIT))
            .and_then(|answer| if answer.is("text/plain") { Ok(()) } else { Err(AskError::NotAGateway) });
        answered.map_err(|error| ProbeError::AdminResponse(client.location().to_string(), error))
    }
}
