//! A table of the file with a known set of keys; all other keys are reported.

use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt::Debug;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{AtStart, Described, Field, Name, Setting, Shape, Source, Table, quoted_key};
use crate::config::elsewhere;
use crate::config::report::{either, nearest, quoted};

/// Reports its unknown keys when it is dropped.
pub(in crate::config) struct Section<'a> {
    /// Where the table is defined.
    pub(in crate::config) span: Range<usize>,
    pub(in crate::config) source: &'a Source<'a>,
    title: String,
    /// `None` if the file does not have the table.
    table: Option<&'a DeTable<'a>>,
    keys: &'static Table,
    /// Where the keys begin that are reported already.
    refused: RefCell<Vec<usize>>,
}

impl<'a> Section<'a> {
    fn new(
        title: String,
        span: Range<usize>,
        keys: &'static Table,
        table: Option<&'a DeTable<'a>>,
        source: &'a Source<'a>,
    ) -> Self {
        Self { span, source, title, table, keys, refused: RefCell::default() }
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
        Some(Field::new(key.name, self.table?.get(key.name)?, self.source))
    }

    /// The value of a key that is present and valid.
    pub(in crate::config) fn given<T>(&self, key: &Setting<T>) -> Option<T> {
        self.field(key).and_then(|field| (key.read)(&field, key))
    }

    /// The value of a key, or its default.
    pub(in crate::config) fn read<T: Debug>(&self, key: &Setting<T>) -> T {
        let value = self.read_as(key, |field| (key.read)(field, key));
        if key.at_start {
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
        debug_assert!(key.at_start, "a change of `{}` needs no restart", key.name);
        let table = self.title.trim_matches(['[', ']']);
        let (span, key) = (self.key_span(key.name), format!("{table}.{}", key.name));
        self.source.at_start.borrow_mut().push(AtStart { key, value: format!("{value:?}"), span });
    }

    pub(in crate::config) fn list<T>(&self, key: &Setting<T>) -> Option<Vec<Field<'a>>> {
        self.field(key)?.list(key)
    }

    pub(in crate::config) fn table<T>(&self, key: &Setting<T>) -> Option<Section<'a>> {
        let (field, title, keys) = (self.field(key)?, self.title_of(key), key.table());
        // A table with a title of its own is mostly written in one line.
        match keys.title {
            "" => field.section(title, keys),
            _ => field.section_like(title, keys, format!("write {}", key.assignment())),
        }
    }

    /// Like [`Self::table`], but the value may also be `true`, an empty table, or `false`, none. `below` names keys of the table.
    pub(in crate::config) fn table_unless_false(&self, key: &Setting<()>, below: &str) -> Option<Section<'a>> {
        let (field, title) = (self.field(key), self.title_of(key));
        let (table, flag) = field.as_ref().map(|field| (field.value.as_table(), field.value.as_bool())).unzip();
        let (table, flag) = (table.flatten(), flag.flatten());
        if let Some(field) = field.filter(|_| table.is_none() && flag.is_none()) {
            let help = format!("write {} = {}, or {title} with {below} below", key.name, key.default != "true");
            field.mistyped("true, false or a table", help);
        }
        let is_on = table.is_some() || flag.unwrap_or(key.default == "true");
        is_on.then(|| Section::new(title, self.key_span(key.name), key.table(), table, self.source))
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

    /// Reports a key that is absent, or its other spelling, with its example and its purpose.
    pub(in crate::config) fn needed<T>(&self, key: &Setting<T>) -> Option<Field<'a>> {
        let purpose = key.help.trim().split(". ").next().unwrap_or_default();
        self.required(key, &format!("add {}. {}", key.assignment(), purpose.trim_end_matches('.')))
    }

    /// The value of a key, like [`Self::given`]. Reports a key that is absent, like [`Self::needed`].
    pub(in crate::config) fn needed_value<T>(&self, key: &Setting<T>) -> Option<T> {
        self.needed(key).and_then(|field| (key.read)(&field, key))
    }

    /// Two keys of which each needs the other; `None` if both are absent, or after a report.
    pub(in crate::config) fn both<T, S>(&self, one: &Setting<T>, other: &Setting<S>) -> Option<[Field<'a>; 2]> {
        let (present, missing, assignment) = match (self.field(one), self.field(other)) {
            (Some(one), Some(other)) => return Some([one, other]),
            (None, None) => return None,
            (Some(_), None) => (one.name, other.name, other.assignment()),
            (None, Some(_)) => (other.name, one.name, one.assignment()),
        };
        self.refuse(&[present], &format!("needs `{missing}`"), &format!("add {assignment}"));
        None
    }

    /// The only one of these keys that is present; `None` after a report. `help` is an example.
    pub(in crate::config) fn one_of<T>(
        &self,
        keys: &[&'static Setting<T>],
        help: &str,
    ) -> Option<(&'static Setting<T>, Field<'a>)> {
        let mut given = keys.iter().filter_map(|key| Some((*key, self.field(*key)?)));
        let names: Vec<_> = keys.iter().map(|key| key.name).collect();
        match (given.next(), given.next()) {
            (Some(one), None) => return Some(one),
            (Some((first, _)), Some((second, _))) => {
                let message = format!("{} has both `{}` and `{}`", self.title, first.name, second.name);
                self.source.report(self.key_span(second.name), message, "keep one of them");
            }
            (None, _) if self.is_misspelt(&names) => {}
            (None, _) => {
                let message = format!("{} has none of {}", self.title, either(&names).replace(" or ", " and "));
                self.source.report(self.span.clone(), message, help);
            }
        }
        None
    }

    /// Like [`Self::needed`]; `help` is an example.
    pub(in crate::config) fn required<T>(&self, key: &Setting<T>, help: &str) -> Option<Field<'a>> {
        let field = self.field(key);
        if field.is_none() && !self.is_misspelt(&[key.name]) {
            self.source.report(self.span.clone(), format!("{} has no `{}`", self.title, key.name), help);
        }
        field
    }

    /// Whether an unknown key is probably one of `keys`, which are absent. Reports that key.
    pub(in crate::config) fn is_misspelt(&self, keys: &[&'static str]) -> bool {
        let is_meant = |(name, field): &(Name<'a>, Field<'a>)| {
            let near = nearest(name.text, self.keys.names.iter().copied());
            let meant = elsewhere::meant(&self.title, name.text).map(|meant| meant.name).or(near);
            !field.is_section(name.text) && meant.is_some_and(|meant| keys.contains(&meant))
        };
        let misspelt = self.unknown().into_iter().find(is_meant);
        misspelt.iter().for_each(|(name, field)| self.report_unknown(name, field));
        misspelt.is_some()
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
            let span = self.key_span(key);
            self.refused.borrow_mut().push(span.start);
            self.source.report(span, format!("`{key}` {why}"), help);
        }
    }

    /// Reports several unknown keys as one problem, at the first of them.
    pub(in crate::config) fn refuse_together(&self, found: &[(Name<'a>, Field<'a>)], help: &str) {
        self.refused.borrow_mut().extend(found.iter().map(|(name, _)| name.span.start));
        let names: Vec<_> = found.iter().map(|(name, _)| name.text).collect();
        let (names, s) = (either(&names).replace(" or ", " and "), if names.len() > 1 { "s" } else { "" });
        if let Some((first, _)) = found.first() {
            self.source.report(first.span.clone(), format!("unknown key{s} {names} in {}", self.title), help);
        }
    }

    /// Warns of those of `keys` that are present; `why` follows the key in the message.
    pub(in crate::config) fn warn(&self, keys: &[&'static str], why: &str, help: &str) {
        for key in keys.iter().filter(|key| self.has(key)) {
            self.source.warn(self.key_span(key), format!("`{key}` {why}"), help);
        }
    }

    /// The unknown keys that are not reported yet.
    pub(in crate::config) fn unknown(&self) -> Vec<(Name<'a>, Field<'a>)> {
        let mut all = self.table.map(|table| entries(table, self.source)).unwrap_or_default();
        // The table has all keys, also those that are read only together with others.
        all.retain(|(name, _)| {
            !self.keys.names.contains(&name.text) && !self.refused.borrow().contains(&name.span.start)
        });
        all
    }

    fn report_unknown(&self, name: &Name<'a>, field: &Field<'a>) {
        self.refused.borrow_mut().push(name.span.start);
        if field.is_section(name.text) {
            return field.report_section(name);
        }
        let near = nearest(name.text, self.keys.names.iter().copied());
        let is_secret = near.is_some_and(|near| self.keys.secrets().contains(&near));
        if is_secret {
            self.source.hide(field.span.clone());
        }
        let all = format!("{} takes {}", self.title, either(self.keys.names).replace(" or ", " and "));
        let help = match (elsewhere::meant(&self.title, name.text), near) {
            (Some(meant), _) => meant.help(field.spelled().filter(|_| !is_secret), field.first_table()),
            (None, Some(near)) => format!("did you mean `{}`? {all}", self.corrected(near, field)),
            (None, None) => all,
        };
        let message = format!("unknown key {} in {}", quoted_key(name.text), self.title);
        self.source.report(name.span.clone(), message, help);
    }

    /// The key `near`, with a value that is a list if it needs one and the field is a text.
    fn corrected(&self, near: &str, field: &Field<'a>) -> String {
        let is_list = |key: &Described| {
            key.name == near && matches!(key.shape, Shape::List(element, ..) if !matches!(element, Shape::Table(_)))
        };
        // A text with variables may have become a secret.
        let written = field.value.as_str().filter(|text| field.part(0..text.len()).is_some());
        match written.filter(|_| (self.keys.keys)().iter().any(is_list)) {
            Some(text) => format!("{near} = [{}]", quoted(text)),
            None => near.to_owned(),
        }
    }
}

impl Drop for Section<'_> {
    fn drop(&mut self) {
        self.unknown().iter().for_each(|(name, field)| self.report_unknown(name, field));
    }
}

/// In the order of the file.
fn entries<'a>(table: &'a DeTable<'a>, source: &'a Source<'a>) -> Vec<(Name<'a>, Field<'a>)> {
    let entry = |(key, value): (&'a Spanned<Cow<'a, str>>, &'a Spanned<DeValue<'a>>)| {
        (Name { text: key.get_ref(), span: key.span() }, Field::new(key.get_ref(), value, source))
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

    /// The name of the first table below a table.
    fn first_table(&self) -> Option<&'a str> {
        let entries = entries(self.value.as_table()?, self.source);
        entries.iter().find(|(_, field)| field.value.is_table()).map(|(name, _)| name.text)
    }

    /// Whether the value of an unknown key is a section of the file, written below the title of another one.
    pub(super) fn is_section(&self, name: &str) -> bool {
        self.value.is_table() && self.source.sections.get().contains(&name)
    }

    /// Reports each key of a section that is written below the title of another one.
    pub(super) fn report_section(&self, name: &Name<'_>) {
        let keys = self.value.as_table().map(|table| entries(table, self.source)).unwrap_or_default();
        for (key, field) in &keys {
            let path = format!("{}.{}", name.text, key.text);
            let is_inline = || self.source.written(field.span.clone()).is_some_and(|value| value.starts_with('{'));
            if field.value.is_table() && !is_inline() {
                field.report_section(&Name { text: &path, span: key.span.clone() });
                continue;
            }
            let message = format!("{} belongs at the top of the file or under [{}]", quoted_key(&path), name.text);
            let help = format!(
                "a line below the title of a section is a key of that section: move it above all titles, or write \
                 {} below [{}]",
                quoted_key(key.text),
                name.text
            );
            self.source.report(key.span.clone(), message, help);
        }
        if keys.is_empty() {
            let message = format!("[{}] is a section of the file", name.text);
            self.source.report(name.span.clone(), message, format!("write [{}] alone on its line", name.text));
        }
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
