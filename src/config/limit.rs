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

/// `[limits.NAME]`: what is counted, and how much is allowed.
#[derive(Clone, Debug, PartialEq)]
pub struct Limit {
    /// The name that routes use; printable ASCII, because it is part of headers and of keys in the store.
    pub name: String,
    /// What is counted.
    pub key: Key,
    /// A request must fit all of them. Empty only if there is `max_in_flight`. Each rate includes its strategy.
    pub rates: Vec<Rate>,
    /// How many gateways share its rates and those of its tiers, overrides and sources, each with counters of its own; at least 1. It
    /// is 1 as the configuration is read if that depends on a name. `None` if each gateway has the whole rates.
    pub gateways: Option<u64>,
    /// How many requests of a key may be in flight at the same time in this process, 1 to 2^32.
    pub max_in_flight: Option<u64>,
    /// What a request costs, and when that is known.
    pub cost: Cost,
    /// If set, any other value of the first part of `key` counts as missing, where clients choose that value.
    pub known_keys: Option<Arc<KnownKeys>>,
    /// Keys that do not get `rates`.
    pub overrides: Arc<Overrides>,
    /// The file that has some of them.
    pub overrides_file: Option<PathBuf>,
    /// Rates by an attribute of the request, for keys without an override.
    pub tiers: Option<Tiers>,
    /// Where quotas of keys without an override are read from.
    pub quotas: Option<Quotas>,
    /// What happens to a request over the limit.
    pub on_limit: OnLimit,
    /// When its keys are banned, if they are.
    pub ban: Option<Ban>,
    /// How it slows down requests that it admits, if the file says so.
    pub slow: Option<Slow>,
    /// The name of the limit that is charged instead if this one has no room.
    pub overflow: Option<String>,
    /// What happens to a request without the key.
    pub missing: Missing,
    /// Which headers report the limit.
    pub headers: HeaderStyle,
    /// The status of a rejection, 400 to 599; of a silent answer, 200 to 599.
    pub status: StatusCode,
    /// The body of a rejection (empty is a problem document) or of a silent answer.
    pub body: String,
    /// The media type of `body`.
    pub content_type: HeaderValue,
}

impl Limit {
    /// The sources of its key and of its tiers.
    pub fn sources(&self) -> impl Iterator<Item = &Source> {
        self.key.parts.iter().flatten().chain(self.tiers.as_ref().map(|tiers| &tiers.source))
    }

    /// The name of the pool that is charged if it has no room. A limit that only reports, or has no rates, hands nothing over.
    pub fn pool(&self) -> Option<&str> {
        let hands_over = self.on_limit.role() == Role::Refuses && !self.rates.is_empty();
        self.overflow.as_deref().filter(|_| hands_over)
    }

    /// How it slows down requests that it admits. One that only reports does not.
    pub fn slows(&self) -> Option<Slow> {
        self.slow.filter(|_| self.on_limit.role() == Role::Refuses)
    }

    /// Whether it needs the body of a request to decide.
    pub fn needs_body(&self) -> bool {
        matches!(self.cost, Cost::Tokens(_)) || self.sources().any(Source::is_in_body)
    }

    /// Whether it tells clients apart without a verified token and without the body. One that all clients share does not:
    /// with wrong tokens, a client could use up what others need.
    pub fn comes_first(&self) -> bool {
        let needs_token = self.sources().any(|source| matches!(source, Source::Jwt { .. }));
        !needs_token && !self.needs_body() && self.tells_clients_apart()
    }

    /// Whether its key says who sends a request.
    pub fn tells_clients_apart(&self) -> bool {
        self.key.parts.iter().flatten().any(Source::identifies_clients)
    }

    /// The part of these rates that this gateway enforces. They are those of the limit, of a tier, an override or a source.
    pub fn part(&self, rates: &[Rate]) -> Vec<Rate> {
        rates.iter().map(|rate| rate.part(self.gateways.unwrap_or(1))).collect()
    }

    /// The same as they are counted. Whatever is counted for this limit comes from here.
    pub fn counted(&self, rates: &[Rate]) -> limit::Limit {
        limit::Limit::new(&self.name, &self.part(rates))
    }

    /// Its own rates and those of its tiers and overrides, all of which are counted in the same way.
    pub fn all_rates(&self) -> impl Iterator<Item = &Rate> {
        let tiers = self.tiers.iter().flat_map(|tiers| &tiers.rates).flat_map(|(_, rates)| rates);
        let overrides = self.overrides.allowances().iter().filter_map(|allowance| match allowance {
            Allowance::Rates(rates) => Some(&**rates),
            Allowance::Exempt | Allowance::Block => None,
        });
        self.rates.iter().chain(tiers).chain(overrides.flatten())
    }
}

/// What a request costs, and when that is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cost {
    /// This much, 1 to 2^32.
    Fixed(u64),
    /// The number in this request header; 1 if there is no valid cost in it.
    RequestHeader(HeaderName),
    /// The number in a response header.
    ResponseHeader {
        name: HeaderName,
        /// The cost that is charged until the response arrives; it stays charged if the response has no valid cost. 1 to 2^32.
        reserve: u64,
    },
    /// This much is charged until the response arrives; it stays charged if the response has one of these statuses.
    OnStatus(u64, Vec<RangeInclusive<u16>>),
    /// The tokens of a language model.
    Tokens(Arc<TokenCost>),
}

/// Rates by an attribute of the request.
#[derive(Clone, Debug, PartialEq)]
pub struct Tiers {
    /// The source of the tier's name.
    pub source: Source,
    /// At least one tier, each with at least one rate; a request without a known tier gets the limit's own rates.
    pub rates: Vec<(String, Vec<Rate>)>,
    /// The tiers whose requests have another priority than that of their route.
    pub priorities: Vec<(String, u8)>,
}

/// Which headers report a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderStyle {
    /// `RateLimit` and `RateLimit-Policy` of the IETF draft.
    Draft,
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`, as GitHub sends them.
    Github,
    Both,
    /// None.
    None,
    /// `x-ratelimit-*-requests` and `-tokens`, as OpenAI sends them.
    OpenAi,
    /// `anthropic-ratelimit-*`, as Anthropic sends them.
    Anthropic,
}

impl HeaderStyle {
    /// Whether it is that of a provider of language models, which has a form of errors too.
    pub fn is_of_provider(self) -> bool {
        matches!(self, Self::OpenAi | Self::Anthropic)
    }
}
