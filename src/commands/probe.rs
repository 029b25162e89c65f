//! Asks a running gateway about its state, for containers without a shell and an HTTP client.

use std::io;
use std::time::Duration;

use tokio::time::sleep;

use super::Failure;
use super::admin_client::{AdminClient, AdminLocation, NOT_A_GATEWAY, TokenSource, within};
use crate::base::threads::block_on;
use crate::config::Admin;
use crate::net::tls::ConnectorTls;

const LIMIT: Duration = Duration::from_secs(2);
/// How often the gateway is asked if connections break. A flood of connections to its listener may close that of the probe.
const ATTEMPTS: u32 = 10;
const PAUSE: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Probe {
    /// Whether the gateway answers at all: `/healthz`.
    Live,
    /// Whether the gateway takes requests: `/readyz`.
    Ready,
}

impl Probe {
    /// Asks the gateway with this section. Probes need no token. Fails when the gateway does not say yes within 2 seconds.
    pub(super) fn ask(self, admin: Option<&Admin>) -> Result<(), Failure> {
        let admin = admin.ok_or_else(|| {
            Failure::invalid(
                "the file has no [admin] section, so the gateway cannot be asked: add [admin] with listen = \
                 \"127.0.0.1:9901\"",
            )
        })?;
        let location = AdminLocation::of(&admin.listen, admin.tls.is_some()).ok_or_else(|| {
            Failure::invalid(
                "the port of [admin] is 0, which is any free one, so the gateway cannot be found: choose a port, or a Unix \
                 socket",
            )
        })?;
        let system = |error: io::Error| Failure::other(format!("error: cannot ask the gateway: {error}"));
        // The certificate of the gateway need not have the address that the probe uses.
        let tls = admin.tls.as_ref().map(|tls| ConnectorTls::pinned(&tls.settings.identities)).transpose();
        let client = AdminClient::new(location, TokenSource::None, tls.map_err(io::Error::other).map_err(system)?);
        let path = match self {
            Self::Live => "/healthz",
            Self::Ready => "/readyz",
        };
        let answered = block_on(within(LIMIT, async {
            let mut attempt = 1;
            loop {
                let answered = client.get(path, LIMIT).await;
                if answered.is_ok() || attempt == ATTEMPTS {
                    return answered;
                }
                attempt += 1;
                sleep(PAUSE).await;
            }
        }))
        .map_err(system)?;
        let answered =
            answered.and_then(|answer| if answer.is("text/plain") { Ok(()) } else { Err(NOT_A_GATEWAY.to_owned()) });
        answered.map_err(|why| Failure::other(format!("error: {}: {why}", client.location)))
    }
}
