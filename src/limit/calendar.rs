//! Windows of the calendar: days and months as they begin and end in some time zone.

use std::time::Duration;

use jiff::ToSpan;
use jiff::civil::Date;
use jiff::tz::TimeZone;

use crate::base::clock::Time;

/// How long a window of the calendar lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// From midnight to midnight.
    Day,
    /// From the first of a month to the first of the next.
    Month,
}

/// Days or months in a time zone.
///
/// ```
/// use gateway::limit::{Calendar, Unit};
///
/// let days = Calendar::utc(Unit::Day);
/// assert_eq!(days.zone(), "UTC");
/// let days = days.in_zone("Europe/Berlin");
/// assert!(days.is_some_and(|days| days.zone() == "Europe/Berlin"));
/// assert!(Calendar::utc(Unit::Day).in_zone("Mars/Olympus").is_none());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Calendar {
    unit: Unit,
    zone: TimeZone,
}

impl Unit {
    /// The unit of this name, `day` or `month`.
    pub fn named(name: &str) -> Option<Self> {
        [Self::Day, Self::Month].into_iter().find(|unit| unit.name() == name)
    }

    /// Its name in a rate: `day` or `month`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Month => "month",
        }
    }

    /// The longest that the unit lasts, in whole days.
    pub fn longest(self) -> Duration {
        match self {
            Self::Day => Duration::from_secs(86_400),
            Self::Month => Duration::from_secs(31 * 86_400),
        }
    }
}

/// The IANA names of all time zones that are known here.
pub fn zones() -> Vec<String> {
    jiff::tz::db().available().map(|zone| zone.to_string()).collect()
}

impl Calendar {
    /// This unit in UTC.
    pub fn utc(unit: Unit) -> Self {
        Self { unit, zone: TimeZone::UTC }
    }

    /// The same unit in the zone of this IANA name, like `Europe/Berlin`; `None` if the name is unknown.
    pub fn in_zone(&self, name: &str) -> Option<Self> {
        // The database has this name for an unknown zone; in a configuration it is a mistake.
        let zone = Some(name).filter(|name| *name != "Etc/Unknown").and_then(|name| TimeZone::get(name).ok())?;
        Some(Self { unit: self.unit, zone })
    }

    /// Another unit in the same zone.
    #[must_use]
    pub fn of(&self, unit: Unit) -> Self {
        Self { unit, zone: self.zone.clone() }
    }

    /// Days or months.
    pub fn unit(&self) -> Unit {
        self.unit
    }

    /// The IANA name of the zone.
    pub fn zone(&self) -> &str {
        self.zone.iana_name().unwrap_or("UTC")
    }

    /// The window with `now`: its first moment and the first moment after it, in microseconds.
    ///
    /// Where clocks change, a day lasts 23 to 25 hours; if they skip midnight, it begins after that. Outside the calendar
    /// (after the year 9998) every window has the longest length of the unit.
    pub fn window(&self, now: Time) -> (u64, u64) {
        self.bounds(now).unwrap_or_else(|| {
            let length = u64::try_from(self.unit.longest().as_micros()).unwrap_or(u64::MAX);
            let start = now.micros() / length * length;
            (start, start.saturating_add(length))
        })
    }

    fn bounds(&self, now: Time) -> Option<(u64, u64)> {
        let date = now.timestamp()?.to_zoned(self.zone.clone()).date();
        let (first, next) = match self.unit {
            Unit::Day => (date, date.checked_add(1.day()).ok()?),
            Unit::Month => (date.first_of_month(), date.first_of_month().checked_add(1.month()).ok()?),
        };
        Some((self.midnight(first)?, self.midnight(next)?))
    }

    /// In microseconds since 1970. Where midnight is skipped, the first moment after it.
    fn midnight(&self, date: Date) -> Option<u64> {
        let start = date.to_zoned(self.zone.clone()).ok()?.start_of_day().ok()?;
        u64::try_from(start.timestamp().as_microsecond()).ok()
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    fn at(text: &str) -> u64 {
        u64::try_from(text.parse::<Timestamp>().unwrap().as_microsecond()).unwrap()
    }

    fn window(unit: Unit, zone: &str, now: &str) -> (u64, u64) {
        Calendar::utc(unit).in_zone(zone).unwrap().window(Time::from_micros(at(now)))
    }

    #[test]
    fn days_begin_at_midnight() {
        let utc = window(Unit::Day, "UTC", "2026-11-21T23:59:59.999999Z");
        assert_eq!(utc, (at("2026-11-21T00:00:00Z"), at("2026-11-22T00:00:00Z")));
        assert_eq!(window(Unit::Day, "UTC", "2026-11-22T00:00:00Z").0, at("2026-11-22T00:00:00Z"));
        let tokyo = window(Unit::Day, "Asia/Tokyo", "2026-11-21T23:59:59Z");
        assert_eq!(tokyo, (at("2026-11-22T00:00:00+09:00"), at("2026-11-23T00:00:00+09:00")));
    }

    #[test]
    fn months_have_their_own_lengths() {
        let february = window(Unit::Month, "UTC", "2028-02-29T12:00:00Z");
        assert_eq!(february, (at("2028-02-01T00:00:00Z"), at("2028-03-01T00:00:00Z")));
        let december = window(Unit::Month, "America/New_York", "2027-01-01T04:59:59Z");
        assert_eq!(december, (at("2026-12-01T00:00:00-05:00"), at("2027-01-01T00:00:00-05:00")));
    }

    #[test]
    fn days_are_longer_and_shorter_where_clocks_change() {
        let hours = |now| {
            let (start, end) = window(Unit::Day, "Europe/Berlin", now);
            (end - start) / 3_600_000_000
        };
        assert_eq!(hours("2026-03-29T12:00:00Z"), 23);
        assert_eq!(hours("2026-10-25T12:00:00Z"), 25);
        assert_eq!(hours("2026-10-26T12:00:00Z"), 24);
        // Here midnight itself is skipped.
        let (start, _) = window(Unit::Day, "America/Santiago", "2026-09-06T12:00:00Z");
        assert_eq!(start, at("2026-09-06T01:00:00-03:00"));
    }

    #[test]
    fn every_moment_has_a_window() {
        for unit in [Unit::Day, Unit::Month] {
            for now in [0, 1, at("2026-11-21T00:00:00Z"), at("9999-12-30T00:00:00Z"), u64::MAX] {
                let (start, end) = Calendar::utc(unit).window(Time::from_micros(now));
                assert!(start <= now && (now < end || end == u64::MAX), "{now}: {start} to {end}");
            }
        }
        assert_eq!(Calendar::utc(Unit::Day).in_zone("Mars/Olympus"), None);
    }
}
