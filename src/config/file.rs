//! The sections of the file and their defaults. Each default is written once, here or in a module below.

mod named_file;
mod secret;
mod admin;
mod content;
mod statuses;
mod shed;
mod listen;
mod tls;
mod store;
mod upstream_tls;
mod jwt;
mod traces;
mod limits;
mod upstreams;
mod paths;
mod templates;
mod headers;
mod cors;
mod redirect;
mod rewrite;
mod routes;

use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use toml::Spanned;
use toml::de::DeTable;

use super::read::{Field, Name, Section, Source, Wrong, set};
use super::report::quoted;
use super::{
    AccessFormat, AccessLog, Admin, EscapedSlashes, Http2, Jwt, Limit, Listener, Log, LogFormat, MaxConnections,
    PathMatching, PathRules, Server, Store, Tracing, UNLIMITED, Upstream, values,
};

use upstream_tls::SystemAuthorities;

pub(super) use limits::{again, quota_rates, temporary};
pub(super) use routes::{Answer, Draft as RouteDraft};

/// The file as read: values are checked, but names of limits and upstreams are not yet looked up.
pub(super) struct Draft<'a> {
    pub(super) server: Server,
    pub(super) log: Log,
    pub(super) admin: Option<Admin>,
    pub(super) tracing: Option<Tracing>,
    pub(super) store: Store,
    /// `None` where the section itself is wrong.
    pub(super) upstreams: Vec<(Name<'a>, Option<Upstream>)>,
    /// `None` where the section itself is wrong.
    pub(super) jwts: Vec<(Name<'a>, Option<Jwt>)>,
    /// `None` where the section itself is wrong.
    pub(super) limits: Vec<(Name<'a>, Option<Limit>)>,
    pub(super) routes: Vec<RouteDraft<'a>>,
    /// All addresses of listeners, and where they are written.
    pub(super) listeners: Vec<(SocketAddr, Range<usize>)>,
}

/// Reads `[admin]` alone, whatever the other sections are.
pub(super) fn read_admin<'a>(table: &'a Spanned<DeTable<'a>>, source: &'a Source<'a>) -> Option<Admin> {
    let section = Section::root(table, source).field("admin").and_then(|field| field.section("[admin]"));
    section.and_then(|section| admin::read(section, &mut Vec::new()))
}

/// Reads all sections.
pub(super) fn read<'a>(table: &'a Spanned<DeTable<'a>>, source: &'a Source<'a>) -> Draft<'a> {
    let root = Section::root(table, source);
    let section = |key: &'static str, title: &str| root.field(key).and_then(|field| field.section(title));
    let mut listeners = Vec::new();
    let server = server(section("server", "[server]"), &mut listeners);
    let log = log(section("log", "[log]"));
    let admin = section("admin", "[admin]").and_then(|section| admin::read(section, &mut listeners));
    let system = SystemAuthorities::default();
    let tracing = section("tracing", "[tracing]").and_then(|section| traces::read(section, &system));
    let store = store::read(section("store", "[store]"));
    let named = |key: &'static str, title: &str| section(key, title).map(|section| section.entries());
    let upstreams = named("upstreams", "[upstreams.NAME]").unwrap_or_default();
    let jwts = named("jwt", "[jwt.NAME]").unwrap_or_default();
    let limits = named("limits", "[limits.NAME]").unwrap_or_default();
    let routes = root.field("routes").and_then(|field| routes::read(&field)).unwrap_or_default();
    root.close();
    let tokens = jwt::Names::new(&jwts);
    let upstream =
        |(name, field): (Name<'a>, Field<'a>)| (name.clone(), upstreams::read(&name, &field, &system, &tokens));
    let limit = |(name, field): (Name<'a>, Field<'a>)| (name.clone(), limits::read(&name, &field, &tokens, &system));
    Draft {
        server,
        log,
        admin,
        tracing,
        store,
        upstreams: upstreams.into_iter().map(upstream).collect(),
        limits: limits.into_iter().map(limit).collect(),
        jwts: jwts.into_iter().map(|(name, field)| (name.clone(), jwt::read(&name, &field, &system))).collect(),
        routes,
        listeners,
    }
}

fn server(section: Option<Section<'_>>, listeners: &mut Vec<(SocketAddr, Range<usize>)>) -> Server {
    let mut server = Server {
        listen: vec![Listener { address: SocketAddr::from(([127, 0, 0, 1], 8080)), tls: false }],
        tls: None,
        http2: Http2 { max_streams: 250, max_header_list: 64 << 10 },
        workers: 0,
        trusted_proxies: Vec::new(),
        proxy_protocol: false,
        forwarded: false,
        header_timeout: Duration::from_secs(10),
        idle_timeout: Duration::from_secs(75),
        body_timeout: Duration::from_secs(60),
        max_connections: MaxConnections::Auto,
        max_connections_per_ip: 0,
        max_header_size: 64 << 10,
        max_body_size: UNLIMITED,
        drain_delay: Duration::ZERO,
        drain_timeout: Duration::from_secs(30),
        paths: PathRules::default(),
        shed: None,
    };
    let Some(section) = section else { return server };
    let tls = section.field("tls");
    let listen = section.field("listen");
    server.listen = listen::read(listen.as_ref(), tls.as_ref(), listeners);
    server.tls = tls.and_then(|field| field.section("[server.tls]")).and_then(tls::read);
    if let Some(workers) = section.field("workers").and_then(|field| field.integer(0..=1024)) {
        server.workers = usize::try_from(workers).unwrap_or_default();
    }
    if let Some(list) = section.field("trusted_proxies").and_then(|field| field.list("[\"10.0.0.0/8\"]")) {
        server.trusted_proxies = list.iter().filter_map(|field| field.parse(values::network)).collect();
    }
    set(&mut server.proxy_protocol, section.field("proxy_protocol").and_then(|field| field.boolean()));
    set(&mut server.forwarded, section.field("forwarded").and_then(|field| field.boolean()));
    set(&mut server.header_timeout, values::wait(&section, "header_timeout", values::WAIT));
    set(&mut server.idle_timeout, values::wait(&section, "idle_timeout", values::WAIT));
    set(&mut server.body_timeout, values::wait(&section, "body_timeout", values::WAIT));
    set(&mut server.max_connections, section.field("max_connections").and_then(|field| max_connections(&field)));
    let per_ip = section.field("max_connections_per_ip").and_then(|field| field.integer(0..=MOST_CONNECTIONS));
    set(&mut server.max_connections_per_ip, per_ip.and_then(|most| usize::try_from(most).ok()));
    let size = values::bytes(&section, "max_header_size", (8 << 10)..=(1 << 20), "8KiB to 1MiB");
    set(&mut server.max_header_size, size);
    set(&mut server.max_body_size, values::body_size(&section));
    // Zero is allowed: then a drain does not wait.
    set(&mut server.drain_delay, values::wait(&section, "drain_delay", Duration::ZERO..=*values::WAIT.end()));
    set(&mut server.drain_timeout, values::wait(&section, "drain_timeout", Duration::ZERO..=*values::WAIT.end()));
    server.paths = path_rules(&section);
    if let Some(http2) = section.field("http2").and_then(|field| field.section("[server.http2]")) {
        server.http2 = read_http2(http2, server.http2);
    }
    server.shed = section.field("shed").and_then(|field| shed::read(&field));
    section.close();
    server
}

fn read_http2(section: Section<'_>, mut http2: Http2) -> Http2 {
    let streams = section.field("max_streams").and_then(|field| field.integer(1..=65_535));
    set(&mut http2.max_streams, streams.and_then(|most| u32::try_from(most).ok()));
    let size = values::bytes(&section, "max_header_list", (8 << 10)..=(1 << 20), "8KiB to 1MiB");
    set(&mut http2.max_header_list, size.and_then(|size| u32::try_from(size).ok()));
    section.close();
    http2
}

/// More than any machine can have.
const MOST_CONNECTIONS: u64 = 100_000_000;

fn max_connections(field: &Field<'_>) -> Option<MaxConnections> {
    if field.is_text() {
        return field.parse(|text| match text {
            "auto" => Ok(MaxConnections::Auto),
            _ => Err(Wrong::new(
                format!("{} is not a number of connections", quoted(text)),
                format!("allowed: \"auto\", or 1 to {MOST_CONNECTIONS} without quotes"),
            )),
        });
    }
    let most = field.integer(1..=MOST_CONNECTIONS).and_then(|most| usize::try_from(most).ok());
    most.map(MaxConnections::Number)
}

fn path_rules(section: &Section<'_>) -> PathRules {
    let mut rules = PathRules::default();
    let matching = [("forgiving", PathMatching::Forgiving), ("exact", PathMatching::Exact)];
    set(&mut rules.matching, section.choice("path_matching", &matching));
    let slashes =
        [("reject", EscapedSlashes::Reject), ("keep", EscapedSlashes::Keep), ("decode", EscapedSlashes::Decode)];
    set(&mut rules.escaped_slashes, section.choice("escaped_slashes", &slashes));
    rules
}

/// The names of all levels of the log, the least severe first.
pub const LOG_LEVELS: [(&str, tracing::Level); 5] = [
    ("trace", tracing::Level::TRACE),
    ("debug", tracing::Level::DEBUG),
    ("info", tracing::Level::INFO),
    ("warn", tracing::Level::WARN),
    ("error", tracing::Level::ERROR),
];

fn log(section: Option<Section<'_>>) -> Log {
    let mut log = Log {
        level: tracing::Level::INFO,
        format: LogFormat::Auto,
        access: AccessLog::On,
        access_file: None,
        access_format: None,
    };
    let Some(section) = section else { return log };
    let formats = [("auto", LogFormat::Auto), ("pretty", LogFormat::Pretty), ("json", LogFormat::Json)];
    set(&mut log.level, section.choice("level", &LOG_LEVELS));
    set(&mut log.format, section.choice("format", &formats));
    set(&mut log.access, section.field("access").and_then(|field| access(&field)));
    let access_formats = [("json", AccessFormat::Json), ("combined", AccessFormat::Combined)];
    log.access_format = section.choice("access_format", &access_formats);
    if let Some(path) = section.field("access_file").and_then(|field| field.path(field.text()?)) {
        log.access_file = Some(path);
        log.access_format.get_or_insert(AccessFormat::Json);
    }
    section.close();
    log
}

fn access(field: &Field<'_>) -> Option<AccessLog> {
    const HELP: &str = "write true, false or \"sampled\"";
    if field.is_text() {
        return field.parse(|text| match text {
            "sampled" => Ok(AccessLog::Sampled),
            _ => Err(Wrong::new(format!("{} is not a value of `access`", quoted(text)), HELP)),
        });
    }
    if !field.is_boolean() {
        field.mistyped("true, false or \"sampled\"", HELP);
        return None;
    }
    Some(if field.boolean()? { AccessLog::On } else { AccessLog::Off })
}
