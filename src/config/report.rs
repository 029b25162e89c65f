//! Problems of a file, drawn with their place: `file:line:column`, the line, what is wrong and what would be right.

use std::fmt;
use std::io;
use std::ops::Range;
use std::string::FromUtf8Error;

use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Problem {
    /// Bytes of the text.
    pub(super) span: Range<usize>,
    pub(super) message: String,
    /// What is allowed, or nearest.
    pub(super) help: Option<String>,
}

impl Problem {
    pub(super) fn new(span: Range<usize>, message: impl Into<String>, help: impl Into<String>) -> Self {
        Self { span, message: message.into(), help: Some(help.into()) }
    }

    pub(super) fn plain(span: Range<usize>, message: impl Into<String>) -> Self {
        Self { span, message: message.into(), help: None }
    }
}

/// Everything that is wrong with a file.
#[derive(Clone, Debug)]
pub struct Problems {
    name: String,
    /// `None` where there is no text to show.
    text: Option<String>,
    problems: Vec<Problem>,
}

impl Problems {
    pub(super) fn new(name: &str, text: String, mut problems: Vec<Problem>) -> Self {
        problems.sort_by_key(|problem| (problem.span.start, problem.span.end));
        problems.dedup();
        Self { name: name.to_owned(), text: Some(text), problems }
    }

    pub(super) fn unreadable(name: &str, error: &io::Error) -> Self {
        let help = match error.kind() {
            io::ErrorKind::NotFound => Some("name the file with --config FILE".to_owned()),
            io::ErrorKind::IsADirectory => Some("name a file in it".to_owned()),
            _ => None,
        };
        let problem = Problem { span: 0..0, message: format!("cannot read {name}: {error}"), help };
        Self { name: name.to_owned(), text: None, problems: vec![problem] }
    }

    pub(super) fn not_text(name: &str, error: &FromUtf8Error) -> Self {
        let good = error.utf8_error().valid_up_to();
        let bytes = error.as_bytes();
        // The text up to the bad byte, with a stand-in for it, shows the place.
        let mut text = String::from_utf8_lossy(&bytes[..good]).into_owned();
        text.push(char::REPLACEMENT_CHARACTER);
        let message = format!("the file is not UTF-8: found the byte 0x{:02x}", bytes.get(good).unwrap_or(&0));
        let problem = Problem::new(good..text.len(), message, "save the file as UTF-8");
        Self { name: name.to_owned(), text: Some(text), problems: vec![problem] }
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, problem) in self.problems.iter().enumerate() {
            if number > 0 {
                f.write_str("\n\n")?;
            }
            let mut group = annotate_snippets::Group::with_title(Level::ERROR.primary_title(&problem.message));
            if let Some(text) = &self.text {
                let end = problem.span.end.min(text.len());
                let span = problem.span.start.min(end)..end;
                let place = Snippet::source(text).path(&self.name).annotation(AnnotationKind::Primary.span(span));
                group = group.element(place);
            }
            if let Some(help) = &problem.help {
                group = group.element(Level::HELP.message(help));
            }
            f.write_str(&Renderer::plain().render(&[group]))?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}
