//! Whether an endpoint gets requests: what its checks say, and whether it is ejected after failures. Pure.
//!
//! An endpoint is ejected when as many requests in a row have failed as configured, and for longer each time. When it returns,
//! the next success proves it healthy, and the next failure ejects it again.

use std::time::Duration;

use crate::base::back_off::BackOff;
use crate::base::clock::Monotonic;
use crate::base::named::named;
use crate::config::{Ejection, HealthCheck};

named! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Availability {
        Available = "healthy",
        /// No check has succeeded yet. It gets requests if no endpoint is available.
        Unchecked = "unchecked",
        Unhealthy = "unhealthy",
        Ejected = "ejected",
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Health {
    checks: Checks,
    /// How many checks in a row have contradicted `checks`.
    contradicting: u32,
    ejected_until: Option<Monotonic>,
    /// How often it was ejected without having been available for long in between.
    ejections: u32,
    returned_at: Option<Monotonic>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Checks {
    Off,
    /// None has succeeded yet.
    Unknown,
    Healthy,
    Unhealthy,
}

impl Health {
    pub(super) fn new(is_checked: bool) -> Self {
        let checks = if is_checked { Checks::Unknown } else { Checks::Off };
        Self { checks, contradicting: 0, ejected_until: None, ejections: 0, returned_at: None }
    }

    /// A reload has added or removed the checks.
    pub(super) fn set_checked(&mut self, is_checked: bool) {
        match (is_checked, self.checks) {
            // It has got requests until now.
            (true, Checks::Off) => self.checks = Checks::Healthy,
            (false, _) => self.checks = Checks::Off,
            (true, _) => return,
        }
        self.contradicting = 0;
    }

    /// A new endpoint needs only one good check, so that it need not wait longer.
    pub(super) fn checked(&mut self, is_good: bool, rules: &HealthCheck, now: Monotonic) {
        let (needed, next) = match (self.checks, is_good) {
            (Checks::Unknown, true) => (1, Checks::Healthy),
            (Checks::Unhealthy, true) => (rules.healthy_after, Checks::Healthy),
            (Checks::Healthy | Checks::Unknown, false) => (rules.unhealthy_after, Checks::Unhealthy),
            (Checks::Healthy, true) | (Checks::Unhealthy, false) | (Checks::Off, _) => {
                self.contradicting = 0;
                return;
            }
        };
        self.contradicting += 1;
        if self.contradicting >= needed {
            if self.checks == Checks::Unhealthy {
                self.returned_at = Some(now);
            }
            (self.checks, self.contradicting) = (next, 0);
        }
    }

    pub(super) fn eject(&mut self, rules: &Ejection, now: Monotonic) -> Duration {
        // After a long time without an ejection, the next one is the shortest again.
        if self.returned_at.is_some_and(|returned| now > returned.after(rules.longest)) {
            self.ejections = 0;
        }
        self.ejections = self.ejections.saturating_add(1);
        let time = BackOff { first: rules.first, longest: rules.longest }.pause(self.ejections);
        self.ejected_until = Some(now.after(time));
        time
    }

    /// Returns whether an ejection has ended, because it is over or `is_doubted`.
    pub(super) fn advance(&mut self, is_doubted: bool, now: Monotonic) -> bool {
        let ends = self.ejected_until.is_some_and(|until| is_doubted || now >= until);
        if ends {
            (self.ejected_until, self.returned_at) = (None, Some(now));
        }
        ends
    }

    pub(super) fn availability(&self) -> Availability {
        match self.checks {
            Checks::Unhealthy => Availability::Unhealthy,
            _ if self.ejected_until.is_some() => Availability::Ejected,
            Checks::Unknown => Availability::Unchecked,
            Checks::Off | Checks::Healthy => Availability::Available,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHECK: HealthCheck = HealthCheck {
        path: String::new(),
        interval: Duration::from_secs(5),
        timeout: Duration::from_secs(1),
        statuses: Vec::new(),
        healthy_after: 2,
        unhealthy_after: 3,
    };
    const EJECTION: Ejection = Ejection {
        failures: 5,
        statuses: Vec::new(),
        first: Duration::from_secs(10),
        longest: Duration::from_secs(60),
    };

    fn at(seconds: u64) -> Monotonic {
        Monotonic::from_micros(1_000_000 * (1_000_000 + seconds))
    }

    fn after(mut health: Health, checks: &[bool]) -> Availability {
        checks.iter().for_each(|is_good| health.checked(*is_good, &CHECK, at(0)));
        health.availability()
    }

    #[test]
    fn checks_in_a_row_change_the_state() {
        let new = || Health::new(true);
        assert_eq!(after(new(), &[]), Availability::Unchecked);
        assert_eq!(after(new(), &[true]), Availability::Available, "the first good one is enough");
        assert_eq!(after(new(), &[false, false]), Availability::Unchecked);
        assert_eq!(after(new(), &[false, false, false]), Availability::Unhealthy);
        assert_eq!(after(new(), &[true, false, false, true, false, false]), Availability::Available);
        assert_eq!(after(new(), &[true, false, false, false]), Availability::Unhealthy);
        assert_eq!(after(new(), &[false, false, false, true, false, true]), Availability::Unhealthy);
        assert_eq!(after(new(), &[false, false, false, true, true]), Availability::Available);
        assert_eq!(after(Health::new(false), &[false, false, false]), Availability::Available, "it is not checked");
    }

    #[test]
    fn a_reload_that_adds_checks_takes_no_endpoint_away() {
        let mut health = Health::new(false);
        health.set_checked(true);
        assert_eq!(health.availability(), Availability::Available);
        assert_eq!(after(health.clone(), &[false, false, false]), Availability::Unhealthy);
        (0..3).for_each(|_| health.checked(false, &CHECK, at(0)));
        health.set_checked(true);
        assert_eq!(health.availability(), Availability::Unhealthy, "they were there before");
        health.set_checked(false);
        assert_eq!(health.availability(), Availability::Available);
    }

    #[test]
    fn ejections_become_longer_until_it_has_been_well_for_long() {
        let mut health = Health::new(false);
        let mut now = at(0);
        let mut eject = |health: &mut Health, later: u64| {
            now = now.after(Duration::from_secs(later));
            let time = health.eject(&EJECTION, now);
            assert_eq!(health.availability(), Availability::Ejected);
            assert!(!health.advance(false, now.after(time.saturating_sub(Duration::from_micros(1)))));
            assert_eq!(health.availability(), Availability::Ejected);
            now = now.after(time);
            assert!(health.advance(false, now));
            assert_eq!(health.availability(), Availability::Available);
            time.as_secs()
        };
        let times: Vec<_> = (0..5).map(|_| eject(&mut health, 1)).collect();
        assert_eq!(times, [10, 20, 40, 60, 60]);
        assert_eq!(eject(&mut health, 60), 60);
        assert_eq!(eject(&mut health, 61), 10);
    }
}
