//! The texts of a configuration: one, or one for each file of a folder, concatenated. A place is an offset into all of them
//! together, so it also tells the file.

use std::ops::Range;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Texts {
    pub(super) whole: String,
    /// At least one, in the order of the text.
    files: Vec<TextFile>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct TextFile {
    /// As the user wrote it.
    name: String,
    start: usize,
    /// Whether there is a text: a file that cannot be read has none.
    is_read: bool,
}

impl Texts {
    pub(super) fn one(name: &str, text: String) -> Self {
        Self { whole: text, files: vec![TextFile { name: name.to_owned(), start: 0, is_read: true }] }
    }

    /// A file or a folder without a text.
    pub(super) fn without_text(name: &str) -> Self {
        Self { whole: String::new(), files: vec![TextFile { name: name.to_owned(), start: 0, is_read: false }] }
    }

    /// Adds a file, with its text if it could be read. Returns where it begins.
    pub(super) fn push(&mut self, name: &str, text: Option<&str>) -> usize {
        // So the end of a file differs from the beginning of the next one.
        self.whole.push('\n');
        let start = self.whole.len();
        self.whole.push_str(text.unwrap_or_default());
        self.files.push(TextFile { name: name.to_owned(), start, is_read: text.is_some() });
        start
    }

    pub(super) fn count(&self) -> usize {
        self.files.len()
    }

    /// Where the text of each file begins.
    pub(super) fn starts(&self) -> Vec<usize> {
        self.files.iter().filter(|file| file.is_read).map(|file| file.start).collect()
    }

    fn index(&self, offset: usize) -> usize {
        self.files.partition_point(|file| file.start <= offset).saturating_sub(1)
    }

    pub(super) fn name(&self, offset: usize) -> &str {
        &self.files[self.index(offset)].name
    }

    pub(super) fn file(&self, offset: usize) -> Range<usize> {
        let index = self.index(offset);
        let end = self.files.get(index + 1).map_or(self.whole.len(), |next| next.start - 1);
        self.files[index].start..end
    }

    pub(super) fn is_read(&self, offset: usize) -> bool {
        self.files[self.index(offset)].is_read
    }

    /// A place like `gateway.toml:12:3`, or only the name if there is no text.
    pub(super) fn place(&self, offset: usize) -> String {
        if !self.is_read(offset) {
            return self.name(offset).to_owned();
        }
        let file = self.file(offset);
        let (line, column) = place(&self.whole[file.clone()], offset.saturating_sub(file.start));
        format!("{}:{line}:{column}", self.name(offset))
    }
}

/// Line and column of an offset, both counted from 1.
pub(super) fn place(text: &str, offset: usize) -> (usize, usize) {
    let before = &text[..text.floor_char_boundary(offset)];
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_in_their_files() {
        let mut texts = Texts::without_text("folder");
        let a = texts.push("a", Some("1\n2"));
        let b = texts.push("b", Some(""));
        let c = texts.push("c", None);
        let d = texts.push("d", Some("é3\n"));
        assert_eq!(&texts.whole[texts.file(a)], "1\n2");
        assert_eq!(&texts.whole[texts.file(d)], "é3\n");
        let places = [0, a, a + 2, a + 3, b, c, d, d + 2, d + 4, usize::MAX].map(|offset| texts.place(offset));
        let wanted = ["folder", "a:1:1", "a:2:1", "a:2:2", "b:1:1", "c", "d:1:1", "d:1:2", "d:2:1", "d:2:1"];
        assert_eq!(places, wanted);
        assert_eq!([0, a, c, d].map(|offset| texts.is_read(offset)), [false, true, false, true]);
        assert_eq!((texts.count(), Texts::one("f", "x".to_owned()).place(9)), (5, "f:1:2".to_owned()));
    }

    #[test]
    fn counts_lines_and_characters() {
        assert_eq!(place("", 0), (1, 1));
        assert_eq!(place("a\nöb", 4), (2, 2));
        assert_eq!(place("a\n", 99), (2, 1));
    }
}
