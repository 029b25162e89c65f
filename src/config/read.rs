//! Readers of a parsed file that continue after a problem, so that one run finds all problems.
//!
//! Every method reports problems itself and then returns `None`; the caller continues with a default.

mod section;
mod setting;
mod source;

use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeFloat, DeInteger, DeValue};

use super::elsewhere;
use super::report::{did_you_mean, either, quoted};

pub(super) use section::Section;
pub(super) use setting::{Described, Setting, Shape, Table, name, tables};
pub use source::AtStart;
pub(super) use source::Source;

/// Why a text is not a valid value.
#[derive(Debug, PartialEq)]
pub(super) struct Wrong {
    pub(super) message: String,
    /// What is allowed.
    pub(super) help: String,
    /// The part of the text that is wrong, if not all of it.
    pub(super) part: Option<Range<usize>>,
}

impl Wrong {
    pub(super) fn new(message: impl Into<String>, help: impl Into<String>) -> Self {
        Self { message: message.into(), help: help.into(), part: None }
    }

    /// `text` is not `what` it should be.
    pub(super) fn not(text: &str, what: &str, help: impl Into<String>) -> Self {
        Self::new(format!("{} is not {what}", quoted(text)), help)
    }

    pub(super) fn at(self, part: Range<usize>) -> Self {
        Self { part: Some(part), ..self }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Name<'a> {
    pub(super) text: &'a str,
    pub(super) span: Range<usize>,
}

/// A value, and its name in messages.
#[derive(Clone)]
pub(super) struct Field<'a> {
    pub(super) span: Range<usize>,
    pub(super) source: &'a Source<'a>,
    pub(super) value: &'a DeValue<'a>,
    what: String,
}

impl<'a> Field<'a> {
    pub(super) fn new(name: &str, value: &'a Spanned<DeValue<'a>>, source: &'a Source<'a>) -> Self {
        Self { what: format!("`{name}`"), span: value.span(), value: value.get_ref(), source }
    }

    pub(super) fn report(&self, message: impl Into<String>, help: impl Into<String>) {
        self.source.report(self.span.clone(), message, help);
    }

    pub(super) fn warn(&self, message: impl Into<String>, help: impl Into<String>) {
        self.source.warn(self.span.clone(), message, help);
    }

    /// Reports that the value has the wrong type; `help` is an example of the right one.
    pub(super) fn mistyped(&self, expected: &str, help: impl Into<String>) {
        let found = match self.value {
            DeValue::String(_) => "a string",
            DeValue::Integer(_) => "an integer",
            DeValue::Float(_) => "a float",
            DeValue::Boolean(_) => "a boolean",
            DeValue::Datetime(_) => "a date",
            DeValue::Array(_) => "a list",
            DeValue::Table(_) => "a table",
        };
        self.report(format!("{} must be {expected}, found {found}", self.what), help);
    }

    pub(super) fn number(&self) -> Option<u64> {
        let integer = self.value.as_integer()?;
        u64::from_str_radix(integer.as_str(), integer.radix()).ok()
    }

    pub(super) fn text(&self) -> Option<&'a str> {
        let text = self.value.as_str();
        if text.is_none() {
            let scalar = self.value.is_integer() || self.value.is_float();
            let help = match self.source.written(self.span.clone()).filter(|_| scalar) {
                Some(_) if self.source.secrets.borrow().contains(&self.span) => "write it between quotes".to_owned(),
                Some(written) => format!("write \"{written}\""),
                None => String::new(),
            };
            self.mistyped("a string", help);
        }
        text
    }

    /// A key of a table and its value, if it has the key; nothing is reported.
    pub(super) fn entry<T>(&self, key: &Setting<T>) -> Option<(Range<usize>, Self)> {
        let (name, value) = self.value.as_table()?.get_key_value(key.name)?;
        Some((name.span(), Self::new(key.name, value, self.source)))
    }

    /// The texts of a list, or the only text; nothing is reported.
    pub(super) fn texts(&self) -> Vec<&'a str> {
        match self.value {
            DeValue::Array(list) => list.iter().filter_map(|value| value.get_ref().as_str()).collect(),
            value => value.as_str().into_iter().collect(),
        }
    }

    /// The value as the file spells it, with quotes and variables, if a help can repeat it.
    pub(super) fn spelled(&self) -> Option<&'a str> {
        let written = self.source.written(self.span.clone()).filter(|_| !self.value.is_table());
        written.filter(|text| text.len() < 80 && !text.contains(['@', '\n']))
    }

    /// The path of the file `name`, which this value names. `None`, after a report, for a relative path in a text without a
    /// folder.
    pub(super) fn path(&self, name: &str) -> Option<PathBuf> {
        if Path::new(name).is_absolute() {
            return Some(PathBuf::from(name));
        }
        let path = self.source.folder.map(|folder| folder.join(name));
        if path.is_none() {
            let message =
                format!("{} is a relative path, but this text is not in a folder of this machine", quoted(name));
            self.report(message, "write an absolute path");
        }
        path
    }

    /// Hides the query of a URL where this line is shown, since the query may contain secrets.
    pub(super) fn hiding_query(&self) -> &Self {
        if let Some((before, query)) = self.value.as_str().and_then(|text| text.split_once('?')) {
            let part = self.part(before.len() + 1..before.len() + 1 + query.len());
            self.source.hide(part.unwrap_or(self.span.clone()));
        }
        self
    }

    /// Hides the path and the query of a URL where this line is shown, since both may be secrets.
    pub(super) fn hiding_target(&self) -> &Self {
        let text = self.value.as_str().unwrap_or_default();
        let start = text.find("://").map_or(0, |at| at + "://".len());
        if let Some(at) = text[start..].find(['/', '?']).map(|at| start + at + 1).filter(|at| *at < text.len()) {
            self.source.hide(self.part(at..text.len()).unwrap_or(self.span.clone()));
        }
        self
    }

    pub(super) fn boolean(&self) -> Option<bool> {
        let value = self.value.as_bool();
        if value.is_none() {
            self.mistyped("true or false", "write true or false, without quotes");
        }
        value
    }

    pub(super) fn integer(&self, allowed: RangeInclusive<u64>) -> Option<u64> {
        let (least, most) = (allowed.start(), allowed.end());
        let Some(integer) = self.value.as_integer() else {
            let help = match self.value.as_str() {
                Some(text) if text.parse::<i64>().is_ok() => format!("write it without quotes: {text}"),
                _ => format!("allowed: {least} to {most}"),
            };
            self.mistyped("an integer", help);
            return None;
        };
        let value = self.number().filter(|value| allowed.contains(value));
        if value.is_none() {
            self.report(format!("{} is out of range: {integer}", self.what), format!("allowed: {least} to {most}"));
        }
        value
    }

    /// A number with or without a decimal point. `read` parses it as written; `None` from `read` means that it is out of range.
    pub(super) fn decimal<T>(&self, help: &str, read: impl Fn(&str) -> Option<T>) -> Option<T> {
        let written = self.value.as_float().map(DeFloat::as_str);
        let Some(written) = written.or_else(|| self.value.as_integer().map(DeInteger::as_str)) else {
            self.mistyped("a number", help);
            return None;
        };
        let number = read(written);
        if number.is_none() {
            self.report(format!("{} is out of range: {written}", self.what), help);
        }
        number
    }

    /// From 0 to 1.
    pub(super) fn fraction(&self) -> Option<f64> {
        self.decimal("allowed: 0.0 to 1.0, like 0.2 for a fifth", |written| {
            written.parse().ok().filter(|share: &f64| (0.0..=1.0).contains(share))
        })
    }

    /// The elements of a list; the setting says how many are allowed.
    pub(super) fn list<T>(&self, key: &Setting<T>) -> Option<Vec<Field<'a>>> {
        let Some(list) = self.value.as_array() else {
            if self.is_section(key.name) {
                self.report_section(&Name { text: key.name, span: self.span.clone() });
                return None;
            }
            let is_of_texts =
                !matches!(key.shape, Shape::List(Shape::Table(_) | Shape::Number(..) | Shape::Decimal(_), ..));
            let list = self.spelled().filter(|_| is_of_texts && self.value.is_str()).map(|text| format!("[{text}]"));
            self.mistyped("a list", format!("write it in brackets: {}", list.unwrap_or(key.example().to_owned())));
            return None;
        };
        let (least, most) = key.shape.bounds().unwrap_or((0, usize::MAX));
        if list.len() < least {
            self.report(format!("{} is empty", self.what), format!("it needs at least one element: {}", key.example()));
        }
        if list.len() > most {
            self.report(format!("{} has {} elements", self.what, list.len()), format!("allowed: at most {most}"));
        }
        let what = format!("each of {}", self.what);
        let element = |value| Field { what: what.clone(), ..Field::new("", value, self.source) };
        Some(list.iter().map(element).collect())
    }

    /// The elements of a list; `None`, after a report, if one of them is wrong. An element that is listed twice is reported too:
    /// `what` is its name.
    pub(super) fn distinct<T: PartialEq, S>(
        &self,
        key: &Setting<S>,
        what: &str,
        read: impl Fn(&Self) -> Option<T>,
    ) -> Option<Vec<T>> {
        let list = self.list(key)?;
        let count = list.len();
        let read: Vec<_> = list.into_iter().filter_map(|field| Some((read(&field)?, field))).collect();
        report_repeated(&read, what, "list it once");
        (read.len() == count).then(|| read.into_iter().map(|(element, _)| element).collect())
    }

    pub(super) fn parse<T>(&self, read: impl FnOnce(&'a str) -> Result<T, Wrong>) -> Option<T> {
        read(self.text()?).map_err(|wrong| self.refuse(wrong)).ok()
    }

    pub(super) fn refuse(&self, wrong: Wrong) {
        let span = wrong.part.and_then(|part| self.part(part)).unwrap_or(self.span.clone());
        self.source.report(span, wrong.message, wrong.help);
    }

    /// The place of a part of the string; `None` for strings with escapes.
    fn part(&self, part: Range<usize>) -> Option<Range<usize>> {
        let text = self.value.as_str()?;
        let written = self.source.written(self.span.clone())?;
        let inner = written.get(1..written.len().checked_sub(1)?)?;
        (inner == text).then(|| self.span.start + 1 + part.start..self.span.start + 1 + part.end)
    }

    pub(super) fn choice<T: Clone>(&self, words: &[(&str, T)]) -> Option<T> {
        let names: Vec<&str> = words.iter().map(|(name, _)| *name).collect();
        let all = format!("allowed: {}", either(&names));
        if !self.value.is_str() {
            self.mistyped("a string", all);
            return None;
        }
        self.parse(|text| {
            if let Some((_, value)) = words.iter().find(|(name, _)| *name == text) {
                return Ok(value.clone());
            }
            let message = format!("{} is not a value of {}", quoted(text), self.what);
            let meant = elsewhere::meant(&self.what, text).map_or(text, |meant| meant.name);
            Err(Wrong::new(message, did_you_mean(meant, &names, &all)))
        })
    }
}

pub(super) fn report_repeated<T: PartialEq>(values: &[(T, Field<'_>)], what: &str, help: &str) {
    for (index, (value, field)) in values.iter().enumerate() {
        if values[..index].iter().any(|(earlier, _)| earlier == value) {
            field.report(format!("{what} is listed twice"), help);
        }
    }
}

pub(super) fn quoted_key(text: &str) -> String {
    let quoted = quoted(text);
    if quoted.ends_with("...") { quoted } else { format!("`{}`", quoted.trim_matches('"')) }
}
