//! A certificate that expires soon is logged once a day.

use std::time::Duration;

use crate::base::clock::Time;
use crate::config::{Config, Tls};

/// How often certificates are checked for whether they expire soon.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(86_400);

/// Logs the certificates that have expired or will soon.
pub(super) fn warn_of_expiry(config: &Config, now: Time) {
    // That of an authority is renewed by itself, and it is told if that fails.
    let issued = config.server.tls.as_ref().and_then(Tls::issued);
    for identity in config.identities().into_iter().filter(|identity| Some(*identity) != issued) {
        let left = identity.not_after.seconds().saturating_sub(now.seconds());
        if identity.expires_soon(now) {
            let certificate = identity.file.as_str();
            tracing::warn!(certificate, days_left = left / 86_400, "a certificate expires soon");
        }
    }
}
