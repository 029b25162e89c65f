//! Problems of a configuration, and how they are shown: the place, the line, and what to write instead.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use annotate_snippets::{AnnotationKind, Group, Level, Origin, Renderer, Snippet};

use super::texts::{Texts, place};

/// The maximum number of problems that are shown.
const SHOWN: usize = 50;

/// The longest line that is shown with a problem, in bytes.
const LONGEST_LINE: usize = 2000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// In bytes of the text.
    pub span: Range<usize>,
    pub message: String,
    /// What is allowed, and the nearest valid spelling.
    pub help: Option<String>,
}

impl Problem {
    /// An empty `help` is none.
    pub(super) fn new(span: Range<usize>, message: impl Into<String>, help: impl Into<String>) -> Self {
        let help = Some(help.into()).filter(|help: &String| !help.is_empty());
        Self { span, message: message.into(), help }
    }

    /// The same problem of a text that begins at `start`.
    pub(super) fn shifted(self, start: usize) -> Self {
        Self { span: self.span.start + start..self.span.end + start, ..self }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Severity {
    /// The configuration is refused.
    Error,
    /// The configuration is valid, but probably not intended.
    Warning,
}

/// All errors of a configuration, or all warnings about it, in the order of its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems {
    pub(super) texts: Arc<Texts>,
    pub(super) severity: Severity,
    pub(super) found: Vec<Problem>,
    /// Places of secrets, which are not shown.
    pub(super) secrets: Vec<Range<usize>>,
    /// The files that the text names, as far as they are known.
    pub files: BTreeSet<PathBuf>,
}

impl Problems {
    pub(super) fn new(texts: Arc<Texts>, problems: Vec<Problem>) -> Self {
        Self::of(Severity::Error, texts, problems)
    }

    pub(super) fn warnings(texts: Arc<Texts>, problems: Vec<Problem>) -> Self {
        Self::of(Severity::Warning, texts, problems)
    }

    fn of(severity: Severity, texts: Arc<Texts>, mut problems: Vec<Problem>) -> Self {
        for problem in &mut problems {
            let file = texts.file(problem.span.start);
            let local = |offset: usize| offset.saturating_sub(file.start);
            let local = local(problem.span.start)..local(problem.span.end);
            let shown = within(&texts.whole[file.clone()], &local);
            problem.span = file.start + shown.start..file.start + shown.end;
        }
        problems.sort_by_key(|problem| problem.span.start);
        problems.dedup();
        Self { texts, severity, found: problems, secrets: Vec::new(), files: BTreeSet::new() }
    }

    /// Other errors of the same texts.
    pub(super) fn instead(&self, problems: Vec<Problem>) -> Self {
        Self { secrets: self.secrets.clone(), ..Self::new(self.texts.clone(), problems) }
    }

    /// The only problem of a file or folder that cannot be read.
    pub fn unreadable(path: &Path, error: &io::Error) -> Self {
        let texts = Texts::without_text(&path.display().to_string());
        let missing =
            "`--config FILE` names another one, and `gateway check --example > gateway.toml` writes one to begin with";
        Self::new(Arc::new(texts), vec![unreadable(0, error, missing)])
    }

    /// The only problem of a configuration without a text.
    pub fn without_text(name: &str, message: String, help: &str) -> Self {
        Self::new(Arc::new(Texts::without_text(name)), vec![Problem::new(0..0, message, help)])
    }

    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// The problems that are shown, each with its place, such as `gateway.toml:12:3`.
    pub fn located(&self) -> impl Iterator<Item = (String, &Problem)> {
        self.found.iter().take(SHOWN).map(|problem| (self.texts.place(problem.span.start), problem))
    }

    /// Adds the place of a problem, and its line unless that is too long. The renderer gets only this line, because it reads
    /// everything that it gets again for each problem.
    fn with_place<'a>(&'a self, group: Group<'a>, span: &Range<usize>) -> Group<'a> {
        let name = self.texts.name(span.start);
        if !self.texts.is_read(span.start) {
            return group.element(Origin::path(name));
        }
        let file = self.texts.file(span.start);
        let text = &self.texts.whole[file.clone()];
        let shown = span.start - file.start..span.end - file.start;
        let line = text[..shown.start].rfind('\n').map_or(0, |newline| newline + 1);
        let end = text[shown.end..].find('\n').map_or(text.len(), |newline| shown.end + newline);
        let end = shown.end + text[shown.end..end].trim_end_matches('\r').len();
        let (number, column) = place(text, shown.start);
        if end - line > LONGEST_LINE {
            return group.element(Origin::path(name).line(number).char_column(column));
        }
        let (shown, span) = self.without_secrets(file.start + line..file.start + end, span);
        let snippet = Snippet::source(shown).line_start(number).path(name);
        group.element(snippet.annotation(AnnotationKind::Primary.span(span)))
    }

    /// The line with stars instead of secrets, and the place of `span` in it.
    fn without_secrets(&self, line: Range<usize>, span: &Range<usize>) -> (String, Range<usize>) {
        let known = self.secrets.iter().filter(|secret| secret.start < line.end && line.start < secret.end).cloned();
        let credentials = credentials(&self.texts.whole[line.clone()]);
        let secrets: Vec<_> =
            known.chain(credentials.map(|part| line.start + part.start..line.start + part.end)).collect();
        let masked = |part: Range<usize>| -> String {
            let characters = self.texts.whole[part.clone()].char_indices();
            characters
                .map(|(at, c)| if secrets.iter().any(|secret| secret.contains(&(part.start + at))) { '*' } else { c })
                .collect()
        };
        let parts = [line.start..span.start, span.clone(), span.end..line.end].map(masked);
        let start = parts[0].len();
        (parts.concat(), start..start + parts[1].len())
    }

    pub fn hidden(&self) -> usize {
        self.found.len().saturating_sub(SHOWN)
    }
}

/// Shows every problem with its line, as compilers do.
impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let renderer = Renderer::plain();
        let (level, word) = match self.severity {
            Severity::Error => (Level::ERROR, "error"),
            Severity::Warning => (Level::WARNING, "warning"),
        };
        for (index, problem) in self.found.iter().take(SHOWN).enumerate() {
            if index > 0 {
                f.write_str("\n\n")?;
            }
            let title = level.clone().primary_title(problem.message.as_str());
            let group = self.with_place(Group::with_title(title), &problem.span);
            let help = problem.help.as_deref().map(|help| Level::HELP.message(help));
            let drawn = renderer.render(&[group.elements(help)]);
            f.write_str(&drawn.lines().map(str::trim_end).collect::<Vec<_>>().join("\n"))?;
        }
        let hidden = self.hidden();
        if hidden > 0 {
            write!(f, "\n\n{word}: and {hidden} more")?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

/// A problem of a file that begins at `start`. `missing` is the help if the file does not exist.
pub(super) fn unreadable(start: usize, error: &io::Error, missing: &'static str) -> Problem {
    let message = format!("cannot read the configuration: {error}");
    Problem::new(start..start, message, how_to_read(error.kind(), missing))
}

/// The first invalid byte is at `offset`.
pub(super) fn not_utf8(bytes: &[u8], offset: usize) -> Problem {
    let (line, column) = place(&String::from_utf8_lossy(bytes), offset);
    let byte = bytes.get(offset).copied().unwrap_or_default();
    let message = format!("the file is not UTF-8: byte 0x{byte:02x} at line {line}, column {column}");
    let span = offset..offset + char::REPLACEMENT_CHARACTER.len_utf8();
    Problem::new(span, message, "save the file in the encoding UTF-8")
}

/// `missing` is the help if the file does not exist.
pub(super) fn how_to_read(error: io::ErrorKind, missing: &'static str) -> &'static str {
    match error {
        io::ErrorKind::NotFound => missing,
        io::ErrorKind::IsADirectory => "this is a folder: name the file in it",
        io::ErrorKind::PermissionDenied => "let the user that runs gateway read it, and the folders that contain it",
        io::ErrorKind::TimedOut => "if a mounted file system does not answer, use a copy on another one",
        io::ErrorKind::FileTooLarge => "make it smaller",
        _ => "it must be a regular file that can be read",
    }
}

/// Cuts a span to the text, to whole characters and to its first line, so that it can be shown.
pub(super) fn within(text: &str, span: &Range<usize>) -> Range<usize> {
    let start = text.floor_char_boundary(span.start);
    let end = text.floor_char_boundary(span.end.max(start));
    let line = text[start..end].find(['\n', '\r']).map_or(end, |newline| start + newline);
    start..line
}

/// Formats names for a message: `` `a`, `b` or `c` ``.
pub(super) fn either(names: &[&str]) -> String {
    let quoted: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
    match quoted.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => "nothing".to_owned(),
    }
}

/// The candidate most similar to `name`, if any is similar enough.
pub(super) fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let plain = |name: &str| name.to_ascii_lowercase().replace(['_', ' '], "-");
    let name = plain(name);
    let reach = (name.chars().count() / 3).clamp(1, 4);
    // Longer names are not similar to any valid name, and a comparison takes time in proportion to the product of both lengths.
    let candidates = candidates.into_iter().filter(|_| name.len() <= 100);
    let distance = |candidate: &str| {
        let candidate = plain(candidate);
        let begun =
            name.len().min(candidate.len()) > 2 && (name.starts_with(&candidate) || candidate.starts_with(&name));
        // `warning` has many more letters than `warn`, but probably means the same.
        strsim::damerau_levenshtein(&name, &candidate).min(if begun { reach } else { usize::MAX })
    };
    candidates
        .map(|candidate| (distance(candidate), candidate))
        .filter(|(distance, _)| *distance <= reach)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

pub(super) fn did_you_mean(name: &str, allowed: &[&str], all: &str) -> String {
    match nearest(name, allowed.iter().copied()) {
        Some(near) => format!("did you mean `{near}`? {all}"),
        None => all.to_owned(),
    }
}

/// The places of user names and passwords in URLs.
fn credentials(text: &str) -> impl Iterator<Item = Range<usize>> {
    text.match_indices("://").filter_map(|(at, separator)| {
        let start = at + separator.len();
        let rest = text[start..].split(|c: char| c.is_whitespace() || c == '"' || c == '\'').next()?;
        Some(start..start + rest.rfind('@')?)
    })
}

/// Quotes a text of the user for a message: cuts long texts and hides credentials.
pub(super) fn quoted(text: &str) -> String {
    const LONGEST: usize = 60;
    let hide = |secret: Range<usize>| format!("{}***{}", &text[..secret.start], &text[secret.end..]);
    let hidden = credentials(text).next().map(hide);
    let text = hidden.as_deref().unwrap_or(text);
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{:?}...", &text[..end]),
        None => format!("{text:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_nearest_name() {
        assert_eq!(nearest("upstraem", ["upstream", "limits"]), Some("upstream"));
        assert_eq!(nearest("Header-Timeout", ["header_timeout", "idle_timeout"]), Some("header_timeout"));
        assert_eq!(nearest("colour", ["listen", "workers"]), None);
        assert_eq!(nearest("", ["listen"]), None);
    }

    #[test]
    fn the_help_for_a_file_that_cannot_be_read_depends_on_the_error() {
        let help = |kind| how_to_read(kind, "missing");
        assert_eq!(help(io::ErrorKind::NotFound), "missing");
        assert!(help(io::ErrorKind::PermissionDenied).starts_with("let the user that runs gateway read it"));
        assert!(help(io::ErrorKind::IsADirectory).contains("folder"));
    }

    #[test]
    fn user_names_of_urls_are_not_shown() {
        assert_eq!(quoted("a://b:c/d@e.test/f?g"), "\"a://***@e.test/f?g\"");
        assert_eq!(quoted("a://b c@d"), "\"a://b c@d\"");
        let text = "x = [\"a://b:c@d\", \"e@f\", 'g://h@i']";
        let problem = Problem { span: 0..1, message: "m".to_owned(), help: None };
        let shown = Problems::new(Arc::new(Texts::one("f", text.to_owned())), vec![problem]).to_string();
        assert!(shown.contains("x = [\"a://***@d\", \"e@f\", 'g://*@i']"), "{shown}");
    }

    #[test]
    fn shows_any_span() {
        let text = "a = 1\r\nb = \"ö\"\n";
        for start in 0..=text.len() + 1 {
            for end in 0..=text.len() + 1 {
                let problem = Problem { span: start..end, message: "m".to_owned(), help: None };
                let texts = Arc::new(Texts::one("f", text.to_owned()));
                assert!(Problems::new(texts, vec![problem]).to_string().contains("--> f:"));
            }
        }
    }

    #[test]
    fn shows_a_limited_number() {
        let problem = |at: usize| Problem { span: at..at, message: format!("{at}"), help: None };
        let texts = Arc::new(Texts::one("f", " ".repeat(100)));
        let problems = Problems::new(texts, (0..60).map(problem).collect());
        assert!(problems.to_string().ends_with("error: and 10 more"));
    }
}
