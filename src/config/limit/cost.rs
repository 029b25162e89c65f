//! What requests cost: `cost`, and `count`, which charges only some responses.

use std::ops::RangeInclusive;
use std::sync::Arc;

use http::HeaderName;

use super::bytes::CountedBytes;
use super::keys as limit;
use super::tokens::{self, OnExhausted, TokenCost, cost};
use crate::config::kinds::{size_within, statuses};
use crate::config::read::{Field, Section, Setting, tables};
use crate::config::values;
use crate::limit::{CountedUnit, MAX_BYTES, MAX_QUOTA, Rate};

const COST: &str = "write cost = 5, cost = { request_header = \"x-cost\" }, cost = { response_header = \"x-cost\" }, \
                    cost = { tokens = \"auto\" } or cost = { bytes = \"response\" }";

/// The default of `reserve` of a cost in bytes.
const RESERVE: u64 = 64 << 10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cost {
    /// 1 to 2^32.
    Fixed(u64),
    /// The number in this request header; 1 if it is not a valid cost.
    RequestHeader(HeaderName),
    ResponseHeader {
        name: HeaderName,
        /// Charged until the response arrives, and kept if the response has no valid cost. 1 to 2^32.
        reserve: u64,
    },
    /// Charged until the response arrives, and kept if the response has one of these statuses.
    OnStatus(u64, Vec<RangeInclusive<u16>>),
    Tokens(Arc<TokenCost>),
    /// The bytes of the bodies that pass.
    Bytes(ByteCost),
    /// The number of items if the body is a JSON array, otherwise 1.
    Elements,
}

impl Cost {
    /// What a limit with this cost counts.
    pub fn unit(&self) -> CountedUnit {
        match self {
            Self::Tokens(_) => CountedUnit::Tokens,
            Self::Bytes(_) => CountedUnit::Bytes,
            Self::Fixed(_)
            | Self::OnStatus(..)
            | Self::RequestHeader(_)
            | Self::ResponseHeader { .. }
            | Self::Elements => CountedUnit::Requests,
        }
    }

    /// The header of the request that states the cost, if it does.
    pub fn request_header(&self) -> Option<&HeaderName> {
        match self {
            Self::RequestHeader(name) => Some(name),
            _ => None,
        }
    }

    /// Whether only a response tells the cost, and a refused request has another one.
    pub fn is_known_from_response(&self) -> bool {
        matches!(self, Self::ResponseHeader { .. } | Self::Tokens(_) | Self::Bytes(_))
    }

    /// Whether a body breaks off that needs more bytes than there is room for.
    pub fn cuts_bytes(&self) -> bool {
        matches!(self, Self::Bytes(ByteCost { on_exhausted: OnExhausted::Cut, .. }))
    }
}

/// The cost is the number of bytes of bodies that pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteCost {
    pub counted: CountedBytes,
    /// What is reserved at once of a body whose length is not known.
    pub reserve: u64,
    pub on_exhausted: OnExhausted,
}

tables! {
    /// Which responses the limit charges. It charges every request at first, and keeps the charge only if the response has
    /// such a status.
    count "`count`" {
        /// The statuses that stay charged.
        status: Vec<RangeInclusive<u16>> = statuses(1).required() => ["401", "403", "5xx"];
    }
}

/// `rates` are those of the limit, which `gateways` gateways share.
pub(super) fn read(section: &Section<'_>, rates: &[Rate], gateways: u64) -> Cost {
    let field = section.field(&limit::cost);
    let statuses = section.table(&limit::count).and_then(|table| table.needed_value(&count::status));
    let cost = field.as_ref().and_then(|field| cost(section, field, rates, gateways)).unwrap_or(Cost::Fixed(1));
    if !matches!(cost, Cost::Tokens(_)) {
        section.misplaced(&[limit::models.name], "a cost in tokens", "add cost = { tokens = \"auto\" }, or remove it");
    }
    match (cost, statuses) {
        (cost, None) => cost,
        (Cost::Fixed(cost), Some(statuses)) => Cost::OnStatus(cost, statuses),
        (other, Some(_)) => {
            let help = "remove one of them: with `count`, `cost` must be a number";
            section.refuse(&[limit::count.name], "can only be combined with a fixed cost", help);
            other
        }
    }
}

fn cost(section: &Section<'_>, field: &Field<'_>, rates: &[Rate], gateways: u64) -> Option<Cost> {
    if !field.value.is_table() {
        if !field.value.is_integer() {
            field.mistyped("a number or a table", COST);
            return None;
        }
        return amount(field, rates, gateways, "costs").map(Cost::Fixed);
    }
    let table = field.section(cost::TABLE.title, &cost::TABLE)?;
    let header = |key: &Setting<()>| table.field(key).and_then(|field: Field<'_>| field.parse(values::header));
    let (request, response): (Option<HeaderName>, Option<HeaderName>) =
        (header(&cost::request_header), header(&cost::response_header));
    let (tokens, bytes) = (table.field(&cost::tokens), table.field(&cost::bytes));
    let counts_elements = table.given(&cost::elements) == Some(true);
    let sources = [&cost::request_header, &cost::response_header, &cost::tokens];
    let named = sources.into_iter().filter(|key| table.field(key).is_some()).count();
    match named + usize::from(bytes.is_some()) + usize::from(counts_elements) {
        0 if field.entries("`cost`")?.iter().all(|(name, _)| name.text == cost::reserve.name) => {
            field.report("`cost` names neither a header nor `tokens`, `bytes` or `elements`", COST);
        }
        // Without one of them, another key is a typing mistake, which the end of the section reports.
        0 | 1 => {}
        _ => field.report(
            "`cost` can come from one place only",
            "keep one of `request_header`, `response_header`, `tokens`, `bytes` and `elements`",
        ),
    }
    if response.is_none() && bytes.is_none() && (request.is_some() || tokens.is_some() || counts_elements) {
        let help = match tokens {
            Some(_) => "remove it: what is reserved comes from the request and `max_output`",
            None => "remove it: this cost is charged at once",
        };
        table.misplaced(&[cost::reserve.name], "a cost from the response", help);
    }
    if tokens.is_none() {
        table.misplaced(&tokens::KEYS, "a cost in tokens", "add tokens = \"auto\", or remove it");
    }
    if tokens.is_none() && bytes.is_none() {
        let help = "add tokens = \"auto\" or bytes = \"response\", or remove it";
        table.misplaced(&[cost::on_exhausted.name], "a cost in tokens or bytes", help);
    }
    match (&tokens, &bytes) {
        (Some(tokens), _) => Some(Cost::Tokens(Arc::new(tokens::read(section, &table, tokens)))),
        (None, Some(_)) => self::bytes(&table, rates, gateways).map(Cost::Bytes),
        (None, None) => {
            let reserve =
                table.field(&cost::reserve).map_or(Some(1), |field| amount(&field, rates, gateways, "reserves"));
            let response = response.zip(reserve).map(|(name, reserve)| Cost::ResponseHeader { name, reserve });
            let elements = counts_elements.then_some(Cost::Elements);
            request.map(Cost::RequestHeader).or(response).or(elements)
        }
    }
}

/// A number that fits into the capacity of each rate.
fn amount(field: &Field<'_>, rates: &[Rate], gateways: u64, takes: &str) -> Option<u64> {
    let amount = field.integer(1..=MAX_QUOTA)?;
    fit(amount, field, rates, gateways, &format!("a request that {takes}"));
    Some(amount)
}

/// Reports an amount that does not fit into the capacity of each rate.
fn fit(amount: u64, field: &Field<'_>, rates: &[Rate], gateways: u64, taker: &str) {
    let capacity = |rate: &Rate| rate.part(gateways).capacity();
    if let Some(rate) = rates.iter().find(|rate| capacity(rate) < amount) {
        let among = if gateways > 1 { format!(" shared by {gateways} gateways") } else { String::new() };
        field.report(
            format!("{taker} {} can never pass \"{rate}\"{among}", rate.amount(amount)),
            format!("allowed: at most {}", rate.amount(capacity(rate))),
        );
    }
}

/// `table` is the value of `cost`, and has `bytes`. `None` after a report.
fn bytes(table: &Section<'_>, rates: &[Rate], gateways: u64) -> Option<ByteCost> {
    let reserve = table.field(&cost::reserve).map_or(Some(RESERVE), |field| {
        let reserve = size_within(&field, &(1..=MAX_BYTES))?;
        fit(reserve, &field, rates, gateways, "a body that reserves");
        Some(reserve)
    });
    let (counted, on_exhausted) = (table.given(&cost::bytes), table.read(&cost::on_exhausted));
    Some(ByteCost { counted: counted?, reserve: reserve?, on_exhausted })
}
