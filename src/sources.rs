//! Threads that talk to other servers beside the requests: for keys of tokens, for quotas of clients, for the number of
//! gateways, for certificates, and with traces.

pub mod acme;
pub mod jwks;
pub mod quotas;
pub mod otlp;
pub mod gateways;
