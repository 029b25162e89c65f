//! `gateway`: a reverse proxy that limits rates.
//!
//! To follow a request, start at [`proxy`]. Each module imports only modules below it in this list.

// What one types: the subcommands.
pub mod commands;
// The life of the process: the source of its configuration, start, reload, signals, drain.
pub mod process;
// What operators see and change: the API, metrics and the dashboard.
pub mod admin;
// One request, from its first step to its last.
pub mod proxy;
// The servers behind the gateway.
pub mod upstream;
// The steps before the gateway forwards a request.
pub mod request;
// The connections of clients.
pub mod server;
// Threads that talk to other servers.
pub mod sources;
// Counters, in memory or on servers.
pub mod store;
pub mod config;
// Sockets, TLS, and the HTTP client for everything that is not traffic.
pub mod net;
// What requests to language models cost.
pub mod tokens;
// The algorithms, without clock or I/O.
pub mod limit;
// Small things that many modules use.
pub mod base;

// Properties that must hold for any bytes. This module is no part of the gateway, so it may import all of it.
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
