//! `[limits.*]`: what is counted, how much is allowed, and what happens beyond that.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;

use http::{HeaderName, HeaderValue, StatusCode};

use super::ban::Ban;
use super::key::{Key, Missing, Source};
use super::on_limit::{OnLimit, Role};
use super::quotas::Quotas;
use super::slow::Slow;
use super::token_cost::TokenCost;
use crate::config::known_keys::KnownKeys;
use crate::config::overrides::{Allowance, Overrides};
use crate::limit::{self, Rate};

#[derive(Clone, Debug, PartialEq)]
pub struct Limit {
    /// Printable ASCII, because the name is part of headers and of keys in the store.
    pub name: String,
    pub key: Key,
    /// A request must fit all rates. Empty only if there is `max_in_flight`.
    pub rates: Vec<Rate>,
    /// How many gateways share all rates of this limit, each with its own counters; at least 1. It is 1 after reading if the
    /// number comes from looking up a name. `None` if each gateway has the whole rates.
    pub gateways: Option<u64>,
    /// The maximum number of requests of a key in flight in this process, 1 to 2^32.
    pub max_in_flight: Option<u64>,
    pub cost: Cost,
    /// If set, all other values of the first part of `key` that clients choose count as missing.
    pub known_keys: Option<Arc<KnownKeys>>,
    /// Keys that do not get `rates`.
    pub overrides: Arc<Overrides>,
    pub overrides_file: Option<PathBuf>,
    /// For keys without an override.
    pub tiers: Option<Tiers>,
    /// Where quotas of keys without an override are read from.
    pub quotas: Option<Quotas>,
    pub on_limit: OnLimit,
    pub ban: Option<Ban>,
    /// How requests that the limit admits are slowed down.
    pub slow: Option<Slow>,
    /// The name of the limit that is charged instead if this one has no room.
    pub overflow: Option<String>,
    pub missing: Missing,
    pub headers: HeaderStyle,
    /// The status of a rejection, 400 to 599; of a silent answer, 200 to 599.
    pub status: StatusCode,
    /// The body of a rejection or of a silent answer. For a rejection, empty means a problem document.
    pub body: String,
    pub content_type: HeaderValue,
}

impl Limit {
    /// The sources of the key and of the tier.
    pub fn sources(&self) -> impl Iterator<Item = &Source> {
        self.key.parts.iter().flatten().chain(self.tiers.as_ref().map(|tiers| &tiers.source))
    }

    /// The name of the pool that is charged if this limit has no room. A limit that only reports, or has no rates, has no pool.
    pub fn pool(&self) -> Option<&str> {
        let hands_over = self.on_limit.role() == Role::Refuses && !self.rates.is_empty();
        self.overflow.as_deref().filter(|_| hands_over)
    }

    /// How admitted requests are slowed down. A limit that only reports slows down none.
    pub fn slows(&self) -> Option<Slow> {
        self.slow.filter(|_| self.on_limit.role() == Role::Refuses)
    }

    pub fn needs_body(&self) -> bool {
        matches!(self.cost, Cost::Tokens(_)) || self.sources().any(Source::is_in_body)
    }

    /// Whether the limit tells clients apart without a verified token and without the body. A limit that all clients share
    /// does not: with wrong tokens, a client could use up what others need.
    pub fn comes_first(&self) -> bool {
        let needs_token = self.sources().any(|source| matches!(source, Source::Jwt { .. }));
        !needs_token && !self.needs_body() && self.tells_clients_apart()
    }

    pub fn tells_clients_apart(&self) -> bool {
        self.key.parts.iter().flatten().any(Source::identifies_clients)
    }

    /// The part of these rates that this gateway enforces. The rates are those of the limit, a tier, an override or a source
    /// of quotas.
    pub fn part(&self, rates: &[Rate]) -> Vec<Rate> {
        rates.iter().map(|rate| rate.part(self.gateways.unwrap_or(1))).collect()
    }

    /// The part of these rates, as a limit that counts. Everything that is counted for this limit comes from here.
    pub fn counted(&self, rates: &[Rate]) -> limit::Limit {
        limit::Limit::new(&self.name, &self.part(rates))
    }

    /// The rates of the limit, its tiers and its overrides, which are all counted in the same way.
    pub fn all_rates(&self) -> impl Iterator<Item = &Rate> {
        let tiers = self.tiers.iter().flat_map(|tiers| &tiers.rates).flat_map(|(_, rates)| rates);
        let overrides = self.overrides.allowances().iter().filter_map(|allowance| match allowance {
            Allowance::Rates(rates) => Some(&**rates),
            Allowance::Exempt | Allowance::Block => None,
        });
        self.rates.iter().chain(tiers).chain(overrides.flatten())
    }
}

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
}

#[derive(Clone, Debug, PartialEq)]
pub struct Tiers {
    /// Where a request has the name of its tier.
    pub source: Source,
    /// At least one tier, each with at least one rate. Requests without a known tier get the rates of the limit.
    pub rates: Vec<(String, Vec<Rate>)>,
    /// Tiers whose requests have another priority than that of their route.
    pub priorities: Vec<(String, u8)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderStyle {
    /// `RateLimit` and `RateLimit-Policy` of the IETF draft.
    Draft,
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`, as GitHub sends them.
    Github,
    Both,
    None,
    /// `x-ratelimit-*-requests` and `-tokens`, as OpenAI sends them.
    OpenAi,
    /// `anthropic-ratelimit-*`, as Anthropic sends them.
    Anthropic,
}

impl HeaderStyle {
    /// Whether the style is that of a provider of language models, which also defines the form of errors.
    pub fn is_of_provider(self) -> bool {
        matches!(self, Self::OpenAi | Self::Anthropic)
    }
}
