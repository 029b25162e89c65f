//! Makes one table from the tables of several files, before anything is checked. So no check needs to know about several
//! files.
//!
//! Tables are merged, and lists of `[[tables]]` are concatenated in the order of the files. Everything else must be written
//! only once, and all keys of a limit, an upstream or a token must be in one file.

use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::file::root;
use super::read::{Shape, quoted_key};
use super::report::Problem;
use super::texts::Texts;

type Key<'a> = Spanned<DeString<'a>>;
type Value<'a> = Spanned<DeValue<'a>>;
type Pair<'a> = (Key<'a>, Value<'a>);

/// Whether the user chooses the names of the tables in a section.
fn is_named(section: &str) -> bool {
    (root::TABLE.keys)().iter().any(|key| key.name == section && matches!(key.shape, Shape::Named(_)))
}

pub(super) struct Merge<'a> {
    texts: &'a Texts,
    table: DeTable<'a>,
    /// The titles of the tables that are being merged: `limits`, `l` for `[limits.l]`.
    path: Vec<String>,
    problems: Vec<Problem>,
}

impl<'a> Merge<'a> {
    pub(super) fn new(texts: &'a Texts) -> Self {
        Self { texts, table: DeTable::new(), path: Vec::new(), problems: Vec::new() }
    }

    /// Adds the table of the file that begins at `start`.
    pub(super) fn add(&mut self, table: DeTable<'a>, start: usize) {
        let mut all = std::mem::take(&mut self.table);
        self.unite(&mut all, shifted_table(table, start));
        self.table = all;
    }

    /// The whole table, and problems about keys that are written twice.
    pub(super) fn finish(self) -> (DeTable<'a>, Vec<Problem>) {
        (self.table, self.problems)
    }

    fn unite(&mut self, all: &mut DeTable<'a>, table: DeTable<'a>) {
        for (key, value) in table {
            let (key, value) = match all.remove_entry(&key) {
                Some(known) => self.join(known, (key, value)),
                None => (key, value),
            };
            all.insert(key, value);
        }
    }

    /// Merges two values of the same key, or reports the second one.
    fn join(&mut self, (known_key, known): Pair<'a>, (key, value): Pair<'a>) -> Pair<'a> {
        let (place, span) = (known.span(), value.span());
        let open = |at: usize, bracket: &str| self.texts.whole[at..].starts_with(bracket);
        // An inline table cannot be extended; neither can a list, unless it is written as [[tables]].
        let is_inline = open(place.start, "{") || open(span.start, "{");
        let are_lists = open(place.start, "[[") && open(span.start, "[[");
        match (known.into_inner(), value.into_inner()) {
            (DeValue::Table(mut table), DeValue::Table(added)) if !is_inline => {
                let is_named = matches!(&self.path[..], [section] if is_named(section));
                let (was_titled, is_titled) = (open(place.start, "["), open(span.start, "["));
                let is_written =
                    |table: &DeTable<'_>, titled| titled || table.values().any(|value| !self.is_below(value));
                if is_named && is_written(&table, was_titled) && is_written(&added, is_titled) {
                    self.report(&known_key, &key);
                    return (known_key, Spanned::new(place, DeValue::Table(table)));
                }
                self.path.push(key.get_ref().to_string());
                self.unite(&mut table, added);
                self.path.pop();
                // Problems of the table are reported where its title is written.
                let (key, place) = if is_titled && !was_titled { (key, span) } else { (known_key, place) };
                (key, Spanned::new(place, DeValue::Table(table)))
            }
            (DeValue::Array(mut list), DeValue::Array(added)) if are_lists => {
                added.into_iter().for_each(|table| list.push(table));
                (known_key, Spanned::new(place, DeValue::Array(list)))
            }
            (known, _) => {
                self.report(&known_key, &key);
                (known_key, Spanned::new(place, known))
            }
        }
    }

    /// Whether a value is a table or a list with its own title, below the keys of the outer table.
    fn is_below(&self, value: &Value<'_>) -> bool {
        let is_inline = self.texts.whole[value.span().start..].starts_with('{');
        match value.get_ref() {
            DeValue::Table(_) => !is_inline,
            DeValue::Array(_) => self.texts.whole[value.span().start..].starts_with("[["),
            _ => false,
        }
    }

    fn report(&mut self, first: &Key<'_>, again: &Key<'_>) {
        let first = self.texts.place(first.span().start);
        let name = again.get_ref();
        let (message, help) = match &self.path[..] {
            [section] if is_named(section) => (
                format!("[{section}.{}] is defined twice: first at {first}", quoted_key(name).trim_matches('`')),
                format!("remove one of them, or give it another name: [{section}.NAME]"),
            ),
            path => {
                let table = if path.is_empty() { String::new() } else { format!(" of [{}]", path.join(".")) };
                let message = format!("{}{table} is defined twice: first at {first}", quoted_key(name));
                (message, "remove one of them: each key is written once, in one of the files".to_owned())
            }
        };
        self.problems.push(Problem::new(again.span(), message, help));
    }
}

/// Adds `by` to all places in the table.
fn shifted_table(table: DeTable<'_>, by: usize) -> DeTable<'_> {
    table.into_iter().map(|(key, value)| (shifted(key, by, |key| key), shifted_value(value, by))).collect()
}

fn shifted_value(value: Value<'_>, by: usize) -> Value<'_> {
    shifted(value, by, |value| match value {
        DeValue::Table(table) => DeValue::Table(shifted_table(table, by)),
        DeValue::Array(list) => DeValue::Array(list.into_iter().map(|value| shifted_value(value, by)).collect()),
        scalar => scalar,
    })
}

fn shifted<T>(spanned: Spanned<T>, by: usize, within: impl FnOnce(T) -> T) -> Spanned<T> {
    let span = spanned.span();
    Spanned::new(span.start + by..span.end + by, within(spanned.into_inner()))
}
