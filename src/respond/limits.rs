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
use crate::decide::{Judged, longest_refusal};
use crate::interned::{interned, interned_value};
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
pub struct Report {
    tellers: Vec<Teller>,
}

/// What one limit tells on one route.
#[derive(Debug)]
struct Teller {
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
pub struct LastRefusal(Option<Box<Refusal>>);

#[derive(Debug)]
struct Refusal {
    report: Arc<Report>,
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

impl Report {
    /// The report for these limits, in the order of the route, each with the number of its profiles.
    pub fn new<'a>(limits: impl IntoIterator<Item = (&'a config::Limit, usize)>) -> Self {
        Self { tellers: limits.into_iter().map(|(limit, profiles)| Teller::new(limit, profiles)).collect() }
    }

    /// Adds the headers that tell of these verdicts, and of the limits that would have refused.
    pub fn tell(&self, headers: &mut HeaderMap, judged: &[Judged<'_>], shadowed: &[usize], now: Time) {
        self.write(headers, judged, now);
        if shadowed.is_empty() {
            return;
        }
        let mut list = ListSerializer::new();
        for teller in shadowed.iter().filter_map(|place| self.tellers.get(*place)).filter(|teller| teller.shadow) {
            if let Ok(name) = StringRef::from_str(&teller.name) {
                let _ = list.bare_item(name);
            }
        }
        if let Some(line) = list.finish().and_then(|line| HeaderValue::try_from(line).ok()) {
            headers.insert(SHADOW, line);
        }
    }

    /// The answer to a request that these verdicts refuse.
    pub fn reject(self: &Arc<Self>, judged: &[Judged<'_>], now: Time, last: &mut LastRefusal) -> Answer {
        if last.same(self, judged, now).is_none() {
            last.0 = self.refusal(judged, now).map(Box::new);
        }
        match &last.0 {
            Some(refusal) => with_headers(refusal.status, refusal.headers.clone(), refusal.body.clone()),
            None => with_body(StatusCode::TOO_MANY_REQUESTS, PROBLEM, Bytes::new()),
        }
    }

    fn refusal(self: &Arc<Self>, judged: &[Judged<'_>], now: Time) -> Option<Refusal> {
        let longest = longest_refusal(judged)?;
        let teller = self.tellers.get(longest.place)?;
        let (kind, body) = match (&teller.body, self.policy(longest)) {
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
        self.write(&mut headers, judged, now);
        let told = judged.iter().map(|judged| Told::new(judged, now)).collect();
        Some(Refusal { report: self.clone(), told, status: teller.status, headers, body })
    }

    /// The answer of a limit that does not let on that there is one.
    pub fn silence(&self, place: usize) -> Answer {
        match self.tellers.get(place) {
            Some(Teller { status, body: Some((kind, body)), .. }) => with_body(*status, kind.clone(), body.clone()),
            Some(Teller { status, body: None, .. }) => with_headers(*status, HeaderMap::new(), Bytes::new()),
            None => with_headers(StatusCode::OK, HeaderMap::new(), Bytes::new()),
        }
    }

    /// The answer to a request that costs more than the limit allows at once, however long it waits.
    pub fn too_costly(&self, place: usize, cost: &str, most: u64) -> Answer {
        let name = self.tellers.get(place).map_or("", |teller| &teller.name);
        let detail = format!(
            "The request costs {cost}, and the limit \"{name}\" never allows more than {most} at once: it can never pass."
        );
        problem(StatusCode::PAYLOAD_TOO_LARGE, &detail)
    }

    /// The verdict to tell, among the limits that tell this way: a refusal that waits longest, or else the rate that
    /// has least left.
    fn binding<'j, 'a>(&self, judged: &'j [Judged<'a>], tells: impl Fn(&Teller) -> bool) -> Option<&'j Judged<'a>> {
        let told = judged.iter().filter(|judged| self.tellers.get(judged.place).is_some_and(&tells));
        told.min_by_key(|judged| match judged.verdict.admitted {
            false => (0, u64::MAX - judged.verdict.wait.unwrap_or(u64::MAX)),
            true => (1, judged.verdict.remaining),
        })
    }

    /// What the rates that hold are called, written now if they have not held before.
    fn policies(&self, judged: &Judged<'_>) -> Option<&Policies> {
        let teller = self.tellers.get(judged.place)?;
        let write = || Policies::new(judged.limit, teller.max_in_flight, teller.status);
        Some(teller.profiles.get(judged.profile)?.get_or_init(write))
    }

    fn policy(&self, judged: &Judged<'_>) -> Option<&Policy> {
        self.policies(judged)?.each.get(judged.verdict.rate)
    }

    fn write(&self, headers: &mut HeaderMap, judged: &[Judged<'_>], now: Time) {
        if let Some(line) = self.listing(judged) {
            headers.insert(POLICY, line);
        }
        let draft = self.binding(judged, |teller| teller.draft);
        if let Some((policy, judged)) = draft.and_then(|judged| Some((self.policy(judged)?, judged))) {
            // A structured integer is its digits, so what differs between requests goes behind what does not.
            let (mut room, mut digits) = (itoa::Buffer::new(), itoa::Buffer::new());
            let remaining = room.format(judged.verdict.remaining);
            let line = match judged.verdict.wait {
                Some(wait) => {
                    let at_once = judged.verdict.admitted && policy.fills_within_a_second;
                    let seconds = if at_once { 0 } else { seconds(wait) };
                    [&policy.state, remaining, ";t=", digits.format(seconds)].concat()
                }
                None => [&policy.state, remaining].concat(),
            };
            if let Ok(line) = HeaderValue::from_maybe_shared(Bytes::from(line)) {
                headers.insert(LIMIT, line);
            }
        }
        let github = self.binding(judged, |teller| teller.github);
        if let Some((policy, judged)) = github.and_then(|judged| Some((self.policy(judged)?, judged))) {
            headers.insert(GITHUB_LIMIT, digits(policy.capacity));
            headers.insert(GITHUB_REMAINING, digits(judged.verdict.remaining));
            if let Some(wait) = judged.verdict.wait {
                headers.insert(GITHUB_RESET, digits(reset(now, wait)));
            }
        }
    }

    /// The policies of all limits that were asked, in the order of the route.
    fn listing(&self, judged: &[Judged<'_>]) -> Option<HeaderValue> {
        let drafts = judged.iter().filter(|judged| self.tellers.get(judged.place).is_some_and(|teller| teller.draft));
        // A limit of rates and of requests under way is there twice, one after the other.
        let mut last = None;
        let mut lines = drafts.filter(|judged| last.replace(judged.place) != Some(judged.place));
        let first = self.policies(lines.next()?)?.line.as_ref()?;
        let mut rest = lines.filter_map(|judged| self.policies(judged)?.line.as_ref()).peekable();
        if rest.peek().is_none() {
            return Some(first.clone());
        }
        let lines: Vec<&[u8]> = std::iter::once(first).chain(rest).map(HeaderValue::as_bytes).collect();
        HeaderValue::from_maybe_shared(Bytes::from(lines.join(&b", "[..]))).ok()
    }
}

impl LastRefusal {
    /// The last refusal, if it is to be told again. Of several limits that refuse, the one that is told may change within
    /// the second: then it is told anew.
    fn same(&self, report: &Arc<Report>, judged: &[Judged<'_>], now: Time) -> Option<&Refusal> {
        // Every configuration has reports of its own.
        let last = self.0.as_deref().filter(|last| Arc::ptr_eq(&last.report, report))?;
        let is_same = |(told, judged): (&Told, &Judged<'_>)| *told == Told::new(judged, now);
        let is_again = last.told.len() == judged.len()
            && last.told.iter().zip(judged).all(is_same)
            && last.told.iter().filter(|told| !told.admitted).count() == 1;
        is_again.then_some(last)
    }
}

impl Told {
    fn new(judged: &Judged<'_>, now: Time) -> Self {
        let Judged { place, profile, need, verdict: Verdict { admitted, rate, remaining, wait }, .. } = *judged;
        let (seconds, reset) = (wait.map(seconds), wait.map(|wait| reset(now, wait)));
        Self { place, profile, need, admitted, rate, remaining, seconds, reset }
    }
}

impl Teller {
    fn new(limit: &config::Limit, profiles: usize) -> Self {
        let told = limit.on_limit.is_told();
        Self {
            name: limit.name.clone(),
            draft: told && matches!(limit.headers, HeaderStyle::Draft | HeaderStyle::Both),
            github: told && matches!(limit.headers, HeaderStyle::Github | HeaderStyle::Both),
            shadow: limit.on_limit == OnLimit::Shadow && limit.headers != HeaderStyle::None,
            status: limit.status,
            body: (!limit.body.is_empty())
                .then(|| (interned_value(&limit.content_type), interned(limit.body.as_bytes()))),
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

    fn report(limits: &[config::Limit]) -> Arc<Report> {
        Arc::new(Report::new(limits.iter().map(|limit| (limit, 1))))
    }

    fn compiled(limits: &[config::Limit]) -> Vec<Limit> {
        limits.iter().map(|limit| Limit::new(&limit.name, &limit.rates)).collect()
    }

    fn verdict(admitted: bool, rate: usize, remaining: u64, wait: u64) -> Verdict {
        Verdict { admitted, rate, remaining, wait: Some(wait) }
    }

    fn judged<'a>(limits: &'a [Limit], verdicts: &[Verdict]) -> Vec<Judged<'a>> {
        let judged = limits.iter().zip(verdicts).enumerate();
        judged
            .map(|(place, (limit, verdict))| Judged { place, profile: 0, limit, need: 1, verdict: *verdict })
            .collect()
    }

    const NOW: Time = Time::from_micros(1_700_000_000_300_000);

    fn told(limits: &[config::Limit], verdicts: &[Verdict]) -> Vec<String> {
        let mut headers = HeaderMap::new();
        report(limits).tell(&mut headers, &judged(&compiled(limits), verdicts), &[], NOW);
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
        report(&quiet(OnLimit::Shadow)).tell(&mut headers, &[], &[0], NOW);
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
        let (report, compiled) = (report(&limits), compiled(&limits));
        let judged = judged(&compiled, &[verdict(false, 1, 0, 12_000_001)]);
        let answer = report.reject(&judged, NOW, &mut LastRefusal::default());
        assert_eq!(answer.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(answer.headers()[RETRY_AFTER], "13");
        assert_eq!(answer.headers()["content-type"], "application/problem+json");
        let document = report.policy(&judged[0]).unwrap().refusal(0, 1);
        let document = std::str::from_utf8(&document).unwrap();
        assert!(document.contains(r#""violated-policies":["a-m"]"#), "{document}");
        assert!(document.contains("allows 20/m"), "{document}");
    }

    #[test]
    fn what_was_said_before_is_said_anew_only_when_it_differs() {
        let other =
            config::Limit { status: StatusCode::SERVICE_UNAVAILABLE, ..limit("b", &["5/s"], HeaderStyle::None) };
        let limits = [limit("a", &["10/s", "20/m"], HeaderStyle::Both), other];
        let (reports, compiled) = ([report(&limits), report(&limits[..1])], compiled(&limits));
        let mut last = LastRefusal::default();
        let mut check = |report: &Arc<Report>, now: Time, judged: &[Judged<'_>]| {
            let fresh = report.reject(judged, now, &mut LastRefusal::default());
            let answer = report.reject(judged, now, &mut last);
            assert_eq!((answer.status(), answer.headers()), (fresh.status(), fresh.headers()));
        };
        for (micros, rate, wait, report) in
            [(0, 0, 900_000, 0), (0, 0, 800_000, 0), (0, 0, 800_000, 1), (0, 1, 800_000, 1), (300_000, 1, 800_000, 1)]
        {
            let judged = judged(&compiled[..1], &[verdict(false, rate, 0, wait)]);
            check(&reports[report], Time::from_micros(micros), &judged);
        }
        // Of two that refuse, within one second first the one and then the other takes longest.
        for (first, second) in [((true, 800_000), 800_000), ((false, 900_000), 800_000), ((false, 800_000), 900_000)] {
            let verdicts = [verdict(first.0, 0, 1, first.1), verdict(false, 0, 0, second)];
            check(&reports[0], Time::from_micros(300_000), &judged(&compiled, &verdicts));
        }
    }
}
