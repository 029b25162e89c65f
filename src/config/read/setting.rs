//! What is known of a key of the file: its name, its values and its default.

use std::ops::RangeInclusive;
use std::time::Duration;

use toml::de::DeValue;

use super::{Field, Source};

/// For `()`, the sections that have the key read the value themselves.
pub(in crate::config) struct Setting<T: 'static> {
    pub(in crate::config) name: &'static str,
    pub(in crate::config) help: &'static str,
    /// As the file would spell it; empty if there is no default.
    pub(in crate::config) default: &'static str,
    /// As the file would spell it; empty if the default is the example.
    pub(in crate::config) example: &'static str,
    pub(in crate::config) shape: Shape,
    /// The allowed words, with their meanings.
    pub(in crate::config) words: &'static [(&'static str, T)],
    /// Parses a value, or reports what is wrong with it.
    pub(in crate::config) read: fn(&Field<'_>, &Self) -> Option<T>,
    /// Whether a change needs a restart.
    pub(in crate::config) at_start: bool,
    pub(in crate::config) required: bool,
}

pub(in crate::config) enum Shape {
    Flag,
    /// An integer within these bounds.
    Number(u64, u64),
    /// A number from 0 to this one.
    Decimal(u32),
    Duration(RangeInclusive<Duration>),
    /// A duration, or "0" for no limit.
    DurationOrNone,
    /// In bytes.
    Size(RangeInclusive<u64>),
    Words,
    Text,
    /// A text that is a secret, names the place of one, or may contain one: nothing shows it.
    Secret,
    /// A text that matches a regular expression.
    Pattern(&'static str),
    /// One of these values, which are written as a TOML list.
    Values(&'static str),
    /// A list with at least and at most this many elements.
    List(&'static Shape, usize, usize),
    Table(&'static Table),
    /// A table without this one of its keys.
    TableWithout(&'static Table, &'static str),
    /// Tables, or other values, with names that the user chooses.
    Named(&'static Shape),
    /// The names and values of headers.
    Headers,
    Or(&'static [Shape]),
}

impl Shape {
    /// The least and the most elements, if the value can be a list.
    pub(in crate::config) fn bounds(&self) -> Option<(usize, usize)> {
        match self {
            Self::List(_, least, most) => Some((*least, *most)),
            Self::Or(shapes) => shapes.iter().find_map(Self::bounds),
            _ => None,
        }
    }

    /// The table that the value or its elements are.
    fn table(&self) -> Option<&'static Table> {
        match self {
            Self::Table(table) | Self::TableWithout(table, _) => Some(table),
            Self::List(shape, ..) | Self::Named(shape) => shape.table(),
            Self::Or(shapes) => shapes.iter().find_map(Self::table),
            _ => None,
        }
    }
}

/// All keys of a table of the file.
pub(in crate::config) struct Table {
    pub(in crate::config) help: &'static str,
    /// The name in messages; if empty, it is made from the outer table and the key.
    pub(in crate::config) title: &'static str,
    pub(in crate::config) names: &'static [&'static str],
    /// Each key, for the schema.
    pub(in crate::config) keys: fn() -> Vec<Described>,
}

impl Table {
    /// The keys of this table, and of those below it, whose values are secrets.
    pub(in crate::config) fn secrets(&self) -> Vec<&'static str> {
        let of_key = |key: Described| {
            let is_secret = matches!(key.shape, Shape::Secret | Shape::Named(Shape::Secret));
            let below = key.shape.table().map(Self::secrets).unwrap_or_default();
            below.into_iter().chain(is_secret.then_some(key.name))
        };
        (self.keys)().into_iter().flat_map(of_key).collect()
    }
}

/// A key without the type of its values.
pub(in crate::config) struct Described {
    pub(in crate::config) name: &'static str,
    pub(in crate::config) help: &'static str,
    pub(in crate::config) default: &'static str,
    pub(in crate::config) example: &'static str,
    pub(in crate::config) shape: &'static Shape,
    pub(in crate::config) words: Vec<&'static str>,
    pub(in crate::config) at_start: bool,
    pub(in crate::config) required: bool,
}

impl<T> Setting<T> {
    /// The same setting, where a change needs a restart.
    pub(in crate::config) const fn at_start(self) -> Self {
        Self { at_start: true, ..self }
    }

    pub(in crate::config) const fn required(self) -> Self {
        Self { required: true, ..self }
    }

    pub(in crate::config) fn described(&'static self) -> Described {
        let Self { name, help, default, example, shape, words, at_start, required, .. } = self;
        let words = words.iter().map(|(word, _)| *word).collect();
        Described { name, help, default, example, shape, words, at_start: *at_start, required: *required }
    }

    /// What `read` makes of the default.
    pub(super) fn default<R>(&self, source: &Source<'_>, read: impl Fn(&Field<'_>) -> Option<R>) -> R {
        let value = DeValue::parse(self.default).ok();
        let field = value.as_ref().map(|value| Field { span: 0..0, ..Field::new(self.name, value, source) });
        let read = field.and_then(|field| read(&field));
        // Cannot happen: a test reads every section without its keys.
        read.unwrap_or_else(|| unreachable!("the default of `{}` is valid", self.name))
    }

    /// The table that the value or its elements are.
    pub(super) fn table(&self) -> &'static Table {
        self.shape.table().unwrap_or_else(|| unreachable!("`{}` has a table", self.name))
    }

    /// The key with its example, as a line of the file.
    pub(super) fn assignment(&self) -> String {
        format!("{} = {}", self.name, self.example())
    }

    pub(in crate::config) fn example(&self) -> &'static str {
        if self.example.is_empty() { self.default } else { self.example }
    }
}

impl<T: Copy + PartialEq> Setting<T> {
    pub(in crate::config) fn word(&self, value: T) -> &'static str {
        self.words.iter().find(|(_, one)| *one == value).map_or("", |(word, _)| word)
    }
}

/// The name of a key, which may be a keyword of Rust: `r#type`.
pub(in crate::config) const fn name(identifier: &'static str) -> &'static str {
    match identifier.as_bytes() {
        [b'r', b'#', ..] => identifier.split_at(2).1,
        _ => identifier,
    }
}

/// Tables of the file as modules, with a [`Setting`] for each key: its help, its name, what it takes, its default, and an
/// example behind `=>`.
macro_rules! tables {
    ($($(#[doc = $about:literal])+ $table:ident $($title:literal)? {
        $($(#[doc = $help:literal])+ $key:ident: $value:ty = $kind:expr $(, $default:tt)? $(=> $example:tt)?;)*
    })*) => { $(
        $(#[doc = $about])+
        #[allow(non_upper_case_globals, reason = "keys have the names that they have in the file")]
        pub(in crate::config) mod $table {
            use super::*;

            $($(#[doc = $help])+ pub(in crate::config) static $key: $crate::config::read::Setting<$value> = $crate::config::read::Setting {
                name: $crate::config::read::name(stringify!($key)),
                help: concat!($($help),+),
                default: concat!($(stringify!($default))?),
                example: concat!($(stringify!($example))?),
                ..$kind
            };)*

            pub(in crate::config) static TABLE: $crate::config::read::Table = $crate::config::read::Table {
                help: concat!($($about),+),
                title: concat!($($title)?),
                names: &[$($crate::config::read::name(stringify!($key))),*],
                keys: || vec![$($key.described()),*],
            };
        }
    )* };
}
pub(in crate::config) use tables;
