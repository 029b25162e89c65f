//! The text of a configuration: of one file, of the files of a folder, or from a server.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use toml::Spanned;
use toml::de::DeTable;

use super::merge::Merge;
use super::read::Source;
use super::report::{self, Problem};
use super::texts::Texts;
use super::{Admin, Config, Problems, advice, check, file, variables};

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
        match text(bytes) {
            Ok(text) => Self { texts: Texts::one(name, text).into(), starts: vec![0], problems: Vec::new(), folder },
            Err((text, problem)) => {
                Self { texts: Texts::one(name, text).into(), starts: Vec::new(), problems: vec![problem], folder }
            }
        }
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
                    let span = problem.span.start + start..problem.span.end + start;
                    problems.push(Problem { span, ..problem });
                }
                Err(error) => problems.push(report::unreadable(texts.push(&name, None), &error, NO_FILE)),
            }
        }
        if texts.count() == 1 {
            let help = "add one, or name another folder or a file with --config".to_owned();
            let message = "the folder has no file whose name ends with .toml".to_owned();
            problems.push(Problem { span: 0..0, message, help: Some(help) });
        }
        Self { texts: texts.into(), starts, problems, folder: Some(folder) }
    }

    /// # Errors
    /// All problems at once.
    pub fn config(self) -> Result<Config, Problems> {
        let Parsed { table, problems, is_broken } = self.parse();
        let source = Source::new(&self.texts, self.folder, problems);
        // After a syntax error, the recovered table is not what the user wrote, so its values are not checked.
        let config = (!is_broken).then(|| check::resolve(file::read(&table, &source), &source));
        match config {
            Some(config) if source.is_clean() => {
                advice::warn(&config, &table, &source);
                Ok(Config { warnings: source.warnings(), ..config })
            }
            _ => Err(source.errors()),
        }
    }

    /// Reads `[admin]` alone, even if the rest of the text is wrong. `None` if there is no such section.
    ///
    /// # Errors
    /// If that section is wrong, or if there is none and other problems may be the reason.
    pub fn admin(self) -> Result<Option<Admin>, Problems> {
        let Parsed { table, problems, .. } = self.parse();
        let source = Source::new(&self.texts, self.folder, problems);
        match file::read_admin(&table, &source) {
            None if !source.is_clean() => Err(source.errors()),
            admin => Ok(admin),
        }
    }

    fn parse(&self) -> Parsed<'_> {
        let mut parsed = Parsed {
            table: Spanned::new(0..0, DeTable::new()),
            is_broken: !self.problems.is_empty(),
            problems: self.problems.clone(),
        };
        let mut merge = Merge::new(&self.texts);
        for start in &self.starts {
            let text = &self.texts.whole()[self.texts.file(*start)];
            let (table, errors) = DeTable::parse_recoverable(text);
            parsed.problems.extend(report::all_syntax(text, *start, &errors));
            parsed.is_broken |= errors.iter().any(|error| !report::is_duplicate(error));
            merge.add(table.into_inner(), *start);
        }
        let (mut table, problems) = merge.finish();
        parsed.problems.extend(problems);
        variables::expand(&mut table, &mut parsed.problems);
        parsed.table = Spanned::new(0..0, table);
        parsed
    }
}

struct Parsed<'a> {
    table: Spanned<DeTable<'a>>,
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
