//! Keys about the operation of the gateway: `[log]`, `[admin]`, `[tracing]` and `[store]`.

use std::path::PathBuf;
use std::time::Duration;

use ::tracing::Level;

use super::tls;
use crate::config::kinds::{file, flag, fraction, number, shaped, size, text, wait, words};
use crate::config::read::{Setting, Shape, Table, name, tables};
use crate::config::{AccessFormat, LOG_LEVELS, LogFormat, OnError};

/// The maximum number of gateways that share limits, each with its own counters.
pub(in crate::config) const MOST_GATEWAYS: u64 = 10_000;

tables! {
    /// What is written to standard error. While it is not read, up to 4 MiB of lines wait, and further lines are dropped and
    /// counted (`gateway_log_dropped_total`): requests never wait.
    log {
        /// The least severe lines that are written.
        level: Level = words(&LOG_LEVELS), "info";
        /// How lines are written; `"auto"` is pretty on a terminal, and JSON otherwise.
        format: LogFormat = words(&[
            ("auto", LogFormat::Auto), ("pretty", LogFormat::Pretty), ("json", LogFormat::Json),
        ]).at_start(), "auto";
        /// Whether each request gets a line, with the `limit` that refused it, those with `on_limit = "shadow"` that would
        /// have (`shadowed`), those whose pools were charged instead (`overflowed`), what is `remaining` of each limit as far as
        /// that is known, the time `held_micros` for which a limit held it, the `server` that responded and its
        /// `upstream_micros`, where limits have costs in tokens `tokens_input` (cached ones too) and `tokens_output`, the
        /// `protocol`, `via = "http"` if another proxy has asked about it (docs/decisions.md), the version of `tls`, the
        /// `request_id` and the `trace_id`; never a header or a query, because they may contain keys. `"sampled"`: of the
        /// refusals of a client (IPv6 by its /64) only five lines per second and worker, then one line that counts the others;
        /// clients beyond 256 are counted together.
        access: () = shaped(Shape::Values("[true, false, \"sampled\"]")), true;
        /// A file for these lines. SIGUSR1 opens it again after it was renamed.
        access_file: PathBuf = file().at_start() => "access.log";
        /// The form of these lines: `"combined"` is the Combined Log Format, which has `Referer` and `User-Agent`, too. Without
        /// this key they are like the rest of the log, or JSON in a file of their own.
        access_format: AccessFormat =
            words(&[("json", AccessFormat::Json), ("combined", AccessFormat::Combined)]).at_start() => "combined";
    }

    /// A listener for `/healthz`, `/readyz` (503 while draining), `/metrics` (Prometheus), the dashboard and the
    /// API (docs/admin.md).
    admin {
        /// The address, or `"unix:PATH"`.
        listen: () = text().required() => "127.0.0.1:9901";
        /// What requests have to show as `Authorization: Bearer`, also `"file:PATH"` or `"env:NAME"`; needed unless `listen` is
        /// on loopback or a Unix socket. Where other machines reach it, at least 16 characters.
        token: () = text() => "file:admin-token";
        /// The same for requests that change nothing: metrics, lists, the dashboard. Only beside `token`.
        read_token: () = text() => "file:admin-read-token";
        /// TLS for this listener, which speaks HTTP/1.1.
        tls: () = shaped(Shape::TableWithout(&tls::TABLE, tls::acme.name));
        /// Names besides `localhost` that a listener on loopback answers to.
        hosts: () = shaped(Shape::List(&Shape::Text, 0, 64)), [] => ["gateway.internal"];
        /// Whether the API shows keys of clients in full; otherwise they are masked (docs/admin.md).
        show_keys: bool = flag(), false;
    }

    /// Spans of requests go to a collector of OpenTelemetry (docs/metrics.md).
    tracing {
        /// Where the collector is (OTLP over HTTP).
        endpoint: () = text().required() => "http://127.0.0.1:4318";
        /// The share of requests that are traced; if a trusted proxy sends `traceparent`, its flags decide instead.
        sample: f64 = fraction(), 0.01;
        /// Headers for the collector, also `"file:PATH"` or `"env:NAME"`.
        headers: () = shaped(Shape::Named(&Shape::Text)), {} => { authorization = "env:COLLECTOR_TOKEN" };
        /// Who has recorded the spans.
        service_name: () = text(), "gateway";
        /// The longest time of an export.
        timeout: Duration = wait(Duration::from_millis(100)..=Duration::from_secs(60)), "5s";
    }

    /// Where counters live.
    store {
        /// In this process, or in Memcached, shared by any number of gateways (docs/memcached.md).
        r#type: bool = words(&[("memory", false), ("memcached", true)]), "memory";
        /// `"memory"`: the maximum number of keys; the least recently used ones are evicted.
        max_keys: usize = number(1, 1_000_000_000).at_start(), 1_000_000;
        /// `"memory"`: the maximum memory for their counters.
        max_memory: usize = size(8 << 20..=1 << 40).at_start(), "256MiB";
        /// `"memory"`: a file to which the counters are written at the end, and from which they are read at the start, so that
        /// a restart begins no limit anew.
        snapshot: () = text() => "/var/lib/gateway/counters";
        /// `"memory"`: the number of gateways that share the limits, or `"dns:NAME"` for as many as the name has addresses. Each
        /// enforces its part of every rate (docs/scale.md).
        share: () = shaped(Shape::Or(&[Shape::Number(1, MOST_GATEWAYS), Shape::Pattern("^dns:.+$")]))
            => "dns:gateways.internal";
        /// `"memcached"`: its servers; it needs at least one.
        servers: () = shaped(Shape::List(&Shape::Text, 1, 256)) => ["10.0.0.1:11211"];
        /// `"memcached"`: the first part of every key.
        prefix: () = text(), "gw";
        /// `"memcached"`: the longest time that a request waits for it.
        timeout: Duration = wait(Duration::from_millis(1)..=Duration::from_secs(10)), "25ms";
        /// `"memcached"`: what happens while it is away: requests are counted in this process, pass without being counted, or
        /// are answered 503.
        on_error: OnError =
            words(&[("local", OnError::Local), ("allow", OnError::Allow), ("reject", OnError::Reject)]), "local";
        /// `"memcached"`: whether each admission is confirmed first, so that several gateways together never exceed the limit.
        strict: bool = flag(), false;
    }
}
