//! Keys about servers that answer requests: `[upstreams.NAME]` and its tables.

use std::time::Duration;

use super::STATUS;
use super::limiting::SOURCES;
use crate::config::kinds::{LONGEST, WAIT, flag, number, shaped, share, size, text, wait, wait_or_none, words};
use crate::config::read::{Setting, Shape, Table, name, tables};

/// How requests are distributed among the servers of an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::config) enum Balancing {
    RoundRobin,
    LeastRequests,
    Hash,
}

const MOST_IN_FLIGHT: u64 = 1 << 20;

tables! {
    /// Servers that answer requests (docs/upstreams.md).
    upstream {
        /// `"http://host:port"`, `"https://host:port"`, `"unix:/run/app.sock"`, `{ url = "...", weight = 2 }`, or
        /// `"builtin:echo"`; each address of a name is a server.
        servers: () =
            shaped(Shape::List(&Shape::Or(&[Shape::Text, Shape::Table(&upstream_server::TABLE)]), 1, 256)).required()
            => ["http://10.0.1.1:9000"];
        /// The longest time to connect; then 504.
        connect_timeout: Duration = wait(WAIT), "1s";
        /// The longest time until the head of the response arrives; then 504.
        timeout: Duration = wait(WAIT), "30s";
        /// The longest time between two pieces of a response; then its connection is closed. `"0"` is no limit, for event
        /// streams.
        read_timeout: Option<Duration> = wait_or_none(), "60s";
        /// The longest time for which no byte passes through a WebSocket; `"0"` is no limit.
        tunnel_idle_timeout: Option<Duration> = wait_or_none(), "0";
        /// How long an unused connection is kept; choose less than the server's own limit.
        max_idle: Duration = wait(WAIT), "60s";
        /// The maximum age of a connection, so that changes of DNS take effect.
        max_age: Duration = wait(WAIT), "10m";
        /// How often the names of servers are looked up again.
        resolve_every: Duration = wait(Duration::from_secs(1)..=LONGEST), "30s";
        /// Whether HTTP/2 is spoken: without TLS to all servers, with TLS to those that agree. gRPC needs it.
        http2: bool = flag(), false;
        /// Whether a `Location` or `Content-Location` that begins with the scheme, address and port of a server gets those of the
        /// client. A route may have its own.
        rewrite_location: bool = flag(), true;
        /// Tell servers who the client is by the PROXY protocol.
        proxy_protocol: () = shaped(Shape::Values("[false, \"v1\", \"v2\"]")), false;
        /// Which server gets a request: of two random ones the one with fewer requests in flight, each in turn, or the same
        /// one for the same `hash_key`.
        balance: Balancing = words(&[
            ("round-robin", Balancing::RoundRobin), ("least-requests", Balancing::LeastRequests), ("hash", Balancing::Hash),
        ]), "least-requests";
        /// What `"hash"` balances by, as the `key` of a limit.
        hash_key: () = shaped(SOURCES), "client-ip" => ["client-ip"];
        /// How often a request is sent again to another server after one has failed it, if that is safe. Servers that cannot be
        /// connected to do not count: all are tried.
        retries: u32 = number(0, 10), 1;
        /// Which requests are sent again.
        retry: () = shaped(Shape::Table(&retry::TABLE));
        /// Requests of each server at the same time; further ones are answered 503. 0 is no limit.
        max_in_flight: usize = number(0, MOST_IN_FLIGHT), 0;
        /// Whether the number of requests that a server has in flight follows its latency, instead of `max_in_flight`
        /// (docs/overload.md).
        adaptive: () = shaped(Shape::Or(&[Shape::Flag, Shape::Table(&adaptive::TABLE)])), false;
        /// How many of the further requests wait for a server.
        max_waiting: usize = number(0, MOST_IN_FLIGHT), 0;
        /// How long they wait; needs `max_waiting`.
        max_wait: Duration = wait(WAIT), "1s";
        /// Checks: a server whose checks fail gets no requests. Without it servers are not checked.
        health: () = shaped(Shape::Table(&health::TABLE));
        /// Whether, and when, a server that fails gets no requests for a time, unless it is the last one.
        eject: () = shaped(Shape::Or(&[Shape::Flag, Shape::Table(&eject::TABLE)])), true;
        /// TLS for its `https://` servers.
        tls: () = shaped(Shape::Table(&upstream_tls::TABLE));
    }

    /// A server with a weight.
    upstream_server "the server" {
        /// Its URL.
        url: () = text().required() => "http://10.0.1.1:9000";
        /// How many requests it gets, compared with others.
        weight: u32 = number(1, 100), 1;
    }

    /// Which requests are sent again.
    retry {
        /// The largest share of requests that is sent again.
        budget: u32 = share(), 0.2;
        /// Responses after which a request is sent again.
        status: () = shaped(Shape::List(STATUS, 0, 64)), [] => ["502", "503"];
        /// Larger bodies are not kept, so they are not sent again.
        max_body: usize = size(0..=16 << 20), "64KiB";
    }

    /// The bounds of a number of requests in flight that follows the latency.
    adaptive {
        /// The least; at most `max`.
        min: usize = number(1, MOST_IN_FLIGHT), 4;
        /// The most; at least `min`.
        max: usize = number(1, MOST_IN_FLIGHT), 1000;
    }

    /// Checks of the servers.
    health {
        /// The path of a request that shows the health of a server.
        path: () = text().required() => "/healthz";
        /// The time between two checks.
        interval: Duration = wait(Duration::from_millis(100)..=LONGEST), "5s";
        /// The longest time of a check.
        timeout: Duration = wait(WAIT), "1s";
        /// What a healthy server answers.
        status: () = shaped(Shape::List(STATUS, 1, 64)), ["2xx"];
        /// After how many good checks in a row a server gets requests again.
        healthy_after: u32 = number(1, 100), 2;
        /// After how many failed checks in a row it gets none.
        unhealthy_after: u32 = number(1, 100), 3;
    }

    /// When a server gets no requests for a time.
    eject {
        /// After how many failures in a row: connections that fail or break, time-outs, and answers with one of `status`.
        failures: u32 = number(1, 1000), 5;
        /// Which answers are failures of the server. Others are the application's own.
        status: () = shaped(Shape::List(STATUS, 0, 64)), [] => ["502", "503", "504"];
        /// For how long at first; it doubles each time.
        r#for: Duration = wait(WAIT), "10s";
        /// For how long at most; at least `for`.
        max_for: Duration = wait(WAIT), "5m";
    }

    /// TLS for `https://` servers; files are read again on reload.
    upstream_tls {
        /// The authorities that have issued the certificates of the servers; without it those of the system.
        ca: () = text() => "tls/ca.pem";
        /// The name in these certificates; without it the host of each URL.
        server_name: () = text() => "api.internal";
        /// The certificate for servers that ask for one; needs `key`.
        cert: () = text() => "tls/gateway.pem";
        /// Its private key; needs `cert`.
        key: () = text() => "tls/gateway.key";
    }
}
