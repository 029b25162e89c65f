//! A table of the file with a known set of keys; all other keys are reported.

use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt::Debug;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{AtStart, Field, Name, Setting, Source, Table, quoted_key};
use crate::config::report::{did_you_mean, either};

/// [`Section::close`] reports unknown keys.
pub(in crate::config) struct Section<'a> {
    /// Where the table is defined.
    pub(in crate::config) span: Range<usize>,
    pub(in crate::config) source: &'a Source<'a>,
    title: String,
    /// `None` if the file does not have the table.
    table: Option<&'a DeTable<'a>>,
    keys: &'static Table,
    known: RefCell<Vec<&'static str>>,
    refused: RefCell<Vec<&'static str>>,
}

impl<'a> Section<'a> {
    fn new(
        title: String,
        span: Range<usize>,
        keys: &'static Table,
        table: Option<&'a DeTable<'a>>,
        source: &'a Source<'a>,
    ) -> Self {
        Self { span, source, title, table, keys, known: RefCell::default(), refused: RefCell::default() }
    }

    pub(in crate::config) fn root(
        table: &'a Spanned<DeTable<'a>>,
        keys: &'static Table,
        source: &'a Source<'a>,
    ) -> Self {
        Self::new(keys.title.to_owned(), 0..0, keys, Some(table.get_ref()), source)
    }

    pub(in crate::config) fn field<T>(&self, key: &Setting<T>) -> Option<Field<'a>> {
        debug_assert!(self.keys.names.contains(&key.name), "{} has no `{}` in the table", self.title, key.name);
        let mut known = self.known.borrow_mut();
        if !known.contains(&key.name) {
            known.push(key.name);
        }
        let value = self.table?.get(key.name)?;
        let what = format!("`{}`", key.name);
        Some(Field { what, span: value.span(), value: value.get_ref(), source: self.source })
    }

    /// The value of a key that is present and valid.
    pub(in crate::config) fn given<T>(&self, key: &Setting<T>) -> Option<T> {
        self.field(key).and_then(|field| (key.kind.read)(&field, &key.kind))
    }

    /// The value of a key, or its default.
    pub(in crate::config) fn read<T: Debug>(&self, key: &Setting<T>) -> T {
        let value = self.read_as(key, |field| (key.kind.read)(field, &key.kind));
        if key.kind.at_start {
            self.at_start(key, &value);
        }
        value
    }

    /// What `read` makes of the value of a key, or of its default.
    pub(in crate::config) fn read_as<T, R>(&self, key: &Setting<T>, read: impl Fn(&Field<'_>) -> Option<R>) -> R {
        self.field(key).and_then(|field| read(&field)).unwrap_or_else(|| key.default(self.source, read))
    }

    /// Records the value of a key that takes effect only at the start.
    pub(in crate::config) fn at_start<T>(&self, key: &Setting<T>, value: &impl Debug) {
        debug_assert!(key.kind.at_start, "a change of `{}` needs no restart", key.name);
        let table = self.title.trim_matches(['[', ']']);
        let (span, key) = (self.key_span(key.name), format!("{table}.{}", key.name));
        self.source.at_start(AtStart { key, value: format!("{value:?}"), span });
    }

    pub(in crate::config) fn list<T>(&self, key: &Setting<T>) -> Option<Vec<Field<'a>>> {
        self.field(key)?.list(key)
    }

    pub(in crate::config) fn table<T>(&self, key: &Setting<T>) -> Option<Section<'a>> {
        self.field(key)?.section(self.title_of(key), key.table())
    }

    /// An empty table if the key is absent or wrong.
    pub(in crate::config) fn table_or_empty(&self, key: &Setting<()>) -> Section<'a> {
        let empty = || Section::new(self.title_of(key), self.span.clone(), key.table(), None, self.source);
        self.table(key).unwrap_or_else(empty)
    }

    /// Each table of a list; none if the key is absent.
    pub(in crate::config) fn tables(&self, key: &'static Setting<()>) -> impl Iterator<Item = Section<'a>> + use<'a> {
        let (title, list) = (format!("[{}]", self.title_of(key)), self.list(key).unwrap_or_default());
        list.into_iter().filter_map(move |field| field.section(title.as_str(), key.table()))
    }

    /// The name in messages of the table that is the value of a key.
    fn title_of<T>(&self, key: &Setting<T>) -> String {
        match (key.table().title, self.title.strip_prefix('[').and_then(|title| title.strip_suffix(']'))) {
            ("", Some(title)) => format!("[{title}.{}]", key.name),
            ("", None) => format!("[{}]", key.name),
            (title, _) => title.to_owned(),
        }
    }

    /// Reports a key that is absent; `help` is an example.
    pub(in crate::config) fn required<T>(&self, key: &Setting<T>, help: &str) -> Option<Field<'a>> {
        let field = self.field(key);
        if field.is_none() {
            self.source.report(self.span.clone(), format!("{} has no `{}`", self.title, key.name), help);
        }
        field
    }

    /// The place of a key, or of the table if the key is absent.
    pub(in crate::config) fn key_span(&self, key: &str) -> Range<usize> {
        let found = self.table.and_then(|table| table.get_key_value(key));
        found.map_or(self.span.clone(), |(key, _)| key.span())
    }

    fn has(&self, key: &str) -> bool {
        self.table.is_some_and(|table| table.contains_key(key))
    }

    /// Reports which of `keys` are present, because they belong elsewhere.
    pub(in crate::config) fn misplaced(&self, keys: &[&'static str], owner: &str, help: &str) {
        self.refuse(keys, &format!("belongs to {owner}"), help);
    }

    /// Reports which of `keys` are present; `why` follows the key in the message.
    pub(in crate::config) fn refuse(&self, keys: &[&'static str], why: &str, help: &str) {
        for key in keys.iter().filter(|key| self.has(key)) {
            self.source.report(self.key_span(key), format!("`{key}` {why}"), help);
            self.refused.borrow_mut().push(key);
        }
    }

    /// Warns of those of `keys` that are present; `why` follows the key in the message.
    pub(in crate::config) fn warn(&self, keys: &[&'static str], why: &str, help: &str) {
        for key in keys.iter().filter(|key| self.has(key)) {
            self.source.warn(self.key_span(key), format!("`{key}` {why}"), help);
        }
    }

    pub(in crate::config) fn close(self) {
        // The table has all keys, also those that are read only together with others.
        let known = self.keys.names;
        for (name, _) in self.table.map(|table| entries(table, self.source)).unwrap_or_default() {
            if known.contains(&name.text) || self.refused.borrow().contains(&name.text) {
                continue;
            }
            let all = format!("{} takes {}", self.title, either(known).replace(" or ", " and "));
            let help = did_you_mean(name.text, known, &all);
            self.source.report(name.span, format!("unknown key {} in {}", quoted_key(name.text), self.title), help);
        }
    }
}

/// In the order of the file.
fn entries<'a>(table: &'a DeTable<'a>, source: &'a Source<'a>) -> Vec<(Name<'a>, Field<'a>)> {
    let entry = |(key, value): (&'a Spanned<Cow<'a, str>>, &'a Spanned<DeValue<'a>>)| {
        let field = Field { what: format!("`{}`", key.get_ref()), span: value.span(), value: value.get_ref(), source };
        (Name { text: key.get_ref(), span: key.span() }, field)
    };
    let mut entries: Vec<_> = table.iter().map(entry).collect();
    entries.sort_by_key(|(name, _)| name.span.start);
    entries
}

impl<'a> Field<'a> {
    pub(in crate::config) fn section(&self, title: impl Into<String>, keys: &'static Table) -> Option<Section<'a>> {
        let title = title.into();
        let help = format!("write {title} on a separate line, and its keys below");
        self.section_like(title, keys, help)
    }

    /// Like `section`; `help` is an example of a value.
    pub(in crate::config) fn section_like(
        &self,
        title: impl Into<String>,
        keys: &'static Table,
        help: impl Into<String>,
    ) -> Option<Section<'a>> {
        let table = self.value.as_table();
        if table.is_none() {
            self.mistyped("a table", help);
        }
        Some(Section::new(title.into(), self.span.clone(), keys, Some(table?), self.source))
    }

    /// Like `section`, but the value may also be `true`, an empty table, or `false`, which gives `Some(None)`.
    #[expect(clippy::option_option, reason = "what is wrong is another case than false")]
    pub(in crate::config) fn section_unless_false(
        &self,
        title: &str,
        keys: &'static Table,
        help: &str,
    ) -> Option<Option<Section<'a>>> {
        let table = self.value.as_table();
        if table.is_none() && !self.is_boolean() {
            self.mistyped("true, false or a table", help);
            return None;
        }
        let is_on = table.is_some() || self.boolean()?;
        Some(is_on.then(|| Section::new(title.to_owned(), self.span.clone(), keys, table, self.source)))
    }

    /// A table whose keys are names that the user chooses.
    pub(in crate::config) fn entries(&self, title: &str) -> Option<Vec<(Name<'a>, Field<'a>)>> {
        let table = self.value.as_table();
        if table.is_none() {
            self.mistyped("a table", format!("write {title} on a separate line, and its keys below"));
        }
        Some(entries(table?, self.source))
    }
}
