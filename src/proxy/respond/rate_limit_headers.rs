//! Tells clients about limits: the headers of every limited response, and the response to a refused request.
//!
//! `RateLimit-Policy` and `RateLimit` follow draft-ietf-httpapi-ratelimit-headers-11; the other forms are those of GitHub,
//! OpenAI and Anthropic. All policies are listed, but each form has only one state: that of the policy with the least
//! remaining, or of the one that refuses the request for longest. Limits that are silent or only report send nothing.
//!
//! A repeated refusal gets a copy of the previous response (`repeated.rs`), with the identifier of its own request.

mod forms;
mod jitter;
mod repeated;

use std::ptr;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http::StatusCode;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use sfv::{ListSerializer, StringRef};
use smallvec::SmallVec;

use super::policy::{Policies, Policy};
use super::{LocalBody, LocalResponse, PROBLEM, empty, problem, providers, with_all, with_body};
use crate::base::clock::Time;
use crate::base::http::request_id::REQUEST_ID;
use crate::base::partition::PartitionSecret;
use crate::config::{self, HeaderStyle};
use crate::limit::CountedUnit;
use crate::request::decide::{LimitOutcome, LimitVerdict, RateSet, binding, longest_refusal};
use forms::{FORMS, Form, RETRY_AFTER_MS, millis, seconds};
use jitter::later;
use repeated::LastRefusal;

pub use repeated::RefusalCache;

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const SHADOW: HeaderName = HeaderName::from_static("ratelimit-shadow");
const JSON: HeaderValue = HeaderValue::from_static("application/json");

#[derive(Debug, Default)]
pub struct RateLimitHeaders {
    limits: Vec<LimitHeaders>,
    /// The forms of headers of these limits, besides those of the draft.
    forms: Vec<&'static Form>,
    /// `None` if no partition keys are sent.
    partition_secret: Option<PartitionSecret>,
    /// Whether a limit has jitter.
    spreads_retries: bool,
}

#[derive(Clone, Debug)]
struct LimitHeaders {
    name: String,
    /// The headers about the limit.
    style: HeaderStyle,
    /// What the rates count.
    unit: CountedUnit,
    /// Whether a header names the limit if it only reports and the request is over it.
    shadow: bool,
    status: StatusCode,
    banned: StatusCode,
    /// The configured body and its content type. Without one, each policy has a problem document.
    body: Option<(HeaderValue, Bytes)>,
    /// In percent of the wait.
    retry_jitter: u64,
    max_in_flight: Option<u64>,
    /// The policies of each set of rates, composed when the set is first used.
    profiles: Box<[OnceLock<Policies>]>,
}

impl RateLimitHeaders {
    /// Takes the limits in the order of the route, each with the number of its sets of rates.
    pub fn new<'a>(
        limits: impl IntoIterator<Item = (&'a config::Limit, usize)>,
        partition_secret: Option<PartitionSecret>,
    ) -> Self {
        let limits = limits.into_iter().map(|(limit, profiles)| LimitHeaders::new(limit, profiles));
        Self::of(limits.collect(), partition_secret)
    }

    /// Takes limits of several routes, each with its place on its route.
    pub fn joined<'a>(limits: impl IntoIterator<Item = (&'a Self, usize)> + Clone) -> Self {
        let secret = limits.clone().into_iter().find_map(|(all, _)| all.partition_secret);
        Self::of(limits.into_iter().filter_map(|(all, place)| all.limits.get(place).cloned()).collect(), secret)
    }

    fn of(limits: Vec<LimitHeaders>, partition_secret: Option<PartitionSecret>) -> Self {
        let forms = FORMS.iter().filter(|form| limits.iter().any(|limit| form.is_of(limit.style))).collect();
        let spreads_retries = limits.iter().any(|limit| limit.retry_jitter > 0);
        Self { limits, forms, partition_secret, spreads_retries }
    }

    /// The headers that tell clients about limits, and when to try again, including those of providers if limits have them.
    pub fn names(&self) -> Vec<HeaderName> {
        let mut names = vec![RETRY_AFTER, LIMIT, POLICY];
        let is_sent =
            |form: &&Form| form.is_of(HeaderStyle::Github) || self.forms.iter().any(|own| ptr::eq(*own, *form));
        names.extend(FORMS.iter().filter(is_sent).flat_map(|form| form.names.iter().cloned()));
        if self.has_millis() {
            names.push(RETRY_AFTER_MS);
        }
        names.push(SHADOW);
        names
    }

    /// Whether a form of these limits states milliseconds.
    fn has_millis(&self) -> bool {
        self.forms.iter().any(|form| form.is_of(HeaderStyle::OpenAi))
    }

    /// Adds the headers for these outcomes, and the header with the names of the limits `shadowed`, which only report.
    pub fn add_headers(&self, headers: &mut HeaderMap, outcomes: &[LimitOutcome<'_>], shadowed: &[usize], now: Time) {
        self.write(headers, outcomes, now);
        if shadowed.is_empty() {
            return;
        }
        let mut list = ListSerializer::new();
        let shadowed = shadowed.iter().filter_map(|place| self.limits.get(*place));
        for limit_headers in shadowed.filter(|limit_headers| limit_headers.shadow) {
            if let Ok(name) = StringRef::from_str(&limit_headers.name) {
                let _ = list.bare_item(name);
            }
        }
        if let Some(line) = list.finish().and_then(|line| HeaderValue::try_from(line).ok()) {
            headers.insert(SHADOW, line);
        }
    }

    pub fn reject(
        self: &Arc<Self>,
        outcomes: &[LimitOutcome<'_>],
        now: Time,
        cache: &mut RefusalCache,
    ) -> Rc<LocalResponse> {
        if !cache.has(self, outcomes, now) {
            cache.0 = self.refusal(outcomes, now).map(Box::new);
        }
        let Some(refusal) = &cache.0 else {
            return problem(StatusCode::TOO_MANY_REQUESTS, "A limit refuses the request.").into();
        };
        let mut response = refusal.response.clone();
        if self.spreads_retries
            && let Some((place, until)) = longest_refusal(outcomes).and_then(|one| Some((one.place, one.until()?)))
        {
            self.spread(Rc::make_mut(&mut response).headers_mut(), place, until, now);
        }
        response
    }

    /// Adds the jitter of the limit at `place` to Retry-After, if that is there. The cached response has the exact time,
    /// because a proxy sends the requests of many clients on one connection.
    fn spread(&self, headers: &mut HeaderMap, place: usize, until: Time, now: Time) {
        let percent = self.limits.get(place).map_or(0, |limit_headers| limit_headers.retry_jitter);
        if percent == 0 || !headers.contains_key(RETRY_AFTER) {
            return;
        }
        let later = later(now, until, percent, fastrand::u64(..));
        headers.insert(RETRY_AFTER, digits(seconds(now, later)));
        if headers.contains_key(RETRY_AFTER_MS) {
            headers.insert(RETRY_AFTER_MS, digits(millis(now, later)));
        }
    }

    /// The response to a request whose key the limit at `place` has banned until `until`.
    pub fn banned(
        self: &Arc<Self>,
        place: usize,
        until: Time,
        outcomes: &[LimitOutcome<'_>],
        now: Time,
        cache: &mut RefusalCache,
    ) -> Rc<LocalResponse> {
        if outcomes.iter().any(|outcome| matches!(outcome.verdict, LimitVerdict::Banned { .. })) {
            return self.reject(outcomes, now, cache);
        }
        let (status, mut response) = self.ban(place);
        if status == StatusCode::TOO_MANY_REQUESTS {
            response.headers_mut().insert(RETRY_AFTER, digits(seconds(now, until)));
            self.spread(response.headers_mut(), place, until, now);
        }
        response.into()
    }

    /// The status for a request whose key the limit at `place` has banned, and a response without the end of the ban.
    fn ban(&self, place: usize) -> (StatusCode, LocalResponse) {
        let status = self.limits.get(place).map_or(StatusCode::TOO_MANY_REQUESTS, |limit_headers| limit_headers.banned);
        let detail = |name: &str| {
            format!(
                "The limit \"{name}\" has refused this client too often, and refuses all of its requests for a while."
            )
        };
        (status, self.error(Some(place), status, detail))
    }

    fn refusal(self: &Arc<Self>, outcomes: &[LimitOutcome<'_>], now: Time) -> Option<LastRefusal> {
        let longest = longest_refusal(outcomes)?;
        let ban = outcomes.iter().find(|outcome| matches!(outcome.verdict, LimitVerdict::Banned { .. }));
        let limit_headers = self.limits.get(ban.unwrap_or(longest).place)?;
        let style = limit_headers.style;
        let (status, kind, body) = match (ban, &limit_headers.body) {
            (Some(ban), _) => {
                let (status, response) = self.ban(ban.place);
                let (head, body) = response.into_parts();
                (status, head.headers.get(CONTENT_TYPE).cloned().unwrap_or(PROBLEM), body)
            }
            (None, Some((kind, body))) => (limit_headers.status, kind.clone(), LocalBody::Fixed(body.clone())),
            (None, None) => {
                let (status, policy) = (limit_headers.status, self.policy(longest));
                let (remaining, need) = (longest.verdict.remaining().unwrap_or(0), longest.need);
                let detail = policy.filter(|_| style.is_of_provider()).map(|policy| policy.detail(remaining, need));
                let unit = limit_headers.unit_of(&longest.verdict).name();
                let error = detail.and_then(|detail| providers::error(style, status, Some(unit), &detail));
                let problem =
                    || LocalBody::Problem(policy.map(|policy| policy.refusal(remaining, need)).unwrap_or_default());
                let (kind, body) = error.map_or_else(|| (PROBLEM, problem()), |error| (JSON, LocalBody::Fixed(error)));
                (status, kind, body)
            }
        };
        let mut headers = HeaderMap::new();
        // A placeholder that each request replaces, so a copy of these headers need not grow. First, it is found at once.
        headers.insert(REQUEST_ID, HeaderValue::from_static(""));
        headers.insert(CONTENT_TYPE, kind);
        // A ban that answers 403 does not say for how long.
        let is_told = ban.is_none() || status == StatusCode::TOO_MANY_REQUESTS;
        if let Some(until) = longest.until().filter(|_| is_told) {
            // Rounded up, so the request passes then if no other comes before.
            headers.insert(RETRY_AFTER, digits(seconds(now, until)));
            if style == HeaderStyle::OpenAi {
                headers.insert(RETRY_AFTER_MS, digits(millis(now, until)));
            }
        }
        if is_told {
            self.write(&mut headers, outcomes, now);
        }
        Some(LastRefusal::new(self, outcomes, now, with_all(status, headers, body).into()))
    }

    /// The response of a limit that hides itself from clients.
    pub fn silence(&self, place: usize) -> LocalResponse {
        match self.limits.get(place) {
            Some(LimitHeaders { status, body: Some((kind, body)), .. }) => {
                with_body(*status, kind.clone(), body.clone())
            }
            Some(LimitHeaders { status, body: None, .. }) => empty(*status),
            None => empty(StatusCode::OK),
        }
    }

    /// The response to a request that costs more than the limit allows at once, so waiting cannot help.
    pub fn too_costly(&self, place: usize, cost: &str, most: u64) -> LocalResponse {
        self.error(Some(place), StatusCode::PAYLOAD_TOO_LARGE, |name| {
            format!("The request costs {cost}, and the limit \"{name}\" never allows more than {most} at once: it can never pass.")
        })
    }

    pub fn blocked(&self, place: usize) -> LocalResponse {
        self.error(Some(place), StatusCode::FORBIDDEN, |name| format!("The limit \"{name}\" blocks this client."))
    }

    pub fn keyless(&self, place: usize) -> LocalResponse {
        self.error(Some(place), StatusCode::BAD_REQUEST, |name| {
            format!("The request has no key for the limit \"{name}\".")
        })
    }

    pub fn unknown(&self) -> LocalResponse {
        let place = self.limits.iter().position(|limit_headers| limit_headers.style.is_of_provider());
        let detail = |_: &str| "The store of the rate limits does not answer.".to_owned();
        self.error(place, StatusCode::SERVICE_UNAVAILABLE, detail)
    }

    /// An error in the format that clients of the limit at `place` read. `detail` gets its name.
    fn error(&self, place: Option<usize>, status: StatusCode, detail: impl Fn(&str) -> String) -> LocalResponse {
        let limit_headers = place.and_then(|place| self.limits.get(place));
        let (name, style) = limit_headers.map_or(("", HeaderStyle::None), |limit| (&*limit.name, limit.style));
        let detail = detail(name);
        let error = providers::error(style, status, None, &detail);
        error.map_or_else(|| problem(status, &detail), |error| with_body(status, JSON, error))
    }

    /// The outcome whose state is sent, among those that `sends` accepts.
    fn binding<'o, 'a>(
        &self,
        outcomes: &'o [LimitOutcome<'a>],
        sends: impl Fn(&LimitHeaders, &LimitVerdict) -> bool,
    ) -> Option<&'o LimitOutcome<'a>> {
        binding(outcomes.iter().filter(|outcome| {
            self.limits.get(outcome.place).is_some_and(|limit_headers| sends(limit_headers, &outcome.verdict))
        }))
    }

    /// The policies of the rates that apply, composed at their first use.
    fn policies<'p>(&'p self, outcome: &LimitOutcome<'p>) -> Option<&'p Policies> {
        let limit_headers = self.limits.get(outcome.place)?;
        let compose = || {
            let LimitHeaders { max_in_flight, status, unit, .. } = *limit_headers;
            Policies::new(outcome.limit, unit.of_draft(), max_in_flight, status)
        };
        match outcome.profile {
            RateSet::Listed(number) => Some(limit_headers.profiles.get(number)?.get_or_init(compose)),
            // These rates belong to one configuration of the limit, so nothing else about the limit changes during their use.
            RateSet::Quota(rates) => rates.texts(compose),
        }
    }

    fn policy<'p>(&'p self, outcome: &LimitOutcome<'p>) -> Option<&'p Policy> {
        self.policies(outcome)?.of(&outcome.verdict)
    }

    /// The policy of an outcome and how much remains. `None` if the outcome is unknown.
    fn state<'p, 'a>(&'p self, outcome: &'p LimitOutcome<'a>) -> Option<(&'p Policy, &'p LimitOutcome<'a>, u64)> {
        Some((self.policy(outcome)?, outcome, outcome.verdict.remaining()?))
    }

    fn write(&self, headers: &mut HeaderMap, outcomes: &[LimitOutcome<'_>], now: Time) {
        if let Some(line) = self.policy_line(outcomes) {
            headers.insert(POLICY, line);
        }
        let draft = self.binding(outcomes, |limit_headers, _| limit_headers.has_draft());
        if let Some((policy, outcome, remaining)) = draft.and_then(|outcome| self.state(outcome)) {
            let wait = outcome.until().map(|until| {
                let at_once = outcome.verdict.admitted() && policy.fills_within_a_second;
                if at_once { 0 } else { seconds(now, until) }
            });
            let partition = self.partition_secret.zip(outcome.partition);
            let line = policy.state(remaining, wait, partition.map(|(secret, key)| secret.partition_key(key)));
            if let Ok(line) = HeaderValue::from_maybe_shared(Bytes::from(line)) {
                headers.insert(LIMIT, line);
            }
        }
        for form in &self.forms {
            let told = self.binding(outcomes, |limit_headers, verdict| {
                form.tells(limit_headers.style, limit_headers.unit_of(verdict))
            });
            if let Some((policy, outcome, remaining)) = told.and_then(|outcome| self.state(outcome)) {
                form.write(headers, policy.capacity, remaining, outcome.until(), now);
            }
        }
    }

    fn policy_line(&self, outcomes: &[LimitOutcome<'_>]) -> Option<HeaderValue> {
        let drafts =
            outcomes.iter().filter(|outcome| self.limits.get(outcome.place).is_some_and(LimitHeaders::has_draft));
        // A limit with rates and `max_in_flight` has two outcomes in a row.
        let mut last = None;
        let mut lines = drafts.filter(|outcome| last.replace(outcome.place) != Some(outcome.place));
        let first = self.policies(lines.next()?)?.line.as_ref()?;
        let mut rest = lines.filter_map(|outcome| self.policies(outcome)?.line.as_ref()).peekable();
        if rest.peek().is_none() {
            return Some(first.clone());
        }
        let mut lines = SmallVec::<[_; 4]>::from_iter([first.as_bytes()]);
        for line in rest.map(HeaderValue::as_bytes) {
            // One limit may have been asked about several descriptors.
            if !lines.contains(&line) {
                lines.push(line);
            }
        }
        HeaderValue::from_maybe_shared(Bytes::from(lines.join(&b", "[..]))).ok()
    }
}

impl LimitHeaders {
    fn new(limit: &config::Limit, profiles: usize) -> Self {
        let told = limit.on_limit.is_told();
        Self {
            name: limit.name.clone(),
            style: if told { limit.headers } else { HeaderStyle::None },
            unit: limit.cost.unit(),
            shadow: limit.headers != HeaderStyle::None,
            status: limit.status,
            banned: limit.ban.as_ref().map_or(limit.status, |ban| ban.respond.status()),
            body: (!limit.body.is_empty())
                .then(|| (limit.content_type.clone(), Bytes::copy_from_slice(limit.body.as_bytes()))),
            retry_jitter: limit.retry_jitter,
            max_in_flight: limit.max_in_flight,
            profiles: (0..profiles).map(|_| OnceLock::new()).collect(),
        }
    }

    fn has_draft(&self) -> bool {
        matches!(self.style, HeaderStyle::Draft | HeaderStyle::Both)
    }

    fn unit_of(&self, verdict: &LimitVerdict) -> CountedUnit {
        if matches!(verdict, LimitVerdict::InFlight { .. }) { CountedUnit::Requests } else { self.unit }
    }
}

/// A number as a header value. This allocates once; the library's own conversion allocates twice.
fn digits(value: u64) -> HeaderValue {
    HeaderValue::from_str(itoa::Buffer::new().format(value)).unwrap_or_else(|_| value.into())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::config::{Cost, OnLimit, TokenCost};
    use crate::limit::{Limit, Verdict};

    fn limit(name: &str, rates: &[&str], headers: HeaderStyle) -> config::Limit {
        config::Limit { headers, ..config::Limit::with_rates(name, rates) }
    }

    fn rate_limit_headers(limits: &[config::Limit]) -> Arc<RateLimitHeaders> {
        Arc::new(RateLimitHeaders::new(limits.iter().map(|limit| (limit, 1)), None))
    }

    fn compiled(limits: &[config::Limit]) -> Vec<Limit> {
        limits.iter().map(|limit| Limit::new(&limit.name, &limit.rates)).collect()
    }

    fn verdict(admitted: bool, rate: u16, remaining: u64, wait: u64) -> LimitVerdict {
        LimitVerdict::Rates(Verdict { admitted, rate, remaining, wait: Some(wait), level: 0 })
    }

    fn outcomes<'a>(limits: &'a [Limit], verdicts: &[LimitVerdict]) -> Vec<LimitOutcome<'a>> {
        let outcomes = limits.iter().zip(verdicts).enumerate();
        outcomes
            .map(|(place, (limit, verdict))| LimitOutcome {
                place,
                profile: RateSet::Listed(0),
                limit,
                partition: None,
                need: 1,
                verdict: *verdict,
                as_of: NOW,
            })
            .collect()
    }

    const NOW: Time = Time::from_micros(1_700_000_000_300_000);

    fn sent(limits: &[config::Limit], verdicts: &[LimitVerdict]) -> Vec<String> {
        let mut headers = HeaderMap::new();
        rate_limit_headers(limits).add_headers(&mut headers, &outcomes(&compiled(limits), verdicts), &[], NOW);
        headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect()
    }

    #[test]
    fn the_draft_lists_all_policies_and_the_rate_that_binds() {
        let limits =
            [limit("a", &["10/s", "3000/10m"], HeaderStyle::Draft), limit("b", &["5/90s"], HeaderStyle::Draft)];
        assert_eq!(
            sent(&limits, &[verdict(true, 1, 7, 900_000), verdict(true, 0, 4, 3_000_001)]),
            [r#"ratelimit-policy: "a-s";q=10;w=1, "a-10m";q=3000;w=600, "b";q=5;w=90"#, r#"ratelimit: "b";r=4;t=4"#,]
        );
        let lines = sent(&limits, &[verdict(false, 0, 0, 900_000), verdict(true, 0, 0, 3_000_001)]);
        assert_eq!(lines[1], r#"ratelimit: "a-s";r=0;t=1"#, "a refusal comes before an admission");
        let known = sent(&limits, &[verdict(false, 0, 0, 900_000), LimitVerdict::Unknown]);
        assert_eq!(known, lines, "what is allowed is known, even if nobody knows what is left of it");
        let other = [limit("a", &["10/s"], HeaderStyle::Draft), limit("b", &["5/s"], HeaderStyle::Github)];
        let lines = sent(&other, &[verdict(false, 0, 0, 900_000), LimitVerdict::Unknown]);
        assert_eq!(lines, [r#"ratelimit-policy: "a";q=10;w=1"#, r#"ratelimit: "a";r=0;t=1"#]);
    }

    #[test]
    fn every_strategy_has_its_policy() {
        let bucket = limit("b", &["10/s burst 50", "5000/day", "9/month"], HeaderStyle::Draft);
        let lines = sent(&[bucket], &[verdict(true, 0, 50, 0)]);
        assert_eq!(
            lines[0],
            r#"ratelimit-policy: "b-s";q=10;w=1;gateway-burst=50, "b-day";q=5000;w=86400, "b-month";q=9"#
        );
        let concurrency = config::Limit { max_in_flight: Some(4), ..limit("f", &[], HeaderStyle::Draft) };
        let lines = sent(&[concurrency], &[LimitVerdict::InFlight { admitted: true, remaining: 3 }]);
        assert_eq!(lines, [r#"ratelimit-policy: "f";q=4;qu="concurrent-requests""#, r#"ratelimit: "f";r=3"#]);
    }

    #[test]
    fn limits_that_are_silent_or_only_report_add_no_headers() {
        let quiet =
            |on_limit| [config::Limit { on_limit, max_in_flight: None, ..limit("q", &["1/s"], HeaderStyle::Both) }];
        for on_limit in [OnLimit::Silent, OnLimit::Shadow] {
            assert_eq!(sent(&quiet(on_limit), &[verdict(true, 0, 1, 0)]), Vec::<String>::new());
        }
        let mut headers = HeaderMap::new();
        rate_limit_headers(&quiet(OnLimit::Shadow)).add_headers(&mut headers, &[], &[0], NOW);
        assert_eq!(headers[SHADOW], "\"q\"");
    }

    #[test]
    fn github_counts_in_epoch_seconds() {
        let lines = ["x-ratelimit-limit: 10", "x-ratelimit-remaining: 9", "x-ratelimit-reset: 1700000002"];
        let passed = [verdict(true, 0, 9, 900_000)];
        assert_eq!(sent(&[limit("a", &["10/s"], HeaderStyle::Github)], &passed), lines);
        assert_eq!(sent(&[limit("a", &["10/s"], HeaderStyle::Both)], &passed).len(), 5);
        assert_eq!(sent(&[limit("a", &["10/s"], HeaderStyle::None)], &passed), Vec::<String>::new());
    }

    fn of_provider(style: HeaderStyle) -> [config::Limit; 2] {
        let cost = TokenCost { max_output: 10, ..TokenCost::default() };
        let tokens = config::Limit { cost: Cost::Tokens(cost.into()), ..limit("t", &["1000/m", "5000/d"], style) };
        [tokens, config::Limit { max_in_flight: Some(4), ..limit("r", &["10/s"], style) }]
    }

    #[test]
    fn providers_tell_tokens_and_requests_apart() {
        let verdicts = [verdict(true, 1, 70, 360_000_000), verdict(true, 0, 9, 119_001)];
        assert_eq!(
            sent(&of_provider(HeaderStyle::OpenAi), &verdicts),
            [
                "x-ratelimit-limit-requests: 10",
                "x-ratelimit-remaining-requests: 9",
                "x-ratelimit-reset-requests: 120ms",
                "x-ratelimit-limit-tokens: 5000",
                "x-ratelimit-remaining-tokens: 70",
                "x-ratelimit-reset-tokens: 6m0s",
            ]
        );
        assert_eq!(
            sent(&of_provider(HeaderStyle::Anthropic)[..1], &verdicts),
            [
                "anthropic-ratelimit-tokens-limit: 5000",
                "anthropic-ratelimit-tokens-remaining: 70",
                "anthropic-ratelimit-tokens-reset: 2023-11-14T22:19:21Z",
            ]
        );
        // The requests in flight of a limit of tokens are requests, and when their number falls is unknown.
        let [tokens, _] = of_provider(HeaderStyle::Anthropic);
        let both = [config::Limit { max_in_flight: Some(4), ..tokens }];
        assert_eq!(
            sent(&both, &[LimitVerdict::InFlight { admitted: true, remaining: 3 }]),
            ["anthropic-ratelimit-requests-limit: 4", "anthropic-ratelimit-requests-remaining: 3"]
        );
    }

    #[test]
    fn what_an_upstream_tells_under_the_same_names_is_replaced() {
        let mut headers = HeaderMap::new();
        let names = ["x-ratelimit-limit-requests", "x-ratelimit-reset-requests", "x-ratelimit-limit-tokens"];
        for name in names {
            headers.append(name, HeaderValue::from_static("upstream"));
        }
        let limits = &of_provider(HeaderStyle::OpenAi)[1..];
        let verdicts = [LimitVerdict::InFlight { admitted: true, remaining: 3 }];
        rate_limit_headers(limits).add_headers(&mut headers, &outcomes(&compiled(limits), &verdicts), &[], NOW);
        let values = names.map(|name| headers.get(name).map(|value| value.to_str().unwrap()));
        assert_eq!(values, [Some("4"), None, Some("upstream")], "its limit of tokens is another one");
    }

    #[test]
    fn errors_have_the_form_of_the_provider() {
        let all = |style, unit: usize| {
            let limits = &of_provider(style)[unit..];
            let (told, compiled) = (rate_limit_headers(limits), compiled(limits));
            let refusing = outcomes(&compiled, &[verdict(false, 0, 2, 12_000_001)]);
            let rejected = told.reject(&refusing, NOW, &mut RefusalCache::default());
            let others = [told.too_costly(0, "7", 5), told.blocked(0), told.keyless(0), told.unknown()];
            let wait = [RETRY_AFTER, RETRY_AFTER_MS].map(|name| rejected.headers().get(name).cloned());
            let errors = [Rc::unwrap_or_clone(rejected)].into_iter().chain(others).map(|response| {
                assert_eq!(response.headers()[CONTENT_TYPE], "application/json");
                let status = response.status().as_u16();
                (status, serde_json::from_slice(&response.into_body().into_bytes()).unwrap())
            });
            (wait, errors.collect::<Vec<(u16, Value)>>())
        };
        let used_up = "The limit \"t\" allows 1000/m, of which 2 are left, and this request costs 1.";
        let openai = |kind: &str, code: Option<&str>, message: &str| json!({ "error": { "message": message, "type": kind, "param": null, "code": code } });
        let (wait, errors) = all(HeaderStyle::OpenAi, 0);
        assert_eq!(wait, ["13", "12001"].map(|value| Some(HeaderValue::from_static(value))));
        assert_eq!(errors[0], (429, openai("tokens", Some("rate_limit_exceeded"), used_up)));
        let blocked = "The limit \"t\" blocks this client.";
        assert_eq!(errors[2], (403, openai("invalid_request_error", None, blocked)));
        let unknown = "The store of the rate limits does not answer.";
        assert_eq!(errors[4], (503, openai("server_error", None, unknown)));
        assert_eq!(all(HeaderStyle::OpenAi, 1).1[0].1["error"]["type"], "requests");

        let (wait, errors) = all(HeaderStyle::Anthropic, 0);
        assert_eq!(wait, [Some(HeaderValue::from_static("13")), None]);
        assert_eq!(
            errors[0].1,
            json!({ "type": "error", "error": { "type": "rate_limit_error", "message": used_up } })
        );
        let kinds: Vec<_> =
            errors.iter().map(|(status, error)| (*status, error["error"]["type"].as_str().unwrap())).collect();
        assert_eq!(
            kinds[1..],
            [(413, "request_too_large"), (403, "permission_error"), (400, "invalid_request_error"), (503, "api_error")]
        );
        // A limit with a configured body sends that.
        let [tokens, _] = of_provider(HeaderStyle::OpenAi);
        let limits = [config::Limit { body: "slow".to_owned(), ..tokens }];
        let compiled = compiled(&limits);
        let refusing = outcomes(&compiled, &[verdict(false, 0, 0, 1)]);
        let response = rate_limit_headers(&limits).reject(&refusing, NOW, &mut RefusalCache::default());
        assert_eq!(response.headers()[CONTENT_TYPE], "text/plain");
        assert_eq!(*response.body(), LocalBody::Fixed("slow".into()));
    }

    #[test]
    fn only_routes_with_the_headers_of_a_provider_expose_them() {
        let count = |limits: &[config::Limit]| rate_limit_headers(limits).names().len();
        assert_eq!(count(&[limit("a", &["1/s"], HeaderStyle::Github)]), 7);
        assert_eq!(count(&of_provider(HeaderStyle::OpenAi)), 14);
        assert_eq!(count(&of_provider(HeaderStyle::Anthropic)), 13);
    }

    #[test]
    fn a_rejection_says_when_and_why() {
        let limits = [limit("a", &["10/s", "20/m"], HeaderStyle::Draft)];
        let (rate_limit_headers, compiled) = (rate_limit_headers(&limits), compiled(&limits));
        let outcomes = outcomes(&compiled, &[verdict(false, 1, 0, 12_000_001)]);
        let response = rate_limit_headers.reject(&outcomes, NOW, &mut RefusalCache::default());
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(response.headers()[RETRY_AFTER], "13");
        assert_eq!(response.headers()["content-type"], "application/problem+json");
        let document = rate_limit_headers.policy(&outcomes[0]).unwrap().refusal(0, 1);
        let document = std::str::from_utf8(&document).unwrap();
        assert!(document.contains(r#""violated-policies":["a-m"]"#), "{document}");
        assert!(document.contains("allows 20/m"), "{document}");
    }

    #[test]
    fn a_refusal_is_reused_only_for_the_same_outcomes() {
        let other =
            config::Limit { status: StatusCode::SERVICE_UNAVAILABLE, ..limit("b", &["5/s"], HeaderStyle::None) };
        let limits = [limit("a", &["10/s", "20/m"], HeaderStyle::Both), other];
        let (routes, compiled) = ([rate_limit_headers(&limits), rate_limit_headers(&limits[..1])], compiled(&limits));
        let with_millis = rate_limit_headers(&of_provider(HeaderStyle::OpenAi)[1..]);
        let mut cache = RefusalCache::default();
        let mut check = |rate_limit_headers: &Arc<RateLimitHeaders>, now: Time, outcomes: &[LimitOutcome<'_>]| {
            let fresh = rate_limit_headers.reject(outcomes, now, &mut RefusalCache::default());
            let response = rate_limit_headers.reject(outcomes, now, &mut cache);
            assert_eq!((response.status(), response.headers()), (fresh.status(), fresh.headers()));
        };
        for (micros, rate, wait, route) in
            [(0, 0, 900_000, 0), (0, 0, 800_000, 0), (0, 0, 800_000, 1), (0, 1, 800_000, 1), (300_000, 1, 800_000, 1)]
        {
            let outcomes = outcomes(&compiled[..1], &[verdict(false, rate, 0, wait)]);
            check(&routes[route], NOW.after_micros(micros), &outcomes);
        }
        // Milliseconds are computed again.
        for wait in [800_000, 799_001, 799_000, 700_000] {
            check(&with_millis, NOW, &outcomes(&compiled[..1], &[verdict(false, 0, 0, wait)]));
        }
        // Of two refusals, within one second first one and then the other takes longest.
        for (first, second) in [((true, 800_000), 800_000), ((false, 900_000), 800_000), ((false, 800_000), 900_000)] {
            let verdicts = [verdict(first.0, 0, 1, first.1), verdict(false, 0, 0, second)];
            check(&routes[0], NOW.after_micros(300_000), &outcomes(&compiled, &verdicts));
        }
    }
}
