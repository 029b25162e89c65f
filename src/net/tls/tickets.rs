//! Tickets of clients with certificates: a ticket resumes a session only while the certificates in it are valid.
//!
//! The TLS library keeps the certificates of a client in its ticket, and does not look at them again when the client comes
//! back. It issues a new ticket each time, so a client could come back for ever. Here, a ticket whose certificates have
//! expired counts as none: the handshake begins anew, and verifies the certificate that the client shows then.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::server::ProducesTickets;

use super::identity::validity;
use crate::base::clock::{self, Time};

#[derive(Debug)]
pub(super) struct ValidTickets(pub(super) Arc<dyn ProducesTickets>);

impl ProducesTickets for ValidTickets {
    fn enabled(&self) -> bool {
        self.0.enabled()
    }

    fn lifetime(&self) -> u32 {
        self.0.lifetime()
    }

    fn encrypt(&self, session: &[u8]) -> Option<Vec<u8>> {
        self.0.encrypt(session)
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        self.0.decrypt(ticket).filter(|session| is_valid(session, clock::now()))
    }
}

/// Whether all certificates in this session are valid. A session that cannot be read is not.
fn is_valid(session: &[u8], now: Time) -> bool {
    let is_valid = |certificate| {
        validity(&certificate).is_ok_and(|(not_before, not_after)| (not_before..=not_after).contains(&now))
    };
    certificates(session).is_some_and(|certificates| certificates.into_iter().all(is_valid))
}

/// The certificates of the client in a session as rustls writes it. `None` if it is not exactly of this form.
fn certificates(session: &[u8]) -> Option<Vec<CertificateDer<'_>>> {
    const VERSION_AND_SUITE: usize = 4;
    const TIME_AND_OFFSET: usize = 12;
    let mut rest = session;
    if is_set(&mut rest)? {
        let _server_name = block::<1>(&mut rest)?;
    }
    rest.split_off(..VERSION_AND_SUITE)?;
    let _secret = block::<1>(&mut rest)?;
    let _has_extended_secret = is_set(&mut rest)?;
    let mut list = if is_set(&mut rest)? { block::<3>(&mut rest)? } else { &[] };
    if is_set(&mut rest)? {
        let _protocol = block::<1>(&mut rest)?;
    }
    let _data = block::<2>(&mut rest)?;
    let mut certificates = Vec::new();
    while !list.is_empty() {
        certificates.push(CertificateDer::from(block::<3>(&mut list)?));
    }
    (rest.len() == TIME_AND_OFFSET).then_some(certificates)
}

/// Takes a byte that is 0 or 1.
fn is_set(rest: &mut &[u8]) -> Option<bool> {
    match rest.split_off_first()? {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

/// Takes what follows its length, which is a number of `N` bytes.
fn block<'a, const N: usize>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = rest.split_off(..N)?.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
    rest.split_off(..length)
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use rcgen::DnType;

    use super::*;
    use crate::net::Traffic;
    use crate::net::tls::ListenerTls;
    use crate::net::tls::tests::{Algorithm, Authority, BOTH, asking, client, identity, shake_hands_with};

    /// Issues tickets that are not encrypted.
    #[derive(Debug, Default)]
    struct Readable(Mutex<Vec<u8>>);

    impl ProducesTickets for Readable {
        fn enabled(&self) -> bool {
            true
        }

        fn lifetime(&self) -> u32 {
            3600
        }

        fn encrypt(&self, session: &[u8]) -> Option<Vec<u8>> {
            *self.0.lock() = session.to_vec();
            Some(session.to_vec())
        }

        fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
            Some(ticket.to_vec())
        }
    }

    #[test]
    fn a_session_is_valid_as_long_as_the_certificates_in_it() {
        let (identity, authority) = (identity(&["a.test", "127.0.0.1"], Algorithm::Ecdsa), Authority::new("ours"));
        let settings = asking(&identity, &authority, false);
        let tls = ListenerTls::new([Some(&settings), None, None]).unwrap();
        for version in BOTH {
            for name in ["a.test", "127.0.0.1"] {
                let session = |own| {
                    let issued = Arc::new(Readable::default());
                    let mut config = (*tls.current(Traffic::Requests).unwrap()).clone();
                    config.ticketer = issued.clone();
                    shake_hands_with(Arc::new(config), &client(&identity, own, &[version]), name).unwrap();
                    issued.0.lock().clone()
                };
                let with = session(Some(authority.issue(&[(DnType::CommonName, "a")])));
                let certificates = certificates(&with).unwrap();
                let (first, last) = validity(&certificates[0]).unwrap();
                let moments = [first, clock::now(), last].map(|now| is_valid(&with, now));
                assert_eq!((certificates.len(), moments), (1, [true; 3]), "{version:?}");
                let (before, after) = (Time::from_micros(first.micros() - 1), last.after_micros(1));
                assert!(!is_valid(&with, before) && !is_valid(&with, after));
                let without = session(None);
                assert!(is_valid(&without, before) && is_valid(&without, after), "{version:?}");
                for session in [with, without] {
                    assert!((0..session.len()).all(|end| !is_valid(&session[..end], clock::now())));
                    assert!(!is_valid(&[&session[..], &[0]].concat(), clock::now()));
                }
            }
        }
    }
}
