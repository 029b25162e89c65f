//! Readers of the sections of the file.

mod named_file;
mod secret;
mod admin;
mod decisions;
mod content;
mod statuses;
mod listen;
mod acme;
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

use toml::Spanned;
use toml::de::DeTable;

use super::read::{Field, Name, Section, Source, Table, Wrong};
use super::report::quoted;
use super::settings::{MOST_CONNECTIONS, http2, log, root, server, shed, tls as keys};
use super::{
    AccessFormat, AccessLog, Challenge, Http2, Jwt, Limit, Log, MaxConnections, PathRules, Server, Shed, Store,
    Upstream, values,
};

use upstream_tls::SystemAuthorities;

pub use admin::{Access, Admin, AdminAddress, AdminToken};
pub(super) use decisions::DescriptorDraft;
pub use decisions::{Decisions, DescriptorRule};
pub(super) use limits::Overflow;
pub use limits::{quota_rates, temporary_again, temporary_override};
pub(super) use routes::{Answer, Draft as RouteDraft};
pub use traces::{Collector, Tracing};

/// Values are checked, but names of limits and upstreams are not yet looked up.
pub(super) struct Draft<'a> {
    pub(super) server: Server,
    pub(super) decisions: Option<Decisions>,
    pub(super) log: Log,
    pub(super) admin: Option<Admin>,
    pub(super) tracing: Option<Tracing>,
    pub(super) store: Store,
    /// `None` if the section has an error, as in the next two fields.
    pub(super) upstreams: Vec<(Name<'a>, Option<Upstream>)>,
    pub(super) jwts: Vec<(Name<'a>, Option<Jwt>)>,
    pub(super) limits: Vec<(Name<'a>, Option<Limit>)>,
    /// One for each limit.
    pub(super) overflows: Vec<Overflow<'a>>,
    pub(super) routes: Vec<RouteDraft<'a>>,
    pub(super) descriptors: Vec<DescriptorDraft<'a>>,
    /// The addresses of all listeners, and their places in the file.
    pub(super) listeners: Vec<(SocketAddr, Range<usize>)>,
}

/// Reads `[admin]` alone, even if other sections are wrong.
pub(super) fn read_admin<'a>(table: &'a Spanned<DeTable<'a>>, source: &'a Source<'a>) -> Option<Admin> {
    let section = Section::root(table, &root::TABLE, source).table(&root::admin);
    section.and_then(|section| admin::read(section, &mut Vec::new()))
}

pub(super) fn read<'a>(table: &'a Spanned<DeTable<'a>>, source: &'a Source<'a>) -> Draft<'a> {
    let root = Section::root(table, &root::TABLE, source);
    let mut listeners = Vec::new();
    let has_decisions = root.field(&root::decisions).is_some();
    let system = SystemAuthorities::default();
    let server = server(root.table_or_empty(&root::server), has_decisions, &system, &mut listeners);
    let (decisions, descriptors) =
        root.table(&root::decisions).map(|section| decisions::read(section, &mut listeners)).unwrap_or_default();
    let log = log(root.table_or_empty(&root::log));
    let admin = root.table(&root::admin).and_then(|section| admin::read(section, &mut listeners));
    let tracing = root.table(&root::tracing).and_then(|section| traces::read(section, &system));
    let store = store::read(root.table_or_empty(&root::store), &system);
    let named = |key, title| root.field(key).and_then(|field| field.entries(title)).unwrap_or_default();
    let upstreams = named(&root::upstreams, "[upstreams.NAME]");
    let jwts = named(&root::jwt, "[jwt.NAME]");
    let limits = named(&root::limits, "[limits.NAME]");
    let routes = routes::read(&root);
    root.close();
    let tokens = jwt::Names::new(&jwts);
    let upstream =
        |(name, field): (Name<'a>, Field<'a>)| (name.clone(), upstreams::read(&name, &field, &system, &tokens));
    let limit = |(name, field): (Name<'a>, Field<'a>)| {
        let (limit, overflow) = limits::read(&name, &field, &tokens, &system, &store);
        ((name, limit), overflow)
    };
    let (limits, overflows) = limits.into_iter().map(limit).unzip();
    Draft {
        server,
        decisions,
        log,
        admin,
        tracing,
        store,
        upstreams: upstreams.into_iter().map(upstream).collect(),
        limits,
        overflows,
        jwts: jwts.into_iter().map(|(name, field)| (name.clone(), jwt::read(&name, &field, &system))).collect(),
        routes,
        descriptors,
        listeners,
    }
}

fn server(
    section: Section<'_>,
    has_decisions: bool,
    system: &SystemAuthorities,
    listeners: &mut Vec<(SocketAddr, Range<usize>)>,
) -> Server {
    let networks = |field: &Field<'_>| {
        let list = field.list(&server::trusted_proxies)?;
        Some(list.iter().filter_map(|field| field.parse(values::network)).collect())
    };
    let tls = section.field(&server::tls);
    let listen = listen::read(&section, tls.as_ref(), has_decisions, listeners);
    let http2 = section.table_or_empty(&server::http2);
    let tls = tls.zip(section.table(&server::tls)).and_then(|(field, section)| {
        let acme = section.table(&keys::acme).map(|section| acme::read(section, system));
        let mut tls = tls::read(section, acme.is_some())?;
        let Some(acme) = acme else { return Some(tls) };
        let acme = acme?;
        let is_http = acme.challenge == Challenge::Http01;
        if is_http && listen.iter().all(|listener| listener.tls) {
            let help = "add a listener for it, at port 80: { address = \"0.0.0.0:80\", tls = false }";
            field.report("http-01 is answered on plain listeners, and there is none", help);
        }
        tls.acme = Some(acme);
        tls.issue(None);
        Some(tls)
    });
    let server = Server {
        listen,
        tls,
        http2: Http2 {
            max_streams: http2.read(&http2::max_streams),
            max_header_list: http2.read(&http2::max_header_list),
        },
        workers: section.read(&server::workers),
        trusted_proxies: section.read_as(&server::trusted_proxies, networks),
        proxy_protocol: section.read(&server::proxy_protocol),
        forwarded: section.read(&server::forwarded),
        header_timeout: section.read(&server::header_timeout),
        idle_timeout: section.read(&server::idle_timeout),
        body_timeout: section.read(&server::body_timeout),
        max_connections: section.read_as(&server::max_connections, max_connections),
        max_connections_per_ip: section.read(&server::max_connections_per_ip),
        max_header_size: section.read(&server::max_header_size),
        max_body_size: section.read(&server::max_body_size),
        inspect_body: section.read(&server::inspect_body),
        inspect_memory: section.read(&server::inspect_memory),
        drain_delay: section.read(&server::drain_delay),
        drain_timeout: section.read(&server::drain_timeout),
        paths: PathRules {
            matching: section.read(&server::path_matching),
            escaped_slashes: section.read(&server::escaped_slashes),
        },
        shed: section.table(&server::shed).map(shed),
    };
    http2.close();
    section.close();
    server
}

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

fn log(section: Section<'_>) -> Log {
    let access_file = section.given(&log::access_file);
    let access_format = section.given(&log::access_format).or(access_file.as_ref().map(|_| AccessFormat::Json));
    section.at_start(&log::access_file, &access_file);
    section.at_start(&log::access_format, &access_format);
    let log = Log {
        level: section.read(&log::level),
        format: section.read(&log::format),
        access: section.read_as(&log::access, access),
        access_file,
        access_format,
    };
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

fn shed(section: Section<'_>) -> Shed {
    let field = section.field(&shed::cpu);
    if field.is_none() && section.field(&shed::latency).is_none() {
        let help = "add the wanted share of the processors, like cpu = 0.9, or the wanted time until a response, like \
                    latency = \"500ms\"";
        section.source.report(section.span.clone(), "[server.shed] has neither `cpu` nor `latency`", help);
    }
    let cpu = section.given(&shed::cpu);
    if let Some(field) = field.filter(|_| cpu == Some(0)) {
        field.report("`cpu = 0` would shed everything", "write a share above 0, like 0.9 for nine tenths");
    }
    let (latency, status) = (section.given(&shed::latency), section.read(&shed::status));
    section.close();
    Shed { cpu, latency, status }
}

/// The section `[kind.NAME]` of `what`. `None`, after a report, if it is not a table. A name that is not allowed is reported too.
fn named_section<'a>(
    name: &Name<'_>,
    field: &Field<'a>,
    kind: &str,
    what: &str,
    table: &'static Table,
) -> Option<Section<'a>> {
    if let Err(wrong) = values::name(name.text) {
        field.source.report(name.span.clone(), wrong.message, wrong.help);
    }
    if !field.is_table() {
        let message = format!("`{}` is not the table of {what}", name.text);
        let help = format!("it needs a name: write [{kind}.NAME], and its keys below");
        field.source.report(name.span.clone(), message, help);
        return None;
    }
    field.section(format!("[{kind}.{}]", name.text), table)
}
