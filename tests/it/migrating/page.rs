//! The configurations in docs/migrating.md: named blocks of code, such as "```nginx nginx-burst".

use std::path::Path;

pub(super) struct Block {
    pub(super) language: String,
    /// Blocks of different languages with the same name are equivalent.
    pub(super) name: String,
    pub(super) text: String,
}

pub(super) fn blocks() -> Vec<Block> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/migrating.md");
    let page = std::fs::read_to_string(file).unwrap();
    let mut blocks = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let Some(head) = line.strip_prefix("```") else { continue };
        let (language, name) = head.split_once(' ').unwrap_or_else(|| panic!("a block without a name: {line}"));
        let text =
            lines.by_ref().take_while(|line| *line != "```").fold(String::new(), |text, line| text + line + "\n");
        blocks.push(Block { language: language.to_owned(), name: name.to_owned(), text });
    }
    blocks
}

#[track_caller]
pub(super) fn block(language: &str, name: &str) -> String {
    let found: Vec<_> = blocks().into_iter().filter(|block| block.language == language && block.name == name).collect();
    assert_eq!(found.len(), 1, "blocks of {language} with the name {name}");
    found.into_iter().map(|block| block.text).collect()
}

/// The text with `from`, which must be there, replaced by `to`.
#[track_caller]
pub(super) fn replaced(text: &str, from: &str, to: &str) -> String {
    assert_eq!(text.matches(from).count(), 1, "{from:?} in {text}");
    text.replace(from, to)
}
