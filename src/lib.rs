//! `gateway`: a reverse proxy that limits rates.
//!
//! The rooms in reading order; each imports only rooms above it. To follow a request, start at [`proxy`].

// Words.
pub mod background;
pub mod clock;
pub mod deadline;
pub mod fingerprint;
pub mod percent;
pub mod reason;
pub mod metrics;
pub mod units;

// What a limit is: pure.
pub mod limit;

// Who gets something else, and who is known at all.
pub mod overrides;
pub mod known_keys;

// The file.
pub mod config;

// What outlives a reload.
pub mod store;

// The steps of a request.
pub mod net;
pub mod server;
pub mod route;
pub mod identify;
pub mod decide;
pub mod upstream;
pub mod respond;
pub mod telemetry;

// The whole.
pub mod snapshot;
pub mod proxy;
pub mod log;
pub mod admin;
pub mod echo;
pub mod runtime;
pub mod describe;
pub mod explain;
pub mod cli;
