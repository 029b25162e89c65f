//! The documentation: its links lead somewhere, and its index has every page.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

pub(crate) fn pages() -> BTreeMap<PathBuf, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let docs = fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let pages = docs.filter(|path| path.extension().is_some_and(|ending| ending == "md"));
    pages.chain([root.join("README.md")]).map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
}

fn prose(page: &str) -> String {
    let mut is_code = false;
    let lines = page.lines().filter(|line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence && !line.starts_with("    ")
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn targets(page: &str) -> Vec<String> {
    let text = prose(page);
    let in_markdown = text.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0.to_owned()));
    let in_html = text.split("src").skip(1).filter_map(|rest| {
        let rest = rest.strip_prefix("set=\"").or_else(|| rest.strip_prefix("=\""))?;
        Some(rest.split_once('"')?.0.to_owned())
    });
    in_markdown.chain(in_html).collect()
}

/// The anchors of a page's headings, as Markdown viewers make them.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings = prose(page);
    let headings = headings.lines().filter(|line| line.starts_with('#'));
    let slug = |heading: &str| {
        let text = heading.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        text.chars().filter(|sign| sign.is_alphanumeric() || "-_".contains(*sign)).collect()
    };
    headings.map(slug).collect()
}

#[test]
fn every_link_leads_somewhere() {
    let pages = pages();
    let mut broken = Vec::new();
    for (path, text) in &pages {
        for target in targets(text).into_iter().filter(|target| !target.contains("://")) {
            let (file, anchor) = target.split_once('#').map_or((target.as_str(), None), |(file, at)| (file, Some(at)));
            let file = if file.is_empty() { path.clone() } else { path.parent().unwrap().join(file) };
            let is_there = fs::canonicalize(&file).is_ok_and(|file| {
                anchor.is_none_or(|anchor| pages.get(&file).is_some_and(|page| anchors(page).contains(anchor)))
            });
            if !is_there {
                broken.push(format!("{}: {target}", path.display()));
            }
        }
    }
    assert_eq!(broken, [""; 0]);
}

#[test]
fn the_index_has_every_page() {
    let pages = pages();
    let index = targets(&pages[&Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/README.md")]);
    let name = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
    let missing: Vec<_> = pages.keys().map(name).filter(|page| page != "README.md" && !index.contains(page)).collect();
    assert_eq!(missing, [""; 0]);
}

#[test]
fn the_first_page_and_the_map_are_short() {
    let pages = [(include_str!("../../README.md"), 150), (include_str!("../../docs/ARCHITECTURE.md"), 200)];
    for (page, most) in pages {
        let lines = page.lines().count();
        assert!(lines <= most, "{lines} lines: {}", page.lines().next().unwrap_or_default());
    }
}

#[test]
fn the_first_page_names_the_oldest_rust() {
    let sentence = concat!("This needs Rust ", env!("CARGO_PKG_RUST_VERSION"), ", ");
    assert!(include_str!("../../README.md").contains(sentence), "{sentence}");
}
