//! `gateway`: a reverse proxy that limits rates.
//!
//! To follow a request, start at [`proxy`]. Each module imports only modules below it in this list.

// What one can type.
pub mod commands;
// The life of the process: the source of its configuration, start, reload, signals, drain.
pub mod process;
// What operators see and change: the API, metrics and the dashboard.
pub mod admin;
// One request through the steps, in order.
pub mod proxy;
// The servers behind the gateway.
pub mod upstream;
// The steps before a request is forwarded.
pub mod request;
// The connections of clients.
pub mod server;
// Threads that talk to other servers.
pub mod sources;
// The counters.
pub mod store;
// The configuration: as written, and as run.
pub mod config;
// Sockets, TLS, and the HTTP client for all that is not traffic.
pub mod net;
// What requests to language models cost.
pub mod tokens;
// The algorithms: pure.
pub mod limit;
// Small things.
pub mod base;

// What has to hold for any bytes. It is no part of the gateway, so it may import all of it.
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
