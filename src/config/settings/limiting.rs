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
    /// What is counted, and how much is allowed (docs/limits.md).
    limit {
        /// What is counted: a source such as `client-ip` or `header:NAME`, several joined by `|`, of which the first one present
        /// is used, or a list, all of which are used together.
        key: () = shaped(SOURCES).required() => ["header:x-api-key | client-ip", "method"];
        /// N per `s`, `m`, `h`, `d` or a duration from 1s to 31d; `"5000/day"`, `"1000000/month"` by the calendar. A request must
        /// fit all of them. Needed without `max_in_flight`.
        rates: () = shaped(RATES) => ["10/s", "3000/10m"];
        /// How requests are counted: `"fixed-window"` from a key's first request on, `"moving-window"` exactly, with N up to
        /// 10 000, `"token-bucket"` with bursts: `"10/s burst 50"`.
        strategy: Counting = words(&[
            ("sliding-window", Counting::Sliding), ("fixed-window", Counting::Fixed), ("moving-window", Counting::Moving),
            ("token-bucket", Counting::Bucket),
        ]), "sliding-window";
        /// `"sliding-window"`: the number of buckets in a window. More are more exact, and cost a counter each.
        precision: u32 = number(1, MAX_PRECISION as u64), 1;
        /// `"sliding-window"`: how the oldest bucket counts: by its share in the window, or in full until it is gone; then there
        /// are never more than N in any window.
        edge: Edge = words(&[("weighted", Edge::Weighted), ("whole", Edge::Whole)]), "weighted";
        /// The time zone in which days and months begin: an IANA name.
        timezone: () = text(), "UTC" => "Europe/Berlin";
        /// Whether its rates are among those that `[store] share` divides; otherwise each gateway enforces the whole of them.
        share: bool = flag(), true;
        /// Requests of a key that are in flight at the same time, in this process; without `rates` or with them.
        max_in_flight: u64 = number(1, MAX_QUOTA) => 10;
        /// What a request costs: a number, what a header says, or the tokens of a language model (docs/tokens.md).
        cost: () = shaped(Shape::Or(&[Shape::Number(1, MAX_QUOTA), Shape::Table(&cost::TABLE)])), 1
            => { request_header = "x-cost" };
        /// For costs in tokens: models with other weights; the first that matches is used.
        models: () = shaped(Shape::List(&Shape::Table(&model::TABLE), 0, 1000)) => [{ match = "gpt-4o*", output = 10 }];
        /// Which responses are charged; without it all are.
        count: () = shaped(Shape::Table(&count::TABLE)) => { status = ["401", "5xx"] };
        /// What happens over the limit: requests are refused, forwarded and only reported, answered 200 without the upstream, or
        /// held until there is room.
        on_limit: OnLimit = words(&OnLimit::WORDS), "reject";
        /// The name of another limit, a pool: where this limit has no room, the request is charged to the pool instead, if that
        /// has room.
        overflow: () = text() => "spare";
        /// `"delay"`: the longest time that a request is held.
        max_delay: Duration = wait(Duration::from_millis(1)..=Duration::from_secs(300)), "1s";
        /// `"delay"`, and `slow`: the maximum number of held requests per key.
        max_delayed: usize = number(1, 100_000), 100;
        /// Keys that the limit has refused too often are refused altogether for a while.
        ban: () = shaped(Shape::Table(&ban::TABLE)) => { after = 20, within = "1m", for = "10m" };
        /// Requests that the limit admits are held before they are forwarded, the longer the fuller a rate is.
        slow: () = shaped(Shape::Table(&slow::TABLE)) => { from = 0.8, up_to = "2s" };
        /// The status of a refused request, 400 to 599; for a silent limit 200 to 599, and 200 without this key.
        status: () = shaped(Shape::Number(200, 599)), 429;
        /// The body of a refused request; without it a problem document (RFC 9457), and nothing for a silent limit.
        body: () = text(), "" => "slow down\n";
        /// The type of `body`; without it `application/json` if that is a JSON object or array, otherwise plain text.
        content_type: () = text() => "text/html";
        /// Which headers report the limit: `RateLimit` and `RateLimit-Policy` of draft-ietf-httpapi-ratelimit-headers-10, those of
        /// GitHub (X-RateLimit-*), both, or none; or those of OpenAI or Anthropic, whose client libraries wait as they say.
        headers: HeaderStyle = words(&[
            ("draft", HeaderStyle::Draft), ("github", HeaderStyle::Github), ("both", HeaderStyle::Both),
            ("none", HeaderStyle::None), ("openai", HeaderStyle::OpenAi), ("anthropic", HeaderStyle::Anthropic),
        ]), "draft";
        /// Requests without the key: they share one counter, skip the limit, or are answered 400.
        missing: Missing =
            words(&[("shared", Missing::Shared), ("skip", Missing::Skip), ("reject", Missing::Reject)]), "shared";
        /// A file of the keys that exist, up to a million, read again on reload: one on each line, or `sha256:` and its digest.
        /// Any other key counts as missing, so an invented key gets no counter of its own.
        known_keys: () = text() => "keys.txt";
        /// Keys with rates of their own; if several match a key, the first one is used.
        overrides: () = shaped(Shape::List(&Shape::Table(&exception::TABLE), 0, usize::MAX));
        /// A `.csv` (`key,rates`) or `.toml` file of up to a million such keys, read again on reload.
        overrides_file: () = text() => "overrides.csv";
        /// The source of a request's tier; needs `tiers`.
        tier: () = text() => "header:x-plan";
        /// The rates of each tier, by its name; needs `tier`.
        tiers: () = shaped(Shape::Named(&Shape::Table(&tier::TABLE)));
        /// Rates of keys from a store, read through a cache (docs/quotas.md).
        quotas: () = shaped(Shape::Table(&quotas::TABLE));
    }

    /// Keys that the limit has refused too often are refused altogether for a while, whatever their rates have room for.
    ban "`ban`" {
        /// A key that is refused more often than this is banned.
        after: u64 = number(1, MAX_LOG), 20;
        /// The time within which its refusals are counted, by each gateway for itself.
        within: Duration = wait(MIN_WINDOW..=MAX_WINDOW), "1m";
        /// How long the first ban lasts. Each that begins within `max_for` of the end of the last one lasts twice as long.
        r#for: Duration = wait(MIN_WINDOW..=MAX_WINDOW), "10m";
        /// How long a ban lasts at most; without this key not less than `for`.
        max_for: Duration = wait(MIN_WINDOW..=MAX_WINDOW), "1d";
        /// How requests of a banned key are answered: 429 with the end of the ban in Retry-After, 403, or not at all: the connection
        /// is closed (HTTP/2: the stream is reset; a peer in `trusted_proxies`, which speaks for other clients too, gets 403 without
        /// a body).
        respond: BanResponse = words(&[
            ("reject", BanResponse::Reject), ("forbid", BanResponse::Forbid), ("close", BanResponse::Close),
        ]), "reject";
    }

    /// A cost that a header says, or the response of a language model.
    cost "`cost`" {
        /// The header of the request.
        request_header: () = text() => "x-cost";
        /// The header of the response.
        response_header: () = text() => "x-cost";
        /// What is charged until the response arrives; for `response_header`.
        reserve: () = shaped(Shape::Number(1, MAX_QUOTA)), 1;
        /// The tokens that a language model says that it has used: `"auto"` for OpenAI, Anthropic and Gemini, or where other
        /// APIs say it.
        tokens: () = shaped(Shape::Or(&[Shape::Values("[\"auto\"]"), Shape::Table(&usage::TABLE)])) => "auto";
        /// `tokens`: what a token of the input costs.
        input: Weight = weight(), 1;
        /// `tokens`: what a token of the input costs that the provider has read from its cache.
        cached: Weight = weight(), 1;
        /// `tokens`: what a token of the output costs.
        output: Weight = weight(), 1;
        /// `tokens`: the tokens of output that are reserved where the request names no maximum.
        max_output: u64 = number(1, MAX_QUOTA), 4096;
        /// `tokens`: what a success costs that never says its usage: what was reserved, or what has passed if that is more; or
        /// its size. The same holds if the client goes away before.
        without_usage: WithoutUsage = words(&[("reserved", WithoutUsage::Reserved), ("size", WithoutUsage::Size)]), "reserved";
        /// `tokens`: the tokens of input that are reserved for each part of a request that is no text, such as a picture, and for
        /// each reference to earlier content.
        part: u64 = number(1, MAX_QUOTA), 1000;
        /// `tokens`: whether the gateway asks for the usage of streams. With false, requests are not changed.
        ask_usage: bool = flag(), true;
        /// `tokens`: what happens to a stream that needs more than was reserved: it goes on and is charged past the quota, or it
        /// is cut where there is no room. A stream is events, lines of JSON, or an array of JSON without a length.
        on_exhausted: OnExhausted = words(&[("finish", OnExhausted::Finish), ("cut", OnExhausted::Cut)]), "finish";
    }

    /// Where a response says how many tokens were used, as JSON pointers (RFC 6901). Of a stream, the greatest number that an
    /// event has counts.
    usage "`tokens`" {
        /// The tokens of the input.
        input: () = text() => "/usage/in";
        /// The tokens of the output.
        output: () = text() => "/usage/out";
        /// Those of the input that came from a cache.
        cached: () = text() => "/usage/cached";
        /// All of them. The output is at least what is left of these without the input.
        total: () = text() => "/usage/total";
    }

    /// A model with weights of its own; what is not here is as in `cost`.
    model {
        /// The name of the model in the request, or in the response, whichever is dearer; `*` stands for any text, and case does
        /// not matter.
        r#match: () = text().required() => "gpt-4o*";
        /// What a token of the input costs.
        input: Weight = weight() => 2.5;
        /// What a token of the input costs that the provider has read from its cache.
        cached: Weight = weight() => 1.25;
        /// What a token of the output costs.
        output: Weight = weight() => 10;
    }

    /// Which responses are charged. Every request is charged at first, and stays charged only if its response has such a status.
    count "`count`" {
        /// Their statuses.
        status: () = shaped(Shape::List(STATUS, 1, 64)).required() => ["401", "403", "5xx"];
    }

    /// How long requests that a limit admits are held: not at all at `from`, and longer in proportion up to 100 %.
    slow "`slow`" {
        /// From which share of a rate on, from 0 to below 1. Of a token bucket it is the share of the burst.
        from: u32 = level().required() => 0.8;
        /// For how long where all of a rate is used.
        up_to: Duration = wait(Duration::from_millis(1)..=Duration::from_secs(300)).required() => "2s";
    }

    /// Keys with rates of their own. A key can have only one override.
    exception {
        /// Whole keys, keys with `*` for any text, and networks.
        keys: () = shaped(Shape::List(&Shape::Text, 1, 10_000)).required() => ["partner-7", "gold-*"];
        /// Their rates.
        rates: () = shaped(RATES) => ["10/s", "3000/10m"];
        /// They have no limit.
        exempt: () = shaped(TRUE) => true;
        /// Their requests are answered 403.
        block: () = shaped(TRUE) => true;
    }

    /// A file of overrides.
    overrides_file "the file" {
        /// Each of them.
        overrides: () = shaped(Shape::List(&Shape::Table(&exception::TABLE), 0, usize::MAX)).required();
    }

    /// Overrides by the admin API as they are read: a table with one of them.
    temporary_overrides "the file" {
        /// The one.
        r#override: () = shaped(Shape::Table(&temporary::TABLE)).required();
    }

    /// An override by the admin API.
    temporary "an override" {
        /// The rates of the key.
        rates: () = shaped(RATES) => ["10/s", "3000/10m"];
        /// It has no limit.
        exempt: () = shaped(TRUE) => true;
        /// Its requests are answered 403.
        block: () = shaped(TRUE) => true;
        /// How long it lasts.
        r#for: Duration = wait(Duration::from_secs(1)..=Duration::from_secs(31 * 86_400)).required() => "1h";
    }

    /// The requests of a tier.
    tier {
        /// What each of its keys is allowed.
        rates: () = shaped(RATES).required() => ["10/s", "3000/10m"];
        /// Their priority instead of that of the route.
        priority: u8 = number(0, HIGHEST_PRIORITY as u64) => 7;
    }

    /// Rates of keys from a store, read through a cache (docs/quotas.md).
    quotas {
        /// Where they are: a URL with `{key}` in its path, or a PostgreSQL database; also `"file:PATH"` or `"env:NAME"`.
        source: () = text().required() => "https://plans.internal/v1/{key}";
        /// PostgreSQL: what is asked about a key, which is `$1`.
        query: () = text() => "select rates, tier, exempt, block from plans where key = $1";
        /// PostgreSQL: `NOTIFY` of a key on this channel has that key asked about at once.
        channel: () = text() => "gateway_plans";
        /// How long an answer is used.
        cache_for: Duration = wait(Duration::from_secs(1)..=Duration::from_secs(86_400)), "60s";
        /// The maximum number of cached keys.
        max_cached: usize = number(1, 10_000_000), 100_000;
        /// The longest time that a request waits for the store; then the rates of the limit hold.
        timeout: Duration = wait(Duration::from_millis(1)..=Duration::from_secs(5)), "20ms";
        /// What the store is asked by: the key, or its digest in lower-case hexadecimal digits.
        send: SentKey = words(&[("key", SentKey::Key), ("sha256", SentKey::Sha256)]), "key";
    }

    /// Whose tokens are believed (docs/jwt.md).
    jwt {
        /// What tokens must have as `iss`.
        issuer: () = text().required() => "https://login.example.com/";
        /// What tokens must have as `aud`, one of these; without this key tokens must have no `aud`.
        audience: () = shaped(Shape::List(&Shape::Text, 1, values::MOST)) => ["api"];
        /// The keys of the issuer: an `https://` URL, or a file.
        jwks: () = text().required() => "https://login.example.com/.well-known/jwks.json";
        /// How tokens may be signed.
        algorithms: Algorithm =
            Kind { shape: Shape::List(&Shape::Words, 1, ALGORITHMS.len()), ..words(&ALGORITHMS) }.required()
            => ["RS256", "ES256"];
        /// Where the token is: `"bearer"` is Authorization; or `"header:NAME"`, `"cookie:NAME"`.
        from: () = shaped(Shape::Pattern("^(bearer|header:.+|cookie:.+)$")), "bearer";
        /// Whether requests without a valid one are answered 401, on routes that use the token.
        required: bool = flag(), false;
    }
}
