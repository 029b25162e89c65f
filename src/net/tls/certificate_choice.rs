//! Which certificate a client is shown: one for the name that it asks for (RFC 6066, section 3), else the first one.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use rustls::SignatureScheme;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::identity::Identity;

#[derive(Debug)]
pub(super) struct CertificateChoice {
    /// In the order of the configuration.
    all: Vec<Arc<CertifiedKey>>,
    exact: HashMap<String, Vec<Arc<CertifiedKey>>>,
    /// By the part after `*.`, which stands for one label (RFC 9525, section 6.3).
    wildcard: HashMap<String, Vec<Arc<CertifiedKey>>>,
    /// Clients that ask for one of these names get its own certificate or none.
    awaited: HashSet<String>,
}

impl CertificateChoice {
    pub(super) fn new(identities: &[Identity], awaited: &[String]) -> Self {
        let (mut exact, mut wildcard) = (HashMap::<_, Vec<_>>::new(), HashMap::<_, Vec<_>>::new());
        for identity in identities {
            for name in &identity.names {
                let (by_name, name) = match name.strip_prefix("*.") {
                    Some(parent) => (&mut wildcard, parent),
                    None => (&mut exact, name.as_str()),
                };
                by_name.entry(name.to_owned()).or_default().push(identity.key.clone());
            }
        }
        let all = identities.iter().map(|identity| identity.key.clone()).collect();
        Self { all, exact, wildcard, awaited: awaited.iter().cloned().collect() }
    }

    /// The first certificate for this name whose key can sign in one of these ways. Several certificates may have the same
    /// name, with keys of different kinds. A client that names no host of ours gets the first certificate, and decides for
    /// itself. A client that names a host whose certificate is awaited gets none, because any other would look like an attack.
    fn choose(&self, name: Option<&str>, schemes: &[SignatureScheme]) -> Option<&Arc<CertifiedKey>> {
        let name = name.map(str::to_ascii_lowercase);
        let exact = name.as_ref().and_then(|name| self.exact.get(name));
        let wildcard = name.as_ref().and_then(|name| self.wildcard.get(name.split_once('.')?.1));
        let is_awaited = name.as_ref().is_some_and(|name| self.awaited.contains(name));
        let others = (!is_awaited).then_some(&self.all);
        let candidates = exact.into_iter().chain(wildcard).chain(others).flatten();
        candidates.into_iter().find(|key| key.key.choose_scheme(schemes).is_some())
    }
}

impl ResolvesServerCert for CertificateChoice {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.choose(hello.server_name(), hello.signature_schemes()).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::tls::tests::{Algorithm, identity};

    const BOTH: &[SignatureScheme] = &[SignatureScheme::RSA_PSS_SHA256, SignatureScheme::ECDSA_NISTP256_SHA256];

    #[test]
    fn the_name_decides_and_then_the_kind_of_key() {
        let identities = [
            identity(&["first.test"], Algorithm::Ecdsa),
            identity(&["*.wild.test", "wild.test"], Algorithm::Ecdsa),
            identity(&["a.wild.test"], Algorithm::Ecdsa),
            identity(&["both.test"], Algorithm::Rsa),
            identity(&["both.test"], Algorithm::Ecdsa),
        ];
        let choice = CertificateChoice::new(&identities, &["awaited.test".to_owned(), "x.wild.test".to_owned()]);
        let chosen = |name, schemes| {
            let key = choice.choose(name, schemes)?;
            choice.all.iter().position(|one| Arc::ptr_eq(one, key))
        };
        for (name, expected) in [
            ("first.test", 0),
            ("a.wild.test", 2),
            ("A.Wild.Test", 2),
            ("b.wild.test", 1),
            ("B.WILD.TEST", 1),
            ("wild.test", 1),
            ("a.b.wild.test", 0),
            ("other.test", 0),
            ("test", 0),
        ] {
            assert_eq!(chosen(Some(name), BOTH), Some(expected), "{name}");
        }
        assert_eq!(chosen(None, BOTH), Some(0));
        assert_eq!(["awaited.test", "Awaited.Test"].map(|name| chosen(Some(name), BOTH)), [None; 2]);
        assert_eq!(chosen(Some("x.wild.test"), BOTH), Some(1));
        assert_eq!(chosen(Some("both.test"), BOTH), Some(3));
        assert_eq!(chosen(Some("both.test"), &BOTH[1..]), Some(4));
        // A client that accepts only RSA gets the one certificate that it can use.
        assert_eq!(chosen(Some("first.test"), &BOTH[..1]), Some(3));
        assert_eq!(chosen(Some("first.test"), &[SignatureScheme::ED448]), None);
    }
}
