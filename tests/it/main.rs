//! The gateway from outside: its process, its sockets, its log.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, clippy::missing_panics_doc)]

mod bodies;
mod cli;
mod client_ip;
mod drain;
mod explain;
mod failures;
mod forwarding;
mod harness;
mod headers;
mod keys;
mod limits;
mod malformed;
mod outage;
mod reload;
mod routing;
mod stores;
mod tidy;
mod watching;
