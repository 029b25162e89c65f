//! The whole file: its sections, and what is read of them.
//!
//! Each section has a table of its keys, each with its values, its default and its purpose. The readers, the JSON schema,
//! docs/reference.md and `/api/config` all use these tables. A default is read like a value of the file. So documentation and
//! readers cannot disagree.

use std::collections::HashMap;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::admin::{self, Admin};
use super::key::Names;
use super::kinds::shaped;
use super::limit::{self, Limit};
use super::named::Named;
use super::pem_files::SystemAuthorities;
use super::read::{Field, Name, Section, Shape, Source, tables};
use super::server;
use super::store;
use super::written_key::KeyForms;
use super::{Config, decisions, jwt, log, notices, route, tracing, upstream};

tables! {
    /// The configuration of a gateway.
    root "the file" {
        /// How clients connect, and what they may do.
        server: () = shaped(Shape::Table(&server::keys::TABLE)), {};
        /// Lets other proxies ask this gateway whether its limits admit a request; without this table they cannot.
        decisions: () = shaped(Shape::Table(&decisions::keys::TABLE));
        /// What the gateway writes to standard error.
        log: () = shaped(Shape::Table(&log::keys::TABLE)), {};
        /// A listener for operators; without this table there is none.
        admin: () = shaped(Shape::Table(&admin::keys::TABLE));
        /// Sends spans of requests to an OpenTelemetry collector; without this table there are none.
        tracing: () = shaped(Shape::Table(&tracing::keys::TABLE));
        /// Tells servers when a key has used a share of a rate.
        notices: () = shaped(notices::SHAPE), [];
        /// Where the gateway keeps its counters.
        store: () = shaped(Shape::Table(&store::keys::TABLE)), {};
        /// Servers that answer requests; routes refer to them by name.
        upstreams: () = shaped(Shape::Named(&Shape::Table(&upstream::keys::TABLE))), {};
        /// Trusted issuers of tokens; sources of keys refer to them by name.
        jwt: () = shaped(Shape::Named(&Shape::Table(&jwt::keys::TABLE))), {};
        /// What the gateway counts, and how much it allows; routes refer to limits by name.
        limits: () = shaped(Shape::Named(&Shape::Table(&limit::keys::TABLE))), {};
        /// Which requests the gateway answers, and how.
        routes: () = shaped(Shape::List(&Shape::Table(&route::keys::TABLE), 0, usize::MAX)), [];
    }
}

const SMALLEST: &str = "the smallest file is\n\n[upstreams.api]\nservers = [\"http://127.0.0.1:9000\"]\n\n\
                        [[routes]]\npath = \"/*\"\nupstream = \"api\"";

/// Reads `[admin]` alone, even if other sections are wrong.
pub(super) fn read_admin<'a>(table: &'a Spanned<DeTable<'a>>, source: &'a Source<'a>) -> Option<Admin> {
    let written = table.get_ref().get(root::admin.name)?;
    let section = Field::new(root::admin.name, written, source).section("[admin]", &admin::keys::TABLE)?;
    admin::read(&section)
}

/// Reports all problems. The result is complete only if there are none.
pub(super) fn read<'a>(table: &'a Spanned<DeTable<'a>>, source: &'a Source<'a>) -> Config {
    source.sections.set(root::TABLE.names);
    let root = Section::root(table, &root::TABLE, source);
    let system = SystemAuthorities::default();
    let store = store::read(root.table_or_empty(&root::store), &system);
    let entries = |key, title| root.field(key).and_then(|field| field.entries(title)).unwrap_or_default();
    let jwts = entries(&root::jwt, "[jwt.NAME]");
    let tokens = Names::new(&jwts);
    let upstream =
        |(name, field): (Name<'a>, Field<'a>)| (name.clone(), upstream::read(&name, &field, &system, &tokens));
    let has_decisions = root.field(&root::decisions).is_some();
    let server = server::read(&root.table_or_empty(&root::server), has_decisions, &system);
    let path_cases = path_cases(table.get_ref());
    let limit = |(name, field): &(Name<'a>, Field<'a>)| {
        let ignore_case = path_cases.get(name.text).copied().unwrap_or(Some(false));
        let forms = KeyForms { paths: server.paths, ignore_case };
        (name.clone(), limit::read(name, field, &tokens, &system, &store, forms))
    };
    let upstreams = entries(&root::upstreams, "[upstreams.NAME]").into_iter().map(upstream).collect();
    let limits = entries(&root::limits, "[limits.NAME]");
    let named = Named { limits: limits.iter().map(limit).collect(), upstreams };
    named.check_pools(&limits);
    let notices = root.tables(&root::notices).filter_map(|section| notices::read(&section, &system, &named));
    let notices: Vec<_> = notices.collect();
    let watched = |limit: Limit| Limit { watched: notices::watched(&notices, &limit), ..limit };
    let config = Config {
        routes: route::read(&root, &root::routes, &named, &server),
        server,
        decisions: root.table(&root::decisions).and_then(|section| decisions::read(&section, &named)),
        log: log::read(&root.table_or_empty(&root::log)),
        admin: root.table(&root::admin).as_ref().and_then(admin::read),
        tracing: root.table(&root::tracing).and_then(|section| tracing::read(&section, &system)),
        gateways: store.fixed_gateways(),
        store,
        upstreams: named.upstreams.into_iter().filter_map(|(_, upstream)| upstream).collect(),
        jwts: jwts.iter().filter_map(|(name, field)| jwt::read(name, field, &system)).collect(),
        limits: named.limits.into_iter().filter_map(|(_, limit)| limit).map(watched).collect(),
        notices,
        files: source.files(),
        at_start: source.at_start.borrow().clone(),
        warnings: source.warnings(),
    };
    drop(root);
    if config.routes.is_empty() && config.descriptors().is_empty() && source.is_clean() {
        let what = if source.texts.count() > 1 { "folder" } else { "file" };
        source.report(0..0, format!("the {what} has no routes, so every request would be answered 404"), SMALLEST);
    }
    config
}

/// For each limit of a route, also as a pool: whether its routes ignore the case of paths; `None` if they differ. Nothing is
/// reported, since routes are read after limits.
fn path_cases<'a>(file: &'a DeTable<'a>) -> HashMap<&'a str, Option<bool>> {
    fn list<'a>(table: &'a DeTable<'a>, key: &str) -> &'a [Spanned<DeValue<'a>>] {
        table.get(key).and_then(|value| value.get_ref().as_array()).map_or(&[], |list| list)
    }
    let limits = file.get(root::limits.name).and_then(|limits| limits.get_ref().as_table());
    let pool =
        |name: &str| limits?.get(name)?.get_ref().as_table()?.get(limit::keys::overflow.name)?.get_ref().as_str();
    let mut cases = HashMap::new();
    for route in list(file, root::routes.name).iter().filter_map(|route| route.get_ref().as_table()) {
        let ignores = route.get(route::keys::ignore_case.name).and_then(|value| value.get_ref().as_bool());
        for name in list(route, route::keys::limits.name).iter().filter_map(|name| name.get_ref().as_str()) {
            for limit in [Some(name), pool(name)].into_iter().flatten() {
                let all = cases.entry(limit).or_insert(Some(ignores == Some(true)));
                *all = all.filter(|all| *all == (ignores == Some(true)));
            }
        }
    }
    cases
}
