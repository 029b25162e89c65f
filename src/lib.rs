//! `gateway`: a reverse proxy that limits rates.
//!
//! The rooms in reading order; each imports only rooms above it. To follow a request, start at [`exchange`].

// Words.
pub mod background;
pub mod clock;
pub mod deadline;
pub mod fingerprint;
pub mod interned;
pub mod percent;
pub mod reason;
pub mod socket;
pub mod tally;
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
pub mod accept;
pub mod route;
pub mod identify;
pub mod decide;
pub mod forward;
pub mod respond;
pub mod account;

// The whole.
pub mod gateway;
pub mod exchange;
pub mod log;
pub mod admin;
pub mod echo;
pub mod serve;
pub mod describe;
pub mod explain;
pub mod cli;
