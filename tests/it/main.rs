//! The gateway from outside: its process, its sockets, its log.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, clippy::missing_panics_doc)]

mod accuracy;
mod actions;
mod ambiguous_keys;
mod bodies;
mod chunks;
mod cli;
mod client_ip;
mod clocks;
mod costs;
mod drain;
mod exceptions;
mod explain;
mod failures;
mod faults;
mod flights;
mod forwarding;
mod harness;
mod headers;
mod key_parts;
mod keys;
mod life;
mod limits;
mod long_keys;
mod malformed;
mod methods;
mod named_files;
mod messages;
mod names;
mod origin;
mod outage;
mod proxy;
mod refusals;
mod reload;
mod reloading;
mod repeats;
mod routing;
mod several;
mod shared;
mod stopping;
mod stores;
mod tidy;
mod turns;
mod warnings;
mod watching;
