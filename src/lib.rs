//! `gateway`: a reverse proxy that limits rates.
//!
//! The modules are in reading order, and each imports only modules above it. To follow a request, start at [`proxy`].

// The base: no configuration, and no I/O of its own.
pub mod back_off;
pub mod background;
pub mod clock;
pub mod content;
pub mod deadline;
pub mod hex;
pub mod fingerprint;
pub mod sharding;
pub mod header_list;
pub mod header_spelling;
pub mod local_runtime;
pub mod in_force;
pub mod metrics;
pub mod percent;
pub mod printable;
pub mod random;
pub mod reason;
pub mod request_id;
pub mod trace_context;
pub mod spans;
pub mod units;

// The algorithms: pure.
pub mod limit;
pub mod overload;
pub mod heavy_hitters;

// Which keys have rates of their own, and which keys there are.
pub mod overrides;
pub mod known_keys;

// How clients are shown who the gateway is.
pub mod tls;

// Documents of other servers, and what tokens of clients have to be.
pub mod fetch;
pub mod jwt;

// The configuration: as written, and as run.
pub mod config;

// What outlives a reload.
pub mod store;
pub mod jwks;
pub mod quotas;
pub mod otlp;

// The client's side.
pub mod net;
pub mod server;

// The steps of a request.
pub mod route;
pub mod identify;
pub mod decide;
pub mod upstream;
pub mod shed;
pub mod respond;
pub mod log;
pub mod telemetry;

// The process.
pub mod snapshot;
pub mod proxy;
pub mod describe;
pub mod dashboard;
pub mod admin;
pub mod echo;
pub mod runtime;
pub mod explain;
pub mod simulate;
pub mod admin_client;
pub mod probe;
pub mod top;
pub mod cli;
