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
        /// The servers: `"http://host:port"`, `"https://host:port"`, `"unix:/run/app.sock"`, `{ url = "...", weight = 2 }`,
        /// or `"builtin:echo"`. Each address of a name is a server.
        servers: () =
            shaped(Shape::List(&Shape::Or(&[Shape::Text, Shape::Table(&upstream_server::TABLE)]), 1, 256)).required()
            => ["http://10.0.1.1:9000"];
        /// The longest time to connect; then 504.
        connect_timeout: Duration = wait(WAIT), "1s";
        /// The longest time until the head of the response arrives; then 504.
        timeout: Duration = wait(WAIT), "30s";
        /// The longest time between two pieces of a response; then the gateway closes its connection. `"0"` means no limit,
        /// for event streams.
        read_timeout: Option<Duration> = wait_or_none(), "60s";
        /// How long a WebSocket may be silent in both directions; `"0"` means no limit.
        tunnel_idle_timeout: Option<Duration> = wait_or_none(), "0";
        /// How long the gateway keeps an unused connection; choose less than the server's own limit.
        max_idle: Duration = wait(WAIT), "60s";
        /// The maximum age of a connection, so that DNS changes take effect.
        max_age: Duration = wait(WAIT), "10m";
        /// How often the gateway looks up the names of servers again.
        resolve_every: Duration = wait(Duration::from_secs(1)..=LONGEST), "30s";
        /// Speaks HTTP/2: without TLS to all servers, with TLS to those that agree. gRPC needs it.
        http2: bool = flag(), false;
        /// Replaces a server's scheme, address and port at the start of `Location` and `Content-Location` with those that
        /// the client used. A route may have its own.
        rewrite_location: bool = flag(), true;
        /// Tells servers who the client is, with the PROXY protocol.
        proxy_protocol: () = shaped(Shape::Values("[false, \"v1\", \"v2\"]")), false;
        /// Which server gets a request: `"round-robin"` takes each in turn, `"least-requests"` the one of two random servers
        /// with fewer requests in flight, `"hash"` the same one for the same `hash_key`.
        balance: Balancing = words(&[
            ("round-robin", Balancing::RoundRobin), ("least-requests", Balancing::LeastRequests), ("hash", Balancing::Hash),
        ]), "least-requests";
        /// The key for `"hash"`, written like the `key` of a limit.
        hash_key: () = shaped(SOURCES), "client-ip" => ["client-ip"];
        /// How often the gateway may send a request to another server after one has failed, if that is safe. Failed attempts
        /// to connect do not count: it tries all servers.
        retries: u32 = number(0, 10), 1;
        /// Which requests the gateway sends again.
        retry: () = shaped(Shape::Table(&retry::TABLE));
        /// The maximum number of requests in flight at each server; further ones get 503. 0 means no limit.
        max_in_flight: usize = number(0, MOST_IN_FLIGHT), 0;
        /// Adapts the maximum number of requests in flight at each server to its latency, instead of `max_in_flight`
        /// (docs/overload.md).
        adaptive: () = shaped(Shape::Or(&[Shape::Flag, Shape::Table(&adaptive::TABLE)])), false;
        /// How many requests may wait for a server with room.
        max_waiting: usize = number(0, MOST_IN_FLIGHT), 0;
        /// How long a request may wait; needs `max_waiting`.
        max_wait: Duration = wait(WAIT), "1s";
        /// Checks the servers: one whose checks fail gets no requests. Without this table, servers are not checked.
        health: () = shaped(Shape::Table(&health::TABLE));
        /// When a failing server gets no requests for a time, unless it is the last one; `false` means never.
        eject: () = shaped(Shape::Or(&[Shape::Flag, Shape::Table(&eject::TABLE)])), true;
        /// TLS to the `https://` servers.
        tls: () = shaped(Shape::Table(&upstream_tls::TABLE));
    }

    /// A server with a weight.
    upstream_server "the server" {
        /// The server's URL.
        url: () = text().required() => "http://10.0.1.1:9000";
        /// The server's share of requests, compared with the other weights.
        weight: u32 = number(1, 100), 1;
    }

    /// Which requests the gateway sends again.
    retry {
        /// The largest share of requests that the gateway sends again.
        budget: u32 = share(), 0.2;
        /// The gateway sends a request again after these responses.
        status: () = shaped(Shape::List(STATUS, 0, 64)), [] => ["502", "503"];
        /// Larger bodies are not kept, so not sent again.
        max_body: usize = size(0..=16 << 20), "64KiB";
    }

    /// The bounds of the adaptive maximum of requests in flight.
    adaptive {
        /// The lower bound; at most `max`.
        min: usize = number(1, MOST_IN_FLIGHT), 4;
        /// The upper bound; at least `min`.
        max: usize = number(1, MOST_IN_FLIGHT), 1000;
    }

    /// Checks of the servers.
    health {
        /// The path that each check requests.
        path: () = text().required() => "/healthz";
        /// The time between two checks.
        interval: Duration = wait(Duration::from_millis(100)..=LONGEST), "5s";
        /// The longest time of a check.
        timeout: Duration = wait(WAIT), "1s";
        /// The statuses of a healthy server's answer.
        status: () = shaped(Shape::List(STATUS, 1, 64)), ["2xx"];
        /// After this many good checks in a row, a server gets requests again.
        healthy_after: u32 = number(1, 100), 2;
        /// After this many failed checks in a row, a server gets no requests.
        unhealthy_after: u32 = number(1, 100), 3;
    }

    /// When a failing server gets no requests for a time.
    eject {
        /// This many failures in a row eject a server: connections that fail or break, time-outs, and answers with one of
        /// `status`.
        failures: u32 = number(1, 1000), 5;
        /// Answers that count as failures of the server. Others are the application's own.
        status: () = shaped(Shape::List(STATUS, 0, 64)), [] => ["502", "503", "504"];
        /// How long the first ejection lasts; this doubles each time.
        r#for: Duration = wait(WAIT), "10s";
        /// The longest time of an ejection; at least `for`.
        max_for: Duration = wait(WAIT), "5m";
    }

    /// TLS to `https://` servers; a reload reads the files again.
    upstream_tls {
        /// The authorities that issued the servers' certificates. By default those of the system.
        ca: () = text() => "tls/ca.pem";
        /// The name in the servers' certificates. By default the host of each URL.
        server_name: () = text() => "api.internal";
        /// The certificate for servers that ask for one; needs `key`.
        cert: () = text() => "tls/gateway.pem";
        /// The private key of `cert`; needs `cert`.
        key: () = text() => "tls/gateway.key";
    }
}
