//! The rooms of the gateway, in reading order: each imports only rooms above it.

pub mod clock;
pub mod config;
pub mod limit;
pub mod units;
