//! How limits are told to clients: the headers of every limited response, and the rejection itself.
//!
//! `RateLimit-Policy` and `RateLimit` follow draft-ietf-httpapi-ratelimit-headers-10; the X-RateLimit headers are
//! as GitHub sends them. All policies are listed; of their states the one that binds is told: the next to run out,
//! or the one that takes longest to let the refused request through. Limits that are silent or only report tell nothing.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http::StatusCode;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use sfv::{ListSerializer, StringRef};
use smallvec::SmallVec;

use super::policy::{Policies, Policy};
use super::{Answer, PROBLEM, problem, with_body, with_headers};
use crate::clock::Time;
use crate::config::{self, HeaderStyle, OnLimit};
use crate::decide::{LimitOutcome, longest_refusal};
use crate::limit::Verdict;

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const SHADOW: HeaderName = HeaderName::from_static("ratelimit-shadow");
const GITHUB_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const GITHUB_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const GITHUB_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
const SECOND: u64 = 1_000_000;

/// What the limits of one route tell.
#[derive(Debug, Default)]
pub struct RateLimitHeaders {
    limits: Vec<LimitHeaders>,
}

/// What one limit tells on one route.
#[derive(Debug)]
struct LimitHeaders {
    name: String,
    draft: bool,
    github: bool,
    shadow: bool,
    status: StatusCode,
    /// The configured body and its kind; without one, each rate has a document.
    body: Option<(HeaderValue, Bytes)>,
    max_in_flight: Option<u64>,
    /// For each of the rates that may hold, written when they first do.
    profiles: Box<[OnceLock<Policies>]>,
}

/// The last refusal on a connection. Who is refused mostly comes again within the second, to be told the same.
#[derive(Debug, Default)]
pub struct RefusalCache(Option<Box<Refusal>>);

#[derive(Debug)]
struct Refusal {
    rate_limit_headers: Arc<RateLimitHeaders>,
    told: SmallVec<[Told; 2]>,
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

/// All that a refusal tells of one verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Told {
    place: usize,
    profile: usize,
    need: u64,
    admitted: bool,
    rate: usize,
    remaining: u64,
    /// Until more remains.
    seconds: Option<u64>,
    /// The same since the epoch.
    reset: Option<u64>,
}

impl RateLimitHeaders {
    /// The report for these limits, in the order of the route, each with the number of its profiles.
    pub fn new<'a>(limits: impl IntoIterator<Item = (&'a config::Limit, usize)>) -> Self {
        Self { limits: limits.into_iter().map(|(limit, profiles)| LimitHeaders::new(limit, profiles)).collect() }
    }

    /// Adds the headers that tell of these verdicts, and of the limits that would have refused.
    pub fn tell(&self, headers: &mut HeaderMap, outcomes: &[LimitOutcome<'_>], shadowed: &[usize], now: Time) {
        self.write(headers, outcomes, now);
        if shadowed.is_empty() {
            return;
        }
        let mut list = ListSerializer::new();
        for limit_headers in
            shadowed.iter().filter_map(|place| self.limits.get(*place)).filter(|limit_headers| limit_headers.shadow)
        {
            if let Ok(name) = StringRef::from_str(&limit_headers.name) {
                let _ = list.bare_item(name);
            }
        }
        if let Some(line) = list.finish().and_then(|line| HeaderValue::try_from(line).ok()) {
            headers.insert(SHADOW, line);
        }
    }

    /// The answer to a request that these verdicts refuse.
    pub fn reject(self: &Arc<Self>, outcomes: &[LimitOutcome<'_>], now: Time, last: &mut RefusalCache) -> Answer {
        if last.same(self, outcomes, now).is_none() {
            last.0 = self.refusal(outcomes, now).map(Box::new);
        }
        match &last.0 {
            Some(refusal) => with_headers(refusal.status, refusal.headers.clone(), refusal.body.clone()),
            None => with_body(StatusCode::TOO_MANY_REQUESTS, PROBLEM, Bytes::new()),
        }
    }

    fn refusal(self: &Arc<Self>, outcomes: &[LimitOutcome<'_>], now: Time) -> Option<Refusal> {
        let longest = longest_refusal(outcomes)?;
        let limit_headers = self.limits.get(longest.place)?;
        let (kind, body) = match (&limit_headers.body, self.policy(longest)) {
            (Some((kind, body)), _) => (kind.clone(), body.clone()),
            (None, policy) => {
                let refusal = |policy: &Policy| policy.refusal(longest.verdict.remaining, longest.need);
                (PROBLEM, policy.map(refusal).unwrap_or_default())
            }
        };
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, kind);
        if let Some(wait) = longest.verdict.wait {
            // The smallest whole second after which the request would pass, if nothing else came.
            headers.insert(RETRY_AFTER, digits(seconds(wait)));
        }
        self.write(&mut headers, outcomes, now);
        let told = outcomes.iter().map(|outcomes| Told::new(outcomes, now)).collect();
        Some(Refusal { rate_limit_headers: self.clone(), told, status: limit_headers.status, headers, body })
    }

    /// The answer of a limit that does not let on that there is one.
    pub fn silence(&self, place: usize) -> Answer {
        match self.limits.get(place) {
            Some(LimitHeaders { status, body: Some((kind, body)), .. }) => {
                with_body(*status, kind.clone(), body.clone())
            }
            Some(LimitHeaders { status, body: None, .. }) => with_headers(*status, HeaderMap::new(), Bytes::new()),
            None => with_headers(StatusCode::OK, HeaderMap::new(), Bytes::new()),
        }
    }

    /// The answer to a request that costs more than the limit allows at once, however long it waits.
    pub fn too_costly(&self, place: usize, cost: &str, most: u64) -> Answer {
        let name = self.limits.get(place).map_or("", |limit_headers| &limit_headers.name);
        let detail = format!(
            "The request costs {cost}, and the limit \"{name}\" never allows more than {most} at once: it can never pass."
        );
        problem(StatusCode::PAYLOAD_TOO_LARGE, &detail)
    }

    /// The verdict to tell, among the limits that tell this way: a refusal that waits longest, or else the rate that
    /// has least left.
    fn binding<'j, 'a>(
        &self,
        outcomes: &'j [LimitOutcome<'a>],
        tells: impl Fn(&LimitHeaders) -> bool,
    ) -> Option<&'j LimitOutcome<'a>> {
        let told = outcomes.iter().filter(|outcomes| self.limits.get(outcomes.place).is_some_and(&tells));
        told.min_by_key(|outcomes| match outcomes.verdict.admitted {
            false => (0, u64::MAX - outcomes.verdict.wait.unwrap_or(u64::MAX)),
            true => (1, outcomes.verdict.remaining),
        })
    }

    /// What the rates that hold are called, written now if they have not held before.
    fn policies(&self, outcomes: &LimitOutcome<'_>) -> Option<&Policies> {
        let limit_headers = self.limits.get(outcomes.place)?;
        let write = || Policies::new(outcomes.limit, limit_headers.max_in_flight, limit_headers.status);
        Some(limit_headers.profiles.get(outcomes.profile)?.get_or_init(write))
    }

    fn policy(&self, outcomes: &LimitOutcome<'_>) -> Option<&Policy> {
        self.policies(outcomes)?.each.get(outcomes.verdict.rate)
    }

    fn write(&self, headers: &mut HeaderMap, outcomes: &[LimitOutcome<'_>], now: Time) {
        if let Some(line) = self.listing(outcomes) {
            headers.insert(POLICY, line);
        }
        let draft = self.binding(outcomes, |limit_headers| limit_headers.draft);
        if let Some((policy, outcomes)) = draft.and_then(|outcomes| Some((self.policy(outcomes)?, outcomes))) {
            // A structured integer is its digits, so what differs between requests goes behind what does not.
            let (mut room, mut digits) = (itoa::Buffer::new(), itoa::Buffer::new());
            let remaining = room.format(outcomes.verdict.remaining);
            let line = match outcomes.verdict.wait {
                Some(wait) => {
                    let at_once = outcomes.verdict.admitted && policy.fills_within_a_second;
                    let seconds = if at_once { 0 } else { seconds(wait) };
                    [&policy.state, remaining, ";t=", digits.format(seconds)].concat()
                }
                None => [&policy.state, remaining].concat(),
            };
            if let Ok(line) = HeaderValue::from_maybe_shared(Bytes::from(line)) {
                headers.insert(LIMIT, line);
            }
        }
        let github = self.binding(outcomes, |limit_headers| limit_headers.github);
        if let Some((policy, outcomes)) = github.and_then(|outcomes| Some((self.policy(outcomes)?, outcomes))) {
            headers.insert(GITHUB_LIMIT, digits(policy.capacity));
            headers.insert(GITHUB_REMAINING, digits(outcomes.verdict.remaining));
            if let Some(wait) = outcomes.verdict.wait {
                headers.insert(GITHUB_RESET, digits(reset(now, wait)));
            }
        }
    }

    /// The policies of all limits that were asked, in the order of the route.
    fn listing(&self, outcomes: &[LimitOutcome<'_>]) -> Option<HeaderValue> {
        let drafts = outcomes
            .iter()
            .filter(|outcomes| self.limits.get(outcomes.place).is_some_and(|limit_headers| limit_headers.draft));
        // A limit of rates and of requests under way is there twice, one after the other.
        let mut last = None;
        let mut lines = drafts.filter(|outcomes| last.replace(outcomes.place) != Some(outcomes.place));
        let first = self.policies(lines.next()?)?.line.as_ref()?;
        let mut rest = lines.filter_map(|outcomes| self.policies(outcomes)?.line.as_ref()).peekable();
        if rest.peek().is_none() {
            return Some(first.clone());
        }
        let lines: Vec<&[u8]> = std::iter::once(first).chain(rest).map(HeaderValue::as_bytes).collect();
        HeaderValue::from_maybe_shared(Bytes::from(lines.join(&b", "[..]))).ok()
    }
}

impl RefusalCache {
    /// The last refusal, if it is to be told again. Of several limits that refuse, the one that is told may change within
    /// the second: then it is told anew.
    fn same(
        &self,
        rate_limit_headers: &Arc<RateLimitHeaders>,
        outcomes: &[LimitOutcome<'_>],
        now: Time,
    ) -> Option<&Refusal> {
        // Every configuration has reports of its own.
        let last = self.0.as_deref().filter(|last| Arc::ptr_eq(&last.rate_limit_headers, rate_limit_headers))?;
        let is_same = |(told, outcomes): (&Told, &LimitOutcome<'_>)| *told == Told::new(outcomes, now);
        let is_again = last.told.len() == outcomes.len()
            && last.told.iter().zip(outcomes).all(is_same)
            && last.told.iter().filter(|told| !told.admitted).count() == 1;
        is_again.then_some(last)
    }
}

impl Told {
    fn new(outcomes: &LimitOutcome<'_>, now: Time) -> Self {
        let LimitOutcome { place, profile, need, verdict: Verdict { admitted, rate, remaining, wait }, .. } = *outcomes;
        let (seconds, reset) = (wait.map(seconds), wait.map(|wait| reset(now, wait)));
        Self { place, profile, need, admitted, rate, remaining, seconds, reset }
    }
}

impl LimitHeaders {
    fn new(limit: &config::Limit, profiles: usize) -> Self {
        let told = limit.on_limit.is_told();
        Self {
            name: limit.name.clone(),
            draft: told && matches!(limit.headers, HeaderStyle::Draft | HeaderStyle::Both),
            github: told && matches!(limit.headers, HeaderStyle::Github | HeaderStyle::Both),
            shadow: limit.on_limit == OnLimit::Shadow && limit.headers != HeaderStyle::None,
            status: limit.status,
            body: (!limit.body.is_empty())
                .then(|| (limit.content_type.clone(), Bytes::copy_from_slice(limit.body.as_bytes()))),
            max_in_flight: limit.max_in_flight,
            profiles: (0..profiles).map(|_| OnceLock::new()).collect(),
        }
    }
}

/// The whole seconds until then, rounded up.
fn seconds(wait: u64) -> u64 {
    wait.div_ceil(SECOND)
}

/// The first whole second since the epoch at which it is over.
fn reset(now: Time, wait: u64) -> u64 {
    seconds(now.micros().saturating_add(wait))
}

/// In one allocation, where the library's own conversion takes two.
fn digits(value: u64) -> HeaderValue {
    HeaderValue::from_str(itoa::Buffer::new().format(value)).unwrap_or_else(|_| value.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Key, Missing, Source};
    use crate::limit::Limit;

    fn limit(name: &str, rates: &[&str], headers: HeaderStyle) -> config::Limit {
        config::Limit {
            name: name.to_owned(),
            key: Key { parts: vec![vec![Source::Global]] },
            rates: rates.iter().map(|rate| rate.parse().unwrap()).collect(),
            missing: Missing::Shared,
            max_in_flight: None,
            cost: config::Cost::Fixed(1),
            known_keys: None,
            overrides: Arc::default(),
            tiers: None,
            on_limit: OnLimit::Reject,
            headers,
            status: StatusCode::TOO_MANY_REQUESTS,
            body: String::new(),
            content_type: HeaderValue::from_static("text/plain"),
        }
    }

    fn rate_limit_headers(limits: &[config::Limit]) -> Arc<RateLimitHeaders> {
        Arc::new(RateLimitHeaders::new(limits.iter().map(|limit| (limit, 1))))
    }

    fn compiled(limits: &[config::Limit]) -> Vec<Limit> {
        limits.iter().map(|limit| Limit::new(&limit.name, &limit.rates)).collect()
    }

    fn verdict(admitted: bool, rate: usize, remaining: u64, wait: u64) -> Verdict {
        Verdict { admitted, rate, remaining, wait: Some(wait) }
    }

    fn outcomes<'a>(limits: &'a [Limit], verdicts: &[Verdict]) -> Vec<LimitOutcome<'a>> {
        let outcomes = limits.iter().zip(verdicts).enumerate();
        outcomes
            .map(|(place, (limit, verdict))| LimitOutcome { place, profile: 0, limit, need: 1, verdict: *verdict })
            .collect()
    }

    const NOW: Time = Time::from_micros(1_700_000_000_300_000);

    fn told(limits: &[config::Limit], verdicts: &[Verdict]) -> Vec<String> {
        let mut headers = HeaderMap::new();
        rate_limit_headers(limits).tell(&mut headers, &outcomes(&compiled(limits), verdicts), &[], NOW);
        headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect()
    }

    #[test]
    fn the_draft_lists_all_policies_and_the_rate_that_binds() {
        let limits =
            [limit("a", &["10/s", "3000/10m"], HeaderStyle::Draft), limit("b", &["5/90s"], HeaderStyle::Draft)];
        assert_eq!(
            told(&limits, &[verdict(true, 1, 7, 900_000), verdict(true, 0, 4, 3_000_001)]),
            [r#"ratelimit-policy: "a-s";q=10;w=1, "a-10m";q=3000;w=600, "b";q=5;w=90"#, r#"ratelimit: "b";r=4;t=4"#,]
        );
        let lines = told(&limits, &[verdict(false, 0, 0, 900_000), verdict(true, 0, 0, 3_000_001)]);
        assert_eq!(lines[1], r#"ratelimit: "a-s";r=0;t=1"#, "a refusal goes before");
    }

    #[test]
    fn every_strategy_has_its_policy() {
        let bucket = limit("b", &["10/s burst 50", "5000/day", "9/month"], HeaderStyle::Draft);
        let lines = told(&[bucket], &[verdict(true, 0, 50, 0)]);
        assert_eq!(
            lines[0],
            r#"ratelimit-policy: "b-s";q=10;w=1;gateway-burst=50, "b-day";q=5000;w=86400, "b-month";q=9"#
        );
        let flights = config::Limit { max_in_flight: Some(4), ..limit("f", &[], HeaderStyle::Draft) };
        let lines = told(&[flights], &[Verdict { admitted: true, rate: 0, remaining: 3, wait: None }]);
        assert_eq!(lines, [r#"ratelimit-policy: "f";q=4;qu="concurrent-requests""#, r#"ratelimit: "f";r=3"#]);
    }

    #[test]
    fn limits_that_nobody_is_to_know_of_tell_nothing() {
        let quiet =
            |on_limit| [config::Limit { on_limit, max_in_flight: None, ..limit("q", &["1/s"], HeaderStyle::Both) }];
        for on_limit in [OnLimit::Silent, OnLimit::Shadow] {
            assert_eq!(told(&quiet(on_limit), &[verdict(true, 0, 1, 0)]), Vec::<String>::new());
        }
        let mut headers = HeaderMap::new();
        rate_limit_headers(&quiet(OnLimit::Shadow)).tell(&mut headers, &[], &[0], NOW);
        assert_eq!(headers[SHADOW], "\"q\"");
    }

    #[test]
    fn github_counts_in_epoch_seconds() {
        let lines = ["x-ratelimit-limit: 10", "x-ratelimit-remaining: 9", "x-ratelimit-reset: 1700000002"];
        let passed = [verdict(true, 0, 9, 900_000)];
        assert_eq!(told(&[limit("a", &["10/s"], HeaderStyle::Github)], &passed), lines);
        assert_eq!(told(&[limit("a", &["10/s"], HeaderStyle::Both)], &passed).len(), 5);
        assert_eq!(told(&[limit("a", &["10/s"], HeaderStyle::None)], &passed), Vec::<String>::new());
    }

    #[test]
    fn a_rejection_says_when_and_why() {
        let limits = [limit("a", &["10/s", "20/m"], HeaderStyle::Draft)];
        let (rate_limit_headers, compiled) = (rate_limit_headers(&limits), compiled(&limits));
        let outcomes = outcomes(&compiled, &[verdict(false, 1, 0, 12_000_001)]);
        let answer = rate_limit_headers.reject(&outcomes, NOW, &mut RefusalCache::default());
        assert_eq!(answer.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(answer.headers()[RETRY_AFTER], "13");
        assert_eq!(answer.headers()["content-type"], "application/problem+json");
        let document = rate_limit_headers.policy(&outcomes[0]).unwrap().refusal(0, 1);
        let document = std::str::from_utf8(&document).unwrap();
        assert!(document.contains(r#""violated-policies":["a-m"]"#), "{document}");
        assert!(document.contains("allows 20/m"), "{document}");
    }

    #[test]
    fn what_was_said_before_is_said_anew_only_when_it_differs() {
        let other =
            config::Limit { status: StatusCode::SERVICE_UNAVAILABLE, ..limit("b", &["5/s"], HeaderStyle::None) };
        let limits = [limit("a", &["10/s", "20/m"], HeaderStyle::Both), other];
        let (reports, compiled) = ([rate_limit_headers(&limits), rate_limit_headers(&limits[..1])], compiled(&limits));
        let mut last = RefusalCache::default();
        let mut check = |rate_limit_headers: &Arc<RateLimitHeaders>, now: Time, outcomes: &[LimitOutcome<'_>]| {
            let fresh = rate_limit_headers.reject(outcomes, now, &mut RefusalCache::default());
            let answer = rate_limit_headers.reject(outcomes, now, &mut last);
            assert_eq!((answer.status(), answer.headers()), (fresh.status(), fresh.headers()));
        };
        for (micros, rate, wait, rate_limit_headers) in
            [(0, 0, 900_000, 0), (0, 0, 800_000, 0), (0, 0, 800_000, 1), (0, 1, 800_000, 1), (300_000, 1, 800_000, 1)]
        {
            let outcomes = outcomes(&compiled[..1], &[verdict(false, rate, 0, wait)]);
            check(&reports[rate_limit_headers], Time::from_micros(micros), &outcomes);
        }
        // Of two that refuse, within one second first the one and then the other takes longest.
        for (first, second) in [((true, 800_000), 800_000), ((false, 900_000), 800_000), ((false, 800_000), 900_000)] {
            let verdicts = [verdict(first.0, 0, 1, first.1), verdict(false, 0, 0, second)];
            check(&reports[0], Time::from_micros(300_000), &outcomes(&compiled, &verdicts));
        }
    }
}
