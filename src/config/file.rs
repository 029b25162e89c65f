//! The sections of the file as written: names, defaults and what single values may be. Defaults are nowhere else.

pub(super) mod limits;
pub(super) mod routes;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

use http::uri::{PathAndQuery, Scheme, Uri};
use ipnet::IpNet;
use tracing::Level;

use super::read::{Findings, Read, Section, Value, boolean, duration, integer, list, size, string, suggest, word};
use super::report::Problem;
use super::{Address, Admin, Log, LogFormat, Memcached, OnError, Server, Store, Upstream, UpstreamServer};

/// From the shortest that a timer can keep to what nobody would wait.
const TIMEOUTS: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(24 * 3600);
const LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);
const MEMCACHED_PORT: u16 = 11211;

/// A listening address with its place, for comparing it with others.
pub(super) type Listen = (SocketAddr, std::ops::Range<usize>);

pub(super) fn server(section: Section<'_>, findings: &Findings) -> (Server, Vec<Listen>) {
    let listen: Vec<Listen> = match section.read("listen", |value| list(value, "addresses", true)) {
        Some(values) => values.into_iter().filter_map(|value| findings.keep(address(value))).collect(),
        None => vec![(LISTEN, section.span.clone())],
    };
    let trusted = section.read("trusted_proxies", |value| match value.get_ref().as_array() {
        Some(empty) if empty.is_empty() => Ok(Vec::new()),
        _ => list(value, "networks", false),
    });
    let server = Server {
        listen: listen.iter().map(|(address, _)| *address).collect(),
        workers: section.read("workers", integer(0..=1024)).map_or(0, |workers| usize::try_from(workers).unwrap_or(0)),
        trusted_proxies: trusted.into_iter().flatten().filter_map(|value| findings.keep(network(value))).collect(),
        header_timeout: section.read("header_timeout", duration(TIMEOUTS)).unwrap_or(Duration::from_secs(10)),
        idle_timeout: section.read("idle_timeout", duration(TIMEOUTS)).unwrap_or(Duration::from_secs(75)),
        max_header_size: section.read("max_header_size", size(8 * 1024..=1024 * 1024)).unwrap_or(64 * 1024),
        drain_timeout: section.read("drain_timeout", duration(TIMEOUTS)).unwrap_or(Duration::from_secs(30)),
    };
    section.later(&["proxy_protocol", "max_connections", "tls"]);
    section.finish();
    (server, listen)
}

pub(super) fn log(section: Section<'_>) -> Log {
    let levels = [
        ("trace", Level::TRACE),
        ("debug", Level::DEBUG),
        ("info", Level::INFO),
        ("warn", Level::WARN),
        ("error", Level::ERROR),
    ];
    let formats = [("auto", LogFormat::Auto), ("pretty", LogFormat::Pretty), ("json", LogFormat::Json)];
    let log = Log {
        level: section.read("level", word(&levels)).unwrap_or(Level::INFO),
        format: section.read("format", word(&formats)).unwrap_or(LogFormat::Auto),
        access: section.read("access", boolean).unwrap_or(true),
    };
    section.finish();
    log
}

pub(super) fn admin(section: Section<'_>) -> Option<(Admin, Listen)> {
    let listen = section.need("listen", "\"127.0.0.1:9901\"", address);
    section.finish();
    listen.map(|listen| (Admin { listen: listen.0 }, listen))
}

#[derive(Clone, Copy)]
enum StoreType {
    Memory,
    Memcached,
}

pub(super) fn store(section: Section<'_>, findings: &Findings) -> Store {
    let types = [("memory", StoreType::Memory), ("memcached", StoreType::Memcached)];
    // Of the two types' keys, those of the other one are known, but not here.
    let misplaced = |keys: &[&'static str], other: &str| {
        for key in keys {
            if let Some(value) = section.value(key) {
                findings.add(Problem::plain(value.span(), format!("`{key}` is for a store of type \"{other}\"")));
            }
        }
    };
    let store = match section.read("type", word(&types)).unwrap_or(StoreType::Memory) {
        StoreType::Memory => {
            misplaced(&["servers", "prefix", "timeout", "on_error", "strict"], "memcached");
            let max_keys = section.read("max_keys", integer(1..=1_000_000_000)).unwrap_or(1_000_000);
            Store::Memory { max_keys: usize::try_from(max_keys).unwrap_or(usize::MAX) }
        }
        StoreType::Memcached => {
            misplaced(&["max_keys"], "memory");
            Store::Memcached(memcached(&section, findings))
        }
    };
    section.finish();
    store
}

fn memcached(section: &Section<'_>, findings: &Findings) -> Memcached {
    let servers = section.need("servers", "[\"127.0.0.1:11211\"]", |value| list(value, "servers", false));
    let servers: Vec<&Value<'_>> = servers.unwrap_or_default();
    let mut names: Vec<String> = Vec::new();
    for value in servers {
        match findings.keep(memcached_server(value)) {
            Some(name) if names.contains(&name) => {
                findings.add(Problem::plain(value.span(), format!("{name} is listed twice")));
            }
            Some(name) => names.push(name),
            None => {}
        }
    }
    section.read("strict", |value| match boolean(value)? {
        true => Err(Problem::plain(value.span(), "`strict = true` is not supported yet")),
        false => Ok(()),
    });
    Memcached {
        servers: names,
        prefix: section.read("prefix", prefix).unwrap_or("gw").to_owned(),
        timeout: section
            .read("timeout", duration(Duration::from_millis(1)..=Duration::from_secs(10)))
            .unwrap_or(Duration::from_millis(25)),
        on_error: section.read("on_error", on_error).unwrap_or(OnError::Allow),
    }
}

fn on_error(value: &Value<'_>) -> Read<OnError> {
    if string(value)? == "local" {
        return Err(Problem::new(value.span(), "`local` is not supported yet", "allowed: allow, reject"));
    }
    word(&[("allow", OnError::Allow), ("reject", OnError::Reject)])(value)
}

fn prefix<'a>(value: &'a Value<'a>) -> Read<&'a str> {
    let text = string(value)?;
    let printable = text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#');
    if (1..=64).contains(&text.len()) && printable {
        return Ok(text);
    }
    let help = "a prefix is 1 to 64 printable ASCII characters without spaces and #";
    Err(Problem::new(value.span(), "this prefix cannot begin a Memcached key", help))
}

fn memcached_server(value: &Value<'_>) -> Read<String> {
    let text = string(value)?;
    let bad =
        || Problem::new(value.span(), format!("`{text}` is not a server"), "a server is \"host:port\" or \"host\"");
    let authority: http::uri::Authority = text.parse().map_err(|_| bad())?;
    if authority.as_str().contains('@') || authority.host().is_empty() {
        return Err(bad());
    }
    if text.ends_with(':') || (authority.port().is_some() && authority.port_u16().is_none_or(|port| port == 0)) {
        return Err(bad());
    }
    Ok(format!("{}:{}", authority.host(), authority.port_u16().unwrap_or(MEMCACHED_PORT)))
}

pub(super) fn address(value: &Value<'_>) -> Read<Listen> {
    let text = string(value)?;
    let help = "an address is IP:PORT, like \"127.0.0.1:8080\", \"0.0.0.0:80\" or \"[::]:8080\"";
    let address = text.parse().map_err(|_| Problem::new(value.span(), format!("`{text}` is not an address"), help))?;
    Ok((address, value.span()))
}

fn network(value: &Value<'_>) -> Read<IpNet> {
    let text = string(value)?;
    let net = text.parse::<IpNet>().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from));
    let help = "a network is \"10.0.0.0/8\", \"2001:db8::/32\" or a single address";
    net.map(|net| net.trunc()).ok_or_else(|| Problem::new(value.span(), format!("`{text}` is not a network"), help))
}

pub(super) fn upstream(name: &str, section: Section<'_>, findings: &Findings) -> Upstream {
    let servers = section.need("servers", "[\"http://127.0.0.1:9000\"]", |value| list(value, "servers", false));
    let servers = servers.unwrap_or_default();
    section.read("balance", |value| match string(value)? {
        later @ ("least-requests" | "hash") => {
            Err(Problem::new(value.span(), format!("`{later}` is not supported yet"), "allowed: round-robin"))
        }
        _ => word(&[("round-robin", ())])(value),
    });
    let upstream = Upstream {
        name: name.to_owned(),
        servers: servers.into_iter().filter_map(|value| upstream_server(value, findings)).collect(),
        connect_timeout: section.read("connect_timeout", duration(TIMEOUTS)).unwrap_or(Duration::from_secs(1)),
        timeout: section.read("timeout", duration(TIMEOUTS)).unwrap_or(Duration::from_secs(30)),
    };
    section.later(&["retries", "max_in_flight", "http2", "health", "tls", "hash_key"]);
    section.finish();
    upstream
}

fn upstream_server<'a>(value: &'a Value<'a>, findings: &'a Findings) -> Option<UpstreamServer> {
    if value.get_ref().is_str() {
        return Some(UpstreamServer { address: findings.keep(server_url(value))?, weight: 1 });
    }
    let section = Section::of("a server", value, findings)?;
    let address = section.need("url", "\"http://127.0.0.1:9000\"", server_url);
    let weight = section.read("weight", integer(1..=100)).unwrap_or(1);
    section.finish();
    Some(UpstreamServer { address: address?, weight: u32::try_from(weight).unwrap_or(1) })
}

fn server_url(value: &Value<'_>) -> Read<Address> {
    let text = string(value)?;
    if text == "builtin:echo" {
        return Ok(Address::Echo);
    }
    let help = "a server is \"http://host:port\" or \"builtin:echo\"";
    let bad = |why: &str| Problem::new(value.span(), format!("`{text}` {why}"), help);
    if let Some(other) = text.strip_prefix("builtin:") {
        let suggestion = suggest(&format!("builtin:{other}"), &["builtin:echo"]);
        return Err(Problem::new(value.span(), format!("there is no built-in server `{other}`"), suggestion));
    }
    let url: Uri = text.parse().map_err(|error| bad(&format!("is not a URL: {error}")))?;
    match url.scheme() {
        Some(scheme) if *scheme == Scheme::HTTP => {}
        Some(scheme) if *scheme == Scheme::HTTPS => return Err(bad("is not supported yet: https")),
        _ => return Err(bad("does not begin with http://")),
    }
    let authority = url.authority().ok_or_else(|| bad("names no host"))?;
    if authority.as_str().contains('@') {
        return Err(bad("has a user in it, which is not allowed"));
    }
    if url.path_and_query().is_some_and(|rest| *rest != PathAndQuery::from_static("/")) || text.ends_with(['?', '#']) {
        return Err(bad("has a path, which is not allowed: use strip_prefix on the route"));
    }
    if authority.host().is_empty() || (authority.port().is_some() && authority.port_u16().is_none_or(|port| port == 0))
    {
        return Err(bad("has no valid host and port"));
    }
    let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
    Ok(Address::Http { host, port: authority.port_u16().unwrap_or(80), authority: authority.as_str().to_owned() })
}
