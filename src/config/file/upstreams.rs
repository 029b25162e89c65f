//! `[upstreams.NAME]`: servers that answer requests.

use http::uri::PathAndQuery;

use super::jwt::Names;
use super::limits::key;
use super::upstream_tls::{self, SystemAuthorities};
use super::{named_section, statuses};
use crate::config::AdaptiveBounds;
use crate::config::read::{Field, Name, Section, Wrong, report_repeated};
use crate::config::report::quoted;
use crate::config::settings::{Balancing, adaptive, eject, health, retry, upstream, upstream_server};
use crate::config::{
    Address, Balance, Ejection, HealthCheck, Overload, ProxyProtocol, Retry, Upstream, UpstreamServer, UpstreamTls,
    values,
};

/// `None` if the upstream has an error.
pub(super) fn read(
    name: &Name<'_>,
    field: &Field<'_>,
    system: &SystemAuthorities,
    jwts: &Names<'_>,
) -> Option<Upstream> {
    let section = named_section(name, field, "upstreams", "an upstream", &upstream::TABLE)?;
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
    let balance = balance(&section, jwts);
    let retry = retry(&section);
    let overload = overload(name.text, &section);
    let health = section.table(&upstream::health).map(health_check);
    let ejection = ejection(name.text, &section);
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

/// TLS to the `https://` servers; `None` if there are none, or after an error.
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

/// The version; `Some(None)` for `false`.
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

/// Reads `balance` and `hash_key`.
fn balance(section: &Section<'_>, jwts: &Names<'_>) -> Balance {
    let balancing = section.read(&upstream::balance);
    if let Some(field) = section.field(&upstream::hash_key).filter(|_| balancing != Balancing::Hash) {
        field.report("`hash_key` has no effect without `balance = \"hash\"`", "add that, or remove `hash_key`");
    }
    match balancing {
        Balancing::RoundRobin => Balance::RoundRobin,
        Balancing::LeastRequests => Balance::LeastRequests,
        Balancing::Hash => {
            Balance::Hash(section.read_as(&upstream::hash_key, |field| key(field, &upstream::hash_key, jwts)))
        }
    }
}

/// Reads `retries` and `[upstreams.NAME.retry]`.
fn retry(section: &Section<'_>) -> Retry {
    let own = section.table_or_empty(&upstream::retry);
    let retry = Retry {
        retries: section.read(&upstream::retries),
        budget: own.read(&retry::budget),
        statuses: own.read_as(&retry::status, |field| statuses::read(field, &retry::status)),
        max_body: own.read(&retry::max_body),
    };
    own.close();
    retry
}

/// Reads `max_in_flight`, `adaptive`, `max_waiting` and `max_wait`.
fn overload(name: &str, section: &Section<'_>) -> Overload {
    let max_in_flight = Some(section.read(&upstream::max_in_flight)).filter(|most| *most > 0);
    let title = format!("[upstreams.{name}.adaptive]");
    let help = format!("write adaptive = true, or {title} with `min` and `max` below");
    let adaptive = section.read_as(&upstream::adaptive, |field| {
        Some(field.section_unless_false(&title, &adaptive::TABLE, &help)?.map(adaptive_bounds))
    });
    let (max_waiting, max_wait) = (section.read(&upstream::max_waiting), section.read(&upstream::max_wait));
    if adaptive.is_some() && max_in_flight.is_some() {
        let help = format!("keep one of them; {title} has a `max`");
        section.refuse(&[upstream::max_in_flight.name], "has no effect with `adaptive`", &help);
    }
    if max_in_flight.is_none() && adaptive.is_none() {
        let help = "add `max_in_flight` or `adaptive`";
        let waiting = [upstream::max_waiting.name, upstream::max_wait.name];
        section.refuse(&waiting, "has no effect without `max_in_flight` or `adaptive`", help);
    } else if max_waiting == 0 {
        section.refuse(&[upstream::max_wait.name], "has no effect without `max_waiting`", "add `max_waiting`");
    }
    Overload { max_in_flight, adaptive, max_waiting, max_wait }
}

fn adaptive_bounds(section: Section<'_>) -> AdaptiveBounds {
    let (min, max) = (section.given(&adaptive::min), section.given(&adaptive::max));
    // If only one bound is written, it overrides the default of the other.
    let bounds = AdaptiveBounds {
        min: min.unwrap_or_else(|| section.read(&adaptive::min).min(max.unwrap_or(usize::MAX))),
        max: max.unwrap_or_else(|| section.read(&adaptive::max).max(min.unwrap_or(0))),
    };
    if bounds.max < bounds.min {
        section.refuse(&[adaptive::max.name], "is smaller than `min`", "make it at least as large");
    }
    section.close();
    bounds
}

fn health_check(section: Section<'_>) -> HealthCheck {
    let help = "add the path of a request that shows the health of a server: path = \"/healthz\"";
    let path = section.required(&health::path, help);
    let check = HealthCheck {
        path: path.and_then(|field| field.parse(check_path)).unwrap_or_default(),
        interval: section.read(&health::interval),
        timeout: section.read(&health::timeout),
        statuses: section.read_as(&health::status, |field| statuses::read(field, &health::status)),
        healthy_after: section.read(&health::healthy_after),
        unhealthy_after: section.read(&health::unhealthy_after),
    };
    section.close();
    check
}

/// The path of a health check, perhaps with a query.
fn check_path(text: &str) -> Result<String, Wrong> {
    let is_target = text.starts_with('/') && !text.contains('#') && PathAndQuery::try_from(text).is_ok();
    if is_target {
        return Ok(text.to_owned());
    }
    let help = "it begins with `/` and has no spaces, like \"/healthz\"";
    Err(Wrong::new(format!("{} is not a path", quoted(text)), help))
}

/// `None` if servers are never ejected.
fn ejection(name: &str, section: &Section<'_>) -> Option<Ejection> {
    let title = format!("[upstreams.{name}.eject]");
    let help = format!("write eject = false, or {title} with `failures` and the like below");
    section.read_as(&upstream::eject, |field| {
        Some(field.section_unless_false(&title, &eject::TABLE, &help)?.map(ejection_rules))
    })
}

fn ejection_rules(section: Section<'_>) -> Ejection {
    let (failures, first) = (section.read(&eject::failures), section.read(&eject::r#for));
    let longest = section.given(&eject::max_for).unwrap_or_else(|| section.read(&eject::max_for).max(first));
    if longest < first {
        let help = "make it at least as long: an ejection lasts `for` at first";
        section.refuse(&[eject::max_for.name], "is shorter than `for`", help);
    }
    let statuses = section.read_as(&eject::status, |field| statuses::read(field, &eject::status));
    section.close();
    Ejection { failures, statuses, first, longest }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_paths() {
        for text in ["/", "/healthz", "/a?b=c", "/a%20b"] {
            assert_eq!(check_path(text).as_deref(), Ok(text));
        }
        for text in ["", "healthz", "http://a/b", "/a b", "/a#b", "/a\r\nb: c", "?a"] {
            assert!(check_path(text).is_err(), "{text}");
        }
    }
}
