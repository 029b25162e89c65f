//! Reads `[limits.NAME]`.

use super::exceptions::{self, Kinds};
use super::foreign;
use super::rates::{self, Terms};
use super::{Cost, Limit, cost, keys as limit, on_limit, overrides_file, quotas};
use crate::config::key::{Names, key};
use crate::config::pem_files::SystemAuthorities;
use crate::config::read::{Field, Name, Section};
use crate::config::store::Store;
use crate::config::values::named_section;
use crate::config::written_key::{KeyForms, WrittenPart};
use crate::config::{content, known_keys};
use crate::limit::Rate;

const KEY: &str = "add what is counted, like key = \"client-ip\" or key = \"header:x-api-key | client-ip\"";

/// `None` if the limit has an error.
pub(in crate::config) fn read(
    name: &Name<'_>,
    field: &Field<'_>,
    jwts: &Names<'_>,
    system: &SystemAuthorities,
    store: &Store,
    forms: KeyForms,
) -> Option<Limit> {
    let section = named_section(name, field, "limits", "a limit", &limit::TABLE)?;
    let key = section.required(&limit::key, KEY).and_then(|field| key(&field, &limit::key, jwts));
    let mut terms = Terms::read(&section);
    let (rates, max_in_flight) = allowed(&section, &terms);
    terms.has_rates = rates.as_ref().is_none_or(|rates| !rates.is_empty());
    let own = rates.as_deref().unwrap_or_default();
    let gateways = share(&section, store);
    few(&section, own, gateways);
    let (on_limit, status) = on_limit::reaction(&section);
    let (body, content_type) = content::read(&section, &limit::body, &limit::content_type, status);
    let ban = on_limit::ban(&section, on_limit);
    let retry_jitter = section.given(&limit::retry_jitter).unwrap_or_default();
    if own.is_empty() && ban.is_none() {
        let help = "remove it, or add `rates`: when a request in flight ends cannot be predicted";
        section.warn(&[limit::retry_jitter.name], "has no effect without `rates`", help);
    }
    let slow = on_limit::slow(&section, on_limit, !own.is_empty());
    let overflow = section.field(&limit::overflow).and_then(|field| field.text().map(str::to_owned));
    if own.is_empty() {
        let help = "remove it, or add `rates`: what is over `max_in_flight` is refused";
        section.warn(&[limit::overflow.name], "has no effect without `rates`", help);
    }
    // With a pool, a cost above the capacity of the limit is charged to the pool.
    let bounds = if overflow.is_some() { &[] } else { own };
    let cost = cost::read(&section, bounds, gateways.unwrap_or(1));
    if on_limit.delay().is_some() && max_in_flight.is_some() {
        let help = "only a rate can delay requests; put `max_in_flight` into a separate limit";
        section.refuse(&[limit::max_in_flight.name], "cannot be combined with `on_limit = \"delay\"`", help);
    }
    let sources = key.as_ref().and_then(|key| key.parts.first()).map_or(&[][..], Vec::as_slice);
    let part = WrittenPart { sources, forms };
    let kinds = Kinds::of(part);
    let mut overrides = exceptions::overrides(&section, name.text, &terms, kinds);
    let overrides_file = overrides_file::read(&section, &terms, kinds, &mut overrides);
    let overrides = exceptions::finish(overrides, name, &section);
    let known_keys = section.field(&limit::known_keys).and_then(|field| known_keys::read(&field, part));
    let tiers = exceptions::tiers(&section, name.text, &terms, jwts);
    let quotas = quotas::read(&section, key.as_ref(), terms.has_rates, system);
    let (headers, missing) = (section.read(&limit::headers), section.read(&limit::missing));
    if matches!(cost, Cost::Bytes(_)) && headers.is_of_provider() {
        let help = "write \"draft\", \"github\", \"both\" or \"none\"";
        section.refuse(&[limit::headers.name], "of a provider cannot tell bytes", help);
    }
    let limit = Limit {
        name: name.text.to_owned(),
        key: key?,
        forms,
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
        overflow,
        missing,
        headers,
        status,
        body,
        content_type,
        retry_jitter,
        watched: None,
    };
    rates::check_used(&section, &limit);
    Some(limit)
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
        let help = "use a longer period, such as \"60/m\" instead of \"1/s\", or a store that gateways \
                    share: Memcached or Valkey";
        section.warn(&[limit::rates.name], &why, help);
    }
}

/// Reads `rates` and `max_in_flight`; at least one of them is required.
fn allowed(section: &Section<'_>, terms: &Terms) -> (Option<Vec<Rate>>, Option<u64>) {
    let has_flights = section.field(&limit::max_in_flight).is_some();
    let is_spelled_otherwise = foreign::report_keys(section);
    let rates = match section.field(&limit::rates) {
        Some(field) => terms.rates(&field, &limit::rates),
        None if is_spelled_otherwise => None,
        None if has_flights => Some(Vec::new()),
        None if section.is_misspelt(&[limit::max_in_flight.name]) => None,
        None => {
            let help = "add how much is allowed: rates = [\"10/s\", \"3000/10m\"], or max_in_flight = 10";
            section.required(&limit::rates, help);
            None
        }
    };
    (rates, section.given(&limit::max_in_flight))
}
