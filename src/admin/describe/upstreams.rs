//! Describes the upstreams of a configuration.

use std::fmt;

use super::statuses;
use crate::config::{
    AdaptiveBounds, Address, Balance, Ejection, HealthCheck, Overload, ProxyProtocol, Retry, Upstream, UpstreamTls,
};

pub(super) fn describe(f: &mut fmt::Formatter<'_>, upstream: &Upstream) -> fmt::Result {
    let Upstream { connect_timeout, timeout, max_idle, max_age, resolve_every, .. } = upstream;
    writeln!(f, "  {}", upstream.name)?;
    for server in &upstream.servers {
        writeln!(f, "    {}, weight {}", server.address, server.weight)?;
    }
    match &upstream.balance {
        Balance::RoundRobin => writeln!(f, "    servers get requests in turn")?,
        Balance::LeastRequests => {
            writeln!(f, "    of two random servers, the one with fewer requests in flight gets the next")?;
        }
        Balance::Hash(by) => writeln!(f, "    requests with the same {by} go to the same server")?,
    }
    upstream.tls.iter().try_for_each(|tls| self::tls(f, tls))?;
    if let Some(version) = upstream.proxy_protocol {
        let version = if version == ProxyProtocol::V1 { 1 } else { 2 };
        writeln!(f, "    tells servers who the client is with the PROXY protocol, version {version}")?;
    }
    if upstream.http2 {
        writeln!(f, "    HTTP/2: with TLS for servers that agree, without TLS for all")?;
    }
    writeln!(f, "    timeouts: {connect_timeout:?} to connect, {timeout:?} until the head of the response")?;
    match upstream.read_timeout {
        Some(limit) => writeln!(f, "    at most {limit:?} between two pieces of a response")?,
        None => writeln!(f, "    no time limit between two pieces of a response")?,
    }
    if let Some(limit) = upstream.tunnel_idle_timeout {
        writeln!(f, "    closes a WebSocket after {limit:?} without a byte")?;
    }
    writeln!(f, "    closes connections after {max_idle:?} without a request, and all at an age of {max_age:?}")?;
    let is_name =
        |address: &Address| matches!(address, Address::Http { host, .. } if host.parse::<std::net::IpAddr>().is_err());
    if upstream.servers.iter().any(|server| is_name(&server.address)) {
        writeln!(f, "    looks up the names of servers every {resolve_every:?}")?;
    }
    retry(f, &upstream.retry)?;
    overload(f, &upstream.overload)?;
    if let Some(HealthCheck { path, interval, timeout, statuses: good, healthy_after, unhealthy_after }) =
        &upstream.health
    {
        let good = statuses(good);
        writeln!(f, "    checks servers with {path} every {interval:?}, waits at most {timeout:?}; {good} is healthy")?;
        writeln!(f, "    unhealthy after {unhealthy_after} failed checks, healthy after {healthy_after} good ones")?;
    }
    let Some(Ejection { failures, statuses: as_failures, first, longest }) = &upstream.ejection else {
        return writeln!(f, "    never ejects a server");
    };
    let also = if as_failures.is_empty() { String::new() } else { format!(", {} among them", statuses(as_failures)) };
    writeln!(
        f,
        "    ejects a server after {failures} failures in a row{also}, for {first:?} at first and {longest:?} at most"
    )
}

fn retry(f: &mut fmt::Formatter<'_>, retry: &Retry) -> fmt::Result {
    let Retry { retries, budget, statuses: after, max_body } = retry;
    if *retries == 0 {
        return writeln!(f, "    sends no request again, unless it did not reach a server");
    }
    let also = if after.is_empty() { String::new() } else { format!(", also after {}", statuses(after)) };
    let percent = f64::from(*budget) / 10.0;
    writeln!(
        f,
        "    sends a request again at most {retries} time(s){also}: idempotent ones with bodies up to {max_body} bytes, \
         {percent} % of all"
    )
}

fn overload(f: &mut fmt::Formatter<'_>, overload: &Overload) -> fmt::Result {
    let Overload { max_in_flight, adaptive, max_waiting, max_wait } = overload;
    let most = match (adaptive, max_in_flight) {
        (Some(AdaptiveBounds { min, max }), _) => {
            format!("{min} to {max} requests in flight for each server, by its latency")
        }
        (None, Some(most)) => format!("at most {most} requests in flight for each server"),
        (None, None) => return Ok(()),
    };
    let waiting = match max_waiting {
        0 => "more are answered 503".to_owned(),
        count => format!("{count} more wait for at most {max_wait:?}, then they are answered 503"),
    };
    writeln!(f, "    {most}; {waiting}")
}

fn tls(f: &mut fmt::Formatter<'_>, tls: &UpstreamTls) -> fmt::Result {
    let UpstreamTls { ca, server_name, certificate, .. } = tls;
    match ca {
        Some(ca) => write!(f, "    trusts the authorities in {}", ca.display())?,
        None => write!(f, "    trusts the authorities of the system")?,
    }
    if let Some(name) = server_name {
        write!(f, ", for certificates of {}", name.to_str())?;
    }
    if let Some(certificate) = certificate {
        write!(f, "; shows the certificate in {}", certificate.cert.display())?;
    }
    writeln!(f)
}
