//! `[upstreams.NAME]`: servers that answer requests.

mod balancing;
mod health;
mod overload;
mod retries;

use super::jwt::Names;
use super::upstream_tls::{self, SystemAuthorities};
use crate::config::read::{Field, Name, Section, report_repeated};
use crate::config::settings::{upstream, upstream_server};
use crate::config::{Address, ProxyProtocol, Upstream, UpstreamServer, UpstreamTls, values};

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
    let section = field.section(format!("[upstreams.{}]", name.text), &upstream::TABLE)?;
    let help = format!("add the addresses of its servers: servers = {}", upstream::servers.example);
    let listed = section.required(&upstream::servers, &help);
    let servers = listed.as_ref().and_then(|field| field.list(&upstream::servers)).map(|list| {
        let servers: Vec<_> = list.into_iter().filter_map(|field| Some((server(&field)?, field))).collect();
        let addresses: Vec<_> = servers.iter().map(|(server, field)| (&server.address, field.clone())).collect();
        report_repeated(&addresses, "this server", "list it once, with a weight: { url = \"...\", weight = 2 }");
        servers.into_iter().map(|(server, _)| server).collect::<Vec<_>>()
    });
    let tls = tls(&section, servers.as_deref(), listed.as_ref(), system);
    let rewrite_location = section.read(&upstream::rewrite_location);
    let http2 = section.read(&upstream::http2);
    if http2 && servers.iter().flatten().any(|server| server.address == Address::Echo) {
        let help = "remove it, or name a server of your own";
        section.refuse(&[upstream::http2.name], "is not spoken by `builtin:echo`", help);
    }
    let proxy_protocol = section.read_as(&upstream::proxy_protocol, proxy_protocol);
    if http2 && proxy_protocol.is_some() {
        let why = "has no effect with `http2`, where the requests of many clients share a connection";
        section.refuse(&[upstream::proxy_protocol.name], why, "remove one of them");
    }
    let (connect_timeout, timeout) = (section.read(&upstream::connect_timeout), section.read(&upstream::timeout));
    let read_timeout = section.read(&upstream::read_timeout);
    let tunnel_idle_timeout = section.read(&upstream::tunnel_idle_timeout);
    let (max_idle, max_age) = (section.read(&upstream::max_idle), section.read(&upstream::max_age));
    let resolve_every = section.read(&upstream::resolve_every);
    let balance = balancing::read(&section, jwts);
    let retry = retries::read(&section);
    let overload = overload::read(name.text, &section);
    let health = section.table(&upstream::health).map(health::check);
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
        rewrite_location,
        proxy_protocol,
        retry,
        overload,
        health,
        ejection,
    })
}

/// How its `https://` servers are connected to; `None` if it has none, or there is an error.
fn tls(
    section: &Section<'_>,
    servers: Option<&[UpstreamServer]>,
    listed: Option<&Field<'_>>,
    system: &SystemAuthorities,
) -> Option<UpstreamTls> {
    let own = section.table(&upstream::tls);
    let is_https = |server: &UpstreamServer| matches!(server.address, Address::Http { tls: Some(_), .. });
    let has_https = servers?.iter().any(is_https);
    if own.is_some() && !has_https {
        let help = "write the URLs of its servers with https://, or remove this section";
        section.source.report(section.key_span(upstream::tls.name), "no server of this upstream uses TLS", help);
    }
    if own.is_some() || has_https { upstream_tls::read(own, listed?, system) } else { None }
}

/// The version; `None` within if there is none.
#[expect(clippy::option_option, reason = "the outer one is about errors")]
fn proxy_protocol(field: &Field<'_>) -> Option<Option<ProxyProtocol>> {
    if field.is_boolean() && field.boolean() == Some(false) {
        return Some(None);
    }
    if !field.is_text() {
        field.mistyped("a version", "write \"v1\" or \"v2\", or false");
        return None;
    }
    field.choice(&[("v1", ProxyProtocol::V1), ("v2", ProxyProtocol::V2)]).map(Some)
}

fn server(field: &Field<'_>) -> Option<UpstreamServer> {
    if field.is_text() {
        return Some(UpstreamServer { address: field.hiding_query().parse(values::server)?, weight: 1 });
    }
    if !field.is_table() {
        field.mistyped("a URL or a table", "write \"http://host:port\" or { url = \"http://host:port\", weight = 2 }");
        return None;
    }
    let section = field.section(upstream_server::TABLE.title, &upstream_server::TABLE)?;
    let url = section.required(&upstream_server::url, "add its URL: url = \"http://host:port\"");
    let address = url.and_then(|field| field.hiding_query().parse(values::server));
    let weight = section.read(&upstream_server::weight);
    section.close();
    Some(UpstreamServer { address: address?, weight })
}
