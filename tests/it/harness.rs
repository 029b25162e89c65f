//! What the tests use: gateways, clients, upstreams, servers of shared stores and PostgreSQL, each on its own port.

pub(crate) mod acme;
mod client;
mod clock;
mod cluster;
mod collector;
mod fault;
mod gate;
mod gateway;
pub(crate) mod http2;
pub(crate) mod http2_server;
mod memcached;
mod model_server;
pub(crate) mod plans;
mod peer;
pub(crate) mod pebble;
mod postgres;
mod process;
mod server;
mod terminal;
mod tls;
mod tokens;
mod upstream;
mod valkey;
mod wire;

pub(crate) use client::{Client, Response, over_http2};
pub(crate) use clock::{align, unix, until};
pub(crate) use cluster::Cluster;
pub(crate) use collector::{Collector, Span, decode};
pub(crate) use fault::{Fault, Mode};
pub(crate) use gate::Gate;
pub(crate) use gateway::{Gateway, limited, run, run_json, run_with_handles};
pub(crate) use model_server::{Answer, Event, ModelServer, Used};
pub(crate) use peer::{Peer, nginx_config};
pub(crate) use postgres::Postgres;
pub(crate) use process::{Process, signal};
pub(crate) use server::{Control, Server, Software, every_store, with_each_server, with_valkey};
pub(crate) use terminal::Terminal;
pub(crate) use tls::{
    Authority, Handshake, Issued, OCSP_RESPONSE, TlsClient, TlsServer, TlsStream, curl, read_request, unverified,
};
pub(crate) use tokens::{Signer, claims, key_set};
pub(crate) use upstream::{Received, Upstream, closed_port, full_queue, receive, reply, reserved_port};
pub(crate) use valkey::{Valkey, ask, cut_commands};
pub(crate) use wire::{Framing, Headers, Pattern, Wire};
