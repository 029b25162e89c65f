//! Every strategy by its definition, without regard to cost: a log of all admissions, walked again for every question.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A request counts from its moment until exactly one window later.
    SlidingLog,
    /// A window begins with the first request after the last one ended.
    FixedWindow,
    /// Tokens up to a burst, which come at the rate.
    TokenBucket { burst: u64 },
    /// Windows of a day, from midnight in UTC.
    Day,
}

#[derive(Clone, Debug)]
pub(super) struct Oracle {
    pub(super) kind: Kind,
    pub(super) quota: u64,
    pub(super) window: u64,
    /// Moments and costs of admissions.
    log: Vec<(u64, u64)>,
    /// How long it remembers admissions, in microseconds.
    memory: u64,
    /// The latest moment that was asked about, since the clock was last set back.
    clock: u64,
}

const SECOND: u64 = 1_000_000;
const DAY: u64 = 86_400 * SECOND;

impl Oracle {
    pub(super) fn new(kind: Kind, quota: u64, window: u64) -> Self {
        Self { kind, quota, window, memory: window, log: Vec::new(), clock: 0 }
    }

    /// Remembers for at least this long: moving rates of one limit share their log.
    pub(super) fn remember(&mut self, window: u64) {
        self.memory = self.memory.max(window);
    }

    /// A clock that went back by up to a second is waited for. If it went back further, the counts go along: an admission
    /// from a while ago is then as long before the new now. What no longer counted is not remembered.
    pub(super) fn tick(&mut self, now: u64) {
        let latest = self.latest();
        if latest > now.saturating_add(SECOND) {
            let back = latest - now;
            for (time, _) in &mut self.log {
                // A day knows only that it was today.
                *time = if self.kind == Kind::Day { now } else { time.saturating_sub(back) };
            }
            self.clock = now;
        }
        self.clock = self.clock.max(now);
        let (clock, memory) = (self.clock, self.memory);
        match self.kind {
            Kind::SlidingLog => self.log.retain(|(time, _)| time + memory > now),
            Kind::FixedWindow if self.window_start().is_some_and(|start| now >= start + self.window) => {
                self.log.clear();
            }
            Kind::Day => self.log.retain(|(time, _)| time / DAY == clock / DAY),
            Kind::FixedWindow | Kind::TokenBucket { .. } => {}
        }
    }

    /// The moment by which a step back is measured: a log knows the last admission, a fixed window its beginning, a bucket
    /// when it was last looked at, a day its beginning.
    fn latest(&self) -> u64 {
        match self.kind {
            Kind::SlidingLog => self.log.last().map_or(0, |(time, _)| *time),
            Kind::FixedWindow => self.window_start().unwrap_or(0),
            Kind::TokenBucket { .. } => self.clock,
            Kind::Day => self.clock / DAY * DAY,
        }
    }

    fn window_start(&self) -> Option<u64> {
        let mut start: Option<u64> = None;
        for (time, _) in &self.log {
            if start.is_none_or(|start| *time >= start + self.window) {
                start = Some(*time);
            }
        }
        start
    }

    pub(super) fn capacity(&self) -> u64 {
        if let Kind::TokenBucket { burst } = self.kind { burst } else { self.quota }
    }

    /// Call [`Self::tick`] first.
    pub(super) fn remaining(&self, now: u64) -> u64 {
        let sum = |counts: &dyn Fn(u64) -> bool| -> u64 {
            self.log.iter().filter(|(time, _)| counts(*time)).map(|(_, cost)| cost).sum()
        };
        match self.kind {
            Kind::SlidingLog => self.quota.saturating_sub(sum(&|time| time + self.window > now)),
            Kind::FixedWindow => match self.window_start().filter(|start| now < start + self.window) {
                Some(start) => self.quota.saturating_sub(sum(&|time| time >= start)),
                None => self.quota,
            },
            Kind::Day => self.quota.saturating_sub(sum(&|time| time / DAY == self.clock / DAY)),
            Kind::TokenBucket { burst } => self.tokens(burst, self.clock),
        }
    }

    /// Whole tokens in the bucket, computed in parts of a token: as many parts per token as the window has microseconds.
    fn tokens(&self, burst: u64, now: u64) -> u64 {
        let (parts, full) = (i128::from(self.window), i128::from(burst) * i128::from(self.window));
        let (mut tokens, mut last) = (full, 0);
        for (time, cost) in self.log.iter().copied().chain([(now, 0)]) {
            let elapsed = i128::from(time.saturating_sub(last));
            tokens = (tokens + elapsed * i128::from(self.quota)).min(full) - i128::from(cost) * parts;
            last = last.max(time);
        }
        u64::try_from(tokens.div_euclid(parts)).unwrap_or(0)
    }

    /// Returns the moment at which it counts.
    pub(super) fn charge(&mut self, now: u64, cost: u64) -> u64 {
        let here = match self.kind {
            Kind::SlidingLog | Kind::FixedWindow => now.max(self.log.last().map_or(0, |(time, _)| *time)),
            Kind::TokenBucket { .. } | Kind::Day => self.clock,
        };
        self.log.push((here, cost));
        here
    }

    /// An admission at `then` turns out to have cost so much less. A fixed window that it began goes on as long as anything
    /// else is in it. Call [`Self::tick`] first.
    pub(super) fn give_back(&mut self, then: u64, cost: u64) {
        let mut left = cost;
        for (_, held) in self.log.iter_mut().filter(|(time, _)| *time == then) {
            let part = left.min(*held);
            *held -= part;
            left -= part;
        }
        if self.kind != Kind::FixedWindow || self.log.iter().all(|(_, cost)| *cost == 0) {
            self.log.retain(|(_, cost)| *cost > 0);
        }
    }
}
