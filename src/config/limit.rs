//! `[limits.NAME]`: what is counted, how much is allowed, and what happens beyond that.

mod foreign;
mod rates;
mod tokens;
mod bytes;
mod cost;
mod exceptions;
mod temporary;
mod overrides_file;
mod quotas;
mod on_limit;
mod reader;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, StatusCode};

use super::key::{KEY_SHAPE, Key, Missing, Source};
use super::kinds::{flag, number, percent, shaped, text, wait, words};
use super::known_keys::KnownKeys;
use super::overrides::{Allowance, Overrides};
use super::read::{Shape, tables};
use super::written_key::KeyForms;
use crate::limit::{self, Calendar, Edge, MAX_PRECISION, MAX_QUOTA, Rate, Strategy};

pub use bytes::CountedBytes;
pub use cost::{ByteCost, Cost};
pub use exceptions::Tiers;
pub use on_limit::{Ban, BanResponse, OnLimit, Role, Slow};
pub use quotas::{HttpQuotas, PostgresSettings, QuotaServer, Quotas, SentKey};
pub(super) use reader::read;
pub use temporary::{quota_rates, temporary_again, temporary_override};
pub use tokens::{ModelWeights, OnExhausted, TokenCost, WithoutUsage};

use rates::{RATES, STRATEGIES};

#[derive(Clone, Debug, PartialEq)]
pub struct Limit {
    /// Printable ASCII, because the name is part of headers and of keys in the store.
    pub name: String,
    pub key: Key,
    /// How requests spell keys.
    pub forms: KeyForms,
    /// A request must fit all rates. Empty only if there is `max_in_flight`.
    pub rates: Vec<Rate>,
    /// How many gateways share all rates of this limit, each with its own counters; at least 1. It is 1 after reading if the
    /// number comes from looking up a name. `None` if each gateway has the whole rates.
    pub gateways: Option<u64>,
    pub max_in_flight: Option<u64>,
    pub cost: Cost,
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
    pub slow: Option<Slow>,
    pub overflow: Option<String>,
    pub missing: Missing,
    pub headers: HeaderStyle,
    pub status: StatusCode,
    pub body: String,
    pub content_type: HeaderValue,
    /// How much later than there is room clients are told to try again at most, in percent of the wait.
    pub retry_jitter: u64,
    /// From which share of a rate on a notice is wanted, in millionths; `None` if no `[[notices]]` is about this limit.
    pub watched: Option<u32>,
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

    pub fn counts_bytes(&self) -> bool {
        matches!(self.cost, Cost::Bytes(_))
    }

    /// Whether a body is charged only while it passes, even if its length is known: several clients share the limit, so none
    /// may hold what it does not use. A body that is not cut has to be charged before, or many would pass side by side.
    pub fn charges_in_steps(&self) -> bool {
        self.cost.cuts_bytes() && !self.tells_clients_apart()
    }

    pub fn needs_body(&self) -> bool {
        matches!(self.cost, Cost::Tokens(_) | Cost::Elements) || self.sources().any(Source::is_in_body)
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

    /// How much later clients are told to come back; `None` if they are told the exact time.
    pub fn jitter_in_words(&self) -> Option<String> {
        (self.retry_jitter > 0).then(|| format!("Retry-After is later by up to {} % of the wait", self.retry_jitter))
    }

    /// The part of these rates that this gateway enforces. The rates are those of the limit, a tier, an override or a source
    /// of quotas.
    pub fn part(&self, rates: &[Rate]) -> Vec<Rate> {
        rates.iter().map(|rate| rate.part(self.gateways.unwrap_or(1))).collect()
    }

    /// The part of these rates, as a limit that counts. Everything that is counted for this limit comes from here.
    pub fn counted(&self, rates: &[Rate]) -> limit::Limit {
        limit::Limit::counting(self.cost.unit(), &self.name, &self.part(rates)).watched_from(self.watched)
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

    /// Whether its keys say nothing about a client.
    pub fn has_public_keys(&self) -> bool {
        self.key.parts.iter().flatten().all(|source| matches!(source, Source::Global | Source::Method | Source::Route))
    }

    /// How all rates but those of the calendar are counted.
    pub fn strategy(&self) -> Option<&Strategy> {
        self.all_rates().map(Rate::strategy).find(|strategy| !matches!(strategy, Strategy::Calendar(_)))
    }

    /// How the rates of the calendar are counted, if there are any.
    pub fn calendar(&self) -> Option<&Calendar> {
        self.all_rates().find_map(|rate| match rate.strategy() {
            Strategy::Calendar(calendar) => Some(calendar),
            _ => None,
        })
    }
}

#[cfg(test)]
impl Limit {
    /// Of all requests together, with a cost of 1 and the defaults of the file.
    pub(crate) fn with_rates(name: &str, rates: &[&str]) -> Self {
        Self {
            name: name.to_owned(),
            key: Key { parts: vec![vec![Source::Global]] },
            forms: KeyForms::default(),
            rates: rates.iter().map(|rate| rate.parse().unwrap()).collect(),
            gateways: Some(1),
            missing: Missing::Shared,
            max_in_flight: None,
            cost: Cost::Fixed(1),
            known_keys: None,
            overrides: Arc::default(),
            tiers: None,
            quotas: None,
            on_limit: OnLimit::Reject,
            ban: None,
            slow: None,
            overrides_file: None,
            overflow: None,
            headers: HeaderStyle::Draft,
            status: StatusCode::TOO_MANY_REQUESTS,
            body: String::new(),
            content_type: HeaderValue::from_static("text/plain"),
            retry_jitter: 0,
            watched: None,
        }
    }
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

tables! {
    /// What the gateway counts, and how much it allows (docs/limits.md).
    keys {
        /// What the limit counts by: a source such as `client-ip` or `header:NAME`, several joined by `|` (the first one
        /// present is used), or a list (all are used together).
        key: () = shaped(KEY_SHAPE).required() => ["header:x-api-key | client-ip", "method"];
        /// What is allowed: N per `s`, `m`, `h`, `d` or a duration from 1s to 31d; `"5000/day"`, `"1000000/month"` by the
        /// calendar; of bytes a size, such as `"10GiB/d"`. A request must fit all rates. Required without `max_in_flight`.
        rates: () = shaped(RATES) => ["10/s", "3000/10m"];
        /// How the limit counts requests: `"fixed-window"` from a key's first request on, `"moving-window"` exactly, with N
        /// up to 10 000, `"token-bucket"` with bursts: `"10/s burst 50"`.
        strategy: Strategy = words(&STRATEGIES), "sliding-window";
        /// For `"sliding-window"`: the number of buckets in a window. More buckets are more exact, and cost a counter each.
        precision: u32 = number(1, MAX_PRECISION as u64), 1;
        /// For `"sliding-window"`: `"weighted"` counts the oldest bucket by its share in the window, `"whole"` in full until
        /// it is gone, so that no window ever has more than N.
        edge: Edge = words(&[("weighted", Edge::Weighted), ("whole", Edge::Whole)]), "weighted";
        /// The time zone in which days and months begin: an IANA name.
        timezone: () = text(), "UTC" => "Europe/Berlin";
        /// Divides the rates as `[store] share` says; otherwise each gateway enforces the full rates.
        share: bool = flag(), true;
        /// The maximum number of requests of a key in flight at the same time, in this process; with or without `rates`.
        max_in_flight: u64 = number(1, MAX_QUOTA) => 10;
        /// What a request costs: a number, the value of a header, the tokens of a language model (docs/tokens.md), or the
        /// bytes of its body and its response (docs/bytes.md).
        cost: () = shaped(Shape::Or(&[Shape::Number(1, MAX_QUOTA), Shape::Table(&tokens::cost::TABLE)])), 1
            => { request_header = "x-cost" };
        /// For costs in tokens: models with other weights. The first match is used.
        models: () = shaped(Shape::List(&Shape::Table(&tokens::model::TABLE), 0, 1000)) => [{ match = "gpt-4o*", output = 10 }];
        /// Which responses the limit charges. By default all.
        count: () = shaped(Shape::Table(&cost::count::TABLE)) => { status = ["401", "5xx"] };
        /// What happens over the limit: `"reject"` refuses requests, `"shadow"` forwards and only reports them, `"silent"`
        /// answers 200 without the upstream, `"delay"` holds them until there is room.
        on_limit: OnLimit = words(&OnLimit::WORDS), "reject";
        /// The name of another limit, a pool, which is charged instead if this limit has no room but the pool has.
        overflow: () = text() => "spare";
        /// For `"delay"`: the longest time that the gateway holds a request.
        max_delay: Duration = wait(Duration::from_millis(1)..=Duration::from_secs(300)), "1s";
        /// For `"delay"` and `slow`: the maximum number of held requests per key.
        max_delayed: usize = number(1, 100_000), 100;
        /// Bans a key for a while if the limit has refused it too often.
        ban: () = shaped(Shape::Table(&on_limit::ban::TABLE)) => { after = 20, within = "1m", for = "10m" };
        /// Holds requests that the limit admits before forwarding them: the fuller a rate is, the longer.
        slow: () = shaped(Shape::Table(&on_limit::slow::TABLE)) => { from = 0.8, up_to = "2s" };
        /// The status of a refusal, 400 to 599; for a silent limit 200 to 599, by default 200.
        status: () = shaped(Shape::Number(200, 599)), 429;
        /// The body of a refusal. By default a problem document (RFC 9457), with `headers = "openai"` or `"anthropic"` an error
        /// of that provider, for a silent limit nothing.
        body: () = text(), "" => "slow down\n";
        /// The type of `body`. By default `application/json` if that is a JSON object or array, otherwise plain text.
        content_type: () = text() => "text/html";
        /// Makes `Retry-After` later by a random part of up to this share of the wait, so that clients come back spread out.
        retry_jitter: u64 = percent() => "10%";
        /// Which headers report the limit: `"draft"` sends `RateLimit` and `RateLimit-Policy` of
        /// draft-ietf-httpapi-ratelimit-headers-11, `"github"` X-RateLimit-*, `"both"` all of these, `"none"` none;
        /// `"openai"` and `"anthropic"` send those of the provider, whose client libraries obey them.
        headers: HeaderStyle = words(&[
            ("draft", HeaderStyle::Draft), ("github", HeaderStyle::Github), ("both", HeaderStyle::Both),
            ("none", HeaderStyle::None), ("openai", HeaderStyle::OpenAi), ("anthropic", HeaderStyle::Anthropic),
        ]), "draft";
        /// Requests without the key share one counter, skip the limit, or get 400.
        missing: Missing =
            words(&[("shared", Missing::Shared), ("skip", Missing::Skip), ("reject", Missing::Reject)]), "shared";
        /// A file with the keys that exist, up to a million: one per line, or `sha256:` and its digest. A reload reads it
        /// again. Any other key counts as missing, so an invented key gets no counter of its own.
        known_keys: () = text() => "keys.txt";
        /// Keys with rates of their own. The first override that matches a key is used.
        overrides: () = shaped(Shape::List(&Shape::Table(&exceptions::exception::TABLE), 0, usize::MAX));
        /// A `.csv` (`key,rates`) or `.toml` file of overrides for up to a million keys; a reload reads it again.
        overrides_file: () = text() => "overrides.csv";
        /// The source of a request's tier; needs `tiers`.
        tier: () = text() => "header:x-plan";
        /// The rates of each tier, by its name; needs `tier`.
        tiers: () = shaped(Shape::Named(&Shape::Table(&exceptions::tier::TABLE))) => { gold = { rates = ["100/s"] } };
        /// Reads the rates of keys from a store, through a cache (docs/quotas.md).
        quotas: () = shaped(Shape::Table(&quotas::keys::TABLE));
    }
}
