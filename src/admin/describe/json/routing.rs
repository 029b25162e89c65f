//! Routes, and the upstreams to which they lead, as JSON.

use http::HeaderName;
use serde_json::{Map, Value, json};

use super::{body_size, header_text, header_value, key, share, size, span, span_or_none};
use crate::admin::describe::{first_segments, statuses_in_words};
use crate::config::{
    Action, Balance, Config, Cors, Ejection, HeaderChanges, HeaderMatch, HeaderText, HealthCheck, Host, ProxyProtocol,
    Route, Scheme, SentPath, Upstream, UpstreamServer, UpstreamTls,
};

pub(super) fn route(config: &Config, route: &Route) -> Value {
    let condition = |(name, wanted): &(HeaderName, HeaderMatch)| {
        let value = match wanted {
            HeaderMatch::Present => "*".to_owned(),
            HeaderMatch::Exact(value) | HeaderMatch::Secret { value, .. } => header_value(name, value),
        };
        (name.to_string(), json!(value))
    };
    let limits = route.limits.iter().filter_map(|index| config.limits.get(*index));
    let mut shown = json!({
        "host": Some(&route.host).filter(|host| **host != Host::Any).map(ToString::to_string),
        "path": route.path.text,
        "ignore_case": route.ignore_case,
        "methods": route.methods.iter().map(http::Method::as_str).collect::<Vec<_>>(),
        "headers": route.headers.iter().map(condition).collect::<Map<_, _>>(),
        "scheme": route.scheme.map(Scheme::name),
        "limits": limits.map(|limit| &limit.name).collect::<Vec<_>>(),
        "inspect_body": size(route.inspect_body),
        "max_body_size": body_size(route.max_body_size),
        "body_timeout": span_or_none(route.body_timeout),
        "timeout": route.timeout.map(span),
        "priority": route.priority,
        "request_headers": changes(&route.request_headers),
        "response_headers": changes(&route.response_headers),
        "cors": route.cors.as_ref().map(cors),
    });
    let others = ["upstream", "strip_prefix", "rewrite", "preserve_host", "rewrite_location", "respond", "redirect"];
    let none = others.map(|key| (key, Value::Null));
    for (key, value) in none.into_iter().chain(action(config, route)) {
        shown[key] = value;
    }
    shown
}

fn action(config: &Config, route: &Route) -> Vec<(&'static str, Value)> {
    match &route.action {
        Action::Forward { upstream, path, preserve_host, rewrite_location } => {
            let (strip, rewrite) = match path {
                SentPath::Stripped(0) => (None, None),
                SentPath::Stripped(count) => (Some(first_segments(&route.path, *count)), None),
                SentPath::Rewritten(template) => (None, Some(&template.text)),
            };
            vec![
                ("upstream", json!(config.upstreams.get(*upstream).map(|upstream| &upstream.name))),
                ("strip_prefix", json!(strip)),
                ("rewrite", json!(rewrite)),
                ("preserve_host", json!(preserve_host)),
                ("rewrite_location", json!(rewrite_location)),
            ]
        }
        Action::Respond { status, body, content_type } => {
            let content_type = String::from_utf8_lossy(content_type.as_bytes());
            vec![("respond", json!({ "status": status.as_u16(), "body": body, "content_type": content_type }))]
        }
        Action::Redirect(redirect) => {
            vec![("redirect", json!({ "to": redirect.to.text, "status": redirect.status.as_u16() }))]
        }
    }
}

fn changes(changes: &HeaderChanges<HeaderText>) -> Value {
    json!({
        "set": values(&changes.set),
        "add": values(&changes.add),
        "remove": changes.remove.iter().map(HeaderName::as_str).collect::<Vec<_>>(),
    })
}

/// A name with several values gets a list.
fn values(headers: &[(HeaderName, HeaderText)]) -> Value {
    let mut values = Map::new();
    for (name, text) in headers {
        let value = match text {
            HeaderText::Fixed(value) => json!(header_value(name, value)),
            HeaderText::Template(template) => json!(header_text(name, &template.text)),
        };
        match values.get_mut(name.as_str()) {
            None => drop(values.insert(name.to_string(), value)),
            Some(Value::Array(list)) => list.push(value),
            Some(one) => *one = json!([one.take(), value]),
        }
    }
    Value::Object(values)
}

fn cors(cors: &Cors) -> Value {
    let names = |names: &[HeaderName]| names.iter().map(|name| name.as_str().to_owned()).collect::<Vec<_>>();
    json!({
        "origins": cors.origins.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "methods": cors.methods.iter().map(http::Method::as_str).collect::<Vec<_>>(),
        "headers": cors.headers.as_deref().map_or_else(|| vec!["*".to_owned()], names),
        "expose": names(&cors.expose),
        "credentials": cors.credentials,
        "max_age": cors.max_age.map(span),
    })
}

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
    json!({ "url": server.address.to_string(), "weight": server.weight })
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

pub(super) fn tls(tls: &UpstreamTls) -> Value {
    json!({
        "ca": tls.ca.as_ref().map(|path| path.display().to_string()),
        "server_name": tls.server_name.as_ref().map(|name| name.to_str()),
        "cert": tls.certificate.as_ref().map(|files| files.cert.display().to_string()),
        "key": tls.certificate.as_ref().map(|files| files.key.display().to_string()),
    })
}
