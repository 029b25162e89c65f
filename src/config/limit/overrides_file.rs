//! `overrides_file`: up to a million overrides in a separate file, as CSV or TOML.

use std::collections::HashMap;
use std::io::BufReader;
use std::path::PathBuf;
use std::sync::Arc;

use csv::{Position, ReaderBuilder, StringRecord, Trim};
use toml::de::DeTable;

use super::exceptions::{Kinds, TWICE, entry, exception};
use super::keys as limit;
use super::rates::{Terms, split};
use crate::config::kinds::shaped;
use crate::config::overrides::{Allowance, Builder};
use crate::config::read::{Section, Shape, Source, Wrong, tables};
use crate::config::regular_file::{self, NamedFile, RegularFile};
use crate::config::report::quoted;
use crate::config::syntax;
use crate::config::texts::{Texts, place};
use crate::config::values;

const MOST_KEYS: usize = 1_000_000;
const HEADER: &str = "the first line must be: key,rates";
const ROW: &str = "after the key write `exempt`, `block`, or rates with spaces between them, like 100/s 5000/10m";

tables! {
    /// A file of overrides.
    keys "the file" {
        /// All overrides.
        overrides: () = shaped(Shape::List(&Shape::Table(&exception::TABLE), 0, usize::MAX)).required();
    }
}

/// Reads the file into `overrides`. Returns its path.
pub(super) fn read(section: &Section<'_>, terms: &Terms, kinds: Kinds<'_>, overrides: &mut Builder) -> Option<PathBuf> {
    let field = section.field(&limit::overrides_file)?;
    let file = NamedFile::new(&field)?;
    let first = overrides.added();
    match file.path.extension().and_then(|end| end.to_str()) {
        Some("csv") => {
            let rows = Rows { file: &file, terms, kinds, lines: Vec::new(), first, known: HashMap::new() };
            rows.read(overrides);
        }
        Some("toml") => toml(&file, terms, kinds, overrides),
        _ => {
            let message = format!("{} is neither .csv nor .toml", quoted(file.name));
            field.report(message, "its name must end with one of them");
        }
    }
    Some(file.path)
}

fn toml(file: &NamedFile<'_>, terms: &Terms, kinds: Kinds<'_>, overrides: &mut Builder) {
    let bytes = match regular_file::read(&file.path) {
        Ok(bytes) => bytes,
        Err(error) => return file.unreadable(&error),
    };
    let text = match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
            let line = memchr::memchr_iter(b'\n', before).count() as u64 + 1;
            return file.report(line, 1, "the file is not UTF-8", "");
        }
    };
    let texts = Arc::new(Texts::one(file.name, text));
    let text = &texts.whole;
    let (table, errors) = DeTable::parse_recoverable(text);
    let source = Source::new(&texts, file.field.source.folder, syntax::all(text, 0, &errors));
    if errors.is_empty() {
        let root = Section::root(&table, &keys::TABLE, &source);
        root.required(&keys::overrides, "a file of overrides is a list of [[overrides]], each with `keys`");
        for section in root.tables(&keys::overrides) {
            entry(&section, terms, kinds, overrides);
        }
    }
    for (place, warning) in source.warnings().located() {
        let help = warning.help.as_deref().unwrap_or_default();
        file.field.source.warn(file.field.span.clone(), format!("{place}: {}", warning.message), help);
    }
    for problem in source.into_problems() {
        let (line, column) = place(text, problem.span.start);
        file.report(line as u64, column as u64, &problem.message, problem.help.as_deref().unwrap_or_default());
    }
    file.report_rest();
}

/// The rows of a CSV file that were read so far.
struct Rows<'a> {
    file: &'a NamedFile<'a>,
    terms: &'a Terms,
    kinds: Kinds<'a>,
    /// The line of each override whose index is at least `first`.
    lines: Vec<u64>,
    first: usize,
    /// Texts of rates that were already read, because most keys share a few of them.
    known: HashMap<String, Allowance>,
}

impl Rows<'_> {
    fn read(mut self, overrides: &mut Builder) {
        let file = match RegularFile::open(&self.file.path) {
            Ok(file) => BufReader::new(file),
            Err(error) => return self.file.unreadable(&error),
        };
        let mut reader = ReaderBuilder::new().flexible(true).trim(Trim::All).from_reader(file);
        match reader.headers() {
            Ok(headers) if headers == vec!["key", "rates"] => {}
            Ok(_) => return self.file.report(1, 1, "this is not the header of a file of overrides", HEADER),
            Err(error) => return self.broken(&error),
        }
        let mut record = StringRecord::new();
        loop {
            let at = reader.position().clone();
            match reader.read_record(&mut record) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) if error.is_io_error() => return self.broken(&error),
                Err(error) => {
                    self.broken(&error);
                    continue;
                }
            }
            let at = record.position().cloned().unwrap_or(at);
            if let Err((column, wrong)) = self.add(&record, &at, overrides) {
                self.file.report(at.line(), column, &wrong.message, &wrong.help);
            }
            if overrides.added() - self.first > MOST_KEYS {
                return self.file.report(at.line(), 1, "the file has too many keys", &format!("allowed: {MOST_KEYS}"));
            }
        }
        self.file.report_rest();
    }

    fn broken(&self, error: &csv::Error) {
        let line = error.position().map_or(1, Position::line);
        match error.kind() {
            csv::ErrorKind::Utf8 { .. } => self.file.report(line, 1, "the line is not UTF-8", ""),
            csv::ErrorKind::Io(error) => self.file.unreadable(error),
            _ => self.file.report(line, 1, &error.to_string(), ROW),
        }
    }

    fn allowance(&self, text: &str) -> Result<Allowance, Wrong> {
        match text {
            "exempt" => return Ok(Allowance::Exempt),
            "block" => return Ok(Allowance::Block),
            "" => return Err(Wrong::new("the row has no rates", ROW)),
            _ if text.contains(',') => {
                let help = format!("write spaces between them: {}", split(&text.replace(',', " ")).join(" "));
                return Err(Wrong::new("there must be no commas between rates", help));
            }
            _ if !self.terms.has_rates => {
                let help = "add rates to it, or write `exempt` or `block`";
                return Err(Wrong::new("the limit has no rates to override", help));
            }
            _ => {}
        }
        let texts = split(text);
        if texts.len() > values::MOST {
            let help = format!("allowed: at most {}", values::MOST);
            return Err(Wrong::new(format!("the row has {} rates", texts.len()), help));
        }
        let rates = self.terms.rates_in(texts.iter().map(String::as_str))?;
        Ok(Allowance::Rates(Arc::from(rates)))
    }

    /// The error is the column and the problem.
    fn add(&mut self, row: &StringRecord, at: &Position, overrides: &mut Builder) -> Result<(), (u64, Wrong)> {
        let (Some(key), Some(rates), None) = (row.get(0), row.get(1), row.get(2)) else {
            return Err((1, Wrong::new(format!("the line has {} field(s), not 2", row.len()), ROW)));
        };
        let patterns = self.kinds.patterns(key).map_err(|wrong| (1, wrong))?;
        let allowance = match self.known.get(rates) {
            Some(known) => known.clone(),
            None => {
                let column = key.chars().count() as u64 + 2;
                let allowance = self.allowance(rates).map_err(|wrong| (column, wrong))?;
                self.known.insert(rates.to_owned(), allowance.clone());
                allowance
            }
        };
        self.lines.push(at.line());
        if let Some(earlier) = overrides.add(patterns, allowance) {
            let earlier = earlier.checked_sub(self.first).and_then(|place| self.lines.get(place));
            let field = self.file.field;
            let inline = || format!("in {}", field.source.texts.name(field.span.start));
            let earlier = earlier.map_or_else(inline, |line| format!("on line {line}"));
            return Err((1, Wrong::new(format!("this key has an override already, {earlier}"), TWICE)));
        }
        Ok(())
    }
}
