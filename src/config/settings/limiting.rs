//! Keys about what is counted: `[limits.NAME]` with its tables, and `[jwt.NAME]`.

use std::time::Duration;

use super::STATUS;
use crate::base::jwt::{ALGORITHMS, Algorithm};
use crate::config::kinds::{flag, level, number, shaped, text, wait, weight, words};
use crate::config::read::{Kind, Setting, Shape, Table, name, tables};
use crate::config::{
    BanResponse, HIGHEST_PRIORITY, HeaderStyle, Missing, OnExhausted, OnLimit, SentKey, WithoutUsage, values,
};
use crate::limit::{Edge, MAX_LOG, MAX_PRECISION, MAX_QUOTA, MAX_WINDOW, MIN_WINDOW};
use crate::tokens::Weight;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::config) enum Counting {
    Sliding,
    Fixed,
    Moving,
    Bucket,
}

/// Sources joined by `|`, or a list of such texts.
pub(super) const SOURCES: Shape = Shape::Or(&[Shape::Text, Shape::List(&Shape::Text, 1, values::MOST)]);
const RATES: Shape = Shape::List(&Shape::Pattern("^\\s*[0-9]+\\s*/\\s*[0-9a-z ]+$"), 1, values::MOST);
/// `true` is the only value.
const TRUE: Shape = Shape::Values("[true]");

tables! {
    /// What the gateway counts, and how much it allows (docs/limits.md).
    limit {
        /// What the limit counts by: a source such as `client-ip` or `header:NAME`, several joined by `|` (the first one
        /// present is used), or a list (all are used together).
        key: () = shaped(SOURCES).required() => ["header:x-api-key | client-ip", "method"];
        /// What is allowed: N per `s`, `m`, `h`, `d` or a duration from 1s to 31d; `"5000/day"`, `"1000000/month"` by the
        /// calendar. A request must fit all rates. Required without `max_in_flight`.
        rates: () = shaped(RATES) => ["10/s", "3000/10m"];
        /// How the limit counts requests: `"fixed-window"` from a key's first request on, `"moving-window"` exactly, with N
        /// up to 10 000, `"token-bucket"` with bursts: `"10/s burst 50"`.
        strategy: Counting = words(&[
            ("sliding-window", Counting::Sliding), ("fixed-window", Counting::Fixed), ("moving-window", Counting::Moving),
            ("token-bucket", Counting::Bucket),
        ]), "sliding-window";
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
        /// What a request costs: a number, the value of a header, or the tokens of a language model (docs/tokens.md).
        cost: () = shaped(Shape::Or(&[Shape::Number(1, MAX_QUOTA), Shape::Table(&cost::TABLE)])), 1
            => { request_header = "x-cost" };
        /// For costs in tokens: models with other weights. The first match is used.
        models: () = shaped(Shape::List(&Shape::Table(&model::TABLE), 0, 1000)) => [{ match = "gpt-4o*", output = 10 }];
        /// Which responses the limit charges. By default all.
        count: () = shaped(Shape::Table(&count::TABLE)) => { status = ["401", "5xx"] };
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
        ban: () = shaped(Shape::Table(&ban::TABLE)) => { after = 20, within = "1m", for = "10m" };
        /// Holds requests that the limit admits before forwarding them: the fuller a rate is, the longer.
        slow: () = shaped(Shape::Table(&slow::TABLE)) => { from = 0.8, up_to = "2s" };
        /// The status of a refusal, 400 to 599; for a silent limit 200 to 599, by default 200.
        status: () = shaped(Shape::Number(200, 599)), 429;
        /// The body of a refusal. By default a problem document (RFC 9457), with `headers = "openai"` or `"anthropic"` an error
        /// of that provider, for a silent limit nothing.
        body: () = text(), "" => "slow down\n";
        /// The type of `body`. By default `application/json` if that is a JSON object or array, otherwise plain text.
        content_type: () = text() => "text/html";
        /// Which headers report the limit: `"draft"` sends `RateLimit` and `RateLimit-Policy` of
        /// draft-ietf-httpapi-ratelimit-headers-10, `"github"` X-RateLimit-*, `"both"` all of these, `"none"` none;
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
        overrides: () = shaped(Shape::List(&Shape::Table(&exception::TABLE), 0, usize::MAX));
        /// A `.csv` (`key,rates`) or `.toml` file of overrides for up to a million keys; a reload reads it again.
        overrides_file: () = text() => "overrides.csv";
        /// The source of a request's tier; needs `tiers`.
        tier: () = text() => "header:x-plan";
        /// The rates of each tier, by its name; needs `tier`.
        tiers: () = shaped(Shape::Named(&Shape::Table(&tier::TABLE)));
        /// Reads the rates of keys from a store, through a cache (docs/quotas.md).
        quotas: () = shaped(Shape::Table(&quotas::TABLE));
    }

    /// Bans a key for a while if the limit has refused it too often, whatever its rates have room for.
    ban "`ban`" {
        /// The limit bans a key that it refuses more often than this.
        after: u64 = number(1, MAX_LOG), 20;
        /// The time within which refusals of a key count together; each gateway counts its own.
        within: Duration = wait(MIN_WINDOW..=MAX_WINDOW), "1m";
        /// How long the first ban lasts. A ban that begins within `max_for` of the end of the last one lasts twice as long.
        r#for: Duration = wait(MIN_WINDOW..=MAX_WINDOW), "10m";
        /// The longest time of a ban. By default 1d, or `for` if that is longer.
        max_for: Duration = wait(MIN_WINDOW..=MAX_WINDOW), "1d";
        /// How the gateway answers requests of a banned key: `"reject"` with 429 and the end of the ban in Retry-After,
        /// `"forbid"` with 403, `"close"` not at all: it closes the connection (HTTP/2: resets the stream; a peer in
        /// `trusted_proxies`, which speaks for other clients too, gets 403 without a body).
        respond: BanResponse = words(&[
            ("reject", BanResponse::Reject), ("forbid", BanResponse::Forbid), ("close", BanResponse::Close),
        ]), "reject";
    }

    /// A cost that a header or the response of a language model contains.
    cost "`cost`" {
        /// The request header with the cost.
        request_header: () = text() => "x-cost";
        /// The response header with the cost.
        response_header: () = text() => "x-cost";
        /// For `response_header`: the cost that is charged until the response arrives.
        reserve: () = shaped(Shape::Number(1, MAX_QUOTA)), 1;
        /// Charges the tokens that a language model reports: `"auto"` for OpenAI, Anthropic and Gemini; for other APIs,
        /// where they report them.
        tokens: () = shaped(Shape::Or(&[Shape::Values("[\"auto\"]"), Shape::Table(&usage::TABLE)])) => "auto";
        /// For `tokens`: the cost of an input token.
        input: Weight = weight(), 1;
        /// For `tokens`: the cost of an input token that the provider read from its cache.
        cached: Weight = weight(), 1;
        /// For `tokens`: the cost of an output token.
        output: Weight = weight(), 1;
        /// For `tokens`: the output tokens to reserve if the request names no maximum.
        max_output: u64 = number(1, MAX_QUOTA), 4096;
        /// For `tokens`: what a success without a usage costs: `"reserved"` what was reserved, or what has passed if that is
        /// more; `"size"` its size. The same holds if the client goes away before the usage comes.
        without_usage: WithoutUsage = words(&[("reserved", WithoutUsage::Reserved), ("size", WithoutUsage::Size)]), "reserved";
        /// For `tokens`: the input tokens to reserve for each part of a request that is not text, such as a picture, and for
        /// each reference to earlier content.
        part: u64 = number(1, MAX_QUOTA), 1000;
        /// For `tokens`: asks for the usage of streams. With `false`, the gateway does not change requests.
        ask_usage: bool = flag(), true;
        /// For `tokens`: what happens to a stream that needs more than was reserved: `"finish"` lets it go on and charges it
        /// past the quota, `"cut"` ends it if there is no room. A stream is events, lines of JSON, or a JSON array without a
        /// length.
        on_exhausted: OnExhausted = words(&[("finish", OnExhausted::Finish), ("cut", OnExhausted::Cut)]), "finish";
    }

    /// Where a response reports its tokens, as JSON pointers (RFC 6901). In a stream, the greatest number of all events
    /// counts.
    usage "`tokens`" {
        /// The input tokens.
        input: () = text() => "/usage/in";
        /// The output tokens.
        output: () = text() => "/usage/out";
        /// The input tokens that came from a cache.
        cached: () = text() => "/usage/cached";
        /// All tokens. The output is at least this total less the input.
        total: () = text() => "/usage/total";
    }

    /// A model with weights of its own; absent ones are as in `cost`.
    model {
        /// The model's name in the request or in the response, whichever costs more; `*` stands for any text, and case
        /// does not matter.
        r#match: () = text().required() => "gpt-4o*";
        /// The cost of an input token.
        input: Weight = weight() => 2.5;
        /// The cost of an input token that the provider read from its cache.
        cached: Weight = weight() => 1.25;
        /// The cost of an output token.
        output: Weight = weight() => 10;
    }

    /// Which responses the limit charges. It charges every request at first, and keeps the charge only if the response has
    /// such a status.
    count "`count`" {
        /// The statuses that stay charged.
        status: () = shaped(Shape::List(STATUS, 1, 64)).required() => ["401", "403", "5xx"];
    }

    /// How long the gateway holds requests that the limit admits: not at all at `from`, and longer in proportion up to 100
    /// %.
    slow "`slow`" {
        /// Holds requests from this share of a rate on: 0 to below 1. For a token bucket, the share of the burst.
        from: u32 = level().required() => 0.8;
        /// How long requests are held at 100 % of a rate.
        up_to: Duration = wait(Duration::from_millis(1)..=Duration::from_secs(300)).required() => "2s";
    }

    /// Keys with rates of their own. A key can have only one override.
    exception {
        /// Whole keys, keys with `*` for any text, and networks.
        keys: () = shaped(Shape::List(&Shape::Text, 1, 10_000)).required() => ["partner-7", "gold-*"];
        /// The keys' rates.
        rates: () = shaped(RATES) => ["10/s", "3000/10m"];
        /// These keys have no limit.
        exempt: () = shaped(TRUE) => true;
        /// Requests of these keys get 403.
        block: () = shaped(TRUE) => true;
    }

    /// A file of overrides.
    overrides_file "the file" {
        /// All overrides.
        overrides: () = shaped(Shape::List(&Shape::Table(&exception::TABLE), 0, usize::MAX)).required();
    }

    /// An override by the admin API as the gateway reads it: a table with one of them.
    temporary_overrides "the file" {
        /// The override.
        r#override: () = shaped(Shape::Table(&temporary::TABLE)).required();
    }

    /// An override by the admin API.
    temporary "an override" {
        /// The rates of the key.
        rates: () = shaped(RATES) => ["10/s", "3000/10m"];
        /// The key has no limit.
        exempt: () = shaped(TRUE) => true;
        /// Requests of the key get 403.
        block: () = shaped(TRUE) => true;
        /// How long the override lasts.
        r#for: Duration = wait(Duration::from_secs(1)..=Duration::from_secs(31 * 86_400)).required() => "1h";
    }

    /// The rates and the priority of a tier.
    tier {
        /// The rates of each key in the tier.
        rates: () = shaped(RATES).required() => ["10/s", "3000/10m"];
        /// The priority of its requests, instead of the route's.
        priority: u8 = number(0, HIGHEST_PRIORITY as u64) => 7;
    }

    /// Reads the rates of keys from a store, through a cache (docs/quotas.md).
    quotas {
        /// Where the rates are: a URL with `{key}` in its path or query, or a PostgreSQL database; also `"file:PATH"` or
        /// `"env:NAME"`.
        source: () = text().required() => "https://plans.internal/v1/{key}";
        /// For PostgreSQL: the query about a key, which is `$1`.
        query: () = text() => "select rates, tier, exempt, block from plans where key = $1";
        /// For PostgreSQL: a `NOTIFY` of a key on this channel makes the gateway ask about that key at once.
        channel: () = text() => "gateway_plans";
        /// How long the gateway uses an answer.
        cache_for: Duration = wait(Duration::from_secs(1)..=Duration::from_secs(86_400)), "60s";
        /// The maximum number of cached keys.
        max_cached: usize = number(1, 10_000_000), 100_000;
        /// The longest time that a request waits for the store; then the limit's own rates apply.
        timeout: Duration = wait(Duration::from_millis(1)..=Duration::from_secs(5)), "20ms";
        /// What the gateway sends to the store: the key, or its digest (SHA-256) in lower-case hexadecimal digits.
        send: SentKey = words(&[("key", SentKey::Key), ("sha256", SentKey::Sha256)]), "key";
    }

    /// An issuer whose tokens the gateway trusts (docs/clients.md).
    jwt {
        /// Tokens must have this as `iss`.
        issuer: () = text().required() => "https://login.example.com/";
        /// Tokens must have one of these as `aud`; without this key they must have no `aud`.
        audience: () = shaped(Shape::List(&Shape::Text, 1, values::MOST)) => ["api"];
        /// The issuer's keys: an `https://` URL, an `http://` one on this machine, or a file.
        jwks: () = text().required() => "https://login.example.com/.well-known/jwks.json";
        /// The allowed signature algorithms.
        algorithms: Algorithm =
            Kind { shape: Shape::List(&Shape::Words, 1, ALGORITHMS.len()), ..words(&ALGORITHMS) }.required()
            => ["RS256", "ES256"];
        /// Where the token is: `"bearer"` (`Authorization: Bearer`), `"header:NAME"` or `"cookie:NAME"`.
        from: () = shaped(Shape::Pattern("^(bearer|header:.+|cookie:.+)$")), "bearer";
        /// Answers 401 to requests without a valid token, on routes that use the token.
        required: bool = flag(), false;
    }
}
