//! The certificates of all listeners, and when each expires.

use std::fmt;

use crate::admin::dashboard::Certificate;
use crate::config::Config;

/// In the order in which they expire.
pub(super) fn list(config: &Config) -> impl Iterator<Item = Certificate> {
    config.identities().into_iter().map(|identity| Certificate {
        certificate: identity.file.clone(),
        names: identity.names.clone(),
        valid_until: identity.not_after.rfc3339(),
    })
}

pub(super) fn describe(f: &mut fmt::Formatter<'_>, config: &Config) -> fmt::Result {
    for (index, Certificate { certificate, names, valid_until }) in list(config).enumerate() {
        if index == 0 {
            writeln!(f, "\ncertificates")?;
        }
        writeln!(f, "  {certificate}")?;
        writeln!(f, "    valid until {valid_until}")?;
        if !names.is_empty() {
            writeln!(f, "    for {}", names.join(", "))?;
        }
    }
    if let Some(acme) = config.acme() {
        writeln!(f, "\nordered from {}\n  for {}", acme.directory, acme.names.join(", "))?;
    }
    Ok(())
}
