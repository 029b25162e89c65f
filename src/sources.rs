//! Threads that talk to other servers, beside the requests: for keys of tokens, quotas of keys, the number of gateways,
//! certificates, exported spans, and notices about limits.

pub mod acme;
pub mod jwks;
pub mod quotas;
pub mod otlp;
pub mod notices;
pub mod gateways;
