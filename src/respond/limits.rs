//! How limits are told to clients: the headers of every limited response, and the rejection itself.
//!
//! `RateLimit-Policy` and `RateLimit` follow draft-ietf-httpapi-ratelimit-headers-10; the X-RateLimit headers are
//! as GitHub sends them. All policies are listed; of their states the one that binds is told: the next to run out,
//! or the one that takes longest to let the refused request through.

use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use http::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use sfv::{Integer, ItemSerializer, KeyRef, ListSerializer};

use super::{Answer, document, fixed, with_problem};
use crate::clock::{Time, micros};
use crate::config::{self, HeaderStyle};
use crate::limit::{Rate, Verdict};
use crate::units;

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const GITHUB_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const GITHUB_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const GITHUB_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
/// The problem type of the draft, section "Quota Exceeded".
const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const SECOND: u64 = 1_000_000;

/// What the limits of one route tell.
#[derive(Clone, Debug, Default)]
pub struct Report {
    tellers: Vec<Teller>,
    policy: Option<HeaderValue>,
}

/// What one limit tells on one route.
#[derive(Clone, Debug)]
struct Teller {
    draft: bool,
    github: bool,
    status: StatusCode,
    /// The configured body; without one, each rate has a document.
    body: Option<Bytes>,
    rates: Vec<Policy>,
}

/// One rate under the name that clients see.
#[derive(Clone, Debug)]
struct Policy {
    name: sfv::String,
    /// Its item of RateLimit up to the number of requests that remain: `"name";r=`.
    state: String,
    rate: Rate,
    document: Bytes,
}

/// All that differs between the answers of a route: the same words make the same answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Words {
    refused: Option<Item>,
    draft: Option<Item>,
    github: Option<Item>,
}

/// What is told of one rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Item {
    /// The limit, by its index on the route.
    place: usize,
    rate: usize,
    remaining: u64,
    /// Until more remains; for GitHub's headers since the epoch.
    seconds: Option<u64>,
}

/// The last refusal on a connection. Who is refused mostly comes again within the second, to be told the same.
#[derive(Debug, Default)]
pub struct LastRefusal(Option<Box<Refusal>>);

#[derive(Debug)]
struct Refusal {
    report: Arc<Report>,
    words: Words,
    answer: Answer,
}

impl Report {
    /// The report for these limits, in the order of the route.
    pub fn new<'a>(limits: impl IntoIterator<Item = &'a config::Limit>) -> Self {
        let tellers: Vec<Teller> = limits.into_iter().map(Teller::new).collect();
        let mut list = ListSerializer::new();
        for policy in tellers.iter().filter(|teller| teller.draft).flat_map(|teller| &teller.rates) {
            let _ = list
                .bare_item(&policy.name)
                .parameter(KeyRef::constant("q"), integer(policy.rate.quota()))
                .parameter(KeyRef::constant("w"), integer(micros(policy.rate.window()).div_ceil(SECOND)));
        }
        let policy = list.finish().and_then(|line| HeaderValue::try_from(line).ok());
        Self { tellers, policy }
    }

    /// Adds the headers that tell of these verdicts, by index of the limit on the route.
    pub fn tell(&self, headers: &mut HeaderMap, judged: &[(usize, Verdict)], now: Time) {
        self.write(headers, &self.words(judged, now));
    }

    /// The answer to a request that these verdicts refuse.
    pub fn reject(self: &Arc<Self>, judged: &[(usize, Verdict)], now: Time, last: &mut LastRefusal) -> Answer {
        let refusals = judged.iter().filter(|(_, verdict)| !verdict.admitted);
        let longest = refusals.max_by_key(|(_, verdict)| verdict.wait.unwrap_or(u64::MAX));
        let Some((teller, place, verdict)) =
            longest.and_then(|(place, verdict)| Some((self.tellers.get(*place)?, *place, verdict)))
        else {
            return with_problem(StatusCode::TOO_MANY_REQUESTS, Bytes::new());
        };
        let refused = Item::new(place, verdict);
        let words = Words { refused: Some(refused), ..self.words(judged, now) };
        last.answer(self, words, || {
            let mut answer = match (&teller.body, teller.rates.get(verdict.rate)) {
                (Some(body), _) => fixed(teller.status, body.clone()),
                (None, policy) => {
                    with_problem(teller.status, policy.map(|policy| policy.document.clone()).unwrap_or_default())
                }
            };
            if let Some(seconds) = refused.seconds {
                // The smallest whole second after which the request would pass, if nothing else came.
                answer.headers_mut().insert(RETRY_AFTER, digits(seconds));
            }
            self.write(answer.headers_mut(), &words);
            answer
        })
    }

    fn words(&self, judged: &[(usize, Verdict)], now: Time) -> Words {
        let draft = self.binding(judged, |teller| teller.draft);
        let github = self.binding(judged, |teller| teller.github);
        let at = |wait| now.micros().saturating_add(wait).div_ceil(SECOND);
        Words {
            refused: None,
            draft: draft.map(|(place, verdict)| Item::new(place, &verdict)),
            github: github.map(|(place, verdict)| Item { seconds: verdict.wait.map(at), ..Item::new(place, &verdict) }),
        }
    }

    /// The verdict to tell, among the limits that tell this way: a refusal that waits longest, or else the rate that
    /// has least left.
    fn binding(&self, judged: &[(usize, Verdict)], tells: impl Fn(&Teller) -> bool) -> Option<(usize, Verdict)> {
        let told = judged.iter().filter(|(place, _)| self.tellers.get(*place).is_some_and(&tells));
        told.copied().min_by_key(|(_, verdict)| match verdict.admitted {
            false => (0, u64::MAX - verdict.wait.unwrap_or(u64::MAX)),
            true => (1, verdict.remaining),
        })
    }

    fn policy(&self, item: &Item) -> Option<&Policy> {
        self.tellers.get(item.place)?.rates.get(item.rate)
    }

    fn write(&self, headers: &mut HeaderMap, words: &Words) {
        if let Some(policy) = &self.policy {
            headers.insert(POLICY, policy.clone());
        }
        if let Some((policy, item)) = words.draft.as_ref().and_then(|item| Some((self.policy(item)?, item))) {
            // A structured integer is its digits, so what differs between requests goes behind what does not.
            let (mut remaining, mut seconds) = (itoa::Buffer::new(), itoa::Buffer::new());
            let remaining = remaining.format(item.remaining);
            let line = match item.seconds {
                Some(after) => [&policy.state, remaining, ";t=", seconds.format(after)].concat(),
                None => [&policy.state, remaining].concat(),
            };
            if let Ok(line) = HeaderValue::from_maybe_shared(Bytes::from(line)) {
                headers.insert(LIMIT, line);
            }
        }
        if let Some((policy, item)) = words.github.as_ref().and_then(|item| Some((self.policy(item)?, item))) {
            headers.insert(GITHUB_LIMIT, digits(policy.rate.quota()));
            headers.insert(GITHUB_REMAINING, digits(item.remaining));
            if let Some(at) = item.seconds {
                headers.insert(GITHUB_RESET, digits(at));
            }
        }
    }
}

impl Item {
    fn new(place: usize, verdict: &Verdict) -> Self {
        let seconds = verdict.wait.map(|wait| wait.div_ceil(SECOND));
        Self { place, rate: verdict.rate, remaining: verdict.remaining, seconds }
    }
}

impl LastRefusal {
    /// The answer that says this, written anew if it was not the last.
    fn answer(&mut self, report: &Arc<Report>, words: Words, write: impl FnOnce() -> Answer) -> Answer {
        let said = self.0.as_ref().filter(|last| last.words == words && Arc::ptr_eq(&last.report, report));
        if let Some(last) = said {
            return last.answer.clone();
        }
        let answer = write();
        self.0 = Some(Box::new(Refusal { report: report.clone(), words, answer: answer.clone() }));
        answer
    }
}

impl Teller {
    fn new(limit: &config::Limit) -> Self {
        Self {
            draft: matches!(limit.headers, HeaderStyle::Draft | HeaderStyle::Both),
            github: matches!(limit.headers, HeaderStyle::Github | HeaderStyle::Both),
            status: limit.status,
            body: (!limit.body.is_empty()).then(|| Bytes::from(limit.body.clone())),
            rates: limit.rates.iter().map(|rate| Policy::new(limit, rate)).collect(),
        }
    }
}

impl Policy {
    fn new(limit: &config::Limit, rate: &Rate) -> Self {
        let period = units::period(rate.window());
        // One name for each policy: a limit of several rates needs more than its own.
        let name = if limit.rates.len() == 1 { limit.name.clone() } else { format!("{}-{period}", limit.name) };
        let detail = format!("The limit \"{}\" allows {rate}, and that is used up for now.", limit.name);
        let document = document(limit.status, QUOTA_EXCEEDED, &detail, &[&name]);
        // The configuration admits names of printable ASCII only, which are all structured strings.
        let name = sfv::String::from_string(name).unwrap_or_else(|_| sfv::StringRef::constant("limit").to_owned());
        let state = ItemSerializer::new().bare_item(&name).parameter(KeyRef::constant("r"), 0).finish();
        let state = state.trim_end_matches('0').to_owned();
        Self { name, state, rate: *rate, document }
    }
}

/// In one allocation, where the library's own conversion takes two.
fn digits(value: u64) -> HeaderValue {
    HeaderValue::from_str(itoa::Buffer::new().format(value)).unwrap_or_else(|_| value.into())
}

/// Quotas and waits are far below the largest structured integer, 10^15 - 1.
fn integer(value: u64) -> Integer {
    Integer::try_from(value).unwrap_or(Integer::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Key, Missing, Source};

    fn limit(name: &str, rates: &[&str], headers: HeaderStyle) -> config::Limit {
        config::Limit {
            name: name.to_owned(),
            key: Key { parts: vec![vec![Source::Global]] },
            rates: rates.iter().map(|rate| rate.parse().unwrap()).collect(),
            missing: Missing::Shared,
            headers,
            status: StatusCode::TOO_MANY_REQUESTS,
            body: String::new(),
        }
    }

    fn verdict(admitted: bool, rate: usize, remaining: u64, wait: u64) -> Verdict {
        Verdict { admitted, rate, remaining, wait: Some(wait) }
    }

    fn told(report: &Report, judged: &[(usize, Verdict)]) -> Vec<String> {
        let mut headers = HeaderMap::new();
        report.tell(&mut headers, judged, Time::from_micros(1_700_000_000_300_000));
        headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect()
    }

    #[test]
    fn the_draft_lists_all_policies_and_the_rate_that_binds() {
        let limits =
            [limit("a", &["10/s", "3000/10m"], HeaderStyle::Draft), limit("b", &["5/90s"], HeaderStyle::Draft)];
        let report = Report::new(&limits);
        let judged = [(0, verdict(true, 1, 7, 900_000)), (1, verdict(true, 0, 4, 3_000_001))];
        assert_eq!(
            told(&report, &judged),
            [r#"ratelimit-policy: "a-s";q=10;w=1, "a-10m";q=3000;w=600, "b";q=5;w=90"#, r#"ratelimit: "b";r=4;t=4"#,]
        );
        let judged = [(0, verdict(false, 0, 0, 900_000)), (1, verdict(true, 0, 0, 3_000_001))];
        assert_eq!(told(&report, &judged)[1], r#"ratelimit: "a-s";r=0;t=1"#, "a refusal goes before");
    }

    #[test]
    fn github_counts_in_epoch_seconds() {
        let report = Report::new(&[limit("a", &["10/s"], HeaderStyle::Github)]);
        let lines = ["x-ratelimit-limit: 10", "x-ratelimit-remaining: 9", "x-ratelimit-reset: 1700000002"];
        assert_eq!(told(&report, &[(0, verdict(true, 0, 9, 900_000))]), lines);
        let both = Report::new(&[limit("a", &["10/s"], HeaderStyle::Both)]);
        assert_eq!(told(&both, &[(0, verdict(true, 0, 9, 1))]).len(), 5);
        let none = Report::new(&[limit("a", &["10/s"], HeaderStyle::None)]);
        assert_eq!(told(&none, &[(0, verdict(true, 0, 9, 1))]), Vec::<String>::new());
    }

    #[test]
    fn a_rejection_says_when_and_why() {
        let report = Arc::new(Report::new(&[limit("a", &["10/s", "20/m"], HeaderStyle::Draft)]));
        let mut last = LastRefusal::default();
        let answer = report.reject(&[(0, verdict(false, 1, 0, 12_000_001))], Time::from_micros(0), &mut last);
        assert_eq!(answer.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(answer.headers()[RETRY_AFTER], "13");
        assert_eq!(answer.headers()["content-type"], "application/problem+json");
        let document = std::str::from_utf8(&report.tellers[0].rates[1].document).unwrap();
        assert!(document.contains(r#""violated-policies":["a-m"]"#), "{document}");
        assert!(document.contains("allows 20/m"), "{document}");
    }

    #[test]
    fn what_was_said_before_is_said_anew_only_when_it_differs() {
        let limits = [limit("a", &["10/s", "20/m"], HeaderStyle::Both), limit("b", &["5/s"], HeaderStyle::None)];
        let reports = [Arc::new(Report::new(&limits)), Arc::new(Report::new(&limits[..1]))];
        let mut last = LastRefusal::default();
        for (micros, rate, wait, report) in
            [(0, 0, 900_000, 0), (0, 0, 800_000, 0), (0, 0, 800_000, 1), (0, 1, 800_000, 1), (300_000, 1, 800_000, 1)]
        {
            let (report, now) = (&reports[report], Time::from_micros(micros));
            let judged = [(0, verdict(false, rate, 0, wait))];
            let fresh = report.reject(&judged, now, &mut LastRefusal::default());
            assert_eq!(report.reject(&judged, now, &mut last).headers(), fresh.headers());
        }
        let judged = [(0, verdict(true, 0, 1, 800_000)), (1, verdict(false, 0, 0, 800_000))];
        let now = Time::from_micros(300_000);
        let fresh = reports[0].reject(&judged, now, &mut LastRefusal::default());
        assert_eq!(reports[0].reject(&judged, now, &mut last).headers(), fresh.headers());
    }
}
