//! Certificates of clients: who may have issued them, and whether a client needs one.

use std::sync::Arc;

use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;

use super::authorities::Authorities;
use super::identity::PemError;
use super::provider;

/// What is asked of clients.
#[derive(Clone, Debug)]
pub struct ClientAuth {
    authorities: Authorities,
    is_required: bool,
    verifier: Arc<dyn ClientCertVerifier>,
}

impl PartialEq for ClientAuth {
    fn eq(&self, other: &Self) -> bool {
        (&self.authorities, self.is_required) == (&other.authorities, other.is_required)
    }
}

impl ClientAuth {
    /// Certificates have to be issued by one of `authorities`; a client without one is refused if it is required.
    ///
    /// # Errors
    /// When there is no authority.
    pub fn new(authorities: Authorities, is_required: bool) -> Result<Self, PemError> {
        let builder = WebPkiClientVerifier::builder_with_provider(authorities.roots.clone(), provider().clone());
        let builder = if is_required { builder } else { builder.allow_unauthenticated() };
        let verifier = builder.build().map_err(|_| PemError::Missing("certificate"))?;
        Ok(Self { authorities, is_required, verifier })
    }

    pub(super) fn verifier(&self) -> Arc<dyn ClientCertVerifier> {
        self.verifier.clone()
    }
}
