//! The rooms of the gateway, in reading order: each imports only rooms above it.

pub mod clock;
pub mod config;
pub mod fingerprint;
pub mod identify;
pub mod limit;
pub mod route;
pub mod store;
pub mod tally;
pub mod units;
