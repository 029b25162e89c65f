//! `[upstreams.NAME]`: servers that answer requests.

mod balancing;
mod health;
mod overload;
mod retries;

use std::time::Duration;

use super::jwt::Names;
use super::upstream_tls::{self, SystemAuthorities};
use crate::config::read::{Field, Name, Section, report_repeated, set};
use crate::config::{Address, ProxyProtocol, Upstream, UpstreamServer, UpstreamTls, values};

const SERVERS: &str = "[\"http://10.0.1.1:9000\"]";

/// Reads one upstream; `None` if it has an error.
pub(super) fn read(
    name: &Name<'_>,
    field: &Field<'_>,
    system: &SystemAuthorities,
    jwts: &Names<'_>,
) -> Option<Upstream> {
    if let Err(wrong) = values::name(name.text) {
        field.source.report(name.span.clone(), wrong.message, wrong.help);
    }
    if !field.is_table() {
        field.source.report(
            name.span.clone(),
            format!("`{}` is not the table of an upstream", name.text),
            "an upstream needs a name: write [upstreams.NAME], and its keys below",
        );
        return None;
    }
    let section = field.section(format!("[upstreams.{}]", name.text))?;
    let listed = section.required("servers", &format!("add the addresses of its servers: servers = {SERVERS}"));
    let servers = listed.as_ref().and_then(|field| field.some(SERVERS, 256)).map(|list| {
        let servers: Vec<_> = list.into_iter().filter_map(|field| Some((server(&field)?, field))).collect();
        let addresses: Vec<_> = servers.iter().map(|(server, field)| (&server.address, field.clone())).collect();
        report_repeated(&addresses, "this server", "list it once, with a weight: { url = \"...\", weight = 2 }");
        servers.into_iter().map(|(server, _)| server).collect::<Vec<_>>()
    });
    let tls = tls(name, &section, servers.as_deref(), listed.as_ref(), system);
    let mut connect_timeout = Duration::from_secs(1);
    set(&mut connect_timeout, values::wait(&section, "connect_timeout", values::WAIT));
    let mut timeout = Duration::from_secs(30);
    set(&mut timeout, values::wait(&section, "timeout", values::WAIT));
    let read_timeout = values::wait_or_none(&section, "read_timeout", Some(Duration::from_secs(60)));
    let tunnel_idle_timeout = values::wait_or_none(&section, "tunnel_idle_timeout", None);
    let mut max_idle = Duration::from_secs(60);
    set(&mut max_idle, values::wait(&section, "max_idle", values::WAIT));
    let mut max_age = Duration::from_secs(600);
    set(&mut max_age, values::wait(&section, "max_age", values::WAIT));
    let http2 = section.field("http2").and_then(|field| field.boolean()).unwrap_or(false);
    if http2 && servers.iter().flatten().any(|server| server.address == Address::Echo) {
        section.refuse(&["http2"], "is not spoken by `builtin:echo`", "remove it, or name a server of your own");
    }
    let mut resolve_every = Duration::from_secs(30);
    set(&mut resolve_every, values::wait(&section, "resolve_every", Duration::from_secs(1)..=*values::WAIT.end()));
    let proxy_protocol = proxy_protocol(&section);
    if http2 && proxy_protocol.is_some() {
        let why = "has no effect with `http2`, where the requests of many clients share a connection";
        section.refuse(&["proxy_protocol"], why, "remove one of them");
    }
    let balance = balancing::read(&section, jwts);
    let retry = retries::read(name.text, &section);
    let overload = overload::read(name.text, &section);
    let health = health::check(name.text, &section);
    let ejection = health::ejection(name.text, &section);
    section.close();
    Some(Upstream {
        name: name.text.to_owned(),
        servers: servers?,
        balance,
        connect_timeout,
        timeout,
        read_timeout,
        tunnel_idle_timeout,
        max_idle,
        max_age,
        resolve_every,
        tls,
        http2,
        proxy_protocol,
        retry,
        overload,
        health,
        ejection,
    })
}

/// How its `https://` servers are connected to; `None` if it has none, or there is an error.
fn tls(
    name: &Name<'_>,
    section: &Section<'_>,
    servers: Option<&[UpstreamServer]>,
    listed: Option<&Field<'_>>,
    system: &SystemAuthorities,
) -> Option<UpstreamTls> {
    let own = section.field("tls");
    let is_https = |server: &UpstreamServer| matches!(server.address, Address::Http { tls: Some(_), .. });
    let has_https = servers?.iter().any(is_https);
    if own.is_some() && !has_https {
        let help = "write the URLs of its servers with https://, or remove this section";
        section.source.report(section.key_span("tls"), "no server of this upstream uses TLS", help);
    }
    match own {
        Some(field) => {
            upstream_tls::read(Some(field.section(format!("[upstreams.{}.tls]", name.text))?), listed?, system)
        }
        None if has_https => upstream_tls::read(None, listed?, system),
        None => None,
    }
}

fn proxy_protocol(section: &Section<'_>) -> Option<ProxyProtocol> {
    let field = section.field("proxy_protocol")?;
    if field.is_boolean() && field.boolean() == Some(false) {
        return None;
    }
    if !field.is_text() {
        field.mistyped("a version", "write \"v1\" or \"v2\", or false");
        return None;
    }
    field.choice(&[("v1", ProxyProtocol::V1), ("v2", ProxyProtocol::V2)])
}

fn server(field: &Field<'_>) -> Option<UpstreamServer> {
    let weight = 1;
    if field.is_text() {
        return Some(UpstreamServer { address: field.hiding_query().parse(values::server)?, weight });
    }
    if !field.is_table() {
        field.mistyped("a URL or a table", "write \"http://host:port\" or { url = \"http://host:port\", weight = 2 }");
        return None;
    }
    let section = field.section("the server")?;
    let url = section.required("url", "add its URL: url = \"http://host:port\"");
    let address = url.and_then(|field| field.hiding_query().parse(values::server));
    let read = section.field("weight").and_then(|field| field.integer(1..=100));
    section.close();
    let weight = read.and_then(|weight| u32::try_from(weight).ok()).unwrap_or(weight);
    Some(UpstreamServer { address: address?, weight })
}
