//! Overload control: which requests pass if not all can be served, and how many a server should get (`gradient.rs`). Pure:
//! it has neither a clock nor I/O, and every measurement is an argument.
//!
//! The requests of the highest priorities pass first, as in DAGOR (Zhou et al., "Overload Control for Scaling WeChat
//! Microservices", SoCC 2018, section 4.2). A histogram of the arrived ranks says from which rank on as many requests pass
//! as can be served. So some clients are served in full, rather than all in part. Unlike DAGOR, the lowest rank that passes
//! does so in part, so that one client with most of the requests does not alternate between all and nothing.
//!
//! How many pass follows from a feedback loop that measures windows of time. As in DAGOR, an overloaded window lowers the
//! number of admitted requests, and any other raises it. DAGOR does so by 5 % and 1 % of what arrives, which is slow. While
//! requests queue at an upstream, the responses of a window are its capacity, so here the number becomes that capacity at
//! once, minus what is needed to empty the queue.

pub mod gradient;

use std::net::IpAddr;

use crate::config::HIGHEST_PRIORITY;

/// In each priority.
pub const GROUPS: usize = 32;
pub const RANKS: usize = (HIGHEST_PRIORITY as usize + 1) * GROUPS;

/// A level can admit some of these parts of a rank.
const PARTS: u32 = 256;
/// For how many seconds a client stays in its group. Then others are shed, as in DAGOR, section 4.2.2.
const REGROUPED_EVERY: u64 = 3600;
/// The most by which the admitted requests grow in a window without any load, as a share.
const GROWTH: f64 = 0.1;
/// The time in which an excess of waiting requests is worked off, in seconds.
const DRAIN: f64 = 1.0;
/// The response time that is aimed at during overload, as a share of the target. The room below the target keeps ordinary
/// fluctuations from being overload again.
const AIM: f64 = 0.5;
/// The least share of arriving requests that is admitted, so that the end of the overload is noticed.
const LEAST: f64 = 0.01;
/// What a window leaves of the number of responses by which a queue is recognized.
const FALL: f64 = 0.98;
/// A server with fewer waiting requests has no queue that matters.
const FEWEST_WAITING: f64 = 4.0;
/// The share of requests that may find full servers by chance.
const FULL: f64 = 0.1;
/// The weight of a new window in the smoothed measurements.
const SMOOTHING: f64 = 0.5;
/// After this many seconds in which everything could be admitted, the overload is over.
const OVER_AFTER: f64 = 5.0;

/// What is shed: everything below a rank, and a part of the requests of that rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Level(pub u32);

/// The rank of a request, from its priority, its client's address and the time in seconds. The addresses of an IPv6 network of
/// 64 bits are one client.
pub fn rank(priority: u8, client: IpAddr, seconds: u64) -> usize {
    let group = group_of(client, mixed(seconds / REGROUPED_EVERY), GROUPS);
    usize::from(priority.min(HIGHEST_PRIORITY)) * GROUPS + group
}

/// The group of a client among so many, a power of two. `salt` chooses other groups.
pub(super) fn group_of(client: IpAddr, salt: u64, groups: usize) -> usize {
    let address = match client.to_canonical() {
        IpAddr::V4(address) => u64::from(address.to_bits()),
        // The client chooses the other 64 bits itself.
        IpAddr::V6(address) => u64::try_from(address.to_bits() >> 64).unwrap_or_default(),
    };
    usize::try_from(mixed(address ^ salt) >> (u64::BITS - groups.ilog2())).unwrap_or_default()
}

/// Spreads the bits of a number (the finalizer of SplitMix64: Steele, Lea and Flood, "Fast Splittable Pseudorandom Number
/// Generators", 2014). All gateways use the same one, so that they serve the same clients.
fn mixed(bits: u64) -> u64 {
    let bits = bits.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

impl Level {
    pub const NONE: Self = Self(0);

    /// The level at which `admitted` requests pass. `arrived` counts the requests of each rank.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of the parts of a rank")]
    pub fn for_share(arrived: &[f64], admitted: f64) -> Self {
        let mut left = admitted;
        for (rank, count) in arrived.iter().enumerate().rev() {
            if *count > left {
                let shed = (1.0 - left / count) * f64::from(PARTS);
                return Self(u32::try_from(rank).unwrap_or(0) * PARTS + (shed as u32).min(PARTS));
            }
            left -= count;
        }
        Self::NONE
    }

    /// Whether a request of this rank passes. `random` is called only for the rank of which a part passes.
    pub fn admits(self, rank: usize, random: impl FnOnce() -> u8) -> bool {
        let (lowest, shed) = (self.0 / PARTS, self.0 % PARTS);
        match u32::try_from(rank).unwrap_or(u32::MAX).cmp(&lowest) {
            std::cmp::Ordering::Less => false,
            std::cmp::Ordering::Equal => u32::from(random()) >= shed,
            std::cmp::Ordering::Greater => true,
        }
    }

    /// How much is shed, in priorities: 2.5 is everything of the priorities 0 and 1, and half of 2.
    pub fn in_priorities(self) -> f64 {
        let per_priority = u32::try_from(GROUPS).unwrap_or(1) * PARTS;
        f64::from(self.0) / f64::from(per_priority)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Window {
    pub seconds: f64,
    /// Without those that limits refuse.
    pub arrived: f64,
    pub admitted: f64,
    /// Requests that got a response of the upstream.
    pub answered: f64,
    /// How many have ended in a way that shows how long the work takes, and the sum of their times in seconds.
    pub ended: (f64, f64),
    /// How many wait for their response at the end of the window, and the sum of their waits in seconds.
    pub waiting: (f64, f64),
    pub full: f64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Admission {
    /// The admitted requests per second; `None` if there is no overload.
    rate: Option<f64>,
    /// Smoothed, per second.
    answered: Option<f64>,
    /// The highest `answered`. It falls slowly, but not in windows without a queue while requests are shed.
    most_answered: f64,
    /// The number of ended requests and the sum of their times; earlier ones weigh less.
    ended: (f64, f64),
    /// For how many seconds everything could be admitted.
    quiet: f64,
}

impl Admission {
    /// Whether requests are shed, or were shed a short time ago.
    pub fn is_limited(&self) -> bool {
        self.rate.is_some()
    }

    /// Takes what was measured at an upstream. `target` is the wanted response time in seconds; without it, only full servers
    /// are overload. Returns the number of requests that pass per second; `None` is all.
    pub fn observe_upstream(&mut self, window: &Window, target: Option<f64>) -> Option<f64> {
        let now = window.answered / window.seconds;
        let answered = self.answered.map_or(now, |before| before + (now - before) * SMOOTHING);
        self.answered = Some(answered);
        let (ended, took) = (window.ended, self.ended);
        self.ended = (took.0 * SMOOTHING + ended.0, took.1 * SMOOTHING + ended.1);
        let latency = self.latency(window);
        let load = target.map_or(0.0, |target| latency / target);
        // Shedding itself lowers the number of responses, and must not thereby make a queue of a few slow requests.
        self.most_answered = answered.max(self.most_answered);
        // By Little's law, so many requests wait when responses take the time that is aimed at. Fewer are no queue, but
        // some slow requests among others that are served in time. Shedding would not help then, and clients could send
        // slow requests to provoke it.
        let queued = target.map_or(0.0, |target| self.most_answered * target * AIM).max(FEWEST_WAITING);
        let has_queue = window.waiting.0 >= queued;
        if has_queue || !self.is_limited() {
            self.most_answered *= FALL;
        }
        if has_queue && load > 1.0 {
            let backlog = target.map_or(0.0, |target| (window.waiting.0 - answered * target * AIM).max(0.0));
            return self.lower(window, answered - backlog / DRAIN);
        }
        if window.full > window.admitted * FULL {
            return self.lower(window, (window.admitted - window.full) / window.seconds * (1.0 + FULL));
        }
        // Without a queue, slow requests are no load that fewer requests would lower.
        self.raise(window, if has_queue { load } else { 0.0 })
    }

    /// The mean time until a response, in seconds, or the mean wait of requests without a response if that is longer, because
    /// an upstream that hangs sends no responses. Without new responses, earlier ones are soon forgotten.
    pub fn latency(&self, window: &Window) -> f64 {
        let mean = |(count, sum): (f64, f64)| if count > 0.5 { sum / count } else { 0.0 };
        mean(self.ended).max(mean(window.waiting))
    }

    /// `load` is the used share of the processors, as a multiple of the wanted share. Returns the number of requests that pass
    /// per second; `None` is all.
    pub fn observe_share(&mut self, window: &Window, load: f64) -> Option<f64> {
        if load > 1.0 { self.lower(window, window.admitted / window.seconds / load) } else { self.raise(window, load) }
    }

    fn lower(&mut self, window: &Window, rate: f64) -> Option<f64> {
        self.quiet = 0.0;
        // A window without requests does not tell how many could be served. A rate of 0 would outlast the overload.
        if window.arrived > 0.0 {
            self.rate = Some(rate.max(LEAST * window.arrived / window.seconds));
        }
        self.rate
    }

    fn raise(&mut self, window: &Window, load: f64) -> Option<f64> {
        let arrived = window.arrived / window.seconds;
        let rate = self.rate? * (1.0 + GROWTH * (1.0 - load));
        self.quiet = if rate > arrived { self.quiet + window.seconds } else { 0.0 };
        self.rate = Some(rate.max(LEAST * arrived)).filter(|_| self.quiet < OVER_AFTER);
        self.rate
    }
}

#[cfg(test)]
mod tests;
