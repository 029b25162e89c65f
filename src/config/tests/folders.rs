//! A folder of files means the same as one file, and each problem is reported at its place.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use proptest::prelude::*;

use super::super::document::Document;
use super::super::texts::Texts;
use super::super::{Config, Problems, parse};
use super::{FULL, LIMITS};

fn read(texts: &[String]) -> Result<Config, Problems> {
    let files = texts.iter().enumerate();
    let files = files.map(|(index, text)| (PathBuf::from(format!("{index}.toml")), Ok(text.clone().into_bytes())));
    Document::of_folder(Path::new("conf"), files.collect()).config()
}

fn load(folder: &Path) -> Result<Config, Problems> {
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    files.sort();
    let read = |path: PathBuf| (path.clone(), fs::read(path));
    Document::of_folder(folder, files.into_iter().map(read).collect()).config()
}

/// The configuration without warnings, which have the names of files.
fn meaning(config: Config) -> Config {
    let warnings = Problems::warnings(Arc::new(Texts::without_text("")), Vec::new());
    Config { warnings, ..config }
}

/// Splits a text before the title of each table.
fn tables(text: &str) -> Vec<String> {
    let mut tables = vec![String::new()];
    for line in text.lines() {
        if line.starts_with('[') {
            tables.push(String::new());
        }
        let last = tables.last_mut().unwrap();
        *last += line;
        last.push('\n');
    }
    tables
}

proptest! {
    #[test]
    fn a_file_that_is_split_means_the_same(
        full in any::<bool>(),
        cuts in prop::collection::vec(prop::bool::weighted(0.4), 40),
    ) {
        let whole = if full { FULL } else { LIMITS };
        let mut files = vec![String::new()];
        for (table, cut) in tables(whole).iter().zip(&cuts) {
            if *cut {
                files.push(String::new());
            }
            *files.last_mut().unwrap() += table;
        }
        prop_assert!(tables(whole).len() < cuts.len());
        let wanted = parse(whole.as_bytes(), "gateway.toml", Path::new("conf")).unwrap();
        let found = read(&files).map_err(|problems| TestCaseError::fail(problems.to_string()))?;
        prop_assert_eq!(meaning(found), meaning(wanted));
    }

    #[test]
    fn arbitrary_files_do_not_panic(
        texts in prop::collection::vec("(\\[?\\[(limits|server|routes)(\\.[ab])?\\]?\\]\n)?([a-b.]{1,4} ?= ?[0-9\\[{\"}\\]é]{0,5}\n){0,3}", 0..4),
    ) {
        if let Err(problems) = read(&texts) {
            prop_assert!(!problems.to_string().is_empty());
            prop_assert!(problems.located().all(|(place, _)| place.starts_with("conf") || place.contains(".toml:")));
        }
    }
}

#[test]
fn deep_files_do_not_panic() {
    for text in ["a.".repeat(100_000) + "a = 1", "a = ".to_owned() + &"[".repeat(100_000), "[a]\n".repeat(1000)] {
        assert!(!read(&[text.clone(), text]).unwrap_err().to_string().is_empty());
    }
}

/// The errors of each broken folder are compared with the text beside it; `UPDATE=1` writes these texts.
#[test]
fn broken_folders_are_explained() {
    // Tests run in the folder of the package, so relative names of files are the same on every machine.
    let folders = fs::read_dir("tests/broken_folders").unwrap().map(|entry| entry.unwrap().path());
    let folders: Vec<PathBuf> = folders.filter(|path| path.is_dir()).collect();
    assert!(folders.len() >= 4);
    for folder in folders {
        let said = format!("{}\n", load(&folder).unwrap_err());
        let beside = folder.with_extension("stderr");
        if std::env::var_os("UPDATE").is_some() {
            fs::write(&beside, &said).unwrap();
        }
        assert_eq!(said, fs::read_to_string(&beside).unwrap_or_default(), "{}", folder.display());
    }
}

#[test]
fn every_problem_names_its_file() {
    let problems = load(Path::new("tests/broken_folders/each_file")).unwrap_err();
    let places: Vec<_> = problems.located().map(|(place, _)| place.rsplit('/').next().unwrap().to_owned()).collect();
    assert_eq!(places, ["10-server.toml:2:11", "20-limits.toml:4:9", "30-routes.toml:5:11", "30-routes.toml:6:13"]);
}

#[test]
fn a_table_that_another_file_extends_is_where_its_title_is() {
    let texts = [
        "[[limits.a.overrides]]\nkeys = [\"x\"]\nexempt = true\n",
        "[limits.a]\nkey = \"bearer\"\n[[routes]]\npath = \"/*\"\nlimits = [\"a\"]\nrespond = { status = 200 }\n",
    ];
    let said = read(&texts.map(str::to_owned)).unwrap_err().to_string();
    assert!(said.contains("--> 1.toml:1:1") && !said.contains("0.toml"), "{said}");
}
