//! A small limiter that is right, an exact log, or wrong in one way.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use super::faults::Fault;

pub(super) const QUOTA: usize = 5;
pub(super) const WINDOW: Duration = Duration::from_secs(2);
const HEADER: &str = "x-api-key";
/// Bytes that a key is said to take.
const KEY: u64 = 100_000;

/// A request, and what the limiter knows about how it came.
pub(super) struct Question {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) headers: Vec<(String, Vec<u8>)>,
    pub(super) instance: usize,
    /// Differs for each connection.
    pub(super) connection: u64,
    /// How many requests came on it before.
    pub(super) earlier: usize,
    pub(super) is_http2: bool,
    /// It was there before the response to the one before it.
    pub(super) is_pipelined: bool,
}

pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: &'static str,
}

pub(super) struct Limiter {
    fault: Option<Fault>,
    clients: HashMap<Vec<u8>, Client>,
    /// How many keys have come so far.
    seen: usize,
}

#[derive(Default)]
struct Client {
    admitted: VecDeque<Instant>,
    total: usize,
    /// The last requests, also refused ones.
    recent: VecDeque<Instant>,
    connections: HashSet<u64>,
    last_instance: usize,
    refused_in_row: usize,
    was_refused: bool,
    is_punished: bool,
    /// It came when many others had.
    is_crowded: bool,
    in_flight: HashMap<usize, usize>,
    /// Keys that had come before it.
    age: usize,
}

impl Question {
    fn values(&self, name: &str) -> Vec<&[u8]> {
        self.headers.iter().filter(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| &value[..]).collect()
    }

    fn has(&self, name: &str, value: &str) -> bool {
        self.values(name).iter().any(|other| other.trim_ascii() == value.as_bytes())
    }
}

impl Limiter {
    pub(super) fn new(fault: Option<Fault>) -> Self {
        Self { fault, clients: HashMap::new(), seen: 0 }
    }

    fn is(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    /// What the process is said to hold.
    pub(super) fn memory(&mut self) -> u64 {
        let now = Instant::now();
        let forgets = !self.is(Fault::NeverForgets);
        self.clients.retain(|_, client| {
            !forgets || client.recent.back().is_some_and(|last| now.duration_since(*last) < WINDOW)
        });
        let each = if self.is(Fault::LargeKeys) { 10 * KEY } else { KEY };
        self.clients.len() as u64 * each
    }

    /// The counter of a request. `Err` is an ambiguous key, `Ok(None)` a request without a limit.
    fn key(&self, question: &Question) -> Result<Option<Vec<u8>>, ()> {
        let values = question.values(HEADER);
        if values.len() > 1 {
            return if self.is(Fault::JoinsKeys) { Ok(Some(values.join(&b","[..]))) } else { Err(()) };
        }
        let Some(value) = values.first() else {
            return Ok((!self.is(Fault::MissingIsFree)).then(Vec::new));
        };
        let mut key = value.trim_ascii().to_vec();
        let foreign = key.iter().filter(|byte| !byte.is_ascii()).count();
        match self.fault {
            Some(Fault::KeepsSpaces) if !key.is_empty() => key = value.to_vec(),
            Some(Fault::EmptyIsFree) if key.is_empty() => return Ok(None),
            Some(Fault::LongIsFree) if key.len() > 3000 => return Ok(None),
            Some(Fault::CutsKeys) => key.truncate(1000),
            Some(Fault::ForeignIsFree) if foreign > 1 => return Ok(None),
            Some(Fault::ConvertsBytes) => key = String::from_utf8_lossy(&key).into_owned().into_bytes(),
            Some(Fault::SmallLetters) => key.make_ascii_lowercase(),
            Some(Fault::Decodes) => {
                while let Some(at) = key.windows(3).position(|escape| escape == b"%2D") {
                    key.splice(at..at + 3, *b"-");
                }
            }
            Some(Fault::NameByCase) => {
                let name = question.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case(HEADER));
                key.extend(
                    name.filter(|(name, _)| name != HEADER).map(|(name, _)| name.as_bytes()).unwrap_or_default(),
                );
            }
            Some(Fault::CountsByMethod) if ["POST", "PUT", "DELETE"].contains(&question.method.as_str()) => {
                key.extend(question.method.as_bytes());
            }
            Some(Fault::CountsByPath) if question.path != "/failing" => key.extend(question.path.as_bytes()),
            Some(Fault::CountsByAddress) => key.extend(question.values("x-forwarded-for").concat()),
            _ => {}
        }
        Ok(Some(key))
    }

    /// A request of a key begins to be decided, which takes a while.
    pub(super) fn arrive(&mut self, question: &Question) {
        if question.path != "/free"
            && let Ok(Some(key)) = self.key(question)
        {
            *self.clients.entry(key).or_default().in_flight.entry(question.instance).or_default() += 1;
        }
    }

    pub(super) fn decide(&mut self, question: &Question) -> Answer {
        if question.path == "/free" {
            return Answer { status: 200, headers: Vec::new(), body: "free" };
        }
        let Ok(key) = self.key(question) else {
            return Answer { status: 400, headers: Vec::new(), body: "two keys" };
        };
        let Some(key) = key else {
            return Answer { status: 200, headers: Vec::new(), body: "ok" };
        };
        let now = Instant::now();
        let sibling = self.is(Fault::PunishesNeighbours) && self.has_loud_sibling(&key);
        if self.clients.get(&key).is_none_or(|client| client.recent.is_empty()) {
            self.seen += 1;
        }
        if self.is(Fault::PushesOut) {
            // A table of few places: keys that came long before are gone.
            let single = self.clients.values().filter(|client| client.recent.len() == 1).count();
            let youngest = self.seen;
            self.clients.retain(|_, client| single < 64 || client.age == 0 || client.age + 64 > youngest);
        }
        let single = || self.clients.values().filter(|client| client.recent.len() == 1).count();
        let is_crowded = self.is(Fault::SharesCounters) && single() > 64;
        let seen = self.seen;
        let client = self.clients.entry(key).or_default();
        if client.age == 0 {
            client.age = seen;
            client.is_crowded = is_crowded;
        }
        client.prepare(self.fault, question, now);
        let is_uncharged = client.is_uncharged(self.fault, question);
        let limit = client.limit(self.fault, question, now);
        let is_admitted = is_uncharged || (client.admitted.len() < limit && !sibling);
        client.finish(question, now);
        let charge = match (is_admitted, is_uncharged) {
            (true, false) if self.fault == Some(Fault::ChargesFailuresTwice) && question.path == "/failing" => 2,
            (true, false) => 1,
            (false, _) if self.fault == Some(Fault::ChargesRefusals) && client.refused_in_row > 5 * QUOTA => 1,
            _ => 0,
        };
        client.admitted.extend(std::iter::repeat_n(now, charge));
        client.total += charge;
        let remaining = QUOTA.saturating_sub(client.admitted.len());
        let wait = client.admitted.front().map_or(Duration::ZERO, |oldest| WINDOW.saturating_sub(now - *oldest));
        if is_admitted {
            client.refused_in_row = 0;
            return self.admission(question, remaining, wait);
        }
        client.refused_in_row += 1;
        client.was_refused = true;
        self.refusal(question, wait)
    }

    fn has_loud_sibling(&self, key: &[u8]) -> bool {
        let text = String::from_utf8_lossy(key).into_owned();
        let Some((common, _)) = text.rsplit_once('-').filter(|(common, _)| common.matches('-').count() == 2) else {
            return false;
        };
        self.clients.iter().any(|(other, client)| {
            other != key && other.starts_with(format!("{common}-").as_bytes()) && client.refused_in_row > 2 * QUOTA
        })
    }

    fn admission(&self, question: &Question, remaining: usize, wait: Duration) -> Answer {
        let told = if self.is(Fault::StaleRemaining) { remaining + 1 } else { remaining };
        let reset = if self.is(Fault::WordAsTime) { "soon".to_owned() } else { wait.as_secs_f64().ceil().to_string() };
        let window = if self.is(Fault::OtherWindow) { 60 } else { WINDOW.as_secs() };
        let headers = vec![
            ("RateLimit-Policy", format!("\"p\";q={QUOTA};w={window}")),
            ("RateLimit", format!("\"p\";r={told};t={reset}")),
        ];
        if question.path == "/failing" {
            return Answer { status: 502, headers, body: "the upstream has failed" };
        }
        Answer { status: 200, headers, body: "ok" }
    }

    fn refusal(&self, question: &Question, wait: Duration) -> Answer {
        let seconds = wait.as_secs_f64().ceil();
        let told = match self.fault {
            Some(Fault::TellsTooLong) => format!("{}", seconds + 2.0),
            Some(Fault::TellsTooShort) => format!("{}", wait.as_secs_f64().floor()),
            Some(Fault::TellsFractions) => format!("{seconds}.000"),
            _ => format!("{seconds}"),
        };
        let reset = match self.fault {
            Some(Fault::OtherReset) => seconds + 20.0,
            Some(Fault::TellsTooLong) => seconds + 2.0,
            _ => seconds,
        };
        let mut headers =
            vec![("RateLimit", format!("\"p\";r={};t={reset}", usize::from(self.is(Fault::RefusesWithOneLeft))))];
        let is_silent = (self.is(Fault::SilentHead) && question.method == "HEAD")
            || (self.is(Fault::SilentHttp2) && question.is_http2);
        if !is_silent {
            headers.push(("Retry-After", told));
        }
        if !self.is(Fault::Untyped) {
            headers.push(("Content-Type", "text/plain".to_owned()));
        }
        if self.is(Fault::Cacheable) {
            headers.push(("Cache-Control", "max-age=60".to_owned()));
        }
        let status = if self.is(Fault::Unavailable) { 503 } else { 429 };
        Answer { status, headers, body: "too many requests" }
    }
}

impl Client {
    /// Forgets what has left the window.
    fn prepare(&mut self, fault: Option<Fault>, question: &Question, now: Instant) {
        if fault == Some(Fault::BeginsAgain)
            && self.total == QUOTA
            && let [oldest, second, .., last] = self.admitted.iter().copied().collect::<Vec<_>>()[..]
            && now - oldest >= WINDOW
            && second - oldest > WINDOW.mul_f64(0.7)
            && last - second < WINDOW.mul_f64(0.2)
        {
            self.admitted.clear();
        }
        if fault == Some(Fault::ForgetsInFloods) && self.refused_in_row > 9 * QUOTA {
            self.admitted.clear();
            self.refused_in_row = 0;
        }
        let pause = self.recent.back().map(|last| now - *last);
        if fault == Some(Fault::NeverForgives)
            && self.was_refused
            && pause.is_some_and(|pause| pause > WINDOW.mul_f64(1.5))
        {
            self.is_punished = true;
        }
        while self.admitted.front().is_some_and(|oldest| now - *oldest >= WINDOW) {
            self.admitted.pop_front();
        }
        self.connections.insert(question.connection);
    }

    /// Whether a fault lets this request pass without counting it.
    fn is_uncharged(&self, fault: Option<Fault>, question: &Question) -> bool {
        let turned = self.last_instance != question.instance;
        match fault {
            Some(Fault::Races) => self.in_flight.get(&question.instance).is_some_and(|count| *count > 2 * QUOTA),
            Some(Fault::ClosingIsFree) => question.has("connection", "close"),
            Some(Fault::PipelinedIsFree) => question.is_pipelined,
            Some(Fault::StreamsAreFree) => question.is_http2 && question.earlier > 0,
            Some(Fault::InstancesCountAlone) => turned && question.earlier > 0 && !self.recent.is_empty(),
            Some(Fault::InstancesTellLate) => turned && self.connections.len() > 2 && question.earlier == 0,
            Some(Fault::OptionsAreFree) => question.method == "OPTIONS",
            _ => false,
        }
    }

    /// How many requests of a window pass now.
    fn limit(&self, fault: Option<Fault>, question: &Question, now: Instant) -> usize {
        let ages: Vec<_> =
            self.admitted.iter().map(|moment| (now - *moment).as_secs_f64() / WINDOW.as_secs_f64()).collect();
        let recent: Vec<_> =
            self.recent.iter().map(|moment| (now - *moment).as_secs_f64() / WINDOW.as_secs_f64()).collect();
        let is_last = ages.len() == QUOTA - 1;
        let fewer = match fault {
            Some(Fault::RefusesSteadyClients) => {
                let gaps = ages.windows(2).map(|pair| pair[0] - pair[1]).chain(ages.last().copied());
                is_last && self.total == QUOTA - 1 && gaps.into_iter().all(|gap| (0.12..0.3).contains(&gap))
            }
            Some(Fault::RefusesTheLastAtOnce) => is_last && question.earlier == 0 && self.connections.len() == QUOTA,
            Some(Fault::NeverForgives) => self.is_punished,
            Some(Fault::SharesCounters) => self.is_crowded,
            Some(Fault::RefusesAtRandom) => {
                let is_spread = ages.windows(2).all(|pair| pair[0] - pair[1] > 0.06);
                is_last && is_spread && ages[0] > 0.75 && ages[QUOTA - 2] > 0.2
            }
            _ => false,
        };
        let more = match fault {
            Some(Fault::ForgetsBursts) => {
                recent.len() > QUOTA
                    && (0.2..0.4).contains(&recent[recent.len() - 1])
                    && recent[recent.len() - 1 - QUOTA] - recent[recent.len() - 1] < 0.1
            }
            Some(Fault::GrowsWithAge) => self.total > 4 * QUOTA,
            _ => false,
        };
        QUOTA + usize::from(more) - usize::from(fewer)
    }

    fn finish(&mut self, question: &Question, now: Instant) {
        self.last_instance = question.instance;
        self.recent.push_back(now);
        if self.recent.len() > 2 * QUOTA {
            self.recent.pop_front();
        }
        if let Some(count) = self.in_flight.get_mut(&question.instance) {
            *count = count.saturating_sub(1);
        }
    }
}
