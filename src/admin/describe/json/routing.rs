//! Routes, and the upstreams to which they lead, as JSON.

use http::HeaderName;
use serde_json::{Map, Value, json};

use super::{body_size, header_text, header_value, key, share, size, span, span_or_none};
use crate::admin::describe::{first_segments, statuses_in_words};
use crate::base::units;
use crate::config::{
    Action, Balance, Config, Cors, Ejection, HeaderChanges, HeaderMatch, HeaderText, HealthCheck, Host, ProxyProtocol,
    Route, Scheme, SentPath, Upstream, UpstreamServer, UpstreamTls,
};

pub(super) fn route(config: &Config, route: &Route) -> Value {
    let host = match &route.host {
        Host::Any => None,
        Host::Under(name) => Some(format!("*.{name}")),
        Host::Exact(name) => Some(name.clone()),
    };
    let condition = |(name, wanted): &(HeaderName, HeaderMatch)| {
        let value = match wanted {
            HeaderMatch::Present => "*".to_owned(),
            HeaderMatch::Exact(value) | HeaderMatch::Secret { value, .. } => header_value(name, value),
        };
        (name.to_string(), json!(value))
    };
    let mut shown = Map::new();
    shown.insert("host".to_owned(), json!(host));
    shown.insert("path".to_owned(), json!(route.path.text));
    shown.insert("ignore_case".to_owned(), json!(route.ignore_case));
    shown.insert("methods".to_owned(), json!(route.methods.iter().map(http::Method::as_str).collect::<Vec<_>>()));
    shown.insert("headers".to_owned(), Value::Object(route.headers.iter().map(condition).collect()));
    shown.insert("scheme".to_owned(), json!(route.scheme.map(Scheme::name)));
    let limits: Vec<_> = route.limits.iter().filter_map(|index| config.limits.get(*index)).collect();
    shown.insert("limits".to_owned(), json!(limits.iter().map(|limit| &limit.name).collect::<Vec<_>>()));
    shown.insert("inspect_body".to_owned(), json!(units::spelled_size(route.inspect_body as u64)));
    shown.insert("max_body_size".to_owned(), json!(body_size(route.max_body_size)));
    shown.insert("body_timeout".to_owned(), json!(span_or_none(route.body_timeout)));
    shown.insert("timeout".to_owned(), json!(route.timeout.map(span)));
    shown.insert("priority".to_owned(), json!(route.priority));
    shown.insert("request_headers".to_owned(), changes(&route.request_headers));
    shown.insert("response_headers".to_owned(), changes(&route.response_headers));
    shown.insert("cors".to_owned(), json!(route.cors.as_ref().map(cors)));
    let none = ["upstream", "strip_prefix", "rewrite", "preserve_host", "rewrite_location", "respond", "redirect"];
    shown.extend(none.map(|key| (key.to_owned(), Value::Null)));
    shown.extend(action(config, route));
    Value::Object(shown)
}

fn action(config: &Config, route: &Route) -> Vec<(String, Value)> {
    let keys = match &route.action {
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
    };
    keys.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
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
