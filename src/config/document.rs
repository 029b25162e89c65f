//! The text of a configuration: of one file, of the files of a folder, or from a server.
//!
//! Environment variables in its values are replaced: `${NAME}`, or `${NAME:-text}` with a default, as in shells. `$${` stands
//! for `${`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{env, io};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::file::root;
use super::merge::Merge;
use super::read::Source;
use super::report::{self, Problem, quoted};
use super::syntax;
use super::texts::Texts;
use super::{Admin, Config, Problems, advice, file, is_secret};

/// For a file of a folder that is not there.
const NO_FILE: &str =
    "it is a symbolic link that leads nowhere, or it was removed just now: remove the link, or try again";

pub type ReadFile = (PathBuf, io::Result<Vec<u8>>);

pub struct Document<'a> {
    texts: Arc<Texts>,
    /// Where each text that can be parsed begins.
    starts: Vec<usize>,
    /// Problems of files that cannot be read.
    problems: Vec<Problem>,
    /// Where relative paths start.
    folder: Option<&'a Path>,
}

impl<'a> Document<'a> {
    pub fn one(name: &str, bytes: Vec<u8>, folder: Option<&'a Path>) -> Self {
        let (text, starts, problems) = match text(bytes) {
            Ok(text) => (text, vec![0], Vec::new()),
            Err((text, problem)) => (text, Vec::new(), vec![problem]),
        };
        Self { texts: Texts::one(name, text).into(), starts, problems, folder }
    }

    /// The texts from which a configuration was read.
    pub(super) fn of(config: &Config) -> Self {
        let texts = config.warnings.texts.clone();
        Self { starts: texts.starts(), texts, problems: Vec::new(), folder: None }
    }

    pub fn of_folder(folder: &'a Path, files: Vec<ReadFile>) -> Self {
        // Problems of no file are reported for the folder.
        let mut texts = Texts::without_text(&folder.display().to_string());
        let (mut starts, mut problems) = (Vec::new(), Vec::new());
        for (path, read) in files {
            let name = path.display().to_string();
            match read.map(text) {
                Ok(Ok(text)) => starts.push(texts.push(&name, Some(&text))),
                Ok(Err((text, problem))) => {
                    let start = texts.push(&name, Some(&text));
                    problems.push(problem.shifted(start));
                }
                Err(error) => problems.push(report::unreadable(texts.push(&name, None), &error, NO_FILE)),
            }
        }
        if texts.count() == 1 {
            let help = "add one, or name another folder or a file with --config";
            problems.push(Problem::new(0..0, "the folder has no file whose name ends with .toml", help));
        }
        Self { texts: texts.into(), starts, problems, folder: Some(folder) }
    }

    /// The error has all problems.
    pub fn config(self) -> Result<Config, Problems> {
        let Parsed { table, problems, is_broken } = self.parse();
        let source = self.source(problems);
        // After a syntax error, the recovered table is not what the user wrote, so its values are not checked.
        let config = (!is_broken).then(|| file::read(&table, &source));
        match config {
            Some(config) if source.is_clean() => {
                advice::warn(&config, &table, &source);
                Ok(Config { warnings: source.warnings(), ..config })
            }
            _ => Err(source.errors()),
        }
    }

    /// Reads `[admin]` alone, even if the rest of the text is wrong. `None` if there is no such section. Fails if that section
    /// is wrong, or if there is none and other problems may be the reason.
    pub fn admin(self) -> Result<Option<Admin>, Problems> {
        let Parsed { table, problems, .. } = self.parse();
        let source = self.source(problems);
        match file::read_admin(&table, &source) {
            None if !source.is_clean() => Err(source.errors()),
            admin => Ok(admin),
        }
    }

    /// Hides what follows the key of a secret in a problem, such as a second token: nothing else reads that.
    fn source(&self, problems: Vec<Problem>) -> Source<'_> {
        let secrets = root::TABLE.secrets();
        let spans: Vec<_> = problems.iter().map(|problem| problem.span.clone()).collect();
        let source = Source::new(&self.texts, self.folder, problems);
        for span in spans {
            let Some(key) = source.written(span.clone()).map(|key| key.trim_matches(['"', '\''])) else { continue };
            if secrets.contains(&key) || key.parse().as_ref().is_ok_and(is_secret) {
                let rest = self.texts.whole[span.end..].lines().next().unwrap_or_default();
                let value = rest.find('=').map_or(rest.len(), |sign| sign + 1);
                source.hide(span.end + value..span.end + rest.len());
            }
        }
        source
    }

    pub(super) fn parse(&self) -> Parsed<'_> {
        let mut parsed = Parsed {
            table: Spanned::new(0..0, DeTable::new()),
            is_broken: !self.problems.is_empty(),
            problems: self.problems.clone(),
        };
        let mut merge = Merge::new(&self.texts);
        for start in &self.starts {
            let text = &self.texts.whole[self.texts.file(*start)];
            let (table, errors) = DeTable::parse_recoverable(text);
            parsed.problems.extend(syntax::all(text, *start, &errors));
            parsed.is_broken |= errors.iter().any(|error| !syntax::is_duplicate(error));
            merge.add(table.into_inner(), *start);
        }
        let (mut table, problems) = merge.finish();
        parsed.problems.extend(problems);
        expand(&mut table, &value_of, &mut parsed.problems);
        parsed.table = Spanned::new(0..0, table);
        parsed
    }
}

pub(super) struct Parsed<'a> {
    pub(super) table: Spanned<DeTable<'a>>,
    problems: Vec<Problem>,
    /// Whether a part of the text is missing.
    is_broken: bool,
}

/// The text of a file; or what can be shown of it, and its problem.
fn text(bytes: Vec<u8>) -> Result<String, (String, Problem)> {
    String::from_utf8(bytes).map_err(|error| {
        let shown = String::from_utf8_lossy(error.as_bytes()).into_owned();
        let problem = report::not_utf8(error.as_bytes(), error.utf8_error().valid_up_to());
        (shown, problem)
    })
}

type Lookup<'v> = &'v dyn Fn(&str) -> Result<Option<String>, &'static str>;

fn value_of(name: &str) -> Result<Option<String>, &'static str> {
    match env::var(name) {
        Ok(value) => Ok(Some(value)),
        Err(env::VarError::NotPresent) => Ok(None),
        Err(env::VarError::NotUnicode(_)) => Err("is not UTF-8"),
    }
}

/// Replaces all variables in a table. A variable that cannot be replaced becomes a problem.
fn expand(table: &mut DeTable<'_>, lookup: Lookup<'_>, problems: &mut Vec<Problem>) {
    for (_, value) in table.iter_mut() {
        expand_value(value, lookup, problems);
    }
}

fn expand_value(value: &mut Spanned<DeValue<'_>>, lookup: Lookup<'_>, problems: &mut Vec<Problem>) {
    let span = value.span();
    match value.get_mut() {
        DeValue::String(text) if text.contains("${") => match expanded(text, lookup) {
            Ok(value) => *text = value.into(),
            Err((message, help)) => problems.push(Problem::new(span, message, help)),
        },
        DeValue::Array(list) => list.iter_mut().for_each(|value| expand_value(value, lookup, problems)),
        DeValue::Table(table) => expand(table, lookup, problems),
        _ => {}
    }
}

/// The error is a message and its help.
fn expanded(text: &str, lookup: Lookup<'_>) -> Result<String, (String, &'static str)> {
    const FORM: &str = "write ${NAME} or ${NAME:-default}; the text ${ itself is written $${";
    let (mut done, mut rest) = (String::new(), text);
    while let Some(at) = rest.find("${") {
        let (before, after) = (&rest[..at], &rest[at + 2..]);
        if let Some(before) = before.strip_suffix('$') {
            done.extend([before, "${"]);
            rest = after;
            continue;
        }
        let end = after.find('}').ok_or_else(|| (format!("a variable in {} has no }}", quoted(text)), FORM))?;
        let (name, default) = match after[..end].split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (&after[..end], None),
        };
        let is_name = |name: &str| {
            !name.starts_with(|first: char| first.is_ascii_digit())
                && !name.is_empty()
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        };
        if !is_name(name) {
            return Err((format!("{} is not the name of a variable", quoted(name)), FORM));
        }
        let found = lookup(name).map_err(|why| {
            (format!("the environment variable {} {why}", quoted(name)), "set it where the gateway is started")
        })?;
        // As in shells, an empty variable gets the default too.
        let value = match (found, default) {
            (Some(value), Some(default)) if value.is_empty() => default.to_owned(),
            (Some(value), _) => value,
            (None, Some(default)) => default.to_owned(),
            (None, None) => {
                let help = "set it where the gateway is started, or write ${NAME:-default}";
                return Err((format!("there is no environment variable {}", quoted(name)), help));
            }
        };
        done.extend([before, value.as_str()]);
        rest = &after[end + 1..];
    }
    Ok(done + rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<String, String> {
        let lookup = |name: &str| match name {
            "A" => Ok(Some("a}b${A}".to_owned())),
            "EMPTY" => Ok(Some(String::new())),
            "BAD" => Err("is not UTF-8"),
            _ => Ok(None),
        };
        expanded(text, &lookup).map_err(|(message, _)| message)
    }

    #[test]
    fn variables_are_replaced_once() {
        for (text, expected) in [
            ("${A}", "a}b${A}"),
            ("x${A}y${EMPTY}z", "xa}b${A}yz"),
            ("${EMPTY:-d}${NONE:-e f:-g}", "de f:-g"),
            ("${NONE:-}", ""),
            ("$${A} $A $ {A} {A}", "${A} $A $ {A} {A}"),
            ("$$${A}", "$${A}"),
            ("\u{e4}${A}\u{e4}", "\u{e4}a}b${A}\u{e4}"),
        ] {
            assert_eq!(of(text).as_deref(), Ok(expected), "{text}");
        }
        for (text, why) in [
            ("${NONE}", "there is no environment variable \"NONE\""),
            ("${BAD}", "is not UTF-8"),
            ("${A", "has no }"),
            ("${}", "\"\" is not the name"),
            ("${1A}", "is not the name"),
            ("${A-b}", "is not the name"),
            ("${ A }", "is not the name"),
        ] {
            let said = of(text).unwrap_err();
            assert!(said.contains(why), "{text}: {said}");
        }
    }
}
