//! `[upstreams.NAME]` as JSON.

use serde_json::{Value, json};

use super::{key, share, size, span, span_or_none};
use crate::admin::describe::statuses_in_words;
use crate::config::{Address, Balance, Ejection, HealthCheck, ProxyProtocol, Upstream, UpstreamServer, UpstreamTls};

pub(super) fn upstream(upstream: &Upstream) -> Value {
    let (balance, hash_key) = match &upstream.balance {
        Balance::RoundRobin => ("round-robin", None),
        Balance::LeastRequests => ("least-requests", None),
        Balance::Hash(by) => ("hash", Some(key(by))),
    };
    json!({
        "servers": upstream.servers.iter().map(server).collect::<Vec<_>>(),
        "balance": balance,
        "hash_key": hash_key,
        "proxy_protocol": match upstream.proxy_protocol {
            Some(ProxyProtocol::V1) => json!("v1"),
            Some(ProxyProtocol::V2) => json!("v2"),
            None => json!(false),
        },
        "connect_timeout": span(upstream.connect_timeout),
        "timeout": span(upstream.timeout),
        "read_timeout": span_or_none(upstream.read_timeout),
        "tunnel_idle_timeout": span_or_none(upstream.tunnel_idle_timeout),
        "max_idle": span(upstream.max_idle),
        "max_age": span(upstream.max_age),
        "resolve_every": span(upstream.resolve_every),
        "retries": upstream.retry.retries,
        "retry": {
            "budget": share(upstream.retry.budget),
            "status": upstream.retry.statuses.iter().map(statuses_in_words).collect::<Vec<_>>(),
            "max_body": size(upstream.retry.max_body),
        },
        "max_in_flight": upstream.overload.max_in_flight.unwrap_or(0),
        "adaptive": upstream.overload.adaptive.map(|bounds| json!({ "min": bounds.min, "max": bounds.max })),
        "max_waiting": upstream.overload.max_waiting,
        "max_wait": span(upstream.overload.max_wait),
        "http2": upstream.http2,
        "rewrite_location": upstream.rewrite_location,
        "health": upstream.health.as_ref().map(health),
        "eject": upstream.ejection.as_ref().map_or(json!(false), ejection),
        "tls": upstream.tls.as_ref().map(tls),
    })
}

fn server(server: &UpstreamServer) -> Value {
    let url = match &server.address {
        Address::Http { authority, tls: None, .. } => format!("http://{authority}"),
        Address::Http { authority, tls: Some(_), .. } => format!("https://{authority}"),
        Address::Unix(path) => format!("unix:{}", path.display()),
        Address::Echo => "builtin:echo".to_owned(),
    };
    json!({ "url": url, "weight": server.weight })
}

fn health(health: &HealthCheck) -> Value {
    json!({
        "path": health.path,
        "interval": span(health.interval),
        "timeout": span(health.timeout),
        "status": health.statuses.iter().map(statuses_in_words).collect::<Vec<_>>(),
        "healthy_after": health.healthy_after,
        "unhealthy_after": health.unhealthy_after,
    })
}

fn ejection(ejection: &Ejection) -> Value {
    json!({
        "failures": ejection.failures,
        "status": ejection.statuses.iter().map(statuses_in_words).collect::<Vec<_>>(),
        "for": span(ejection.first),
        "max_for": span(ejection.longest),
    })
}

fn tls(tls: &UpstreamTls) -> Value {
    json!({
        "ca": tls.ca.as_ref().map(|path| path.display().to_string()),
        "server_name": tls.server_name.as_ref().map(|name| name.to_str()),
        "cert": tls.certificate.as_ref().map(|files| files.cert.display().to_string()),
        "key": tls.certificate.as_ref().map(|files| files.key.display().to_string()),
    })
}
