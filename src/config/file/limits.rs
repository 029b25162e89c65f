//! `[limits.NAME]`: what is counted, and how much is allowed.

mod key;
mod rates;
mod cost;
mod action;
mod exceptions;
mod quotas;
mod quota_source;
mod known_keys;
mod temporary;

use crate::config::file::jwt::Names;
use crate::config::file::upstream_tls::SystemAuthorities;
use crate::config::read::{Field, Name, Section, set};
use crate::config::{HeaderStyle, Limit, Missing, values};
use crate::limit::{MAX_QUOTA, Rate};

pub(super) use key::key;
pub(in crate::config) use temporary::{again, quota_rates, temporary};

use action::Reaction;
use exceptions::Kinds;
use rates::Terms;

const KEY: &str = "add what is counted, like key = \"client-ip\" or key = \"header:x-api-key | client-ip\"";

/// Reads one limit; `None` if it has an error.
pub(super) fn read(name: &Name<'_>, field: &Field<'_>, jwts: &Names<'_>, system: &SystemAuthorities) -> Option<Limit> {
    if let Err(wrong) = values::name(name.text) {
        field.source.report(name.span.clone(), wrong.message, wrong.help);
    }
    if !field.is_table() {
        field.source.report(
            name.span.clone(),
            format!("`{}` is not the table of a limit", name.text),
            "a limit needs a name: write [limits.NAME], and its keys below",
        );
        return None;
    }
    let section = field.section(format!("[limits.{}]", name.text))?;
    let key = section.required("key", KEY).and_then(|field| key(&field, jwts));
    let terms = Terms::read(&section);
    let (rates, max_in_flight) = allowed(&section, &terms);
    let own = rates.as_deref().unwrap_or_default();
    let cost = cost::read(&section, own);
    let Reaction { on_limit, status, body, content_type } = action::read(&section);
    if on_limit.delay().is_some() && max_in_flight.is_some() {
        let message = "`max_in_flight` cannot be combined with `on_limit = \"delay\"`";
        let help = "only a rate can delay requests; put `max_in_flight` into a separate limit";
        section.source.report(section.key_span("max_in_flight"), message, help);
    }
    let (kinds, has_rates) = (Kinds::of(key.as_ref()), !own.is_empty());
    let mut overrides = exceptions::overrides(&section, name.text, &terms, kinds, has_rates);
    quotas::read(&section, &terms, kinds, has_rates, &mut overrides);
    let overrides = exceptions::finish(overrides, name, &section);
    let known_keys = known_keys::read(&section, key.as_ref());
    let tiers = exceptions::tiers(&section, name.text, &terms, jwts);
    let quotas = quota_source::read(&section, name.text, (key.as_ref(), has_rates), system);
    terms.close(&section);
    let styles = [
        ("draft", HeaderStyle::Draft),
        ("github", HeaderStyle::Github),
        ("both", HeaderStyle::Both),
        ("none", HeaderStyle::None),
    ];
    let mut headers = HeaderStyle::Draft;
    set(&mut headers, section.choice("headers", &styles));
    let absent = [("shared", Missing::Shared), ("skip", Missing::Skip), ("reject", Missing::Reject)];
    let mut missing = Missing::Shared;
    set(&mut missing, section.choice("missing", &absent));
    section.close();
    Some(Limit {
        name: name.text.to_owned(),
        key: key?,
        rates: rates?,
        max_in_flight,
        cost,
        known_keys,
        overrides: overrides?,
        tiers,
        quotas,
        on_limit,
        missing,
        headers,
        status,
        body,
        content_type,
    })
}

/// Reads `rates` and `max_in_flight`. At least one of them is required.
fn allowed(section: &Section<'_>, terms: &Terms) -> (Option<Vec<Rate>>, Option<u64>) {
    let flights = section.field("max_in_flight");
    let rates = match (section.field("rates"), &flights) {
        (Some(field), _) => terms.rates(&field),
        (None, Some(_)) => Some(Vec::new()),
        (None, None) => {
            let help = "add how much is allowed: rates = [\"10/s\", \"3000/10m\"], or max_in_flight = 10";
            section.required("rates", help);
            None
        }
    };
    (rates, flights.and_then(|field| field.integer(1..=MAX_QUOTA)))
}
