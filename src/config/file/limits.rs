//! `[limits.NAME]`: what is counted, and how much is allowed.

mod key;
mod rates;
mod tokens;
mod cost;
mod exceptions;
mod quotas;
mod quota_source;
mod known_keys;
mod temporary;

use std::ops::Range;
use std::time::Duration;

use http::{HeaderValue, StatusCode};

use crate::config::file::jwt::Names;
use crate::config::file::upstream_tls::SystemAuthorities;
use crate::config::file::{content, named_section};
use crate::config::read::{Field, Name, Section};
use crate::config::settings::{ban, limit, slow};
use crate::config::{Ban, Limit, OnLimit, Role, Slow, Store, values};
use crate::limit::Rate;

pub(super) use key::key;
pub use temporary::{quota_rates, temporary_again, temporary_override};

use exceptions::Kinds;
use rates::Terms;

const KEY: &str = "add what is counted, like key = \"client-ip\" or key = \"header:x-api-key | client-ip\"";

const SLOW: &str = "write from when on and for how long: slow = { from = 0.8, up_to = \"2s\" }";

pub(in crate::config) struct Overflow<'a> {
    pub(in crate::config) limit: Name<'a>,
    pub(in crate::config) pool: Option<Name<'a>>,
    /// The place of `on_limit`, or of the limit if it has none.
    pub(in crate::config) on_limit: Range<usize>,
}

struct Reaction {
    on_limit: OnLimit,
    status: StatusCode,
    body: String,
    content_type: HeaderValue,
}

/// `None` instead of the limit if it has an error.
pub(super) fn read<'a>(
    name: &Name<'a>,
    field: &Field<'a>,
    jwts: &Names<'_>,
    system: &SystemAuthorities,
    store: &Store,
) -> (Option<Limit>, Overflow<'a>) {
    let mut overflow = Overflow { limit: name.clone(), pool: None, on_limit: name.span.clone() };
    (read_limit(name, field, jwts, system, store, &mut overflow), overflow)
}

fn read_limit<'a>(
    name: &Name<'a>,
    field: &Field<'a>,
    jwts: &Names<'_>,
    system: &SystemAuthorities,
    store: &Store,
    overflow: &mut Overflow<'a>,
) -> Option<Limit> {
    let section = named_section(name, field, "limits", "a limit", &limit::TABLE)?;
    let key = section.required(&limit::key, KEY).and_then(|field| key(&field, &limit::key, jwts));
    let terms = Terms::read(&section);
    let (rates, max_in_flight) = allowed(&section, &terms);
    let own = rates.as_deref().unwrap_or_default();
    let gateways = share(&section, store);
    few(&section, own, gateways);
    let Reaction { on_limit, status, body, content_type } = reaction(&section);
    let ban = ban(&section, on_limit);
    let slow = slow(&section, on_limit, !own.is_empty());
    overflow.pool = section.field(&limit::overflow).and_then(|field| field.name());
    overflow.on_limit = section.key_span(limit::on_limit.name);
    if own.is_empty() {
        let help = "remove it, or add `rates`: what is over `max_in_flight` is refused";
        section.warn(&[limit::overflow.name], "has no effect without `rates`", help);
    }
    // With a pool, a cost above the capacity of the limit is charged to the pool.
    let bounds = if overflow.pool.is_some() { &[] } else { own };
    let cost = cost::read(&section, bounds, gateways.unwrap_or(1));
    if on_limit.delay().is_some() && max_in_flight.is_some() {
        let message = "`max_in_flight` cannot be combined with `on_limit = \"delay\"`";
        let help = "only a rate can delay requests; put `max_in_flight` into a separate limit";
        section.source.report(section.key_span(limit::max_in_flight.name), message, help);
    }
    let (kinds, has_rates) = (Kinds::of(key.as_ref()), !own.is_empty());
    let mut overrides = exceptions::overrides(&section, name.text, &terms, kinds, has_rates);
    let overrides_file = quotas::read(&section, &terms, kinds, has_rates, &mut overrides);
    let overrides = exceptions::finish(overrides, name, &section);
    let known_keys = known_keys::read(&section, key.as_ref());
    let tiers = exceptions::tiers(&section, name.text, &terms, jwts);
    let quotas = quota_source::read(&section, key.as_ref(), has_rates, system);
    terms.close(&section);
    let (headers, missing) = (section.read(&limit::headers), section.read(&limit::missing));
    section.close();
    Some(Limit {
        name: name.text.to_owned(),
        key: key?,
        rates: rates?,
        gateways,
        max_in_flight,
        cost,
        known_keys,
        overrides: overrides?,
        overrides_file,
        tiers,
        quotas,
        on_limit,
        ban,
        slow,
        overflow: overflow.pool.as_ref().map(|pool| pool.text.to_owned()),
        missing,
        headers,
        status,
        body,
        content_type,
    })
}

/// How many gateways share the limit, as far as the file says; `None` if each has the whole rates.
fn share(section: &Section<'_>, store: &Store) -> Option<u64> {
    if let Store::Shared(shared) = store {
        let help = format!("remove it: gateways that use the same {} count together", shared.software.name());
        section.misplaced(&[limit::share.name], "limits of a store in memory", &help);
        return Some(1);
    }
    section.read(&limit::share).then(|| store.fixed_gateways())
}

/// Warns of a quota smaller than the number of gateways: each admits at least one request.
fn few(section: &Section<'_>, rates: &[Rate], gateways: Option<u64>) {
    let Some(gateways) = gateways else { return };
    if let Some(rate) = rates.iter().find(|rate| rate.quota() < gateways) {
        let why =
            format!("admit {gateways} instead of \"{rate}\", because each of {gateways} gateways admits at least 1");
        let help = "use a longer period, such as \"60/m\" instead of \"1/s\", or a store that gateways share: Memcached or Valkey";
        section.warn(&[limit::rates.name], &why, help);
    }
}

/// Reads `rates` and `max_in_flight`; at least one of them is required.
fn allowed(section: &Section<'_>, terms: &Terms) -> (Option<Vec<Rate>>, Option<u64>) {
    let has_flights = section.field(&limit::max_in_flight).is_some();
    let rates = match section.field(&limit::rates) {
        Some(field) => terms.rates(&field, &limit::rates),
        None if has_flights => Some(Vec::new()),
        None => {
            let help = "add how much is allowed: rates = [\"10/s\", \"3000/10m\"], or max_in_flight = 10";
            section.required(&limit::rates, help);
            None
        }
    };
    (rates, section.given(&limit::max_in_flight))
}

fn reaction(section: &Section<'_>) -> Reaction {
    let on_limit =
        match section.field(&limit::on_limit).map_or(Some(OnLimit::Reject), |_| section.given(&limit::on_limit)) {
            Some(on_limit) if on_limit.delay().is_none() => {
                section.misplaced(&[limit::max_delay.name], "`on_limit = \"delay\"`", "remove it, or use that");
                if section.field(&limit::slow).is_none() {
                    let owner = "`on_limit = \"delay\"` and `slow`";
                    section.misplaced(&[limit::max_delayed.name], owner, "remove it, or use one of them");
                }
                on_limit
            }
            // If the value is invalid, nobody knows which other keys belong to it.
            Some(_) | None => OnLimit::Delay {
                max_delay: section.read(&limit::max_delay),
                max_delayed: section.read(&limit::max_delayed),
            },
        };
    let (own, allowed) = on_limit.statuses();
    let status = |field: &Field<'_>| values::status(field, allowed.clone());
    let status = match own {
        Some(own) => section.field(&limit::status).and_then(|field| status(&field)).unwrap_or(own),
        None => section.read_as(&limit::status, status),
    };
    let (body, content_type) = content::read(section, &limit::body, &limit::content_type, status);
    if on_limit.role() == Role::Reports {
        let help = "it takes effect only if the limit refuses requests, with on_limit = \"reject\"";
        section.warn(
            &[limit::status.name, limit::body.name, limit::content_type.name, limit::overflow.name],
            "has no effect while the limit only reports",
            help,
        );
    } else if !on_limit.is_told() {
        let help = "remove it: a silent limit sends no headers, so that clients do not notice it";
        section.warn(&[limit::headers.name], "has no effect with `on_limit = \"silent\"`", help);
    }
    Reaction { on_limit, status, body, content_type }
}

fn ban(limit: &Section<'_>, on_limit: OnLimit) -> Option<Ban> {
    let field = limit.field(&limit::ban)?;
    if !field.is_table() {
        field.mistyped("a table", format!("write when keys are banned: ban = {}", limit::ban.example()));
        return None;
    }
    let section = field.section(ban::TABLE.title, &ban::TABLE)?;
    let (after, within, first) = (section.read(&ban::after), section.read(&ban::within), section.read(&ban::r#for));
    let longest = section.given(&ban::max_for).unwrap_or_else(|| section.read(&ban::max_for).max(first));
    if longest < first {
        let help = "make it at least as long: the first ban lasts `for`";
        section.refuse(&[ban::max_for.name], "is shorter than `for`", help);
    }
    let respond = section.read(&ban::respond);
    section.close();
    if on_limit.role() == Role::Reports {
        let help =
            "a key is banned for refusals, and this limit refuses nothing; remove it, or use on_limit = \"reject\"";
        limit.warn(&[limit::ban.name], "has no effect while the limit only reports", help);
        return None;
    }
    Some(Ban { after, within, first, longest, respond })
}

fn slow(section: &Section<'_>, on_limit: OnLimit, has_rates: bool) -> Option<Slow> {
    let field = section.field(&limit::slow)?;
    if !field.is_table() {
        field.mistyped("a table", SLOW);
        return None;
    }
    if on_limit.role() == Role::Reports {
        let help = "it takes effect only if the limit refuses requests, with on_limit = \"reject\"";
        section.warn(&[limit::slow.name], "has no effect while the limit only reports", help);
    } else if !has_rates {
        section.warn(&[limit::slow.name], "has no effect without `rates`", "add rates, or remove it");
    }
    let table = field.section(slow::TABLE.title, &slow::TABLE)?;
    let from = table.required(&slow::from, SLOW).and_then(|_| table.given(&slow::from));
    let up_to: Option<Duration> = table.required(&slow::up_to, SLOW).and_then(|_| table.given(&slow::up_to));
    table.close();
    Some(Slow { from: from?, up_to: up_to?, max_delayed: section.read(&limit::max_delayed) })
}
