//! How counters are named, how long they live, and on which server.
//!
//! A counter is `{prefix}:{limit}:{fingerprint}#{window}.{bucket}`, for example `gw:per-client:3f…#10m.2966667`. With several
//! buckets per window, their number follows the window: `#10mx6.17800002`. Days and months are named by the second when they
//! begin, and by their time zone unless that is UTC: `#month.1764547200`, `#day@Europe/Berlin.1792879200`. Of bytes and tokens,
//! the unit comes first: `#bytes:10m.2966667`. State that is kept as one value is at `#=` and a hash of its layout. Valkey's names
//! have braces around the fingerprint, because all names with the same text in braces are in one slot of a cluster.

use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use foldhash::fast::RandomState;

use super::counters::CounterId;
use super::protocol::Lifetime;
use crate::base::clock::Time;
use crate::base::fingerprint::Fingerprint;
use crate::limit::shared::Writing;
use crate::limit::{Limit, Rate, Strategy};

pub(super) type Digits = [u8; 32];

/// Seconds that a counter outlives its use, because clocks may differ a little.
const GRACE: u64 = 5;

#[derive(Debug)]
pub(super) struct Names {
    pub(super) limit: Arc<Limit>,
    /// What comes before the key.
    head: String,
    /// For each rate: what comes between key and bucket.
    infixes: Box<[String]>,
    /// What follows the key in the name of the state that is kept as a whole.
    state: String,
    /// Identifies the states that this gateway has written.
    pub(super) writer: Rc<Writer>,
}

#[derive(Debug)]
pub(super) struct Writer {
    /// Random: nothing else is sure to differ between gateways.
    number: u32,
    /// The number of writings; it may wrap.
    count: Cell<u32>,
}

impl Writer {
    fn new() -> Rc<Self> {
        Rc::new(Self { number: fastrand::u32(1 << 27..1 << 28), count: Cell::new(0) })
    }

    pub(super) fn next(&self) -> Writing {
        self.count.set(self.count.get().wrapping_add(1));
        Writing { writer: self.number, sequence: self.count.get() }
    }
}

impl Names {
    fn new(AllNames { prefix, has_braces, writer, .. }: &AllNames, limit: &Arc<Limit>) -> Self {
        let (open, close) = if *has_braces { ("{", "}") } else { ("", "") };
        let unit = limit.unit().mark();
        let infix = |rate: &Rate| match rate.strategy() {
            Strategy::SlidingWindow { precision, .. } if *precision > 1 => {
                format!("{close}#{unit}{}x{precision}.", rate.period())
            }
            // Days of two time zones may begin at the same moment, but are counted separately.
            Strategy::Calendar(calendar) if calendar.zone() != "UTC" => {
                format!("{close}#{unit}{}@{}.", rate.period(), calendar.zone())
            }
            _ => format!("{close}#{unit}{}.", rate.period()),
        };
        Self {
            limit: limit.clone(),
            head: format!("{prefix}:{}:{open}", limit.name()),
            infixes: limit.rates().iter().map(infix).collect(),
            state: format!("{close}#={:016x}", limit.shape().high()),
            writer: writer.clone(),
        }
    }

    pub(super) fn counter(&self, key: &Digits, CounterId { rate, bucket }: CounterId, out: &mut Vec<u8>) {
        self.base(key, out);
        out.extend_from_slice(self.infixes[rate].as_bytes());
        out.extend_from_slice(itoa::Buffer::new().format(bucket).as_bytes());
    }

    pub(super) fn lifetime(&self, CounterId { rate, bucket }: CounterId, now: Time) -> Lifetime {
        lifetime(self.limit.rates()[rate].memory_of(bucket, now), now)
    }

    /// Writes the name of the state of all rates that are kept as a whole.
    pub(super) fn state(&self, key: &Digits, out: &mut Vec<u8>) {
        self.base(key, out);
        out.extend_from_slice(self.state.as_bytes());
    }

    fn base(&self, key: &Digits, out: &mut Vec<u8>) {
        out.extend_from_slice(self.head.as_bytes());
        out.extend_from_slice(key);
    }

    pub(super) fn server(&self, key: Fingerprint, servers: &[String]) -> usize {
        if servers.len() <= 1 {
            return 0;
        }
        let mut base = Vec::new();
        self.base(&key.digits(), &mut base);
        place(&base, servers)
    }
}

/// The lifetime of an item whose value matters for `memory` microseconds from `now` on.
pub(super) fn lifetime(memory: u64, now: Time) -> Lifetime {
    Lifetime { seconds: memory.div_ceil(1_000_000).saturating_add(GRACE), from: now.seconds_up() }
}

/// So few names are kept even if no cell needs them.
const FEW: usize = 64;

/// The names of all limits in use, made once for each, and of few other limits.
#[derive(Debug)]
pub(super) struct AllNames {
    prefix: String,
    /// Whether keys are in braces, so that a cluster keeps together the counters of a key.
    has_braces: bool,
    writer: Rc<Writer>,
    /// By the limit's address, which nothing else can have while `Names` holds the limit.
    of: HashMap<*const Limit, Rc<Names>, RandomState>,
    /// At so many names, those that no cell needs are dropped.
    most: usize,
    #[cfg(test)]
    looks: usize,
}

impl AllNames {
    pub(super) fn new(prefix: &str, has_braces: bool) -> Self {
        Self {
            prefix: prefix.to_owned(),
            has_braces,
            writer: Writer::new(),
            of: HashMap::default(),
            most: FEW,
            #[cfg(test)]
            looks: 0,
        }
    }

    pub(super) fn of(&mut self, limit: &Arc<Limit>) -> Rc<Names> {
        if let Some(names) = self.of.get(&Arc::as_ptr(limit)) {
            return names.clone();
        }
        if self.of.len() >= self.most {
            #[cfg(test)]
            {
                self.looks += self.of.len();
            }
            self.of.retain(|_, names| Rc::strong_count(names) > 1);
            // A source of quotas may give every key its own rates; examining all names for each would take too long.
            self.most = FEW.max(2 * self.of.len());
        }
        let names = Rc::new(Names::new(self, limit));
        self.of.insert(Arc::as_ptr(limit), names.clone());
        names
    }
}

/// Rendezvous hashing of a name up to its key. So all counters of a key live on one server, every gateway agrees
/// which, and a new server takes over only its share. The score is the first half of BLAKE3 of the server as configured, a
/// space, and that part; the highest score wins.
pub(super) fn place(base: &[u8], servers: &[String]) -> usize {
    let score = |server: &String| Fingerprint::of(&[server.as_bytes(), b" ", base].concat());
    (0..servers.len()).max_by_key(|index| score(&servers[*index])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::limit::{CountedUnit, Edge};

    const NOW: Time = Time::from_micros(1_700_000_000_000_000);

    fn names(prefix: &str, limit: &str, rates: &[Rate]) -> Names {
        Names::new(&AllNames::new(prefix, false), &Arc::new(Limit::new(limit, rates)))
    }

    fn rate(text: &str) -> Rate {
        text.parse().unwrap()
    }

    fn of_zone(text: &str, zone: &str) -> Rate {
        let Strategy::Calendar(utc) = rate(text).strategy().clone() else { panic!("{text}") };
        rate(text).with_strategy(Strategy::Calendar(utc.in_zone(zone).unwrap())).unwrap()
    }

    fn counter(names: &Names, key: Fingerprint, place: usize, bucket: u64) -> Vec<u8> {
        let mut name = Vec::new();
        names.counter(&key.digits(), CounterId { rate: place, bucket }, &mut name);
        name
    }

    #[test]
    fn names_are_short_and_printable() {
        let sliding = Strategy::SlidingWindow { precision: 60, edge: Edge::Whole };
        let longest = Rate::new(1, Duration::from_micros(2_678_399_999_999)).unwrap().with_strategy(sliding).unwrap();
        let rates = [longest, of_zone("5/month", "America/Argentina/ComodRivadavia")];
        let names = names(&"p".repeat(64), &"l".repeat(64), &rates);
        for (place, bucket) in [(0, u64::MAX), (1, 1 << 40)] {
            let name = counter(&names, Fingerprint::of(b"\0 \n"), place, bucket);
            assert!(name.len() <= 250, "{}", name.len());
            assert!(name.iter().all(u8::is_ascii_graphic), "{name:?}");
        }
    }

    #[test]
    fn names_say_what_is_counted() {
        let berlin = of_zone("5/day", "Europe/Berlin");
        let names = names("gw", "l", &[rate("10/s"), rate("5/month"), rate("3/m burst 9"), berlin]);
        let key = Fingerprint::of(b"k");
        let read = |name: Vec<u8>| String::from_utf8(name).unwrap().replace(&key.to_string(), "KEY");
        assert_eq!(read(counter(&names, key, 0, 17)), "gw:l:KEY#s.17");
        assert_eq!(read(counter(&names, key, 1, 1_764_547_200)), "gw:l:KEY#month.1764547200");
        assert_eq!(read(counter(&names, key, 3, 1_792_879_200)), "gw:l:KEY#day@Europe/Berlin.1792879200");
        let mut state = Vec::new();
        names.state(&key.digits(), &mut state);
        assert!(read(state).starts_with("gw:l:KEY#="));
        let names = Names::new(&AllNames::new("gw", true), &Arc::new(Limit::new("l", &[rate("10/s")])));
        assert_eq!(read(counter(&names, key, 0, 17)), "gw:l:{KEY}#s.17");
        let of_tokens = Limit::counting(CountedUnit::Tokens, "l", &[rate("10/s")]);
        let names = Names::new(&AllNames::new("gw", false), &Arc::new(of_tokens));
        assert_eq!(read(counter(&names, key, 0, 17)), "gw:l:KEY#tokens:s.17");
    }

    #[test]
    fn counters_outlive_their_window() {
        let names = names("gw", "l", &[rate("1/s"), rate("1/14d"), rate("1/31d"), rate("1/m burst 2")]);
        let lifetimes = (0..3).map(|rate| names.lifetime(CounterId { rate, bucket: 0 }, NOW).seconds);
        assert_eq!(lifetimes.collect::<Vec<_>>(), [2 + 5, 28 * 86_400 + 5, 62 * 86_400 + 5]);
        assert_eq!(lifetime(120_000_000, NOW), Lifetime { seconds: 120 + 5, from: 1_700_000_000 });
    }

    #[test]
    fn counters_of_the_calendar_live_to_the_end_of_their_window() {
        let hour = 3_600;
        let names = names("gw", "l", &["5/day", "5/month"].map(|text| of_zone(text, "Europe/Berlin")));
        // In Berlin the 25th of October 2026 lasts from 22:00 UTC of the day before to 23:00 UTC: clocks are set back.
        let (day, month) = (1_792_879_200, 1_790_805_600);
        let at = |seconds: u64| Time::from_micros(seconds * 1_000_000);
        let left = |rate, bucket, now| names.lifetime(CounterId { rate, bucket }, at(now)).seconds;
        assert_eq!(left(0, day, day), 25 * hour + 5);
        assert_eq!(left(0, day, day + 24 * hour + hour / 2), hour / 2 + 5, "at half past eleven");
        assert_eq!(left(0, day, day + 26 * hour), 5, "it is over");
        assert_eq!(left(1, month, month + 10 * 24 * hour), (21 * 24 + 1) * hour + 5);
        assert_eq!(left(1, month, month), (31 * 24 + 1) * hour + 5);
    }

    #[test]
    fn names_of_limits_that_are_gone_are_forgotten() {
        let mut all = AllNames::new("gw", false);
        let limit = || Arc::new(Limit::new("l", &[rate("1/s")]));
        let kept = all.of(&limit());
        (0..1000).for_each(|_| drop(all.of(&limit())));
        assert!(all.of.len() <= 2 * FEW, "{}", all.of.len());
        assert!(Rc::ptr_eq(&all.of(&kept.limit.clone()), &kept));
    }

    #[test]
    fn each_of_many_limits_costs_a_few_looks_at_others() {
        let mut all = AllNames::new("gw", false);
        let kept: Vec<_> = (0..20_000).map(|_| all.of(&Arc::new(Limit::new("l", &[])))).collect();
        assert!(all.looks < 4 * kept.len(), "{} looks for {} limits", all.looks, kept.len());
    }

    #[test]
    fn a_new_server_takes_only_its_share() {
        let three: Vec<String> = (1..=3).map(|host| format!("10.0.0.{host}:11211")).collect();
        let four: Vec<String> = (1..=4).map(|host| format!("10.0.0.{host}:11211")).collect();
        let names = names("gw", "l", &[rate("1/s")]);
        let mut moved = 0;
        for number in 0..2_000_u32 {
            let key = Fingerprint::of(&number.to_be_bytes());
            let (before, after) = (names.server(key, &three), names.server(key, &four));
            assert!(after == before || after == 3);
            moved += usize::from(after == 3);
        }
        assert!((400..600).contains(&moved), "{moved} of 2000 moved, a quarter is 500");
    }

    #[test]
    fn every_build_places_a_key_alike() {
        let servers = ["a:1", "b:1", "c:1"].map(str::to_owned);
        let placed: Vec<usize> = (0..8).map(|key| place(format!("gw:l:{key}").as_bytes(), &servers)).collect();
        // From an implementation of BLAKE3 in another language.
        assert_eq!(placed, [2, 2, 0, 1, 1, 0, 0, 1]);
    }
}
