//! Keys about the operation of the gateway: `[log]`, `[admin]`, `[tracing]` and `[store]`.

use std::path::PathBuf;
use std::time::Duration;

use ::tracing::Level;

use super::{tls, upstream_tls};
use crate::config::kinds::{file, flag, fraction, number, shaped, size, text, wait, words};
use crate::config::read::{Setting, Shape, Table, name, tables};
use crate::config::{AccessFormat, LOG_LEVELS, LogFormat, OnError, StoreType};

/// The maximum number of gateways that share limits, each with its own counters.
pub(in crate::config) const MOST_GATEWAYS: u64 = 10_000;

tables! {
    /// What the gateway writes to standard error. While nobody reads it, up to 4 MiB of lines wait; further lines are
    /// dropped and counted (`gateway_log_dropped_total`), so requests never wait.
    log {
        /// The lowest level that is written.
        level: Level = words(&LOG_LEVELS), "info";
        /// The format of the lines; `"auto"` is pretty on a terminal, otherwise JSON.
        format: LogFormat = words(&[
            ("auto", LogFormat::Auto), ("pretty", LogFormat::Pretty), ("json", LogFormat::Json),
        ]).at_start(), "auto";
        /// Writes a line for each request: the `limit` that refused it, the limits with `on_limit = "shadow"` that
        /// would have (`shadowed`), the limits whose pools were charged instead (`overflowed`), what is `remaining` of
        /// each limit if that is known, how long a limit held it (`held_micros`), the `server` that responded and its
        /// `upstream_micros`, for costs in tokens `tokens_input` (with cached ones) and `tokens_output`, the
        /// `protocol`, `via = "http"` or `"envoy"` if another proxy asked about it (docs/decisions.md), the version of
        /// `tls`, the `request_id` and the `trace_id`; never a query, nor a header except as `access_format` says,
        /// since these may contain keys. `"sampled"` writes only five lines per second and worker about the refusals of
        /// a client (IPv6 by its /64), then one line that counts the others; it counts clients beyond 256 together.
        access: () = shaped(Shape::Values("[true, false, \"sampled\"]")), true;
        /// A file for the lines of `access`. SIGUSR1 opens it again after a rename.
        access_file: PathBuf = file().at_start() => "access.log";
        /// The format of the lines of `access`: `"combined"` is the Combined Log Format, which also has `Referer` and
        /// `User-Agent`. By default they are like the rest of the log, or JSON in a file of their own.
        access_format: AccessFormat =
            words(&[("json", AccessFormat::Json), ("combined", AccessFormat::Combined)]).at_start() => "combined";
    }

    /// A listener for `/healthz`, `/readyz` (503 while draining), `/metrics` (Prometheus), the dashboard and the
    /// API (docs/admin.md).
    admin {
        /// The address, or `"unix:PATH"`.
        listen: () = text().required() => "127.0.0.1:9901";
        /// Requests must send this as `Authorization: Bearer`; also `"file:PATH"` or `"env:NAME"`. Required unless `listen`
        /// is on loopback or a Unix socket. At least 16 characters if other machines can reach the listener.
        token: () = text() => "file:admin-token";
        /// A token for requests that change nothing: metrics, lists, the dashboard. Needs `token`.
        read_token: () = text() => "file:admin-read-token";
        /// TLS for this listener, which speaks HTTP/1.1.
        tls: () = shaped(Shape::TableWithout(&tls::TABLE, tls::acme.name));
        /// Host names besides `localhost` that a listener on loopback accepts.
        hosts: () = shaped(Shape::List(&Shape::Text, 0, 64)), [] => ["gateway.internal"];
        /// Shows keys of clients in full in the API; otherwise masks them (docs/admin.md).
        show_keys: bool = flag(), false;
    }

    /// Sends spans of requests to an OpenTelemetry collector (docs/metrics.md).
    tracing {
        /// The URL of the collector (OTLP over HTTP).
        endpoint: () = text().required() => "http://127.0.0.1:4318";
        /// The share of requests that the gateway traces; if a trusted proxy sends `traceparent`, its flags decide instead.
        sample: f64 = fraction(), 0.01;
        /// Headers for the collector; values may be `"file:PATH"` or `"env:NAME"`.
        headers: () = shaped(Shape::Named(&Shape::Text)), {} => { authorization = "env:COLLECTOR_TOKEN" };
        /// The `service.name` of the spans.
        service_name: () = text(), "gateway";
        /// The longest time of an export.
        timeout: Duration = wait(Duration::from_millis(100)..=Duration::from_secs(60)), "5s";
    }

    /// Where the gateway keeps its counters.
    store {
        /// Keeps counters in this process, or on servers of Memcached (docs/memcached.md) or of Valkey or Redis
        /// (docs/valkey.md), where any number of gateways share them.
        r#type: StoreType = words(&[
            ("memory", StoreType::Memory), ("memcached", StoreType::Memcached), ("valkey", StoreType::Valkey),
            ("redis", StoreType::Valkey),
        ]), "memory";
        /// For `"memory"`: the maximum number of keys; the gateway drops the least recently used ones.
        max_keys: usize = number(1, 1_000_000_000).at_start(), 1_000_000;
        /// For `"memory"`: the maximum memory for the counters.
        max_memory: usize = size(8 << 20..=1 << 40).at_start(), "256MiB";
        /// For `"memory"`: a file to which the gateway writes the counters at its end, and from which it reads them at its
        /// start, so a restart begins no limit anew.
        snapshot: () = text() => "/var/lib/gateway/counters";
        /// For `"memory"`: the number of gateways that share the limits, or `"dns:NAME"` for the number of addresses of that
        /// name. Each gateway enforces its part of every rate (docs/scale.md).
        share: () = shaped(Shape::Or(&[Shape::Number(1, MOST_GATEWAYS), Shape::Pattern("^dns:.+$")]))
            => "dns:gateways.internal";
        /// For shared stores: the servers, at least one; keys are spread over them.
        servers: () = shaped(Shape::List(&Shape::Text, 1, 256)) => ["10.0.0.1:11211"];
        /// For `"valkey"`: the user as whom the gateway speaks to the servers (ACL); by default the default user.
        username: () = text() => "gateway";
        /// For `"valkey"`: the password; also `"file:PATH"` or `"env:NAME"`.
        password: () = text() => "file:valkey-password";
        /// For `"valkey"`: the number of the database.
        database: u16 = number(0, 65_535), 0;
        /// For `"valkey"`: TLS to the servers.
        tls: () = shaped(Shape::Table(&upstream_tls::TABLE));
        /// For shared stores: the first part of every key.
        prefix: () = text(), "gw";
        /// For shared stores: the longest time that a request waits for a server.
        timeout: Duration = wait(Duration::from_millis(1)..=Duration::from_secs(10)), "25ms";
        /// For shared stores: what happens while a server is away: `"local"` counts requests in this process, `"allow"` lets them
        /// pass uncounted, `"reject"` answers 503.
        on_error: OnError =
            words(&[("local", OnError::Local), ("allow", OnError::Allow), ("reject", OnError::Reject)]), "local";
        /// For shared stores: confirms each admission first, so that several gateways together never exceed the limit.
        strict: bool = flag(), false;
    }
}
