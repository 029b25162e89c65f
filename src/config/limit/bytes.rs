//! What a request costs in bytes: `cost = { bytes = ... }`.

use super::OnExhausted;
use super::keys as limit;
use super::tokens::cost;
use crate::base::units::spelled_size;
use crate::config::kinds::size_within;
use crate::config::read::{Field, Section};
use crate::limit::{MAX_BYTES, Rate};

pub(super) const RESERVE: u64 = 64 << 10;

/// The cost is the number of bytes of bodies that pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteCost {
    pub counted: CountedBytes,
    /// What is reserved at once of a body whose length is not known.
    pub reserve: u64,
    pub on_exhausted: OnExhausted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountedBytes {
    Request,
    Response,
    Both,
}

impl CountedBytes {
    pub const WORDS: [(&'static str, Self); 3] =
        [("response", Self::Response), ("request", Self::Request), ("both", Self::Both)];

    /// Whose bytes are counted.
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Request => "its body",
            Self::Response => "its response",
            Self::Both => "its body and its response",
        }
    }

    pub fn has_requests(self) -> bool {
        self != Self::Response
    }

    pub fn has_responses(self) -> bool {
        self != Self::Request
    }
}

/// Whether the limit counts bytes, so that its rates are sizes.
pub(super) fn is_counted_by(limit: &Section<'_>) -> bool {
    let table = limit.field(&limit::cost).filter(Field::is_table).and_then(|field| field.entries("`cost`"));
    table.is_some_and(|entries| entries.iter().any(|(name, _)| name.text == cost::bytes.name))
}

/// `table` is the value of `cost`, and has `bytes`. `None` after a report.
pub(super) fn read(table: &Section<'_>, rates: &[Rate], gateways: u64) -> Option<ByteCost> {
    let reserve = table.field(&cost::reserve).map_or(Some(RESERVE), |field| reserve(&field, rates, gateways));
    let (counted, on_exhausted) = (table.given(&cost::bytes), table.read(&cost::on_exhausted));
    Some(ByteCost { counted: counted?, reserve: reserve?, on_exhausted })
}

fn reserve(field: &Field<'_>, rates: &[Rate], gateways: u64) -> Option<u64> {
    let reserve = size_within(field, &(1..=MAX_BYTES))?;
    let capacity = |rate: &Rate| rate.part(gateways).capacity();
    if let Some(rate) = rates.iter().find(|rate| capacity(rate) < reserve) {
        let message = format!("a body that reserves {} can never pass \"{rate}\"", spelled_size(reserve));
        field.report(message, format!("allowed: at most {}", spelled_size(capacity(rate))));
    }
    Some(reserve)
}
