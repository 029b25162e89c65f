//! Lists of statuses and classes of statuses: `["401", "5xx"]`.

use std::ops::RangeInclusive;

use crate::config::read::{Field, Setting, Wrong};
use crate::config::report::quoted;

/// `None` if the list must not be empty but has no valid element.
pub(super) fn read(field: &Field<'_>, key: &Setting<()>) -> Option<Vec<RangeInclusive<u16>>> {
    let statuses: Vec<_> = field.list(key)?.iter().filter_map(|field| one(field, key.example())).collect();
    Some(statuses)
        .filter(|statuses| !statuses.is_empty() || key.kind.shape.bounds().is_none_or(|(least, _)| least == 0))
}

/// One status as a number or a text, or one class.
fn one(field: &Field<'_>, example: &str) -> Option<RangeInclusive<u16>> {
    if field.is_number() {
        let status = field.integer(100..=599).and_then(|status| u16::try_from(status).ok())?;
        return Some(status..=status);
    }
    field.parse(|text| parse(text, example))
}

fn parse(text: &str, example: &str) -> Result<RangeInclusive<u16>, Wrong> {
    let wrong = || {
        let help = format!("a status is 100 to 599, a class is 1xx to 5xx: {example}");
        Wrong::new(format!("{} is not a status", quoted(text)), help)
    };
    let (first, last) = match text.strip_suffix("xx").or(text.strip_suffix("XX")) {
        Some(class) => (format!("{class}00"), format!("{class}99")),
        None => (text.to_owned(), text.to_owned()),
    };
    let number = |text: String| text.parse().ok().filter(|code| text.len() == 3 && (100..=599).contains(code));
    let range = number(first).zip(number(last)).map(|(first, last)| first..=last);
    range.ok_or_else(wrong)
}
