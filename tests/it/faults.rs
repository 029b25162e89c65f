//! Every kind of fault of a server: no request waits too long, no client gets more than its quota, and afterwards
//! everything works as before.

use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};

use crate::harness::{self, Client, Fault, Gateway, Mode, Server, Software, Valkey, ask, until};

const QUOTA: usize = 20;
const BEFORE: usize = 8;
/// `timeout` if no test measures waits: enough for a server without faults.
const TIMEOUT: Duration = Duration::from_secs(1);
/// The longest recovery: the longest pause between two attempts, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(15);

fn limited() -> String {
    harness::limited("header:x-api-key", &format!("{QUOTA}/d"), "")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Killed,
    /// Killed, and back at once, empty.
    Restarted,
    /// The process exists and does nothing.
    Stopped,
    /// Away before the gateway starts.
    Refused,
    Reset,
    Garbage,
    OutOfMemory,
    Slow,
    /// Other items have pushed the counters out.
    Evicted,
    Flushed,
    /// Full, and it evicts nothing: only reads succeed.
    Full,
    /// The disk of its log is full, with the same effect.
    DiskFull,
    /// The user of the gateway may not run scripts any more.
    Forbidden,
    /// The user of the gateway may not use a command that the scripts need any more.
    ForbiddenInside,
    /// Somebody has paused all writes.
    Paused,
    /// A script of a neighbour does not end.
    Busy,
    /// It follows a primary, which is away.
    Demoted,
}

impl Kind {
    fn is_from_the_start(self) -> bool {
        self == Self::Refused
    }

    /// Whether there is no counting on the server until the fault ends.
    fn lasts(self) -> bool {
        !matches!(self, Self::Restarted | Self::Evicted | Self::Flushed)
    }

    /// Whether there is no answer, so only the time limit helps.
    fn is_silent(self) -> bool {
        matches!(self, Self::Stopped | Self::Slow)
    }

    /// Whether reads succeed, so that requests pass until the first write does not.
    fn is_readable(self) -> bool {
        matches!(
            self,
            Self::Full | Self::DiskFull | Self::Forbidden | Self::ForbiddenInside | Self::Paused | Self::Demoted
        )
    }

    /// Whether the counters are gone afterwards.
    fn forgets(self) -> bool {
        matches!(self, Self::Killed | Self::Restarted | Self::Evicted | Self::Flushed)
    }

    /// Whether the server may count a write although the gateway gets no answer. Then nothing says whether the gateway
    /// must write again.
    fn is_ambiguous(self) -> bool {
        matches!(self, Self::Stopped | Self::Reset | Self::Slow | Self::Paused)
    }
}

struct Faulty {
    kind: Kind,
    server: Server,
    /// The gateway talks to this proxy if the server itself does nothing wrong.
    proxy: Option<Fault>,
}

impl Faulty {
    fn start(software: Software, kind: Kind) -> Self {
        let server = match kind {
            Kind::DiskFull => Valkey::start_with(&["--appendonly", "yes"]).into(),
            _ => software.start_small(),
        };
        let proxy = match kind {
            Kind::Refused => Some(Mode::Refuse),
            Kind::Reset | Kind::Garbage | Kind::OutOfMemory | Kind::Slow => Some(Mode::Pass),
            _ => None,
        };
        let proxy = proxy.map(|mode| Fault::start(server.address, mode));
        Self { kind, server, proxy }
    }

    fn begin(&mut self, timeout: Duration) {
        let mode = match self.kind {
            Kind::Killed => return self.server.kill(),
            Kind::Restarted => {
                self.server.kill();
                return self.server.restart();
            }
            Kind::Stopped => return self.server.signal(Signal::STOP),
            Kind::Evicted => return self.server.evict(),
            Kind::Flushed => return self.server.flush(),
            Kind::Full => return self.tell(&["CONFIG", "SET", "maxmemory", "1"]),
            Kind::DiskFull => {
                self.limit_files(Some(0));
                let address = self.server.address;
                return until("it is full", PATIENCE, || ask(address, &["SET", "x", "x"])[0].starts_with("-MISCONF"));
            }
            Kind::Forbidden => return self.tell(&["ACL", "SETUSER", "default", "-@scripting"]),
            Kind::ForbiddenInside => return self.tell(&["ACL", "SETUSER", "default", "-get"]),
            Kind::Paused => return self.tell(&["CLIENT", "PAUSE", "600000", "WRITE"]),
            Kind::Demoted => return self.tell(&["REPLICAOF", "127.0.0.1", "9"]),
            Kind::Busy => {
                self.tell(&["CONFIG", "SET", "busy-reply-threshold", "1"]);
                let address = self.server.address;
                thread::spawn(move || ask(address, &["EVAL", "while true do end", "0"]));
                return until("it is busy", PATIENCE, || ask(address, &["TIME"])[0].starts_with("-BUSY"));
            }
            Kind::Refused => Mode::Refuse,
            Kind::Reset => Mode::Reset,
            Kind::Garbage => Mode::Garbage,
            Kind::OutOfMemory => Mode::OutOfMemory,
            Kind::Slow => Mode::Slow(4 * timeout),
        };
        self.set(mode);
    }

    fn end(&mut self) {
        match self.kind {
            Kind::Killed => self.server.restart(),
            Kind::Stopped => self.server.signal(Signal::CONT),
            Kind::Full => self.tell(&["CONFIG", "SET", "maxmemory", "0"]),
            Kind::DiskFull => self.limit_files(None),
            Kind::Forbidden => self.tell(&["ACL", "SETUSER", "default", "+@scripting"]),
            Kind::ForbiddenInside => self.tell(&["ACL", "SETUSER", "default", "+get"]),
            Kind::Paused => self.tell(&["CLIENT", "UNPAUSE"]),
            Kind::Demoted => self.tell(&["REPLICAOF", "NO", "ONE"]),
            Kind::Busy => self.tell(&["SCRIPT", "KILL"]),
            _ => self.set(Mode::Pass),
        }
    }

    fn tell(&self, words: &[&str]) {
        assert_eq!(ask(self.server.address, words), ["OK"], "{words:?}");
    }

    /// The size in bytes that files of the server may have.
    fn limit_files(&self, most: Option<u64>) {
        let told = ask(self.server.address, &["INFO", "server"]).remove(0);
        let pid = told.lines().find_map(|line| line.strip_prefix("process_id:")?.trim().parse().ok());
        let limit = Rlimit { current: most, maximum: None };
        prlimit(Some(Pid::from_raw(pid.unwrap()).unwrap()), Resource::Fsize, limit).unwrap();
    }

    fn set(&self, mode: Mode) {
        self.proxy.iter().for_each(|proxy| proxy.set(mode));
    }

    /// A gateway that counts on this server, with its own prefix if necessary.
    fn gateway(&self, prefix: &str, timeout: Duration, more: &str) -> Gateway {
        let address = self.proxy.as_ref().map_or(self.server.address, |proxy| proxy.address);
        let more = format!("prefix = \"{prefix}\"\ntimeout = \"{}ms\"\n{more}", timeout.as_millis());
        // A single worker talks to the server itself, several leave this to a thread.
        let workers = if matches!(prefix, "allow" | "p0") { 1 } else { 2 };
        let rest = self.server.software.store(&[address], &more) + &limited();
        Gateway::with_server(&format!("workers = {workers}"), &rest)
    }

    /// Another gateway without the proxy, which cannot count on its own.
    fn other_gateway(&self) -> Gateway {
        Gateway::start(&(self.server.store_with("on_error = \"reject\"\ntimeout = \"5s\"") + &limited()))
    }

    #[track_caller]
    fn settles_at(&self, gateways: usize) {
        until("there is one connection for each gateway", PATIENCE, || match &self.proxy {
            Some(proxy) => proxy.open() == gateways,
            None => self.server.connections() == gateways as u64,
        });
    }

    #[track_caller]
    fn counts(&self, sum: usize) {
        until(&format!("{sum} are counted"), PATIENCE, || self.server.counted() >= sum as u64);
    }
}

fn request(client: &mut Client, key: &str) -> u16 {
    client.get_with("/", format!("X-Api-Key: {key}\r\n")).status
}

/// How many of `count` requests are admitted; the others must be over the limit.
#[track_caller]
fn admitted(client: &mut Client, key: &str, count: usize) -> usize {
    let statuses: Vec<_> = (0..count).map(|_| request(client, key)).collect();
    assert!(statuses.iter().all(|status| [200, 429].contains(status)), "{key}: {statuses:?}");
    statuses.iter().filter(|status| **status == 200).count()
}

#[track_caller]
fn survived(gateway: &Gateway) {
    assert_eq!(gateway.admin("/healthz").status, 200);
    let log = gateway.log();
    assert!(!log.iter().any(|line| line.contains("panicked")), "{log:#?}");
}

#[track_caller]
fn metric(gateway: &Gateway, name: &str) -> f64 {
    gateway.metric(name).unwrap_or_else(|| panic!("no {name}"))
}

/// Clients get their quota in total: before, during and after the fault, here and elsewhere.
fn nobody_gets_more(software: Software, kind: Kind) {
    let mut faulty = Faulty::start(software, kind);
    let gateway = faulty.gateway("gw", TIMEOUT, "on_error = \"local\"");
    let mut client = gateway.client();
    let before = if kind.is_from_the_start() { 0 } else { BEFORE };
    for key in ["greedy", "modest", "idle"] {
        assert_eq!(admitted(&mut client, key, before), before, "{key} before");
    }
    faulty.counts(3 * before);

    faulty.begin(TIMEOUT);
    assert_eq!(admitted(&mut client, "greedy", QUOTA), QUOTA - before, "greedy, while it lasts");
    assert_eq!(admitted(&mut client, "modest", 4), 4, "modest, while it lasts");
    if kind.lasts() {
        let alone = metric(&gateway, "gateway_store_local_total");
        assert!(
            alone >= f64::from(u32::try_from(QUOTA - before + 4).unwrap()),
            "{alone} decisions from what was known"
        );
        assert!(metric(&gateway, "gateway_store_errors_total") > 0.0);
        if kind != Kind::OutOfMemory {
            until("it is seen to be away", PATIENCE, || metric(&gateway, "gateway_store_up") < 0.5);
        }
    }
    survived(&gateway);

    faulty.end();
    // The server learns nothing of a client that asks for nothing.
    let sum = QUOTA + before + 4 + if kind.forgets() { 0 } else { before };
    faulty.counts(sum);
    until("it is seen to be back", PATIENCE, || metric(&gateway, "gateway_store_up") > 0.5);
    faulty.settles_at(1);
    let counted = faulty.server.counted();
    assert!(counted == sum as u64 || kind.is_ambiguous(), "{counted} counted of {sum}");
    assert_eq!(admitted(&mut client, "greedy", 5), 0, "greedy, afterwards");
    assert_eq!(admitted(&mut client, "idle", QUOTA), QUOTA - before, "idle, afterwards");
    faulty.counts(2 * QUOTA + before + 4);
    assert_eq!(metric(&gateway, "gateway_store_lost_total") > 0.0, kind.forgets(), "counters that went missing");

    let other = faulty.other_gateway();
    for key in ["greedy", "idle"] {
        assert_eq!(admitted(&mut other.client(), key, 5), 0, "{key}, elsewhere");
    }
    let (left, elsewhere) = (QUOTA - before - 4, admitted(&mut other.client(), "modest", QUOTA));
    assert!(elsewhere == left || kind.is_ambiguous() && elsewhere < left, "modest, elsewhere: {elsewhere} of {left}");
    if kind == Kind::Evicted {
        let evictions = || metric(&gateway, &format!("gateway_store_{}_evictions_total", software.name()));
        until("it is seen that it evicts", PATIENCE, || evictions() > 0.0);
    }
    survived(&gateway);
}

/// During the fault everybody passes, or nobody; afterwards the limit holds again.
fn all_or_none(software: Software, kind: Kind) {
    let mut faulty = Faulty::start(software, kind);
    let allowing = faulty.gateway("allow", TIMEOUT, "on_error = \"allow\"");
    let rejecting = faulty.gateway("reject", TIMEOUT, "on_error = \"reject\"");
    let (mut allowed, mut rejected) = (allowing.client(), rejecting.client());
    if !kind.is_from_the_start() {
        for client in [&mut allowed, &mut rejected] {
            until("it counts", PATIENCE, || request(client, "before") == 429);
        }
    }
    faulty.begin(TIMEOUT);
    if kind.is_readable() {
        until("it is noticed", PATIENCE, || request(&mut rejected, "noticed") == 503);
        request(&mut allowed, "noticed");
    }
    let mut statuses = |key| [request(&mut allowed, key), request(&mut rejected, key)];
    for at in 0..2 * QUOTA {
        assert_eq!(statuses("during"), [200, 503], "request {at}");
    }
    survived(&allowing);
    survived(&rejecting);
    faulty.end();
    for (client, name) in [(&mut allowed, "allowing"), (&mut rejected, "rejecting")] {
        let mut round = 0;
        until(&format!("the limit holds again, {name}"), PATIENCE, || {
            round += 1;
            let key = format!("afterwards {round}");
            let statuses: Vec<_> = (0..QUOTA + 2).map(|_| request(client, &key)).collect();
            statuses.iter().filter(|status| **status == 200).count() == QUOTA && statuses[QUOTA..] == [429; 2]
        });
    }
    faulty.settles_at(2);
    survived(&allowing);
    survived(&rejecting);
}

fn time(client: &mut Client, key: &str) -> Duration {
    let start = Instant::now();
    let status = request(client, key);
    assert!([200, 503].contains(&status), "{key}: {status}");
    start.elapsed()
}

/// No request waits longer than it may, and none waits for a server that is known to be away.
fn nobody_waits(software: Software, kind: Kind) {
    const TIMEOUT: Duration = Duration::from_secs(4);
    /// A request that waits for the server waits for all of `TIMEOUT`. A request that takes less than this has not
    /// waited, even on a busy machine.
    const AT_ONCE: Duration = Duration::from_millis(3500);
    let mut faulty = Faulty::start(software, kind);
    let policies = ["", "on_error = \"allow\"", "on_error = \"reject\""];
    let start = |(at, policy): (usize, &&'static str)| (faulty.gateway(&format!("p{at}"), TIMEOUT, policy), *policy);
    let gateways: Vec<_> = policies.iter().enumerate().map(start).collect();
    let clients = |(gateway, _): &(Gateway, _)| -> Vec<_> { (0..8).map(|_| gateway.client()).collect() };
    let mut clients: Vec<_> = gateways.iter().map(clients).collect();
    if !kind.is_from_the_start() {
        clients.iter_mut().for_each(|clients| assert!(time(&mut clients[0], "first") < PATIENCE));
    }
    faulty.begin(TIMEOUT);
    thread::scope(|scope| {
        for ((gateway, policy), clients) in gateways.iter().zip(&mut clients) {
            scope.spawn(move || {
                let times = at_once(clients);
                let most = if kind.is_silent() { TIMEOUT + AT_ONCE } else { AT_ONCE };
                assert!(times.iter().all(|time| *time < most), "{policy}: later than {most:?}: {times:?}");
                let longest = times.iter().max().unwrap();
                // If the machine stalls, a part of the wait may be over before they ask.
                assert!(!kind.is_silent() || *longest >= TIMEOUT / 2, "{policy}: none has waited: {times:?}");
                let slowest = one_by_one(gateway, &mut clients[0], kind);
                assert!(slowest < AT_ONCE, "{policy}: {slowest:?}: somebody waits");
            });
        }
    });
    gateways.iter().for_each(|(gateway, _)| survived(gateway));
}

fn at_once(clients: &mut [Client]) -> Vec<Duration> {
    thread::scope(|scope| {
        let ask = |(at, client)| scope.spawn(move || time(client, &format!("t{at}")));
        let threads: Vec<_> = clients.iter_mut().enumerate().map(ask).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Sends requests in turn until the gateway has tried the server again several times. Returns the longest time.
#[track_caller]
fn one_by_one(gateway: &Gateway, client: &mut Client, kind: Kind) -> Duration {
    let failures = || metric(gateway, "gateway_store_errors_total");
    let (before, end) = (failures(), Instant::now() + 4 * PATIENCE);
    let (mut at, mut slowest) = (0, Duration::ZERO);
    // An attempt may fail twice: when those who wait give it up, and when it ends.
    while at < 200 || kind.lasts() && failures() < before + 4.0 {
        assert!(Instant::now() < end, "it is not tried whether the server is back");
        for _ in 0..20 {
            slowest = slowest.max(time(client, &format!("s{at}")));
            at += 1;
        }
        thread::sleep(Duration::from_millis(40));
    }
    slowest
}

/// Each story of a kind is a test, with each server or only with Valkey.
macro_rules! stories {
    ($with:ident, $($name:ident: $kind:ident, $($story:ident)+;)+) => {
        $(mod $name {
            use super::Software;

            $(fn $story(software: Software) {
                super::$story(software, super::Kind::$kind);
            })+

            crate::harness::$with! { $($story)+ }
        })+
    };
}

stories! {
    with_each_server,
    killed: Killed, nobody_gets_more all_or_none nobody_waits;
    restarted_empty: Restarted, nobody_gets_more nobody_waits;
    stopped: Stopped, nobody_gets_more all_or_none nobody_waits;
    refused_from_the_start: Refused, nobody_gets_more all_or_none nobody_waits;
    reset_in_the_middle_of_an_answer: Reset, nobody_gets_more all_or_none nobody_waits;
    garbage: Garbage, nobody_gets_more all_or_none nobody_waits;
    out_of_memory: OutOfMemory, nobody_gets_more all_or_none nobody_waits;
    slow: Slow, nobody_gets_more all_or_none nobody_waits;
    evicted: Evicted, nobody_gets_more;
    flushed: Flushed, nobody_gets_more;
}

stories! {
    with_valkey,
    full: Full, nobody_gets_more all_or_none nobody_waits;
    full_disk: DiskFull, nobody_gets_more all_or_none nobody_waits;
    forbidden: Forbidden, nobody_gets_more all_or_none nobody_waits;
    forbidden_inside: ForbiddenInside, nobody_gets_more all_or_none nobody_waits;
    paused: Paused, nobody_gets_more all_or_none;
    busy: Busy, nobody_gets_more all_or_none nobody_waits;
    demoted: Demoted, nobody_gets_more all_or_none nobody_waits;
}
