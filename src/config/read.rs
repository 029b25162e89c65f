//! Reads values out of TOML by name and notes every problem on the way, instead of stopping at the first.

use std::cell::RefCell;
use std::ops::{Range, RangeInclusive};
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::report::Problem;
use crate::units;

/// A value with its place.
pub(super) type Value<'a> = Spanned<DeValue<'a>>;
/// A value that was read, or what is wrong with it.
pub(super) type Read<T> = Result<T, Problem>;

/// The problems found so far.
#[derive(Debug, Default)]
pub(super) struct Findings(RefCell<Vec<Problem>>);

impl Findings {
    pub(super) fn add(&self, problem: Problem) {
        self.0.borrow_mut().push(problem);
    }

    pub(super) fn keep<T>(&self, read: Read<T>) -> Option<T> {
        read.map_err(|problem| self.add(problem)).ok()
    }

    pub(super) fn into_vec(self) -> Vec<Problem> {
        self.0.into_inner()
    }
}

/// One table of the file. Every key that is asked for is known; [`Section::finish`] reports the others.
pub(super) struct Section<'a> {
    /// How the file writes it: `[server]`.
    pub(super) name: String,
    pub(super) span: Range<usize>,
    table: Option<&'a DeTable<'a>>,
    known: RefCell<Vec<&'static str>>,
    findings: &'a Findings,
}

impl<'a> Section<'a> {
    pub(super) fn new(name: &str, span: Range<usize>, table: &'a DeTable<'a>, findings: &'a Findings) -> Self {
        Self { name: name.to_owned(), span, table: Some(table), known: RefCell::default(), findings }
    }

    /// A section that the file leaves out, so that all its defaults hold.
    pub(super) fn absent(findings: &'a Findings) -> Self {
        Self { name: String::new(), span: 0..0, table: None, known: RefCell::default(), findings }
    }

    /// The section that a value is.
    pub(super) fn of(name: &str, value: &'a Value<'a>, findings: &'a Findings) -> Option<Self> {
        let table = findings.keep(match value.get_ref() {
            DeValue::Table(table) => Ok(table),
            other => Err(wrong(value, &format!("{name} is a table"), other)),
        })?;
        Some(Self::new(name, value.span(), table, findings))
    }

    pub(super) fn value(&self, key: &'static str) -> Option<&'a Value<'a>> {
        self.known.borrow_mut().push(key);
        self.table?.get(key)
    }

    /// The value of `key` as `read` reads it; `None` if it is not there or wrong.
    pub(super) fn read<T>(&self, key: &'static str, read: impl FnOnce(&'a Value<'a>) -> Read<T>) -> Option<T> {
        self.value(key).and_then(|value| self.findings.keep(read(value)))
    }

    /// The value of a key that must be there.
    pub(super) fn need<T>(
        &self,
        key: &'static str,
        example: &str,
        read: impl FnOnce(&'a Value<'a>) -> Read<T>,
    ) -> Option<T> {
        if self.value(key).is_none() {
            let message = format!("{} has no `{key}`", self.name);
            self.findings.add(Problem::new(self.span.clone(), message, format!("add {key} = {example}")));
        }
        self.read(key, read)
    }

    /// All entries of the table, for tables whose keys are names.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&'a str, Range<usize>, &'a Value<'a>)> + use<'a> {
        let entries = self.table.into_iter().flat_map(DeTable::iter);
        entries.map(|(name, value)| (name.get_ref().as_ref(), name.span(), value))
    }

    /// Keys that the file may have one day, and what to say of them until then.
    pub(super) fn later(&self, keys: &[&'static str]) {
        for key in keys {
            if let Some((name, _)) = self.table.and_then(|table| table.get_key_value(*key)) {
                self.known.borrow_mut().push(key);
                self.findings.add(Problem::plain(name.span(), format!("`{key}` is not supported yet")));
            }
        }
    }

    /// Reports keys that nobody asked for.
    pub(super) fn finish(self) {
        let known = self.known.borrow();
        for (name, span, _) in self.entries() {
            if !known.contains(&name) {
                let message = match self.name.as_str() {
                    "" => format!("unknown key or section `{name}`"),
                    section => format!("unknown key `{name}` in {section}"),
                };
                self.findings.add(Problem::new(span, message, suggest(name, &known)));
            }
        }
    }
}

/// The nearest of the names, if one is near, and all of them.
pub(super) fn suggest<T: AsRef<str>>(found: &str, names: &[T]) -> String {
    let distance = |name: &&T| strsim::damerau_levenshtein(found, name.as_ref());
    let near = |name: &&T| distance(name) <= name.as_ref().len().max(found.len()).div_ceil(3);
    let nearest = names.iter().filter(near).min_by_key(distance);
    let mut all: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
    all.sort_unstable();
    all.dedup();
    let all = all.join(", ");
    match nearest {
        Some(nearest) => format!("did you mean `{}`? allowed: {all}", nearest.as_ref()),
        None if names.is_empty() => "there is none".to_owned(),
        None => format!("allowed: {all}"),
    }
}

/// The problem of a value of another type.
fn wrong(value: &Value<'_>, expected: &str, found: &DeValue<'_>) -> Problem {
    let article = if found.type_str().starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" };
    Problem::plain(value.span(), format!("expected {expected}, found {article} {}", found.type_str()))
}

pub(super) fn string<'a>(value: &'a Value<'a>) -> Read<&'a str> {
    value.get_ref().as_str().ok_or_else(|| wrong(value, "a string", value.get_ref()))
}

pub(super) fn boolean(value: &Value<'_>) -> Read<bool> {
    value.get_ref().as_bool().ok_or_else(|| wrong(value, "true or false", value.get_ref()))
}

/// A whole number in `range`.
pub(super) fn integer(range: RangeInclusive<u64>) -> impl Fn(&Value<'_>) -> Read<u64> {
    move |value| {
        let expected = format!("a whole number from {} to {}", range.start(), range.end());
        let number = value.get_ref().as_integer().ok_or_else(|| wrong(value, &expected, value.get_ref()))?;
        let parsed = u64::from_str_radix(number.as_str(), number.radix()).ok().filter(|number| range.contains(number));
        let found = || Problem::plain(value.span(), format!("expected {expected}, found {}", number.as_str()));
        parsed.ok_or_else(found)
    }
}

/// One of several words.
pub(super) fn word<T: Copy>(words: &[(&'static str, T)]) -> impl Fn(&Value<'_>) -> Read<T> {
    move |value| {
        let text = string(value)?;
        let found = words.iter().find(|(word, _)| *word == text).map(|(_, meaning)| *meaning);
        let names: Vec<_> = words.iter().map(|(word, _)| *word).collect();
        found.ok_or_else(|| Problem::new(value.span(), format!("`{text}` is not allowed here"), suggest(text, &names)))
    }
}

/// A duration in `range`.
pub(super) fn duration(range: RangeInclusive<Duration>) -> impl Fn(&Value<'_>) -> Read<Duration> {
    move |value| {
        let text = string(value).map_err(|problem| Problem {
            help: Some("durations are strings like \"250ms\", \"10s\", \"10m\", \"1h\" or \"7d\"".to_owned()),
            ..problem
        })?;
        let help = "a duration is a number and a unit: \"250ms\", \"10s\", \"10m\", \"1h\", \"7d\"";
        let duration = units::duration(text)
            .map_err(|_| Problem::new(value.span(), format!("`{text}` is not a duration"), help))?;
        if range.contains(&duration) {
            return Ok(duration);
        }
        let bounds = (units::span(*range.start()), units::span(*range.end()));
        let message = format!("{text} is out of range");
        Err(Problem::new(value.span(), message, format!("allowed is {} to {}", bounds.0, bounds.1)))
    }
}

/// A size in bytes in `range`.
pub(super) fn size(range: RangeInclusive<u64>) -> impl Fn(&Value<'_>) -> Read<usize> {
    move |value| {
        let text = string(value).map_err(|problem| Problem {
            help: Some("sizes are strings like \"16KiB\" or \"1MiB\"".to_owned()),
            ..problem
        })?;
        let bytes = units::size(text).ok_or_else(|| {
            let help = "a size is a number and a unit: \"16KiB\", \"1MiB\"";
            Problem::new(value.span(), format!("`{text}` is not a size"), help)
        })?;
        let allowed = usize::try_from(bytes).ok().filter(|_| range.contains(&bytes));
        allowed.ok_or_else(|| {
            let help = format!("allowed is {} to {} bytes", range.start(), range.end());
            Problem::new(value.span(), format!("{text} is out of range"), help)
        })
    }
}

/// The elements of a list; a single value counts as a list of one where `single` allows it.
pub(super) fn list<'a>(value: &'a Value<'a>, what: &str, single: bool) -> Read<Vec<&'a Value<'a>>> {
    match value.get_ref() {
        DeValue::Array(array) if array.is_empty() => {
            Err(Problem::plain(value.span(), format!("the list of {what} is empty")))
        }
        DeValue::Array(array) => Ok(array.iter().collect()),
        _ if single => Ok(vec![value]),
        other => Err(wrong(value, &format!("a list of {what}"), other)),
    }
}
