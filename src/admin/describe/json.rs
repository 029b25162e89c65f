//! A configuration as JSON, with the names and spellings of the file. Every default is filled in, and secrets are masked.

mod limits;
mod routing;

use std::time::Duration;

use http::{HeaderName, HeaderValue};
use serde_json::{Map, Value, json};

use super::{SECRET, shown_value};
use crate::admin::certificates;
use crate::base::jwt;
use crate::base::share::WHOLE;
use crate::base::units;
use crate::base::wildcard::Wildcard;
use crate::config::{
    AccessLog, Acme, Admin, CertificateFiles, Config, Decisions, DescriptorRule, Jwks, Jwt, Key, Log, MaxConnections,
    NoticeReceiver, Server, Share, Shed, Software, Store, Tls, Tracing, UNLIMITED, Word, is_secret,
};

pub fn json(config: &Config) -> Value {
    json!({
        "server": server(&config.server),
        "decisions": config.decisions.as_ref().map(|decisions| self::decisions(config, decisions)),
        "certificates": certificates::list(config).collect::<Vec<_>>(),
        "log": log(&config.log),
        "admin": config.admin.as_ref().map(admin),
        "tracing": config.tracing.as_ref().map(tracing),
        "notices": config.notices.iter().map(notices).collect::<Vec<_>>(),
        "store": store(&config.store, config.gateways),
        "upstreams": named(config.upstreams.iter().map(|upstream| (&upstream.name, routing::upstream(upstream)))),
        "jwt": named(config.jwts.iter().map(|jwt| (&jwt.name, self::jwt(jwt)))),
        "limits": named(config.limits.iter().map(|limit| (&limit.name, limits::limit(limit)))),
        "routes": config.routes.iter().map(|route| routing::route(config, route)).collect::<Vec<_>>(),
    })
}

fn named<'a>(all: impl Iterator<Item = (&'a String, Value)>) -> Value {
    Value::Object(all.map(|(name, value)| (name.clone(), value)).collect::<Map<_, _>>())
}

/// As the file spells it: `1m 30s`.
fn span(duration: Duration) -> String {
    humantime::format_duration(duration).to_string()
}

/// `0` is none.
fn span_or_none(duration: Option<Duration>) -> String {
    duration.map_or_else(|| "0".to_owned(), span)
}

fn size(bytes: usize) -> String {
    units::spelled_size(u64::try_from(bytes).unwrap_or(u64::MAX))
}

/// `0` is no limit.
fn body_size(bytes: u64) -> String {
    if bytes == UNLIMITED { "0".to_owned() } else { units::spelled_size(bytes) }
}

/// In thousandths; shown as a number from 0 to 1.
fn share(thousandths: u32) -> f64 {
    f64::from(thousandths) / 1000.0
}

fn key(key: &Key) -> Value {
    if key.parts.len() == 1 { json!(key.to_string()) } else { json!(key.spelled_parts().collect::<Vec<_>>()) }
}

/// The value of a header, or `***` if it is secret.
fn header_value(name: &HeaderName, value: &HeaderValue) -> String {
    header_text(name, &shown_value(name, value))
}

/// Masks more names than those of credentials, because people choose header names for their own tokens.
fn header_text(name: &HeaderName, value: &str) -> String {
    let parts = ["auth", "cookie", "credential", "key", "passw", "secret", "signature", "token"];
    let is_masked = is_secret(name) || parts.iter().any(|part| name.as_str().contains(part));
    if is_masked { SECRET.to_owned() } else { value.to_owned() }
}

fn server(server: &Server) -> Value {
    let listen =
        |listener: &crate::config::Listener| json!({ "address": listener.address.to_string(), "tls": listener.tls });
    let most = match server.max_connections {
        MaxConnections::Auto => json!("auto"),
        MaxConnections::Number(most) => json!(most),
    };
    json!({
        "listen": server.listen.iter().map(listen).collect::<Vec<_>>(),
        "workers": server.workers,
        "trusted_proxies": server.trusted_proxies.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "forwarded": server.forwarded,
        "proxy_protocol": server.proxy_protocol,
        "header_timeout": span(server.header_timeout),
        "idle_timeout": span(server.idle_timeout),
        "body_timeout": span_or_none(server.body_timeout),
        "max_header_size": size(server.max_header_size),
        "max_connections": most,
        "max_connections_per_ip": server.max_connections_per_ip,
        "max_body_size": body_size(server.max_body_size),
        "inspect_body": units::spelled_size(server.inspect_body as u64),
        "inspect_memory": units::spelled_size(server.inspect_memory as u64),
        "escaped_slashes": server.paths.escaped_slashes.word(),
        "path_matching": server.paths.matching.word(),
        "drain_delay": span(server.drain_delay),
        "drain_timeout": span(server.drain_timeout),
        "tls": server.tls.as_ref().map(tls),
        "http2": {
            "max_streams": server.http2.max_streams,
            "max_header_list": units::spelled_size(server.http2.max_header_list.into()),
        },
        "partition_secret": server.partition_secret.map(|_| SECRET),
        "shed": server.shed.as_ref().map(shed),
    })
}

fn decisions(config: &Config, decisions: &Decisions) -> Value {
    let rule = |DescriptorRule { domain, entries, reports, quota_mode, route }: &DescriptorRule| {
        let entries = named(entries.iter().map(|(key, Wildcard(value))| (key, json!(value))));
        let limits: Vec<_> = config.limits_of(route).map(|limit| &limit.name).collect();
        json!({ "domain": domain, "entries": entries, "limits": limits, "reports": reports, "quota_mode": quota_mode })
    };
    json!({
        "listen": decisions.listen.to_string(),
        "tls": decisions.tls.as_ref().map(tls),
        "refused_status": decisions.refused_status.as_u16(),
        "descriptors": decisions.descriptors.iter().map(rule).collect::<Vec<_>>(),
    })
}

fn tls(tls: &Tls) -> Value {
    let ca = tls.client_ca.as_ref();
    json!({
        "certificates": tls.certificates.iter().map(certificate).collect::<Vec<_>>(),
        "acme": tls.acme.as_ref().map(acme),
        "client_ca": ca.map(|ca| ca.path.display().to_string()),
        "client_auth": ca.map(|ca| if ca.is_required { "require" } else { "optional" }),
        "min_version": tls.settings.min_version.word(),
    })
}

fn acme(acme: &Acme) -> Value {
    json!({
        "names": acme.names,
        "email": acme.email,
        // Must be true in a valid configuration.
        "agree": true,
        "directory": acme.directory.to_string(),
        "ca": acme.ca.as_ref().map(|path| path.display().to_string()),
        "challenge": acme.challenge.word(),
        "challenge_secret": acme.challenge_secret.map(|_| SECRET),
        "external_account_id": acme.external_account.as_ref().map(|account| &account.id),
        "external_account_key": acme.external_account.as_ref().map(|_| SECRET),
    })
}

/// Paths are no secrets; the contents of the files are not shown.
fn certificate(files: &CertificateFiles) -> Value {
    json!({
        "cert": files.cert.display().to_string(),
        "key": files.key.display().to_string(),
        "ocsp": files.ocsp.as_ref().map(|path| path.display().to_string()),
    })
}

fn shed(shed: &Shed) -> Value {
    json!({
        "cpu": shed.cpu.map(share),
        "latency": shed.latency.map(span),
        "status": shed.status.as_u16(),
    })
}

fn log(log: &Log) -> Value {
    let access = match log.access {
        AccessLog::On => json!(true),
        AccessLog::Sampled => json!("sampled"),
        AccessLog::Off => json!(false),
    };
    json!({
        "level": log.level.word(),
        "format": log.format.word(),
        "access": access,
        "access_file": log.access_file,
        "access_format": log.access_format.map(Word::word),
    })
}

fn admin(admin: &Admin) -> Value {
    json!({
        "listen": admin.listen.to_string(),
        "tls": admin.tls.as_ref().map(tls),
        "token": if admin.token.is_some() { SECRET } else { "" },
        "read_token": if admin.read_token.is_some() { SECRET } else { "" },
        "hosts": admin.hosts,
        "show_keys": admin.show_keys,
    })
}

fn tracing(tracing: &Tracing) -> Value {
    let collector = &*tracing.collector;
    let headers = collector.headers.iter().map(|(name, _)| (name.to_string(), json!(SECRET)));
    json!({
        "endpoint": collector.endpoint(),
        "sample": tracing.sample,
        "headers": headers.collect::<Map<_, _>>(),
        "service_name": collector.service_name,
        "timeout": span(collector.timeout),
    })
}

fn notices(one: &NoticeReceiver) -> Value {
    json!({
        "url": one.url.to_string(),
        "limits": one.limits,
        "at": one.at.iter().map(|share| f64::from(*share) / f64::from(WHOLE)).collect::<Vec<_>>(),
        "secret": if one.secret.is_some() { SECRET } else { "" },
        "full_keys": one.full_keys,
    })
}

fn store(store: &Store, gateways: u64) -> Value {
    match store {
        Store::Memory { max_keys, max_memory, snapshot, share } => json!({
            "type": "memory",
            "max_keys": max_keys,
            "max_memory": size(*max_memory),
            "snapshot": snapshot,
            "share": share.as_ref().map(|share| match share {
                Share::Gateways(gateways) => json!(gateways),
                Share::Name(name) => json!(format!("dns:{name}")),
            }),
            "gateways": share.is_some().then_some(gateways),
        }),
        Store::Shared(shared) => {
            let mut keys = json!({
                "type": shared.software.word(),
                "servers": shared.servers,
                "prefix": shared.prefix,
                "timeout": span(shared.timeout),
                "on_error": shared.on_error.word(),
                "strict": shared.strict,
            });
            if shared.software == Software::Valkey {
                let login = &shared.login;
                keys["username"] = json!(login.username);
                keys["password"] = json!((!login.password.text().is_empty()).then_some(SECRET));
                keys["database"] = json!(login.database);
                keys["cluster"] = json!(login.cluster);
                keys["tls"] = json!(login.tls.as_deref().map(routing::tls));
                if !login.sentinels.is_empty() {
                    keys["sentinels"] = json!(login.sentinels);
                    keys["master"] = shared.servers.first().map_or(Value::Null, |name| json!(name));
                    keys["servers"] = Value::Null;
                }
            }
            keys
        }
    }
}

fn jwt(jwt: &Jwt) -> Value {
    let keys = match &jwt.jwks {
        Jwks::File { path, .. } => path.display().to_string(),
        Jwks::Server { url, .. } => url.to_string(),
    };
    json!({
        "issuer": jwt.issuer,
        "audience": jwt.audience,
        "jwks": keys,
        "algorithms": jwt.algorithms.iter().map(|algorithm| jwt::algorithm_name(*algorithm)).collect::<Vec<_>>(),
        "from": jwt.from.to_string(),
        "required": jwt.required,
    })
}
