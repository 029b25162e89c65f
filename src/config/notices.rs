//! `[[notices]]`: who is told that a key has used a share of a rate.

use super::kinds::{self, flag, millionths, shaped};
use super::named::Named;
use super::pem_files::SystemAuthorities;
use super::read::{Field, Section, Shape, Wrong, tables};
use super::{Limit, secret, values};
use crate::base::hidden::Hidden;
use crate::net::fetch::Url;
use crate::net::tls::ConnectorTls;

/// The most receivers, and the most shares of each: every notice is sent to every receiver, for every share.
const MOST: usize = 8;
const MOST_SHARES: usize = 4;

const SHARE: &str = "allowed: 0.000001 to 1.0, like 0.8 for 80 %";

/// A receiver of notices, and what it is told.
#[derive(Clone, Debug, PartialEq)]
pub struct NoticeReceiver {
    /// Its path and its query are secret.
    pub url: Url,
    /// `None` without `https`.
    pub tls: Option<ConnectorTls>,
    pub limits: Vec<String>,
    /// In millionths, ascending.
    pub at: Vec<u32>,
    pub secret: Option<Hidden<String>>,
    pub full_keys: bool,
}

tables! {
    /// Tells a server of yours when a key has used a share of a rate (docs/notices.md).
    keys {
        /// Where notices are sent by POST: `https://`, or `http://` on this machine. Its path and query count as secret.
        url: () = kinds::secret().required() => "https://hooks.example.com/limits";
        /// The names of the limits; by default all.
        limits: () = shaped(Shape::List(&Shape::Text, 1, usize::MAX)) => ["per-client"];
        /// The shares of a rate, above 0 and up to 1. Each is told once for each key, rate and window.
        at: () = shaped(Shape::List(&Shape::Decimal(1), 1, MOST_SHARES)), [0.8, 1.0];
        /// Signs each notice: `X-Gateway-Signature` is `sha256=` and the HMAC of the body in hexadecimal. At least 16
        /// characters, or `"file:PATH"` or `"env:NAME"`.
        secret: () = kinds::secret() => "env:NOTICE_SECRET";
        /// Sends keys of clients in full; otherwise masks them (docs/admin.md).
        full_keys: bool = flag(), false;
    }
}

pub(super) const SHAPE: Shape = Shape::List(&Shape::Table(&keys::TABLE), 0, MOST);

/// `None` if the table has an error.
pub(super) fn read(section: &Section<'_>, system: &SystemAuthorities, named: &Named<'_>) -> Option<NoticeReceiver> {
    let server = section.needed(&keys::url).and_then(|field| {
        let url = field.hiding_target().parse(receiver)?;
        Some((system.tls_of(&url, &field)?, url))
    });
    let limits = match section.field(&keys::limits) {
        Some(field) => limits(&field, named),
        None => named.limits.iter().map(|(name, _)| name.text.to_owned()).collect(),
    };
    let at = section.read_as(&keys::at, shares);
    let secret = section.field(&keys::secret).and_then(|field| secret::unguessable(&field, "secret of notices"));
    let full_keys = section.read(&keys::full_keys);
    let (tls, url) = server?;
    Some(NoticeReceiver { url, tls, limits, at, secret: secret.map(Hidden), full_keys })
}

/// The names of the limits. Warns of those that have no rates.
fn limits(field: &Field<'_>, named: &Named<'_>) -> Vec<String> {
    let name = |(index, field): (usize, Field<'_>)| {
        let limit = named.limit(index)?;
        if limit.all_rates().next().is_none() && limit.quotas.is_none() {
            let message = format!("there are no notices about `{}`, since it has no `rates`", limit.name);
            field.warn(message, "add `rates` to it, or remove its name here");
        }
        Some(limit.name.clone())
    };
    named.limits_in(field, &keys::limits).into_iter().filter_map(name).collect()
}

fn receiver(text: &str) -> Result<Url, Wrong> {
    let help = "write https://, or http:// for a server on this machine, like \"http://127.0.0.1:9000/limits\"";
    let url = values::safe_url(text, "receivers", "read and change the notices", help)?;
    Ok(Url { target: url.target.with_secret_path(), ..url })
}

fn shares(field: &Field<'_>) -> Option<Vec<u32>> {
    let mut shares = field.distinct(&keys::at, "this share", |field| field.decimal(SHARE, share))?;
    shares.sort_unstable();
    Some(shares).filter(|shares| !shares.is_empty())
}

fn share(written: &str) -> Option<u32> {
    millionths(written).filter(|share| *share > 0)
}

/// From which share on this limit is watched.
pub(super) fn watched(notices: &[NoticeReceiver], limit: &Limit) -> Option<u32> {
    let about = notices.iter().filter(|one| one.limits.contains(&limit.name));
    about.filter_map(|one| one.at.first()).min().copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::share::WHOLE;

    #[test]
    fn shares_are_above_nothing_and_up_to_the_whole() {
        for (written, millionths) in
            [("0.8", 800_000), ("1", WHOLE), ("1.0", WHOLE), ("0.000001", 1), ("8e-1", 800_000)]
        {
            assert_eq!(share(written), Some(millionths), "{written}");
        }
        for written in ["0", "0.0", "-0.5", "1.000001", "80", "inf", "nan", ""] {
            assert_eq!(share(written), None, "{written}");
        }
    }

    #[test]
    fn receivers_get_nothing_through_an_open_network() {
        for text in
            ["https://hooks.internal/limits", "http://127.0.0.1:9000/a?b", "http://localhost/", "http://[::1]:1/"]
        {
            assert!(receiver(text).is_ok(), "{text}");
        }
        for text in
            ["http://hooks.internal/", "http://10.0.0.1/", "ftp://a/", "hooks", "https://u:p@a/", "https://a/#b"]
        {
            assert!(receiver(text).is_err(), "{text}");
        }
        assert_eq!(receiver("https://a.test/T0/B0?c").unwrap().to_string(), "https://a.test/***");
    }
}
