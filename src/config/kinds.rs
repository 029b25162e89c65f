//! Kinds of values that are read in the same way in all sections: numbers, durations, sizes, words.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use http::StatusCode;

use super::read::{Field, Setting, Shape, Wrong};
use super::report::quoted;
use super::values;
use crate::base::share::WHOLE;
use crate::base::units::{self, DurationError};
use crate::tokens::{MAX_WEIGHT, Weight};

pub(super) const WAIT: RangeInclusive<Duration> = Duration::from_millis(1)..=LONGEST;
pub(super) const WAIT_OR_ZERO: RangeInclusive<Duration> = Duration::ZERO..=LONGEST;
pub(super) const LONGEST: Duration = Duration::from_secs(7 * 86_400);

/// A status as a number or a text, or a class of statuses.
const STATUS: &Shape = &Shape::Or(&[Shape::Number(100, 599), Shape::Pattern("^[1-5](xx|XX|[0-9][0-9])$")]);

/// Stands for a body size without a limit.
pub const UNLIMITED: u64 = u64::MAX;

/// The row of a table adds the name, the help, the default and the example.
const fn kind<T>(shape: Shape, read: fn(&Field<'_>, &Setting<T>) -> Option<T>) -> Setting<T> {
    Setting { name: "", help: "", default: "", example: "", shape, words: &[], read, at_start: false, required: false }
}

/// A value of this shape that the sections read themselves.
pub(super) const fn shaped(shape: Shape) -> Setting<()> {
    kind(shape, |_, _| Some(()))
}

pub(super) const fn text() -> Setting<()> {
    shaped(Shape::Text)
}

/// A text that nothing shows.
pub(super) const fn secret() -> Setting<()> {
    shaped(Shape::Secret)
}

pub(super) const fn flag() -> Setting<bool> {
    kind(Shape::Flag, |field, _| field.boolean())
}

pub(super) const fn number<T: TryFrom<u64>>(least: u64, most: u64) -> Setting<T> {
    kind(Shape::Number(least, most), |field, key| match key.shape {
        Shape::Number(least, most) => T::try_from(field.integer(least..=most)?).ok(),
        _ => None,
    })
}

pub(super) const fn status_code(least: u64, most: u64) -> Setting<StatusCode> {
    kind(Shape::Number(least, most), |field, key| match key.shape {
        Shape::Number(least, most) => values::status(field, least..=most),
        _ => None,
    })
}

/// At least this many statuses and classes of statuses.
pub(super) const fn statuses(least: usize) -> Setting<Vec<RangeInclusive<u16>>> {
    kind(Shape::List(STATUS, least, 64), values::statuses)
}

/// From 0 to 1.
pub(super) const fn fraction() -> Setting<f64> {
    kind(Shape::Decimal(1), |field, _| field.fraction())
}

/// A whole number of percent: `"10%"`.
pub(super) const fn percent() -> Setting<u64> {
    kind(Shape::Pattern("^(100|[1-9]?[0-9])%$"), |field, _| {
        let help = field.number().map_or(PERCENT.to_owned(), |number| format!("write \"{number}%\": {PERCENT}"));
        texts(field, "a percentage", help)?.parse(percentage)
    })
}

/// The cost of a token.
pub(super) const fn weight() -> Setting<Weight> {
    kind(Shape::Decimal(MAX_WEIGHT), |field, _| {
        let help = format!("allowed: 0 to {MAX_WEIGHT} with at most six decimal places and no exponent, like 0.25");
        field.decimal(&help, |written| written.strip_prefix('+').unwrap_or(written).parse().ok())
    })
}

/// From 0 to below 1, in millionths.
pub(super) const fn level() -> Setting<u32> {
    kind(Shape::Decimal(1), |field, _| {
        field.decimal("allowed: 0.0 to 0.999999, like 0.8 for 80 %", |written| {
            millionths(written).filter(|level| *level < WHOLE)
        })
    })
}

/// A number from 0 to 1 in millionths.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is between 0 and a million")]
pub(super) fn millionths(written: &str) -> Option<u32> {
    let millionths = (written.parse::<f64>().ok()? * f64::from(WHOLE)).round();
    (0.0..=f64::from(WHOLE)).contains(&millionths).then_some(millionths as u32)
}

/// From 0 to 1, in thousandths.
pub(super) const fn share() -> Setting<u32> {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is between 0 and 1000")]
    kind(Shape::Decimal(1), |field, _| field.fraction().map(|share| (share * 1000.0).round() as u32))
}

pub(super) const fn words<T: Clone>(words: &'static [(&'static str, T)]) -> Setting<T> {
    let read: fn(&Field<'_>, &Setting<T>) -> Option<T> = |field, key| field.choice(key.words);
    Setting { words, ..kind(Shape::Words, read) }
}

pub(super) const fn file() -> Setting<PathBuf> {
    kind(Shape::Text, |field, _| field.path(field.text()?))
}

pub(super) const fn wait(allowed: RangeInclusive<Duration>) -> Setting<Duration> {
    kind(Shape::Duration(allowed), |field, key| match &key.shape {
        Shape::Duration(allowed) => duration_field(field)?.parse(|text| duration(text, allowed)),
        _ => None,
    })
}

/// "0" means no limit.
pub(super) const fn wait_or_none() -> Setting<Option<Duration>> {
    kind(Shape::DurationOrNone, |field, _| {
        duration_field(field)?.parse(|text| match units::duration(text) {
            Ok(Duration::ZERO) => Ok(None),
            _ => duration(text, &WAIT).map(Some).map_err(unless_zero),
        })
    })
}

/// In bytes.
pub(super) const fn size<T: TryFrom<u64>>(allowed: RangeInclusive<u64>) -> Setting<T> {
    kind(Shape::Size(allowed), |field, key| {
        let Shape::Size(allowed) = &key.shape else { return None };
        T::try_from(size_within(field, allowed)?).ok()
    })
}

/// Reads a size in bytes. Zero needs no unit.
pub(super) fn size_within(field: &Field<'_>, allowed: &RangeInclusive<u64>) -> Option<u64> {
    size_field(field)?.parse(|text| match text {
        "0" if *allowed.start() == 0 => Ok(0),
        _ => bytes(text, allowed),
    })
}

/// "0" means no limit.
pub(super) const fn body_size() -> Setting<u64> {
    kind(Shape::Size(0..=LARGEST_BODY), |field, _| {
        size_field(field)?.parse(|text| match text.trim_end_matches(|last: char| last.is_ascii_alphabetic()) {
            "0" => Ok(UNLIMITED),
            _ => bytes(text, &(1..=LARGEST_BODY)).map_err(unless_zero),
        })
    })
}

const LARGEST_BODY: u64 = 1 << 50;
const PERCENT: &str = "a percentage is a string from \"0%\" to \"100%\", like \"10%\"";
const DURATION: &str = "a duration is a string with a unit (ms, s, m, h, d), like \"250ms\", \"10s\" or \"1h\"";
const SIZE: &str = "a size is a string with a unit (B, KB, MB, KiB, MiB), like \"16KiB\" or \"1MiB\"";

/// Reports a value that is no text.
fn texts<'f, 'a>(field: &'f Field<'a>, expected: &str, help: impl Into<String>) -> Option<&'f Field<'a>> {
    if !field.value.is_str() {
        field.mistyped(expected, help);
        return None;
    }
    Some(field)
}

/// A number without a unit is probably in seconds, so the help shows how to write that.
fn duration_field<'f, 'a>(field: &'f Field<'a>) -> Option<&'f Field<'a>> {
    let spelled = |seconds| format!("write \"{seconds}s\": {DURATION}");
    texts(field, "a duration", field.number().filter(|seconds| *seconds > 0).map_or(DURATION.to_owned(), spelled))
}

/// A number without a unit is probably in bytes, so the help shows how to write that.
fn size_field<'f, 'a>(field: &'f Field<'a>) -> Option<&'f Field<'a>> {
    let spelled = |bytes| format!("write \"{}\": {SIZE}", units::spelled_size(bytes));
    texts(field, "a size", field.number().map_or(SIZE.to_owned(), spelled))
}

fn unless_zero(wrong: Wrong) -> Wrong {
    Wrong { help: format!("{}; or \"0\" for no limit", wrong.help), ..wrong }
}

fn percentage(text: &str) -> Result<u64, Wrong> {
    let number = text.strip_suffix('%').filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
    let value: u64 = number.and_then(|digits| digits.parse().ok()).ok_or_else(|| {
        let number = text.trim().parse::<u64>();
        let help = number.map_or(PERCENT.to_owned(), |number| format!("did you mean \"{number}%\"? {PERCENT}"));
        Wrong::not(text, "a percentage", help)
    })?;
    let wrong = || Wrong::new(format!("{} is out of range", quoted(text)), "allowed: 0% to 100%");
    Some(value).filter(|value| *value <= 100).ok_or_else(wrong)
}

fn duration(text: &str, allowed: &RangeInclusive<Duration>) -> Result<Duration, Wrong> {
    let value = units::duration(text).map_err(|error| {
        let is_number = error == DurationError::NoUnit && text.trim() != "0";
        let help =
            if is_number { format!("did you mean \"{}s\"? {DURATION}", text.trim()) } else { DURATION.to_owned() };
        Wrong::not(text, &format!("a duration: {error}"), help)
    })?;
    if allowed.contains(&value) {
        return Ok(value);
    }
    let (least, most) = (units::spelled_duration(*allowed.start()), units::spelled_duration(*allowed.end()));
    Err(Wrong::new(format!("{} is out of range", quoted(text)), format!("allowed: {least} to {most}")))
}

fn bytes(text: &str, allowed: &RangeInclusive<u64>) -> Result<u64, Wrong> {
    let value = units::size(text).ok_or_else(|| {
        let number = text.trim().parse::<u64>();
        let help = number.map_or(SIZE.to_owned(), |number| format!("did you mean \"{number}B\"? {SIZE}"));
        Wrong::not(text, "a size", help)
    })?;
    let spelled = |bytes: &u64| if *bytes == 0 { "0".to_owned() } else { units::spelled_size(*bytes) };
    let (least, most) = (spelled(allowed.start()), spelled(allowed.end()));
    let wrong = || Wrong::new(format!("{} is out of range", quoted(text)), format!("allowed: {least} to {most}"));
    Some(value).filter(|value| allowed.contains(value)).ok_or_else(wrong)
}
