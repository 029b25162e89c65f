//! `gateway schema` accepts the configurations of the documentation, and refuses what the gateway refuses, as far as it can.

use std::fs;
use std::path::{Path, PathBuf};

use jsonschema::Validator;
use serde_json::Value;

use crate::examples::{documented, shipped};
use crate::harness::run;

pub(crate) fn schema() -> Value {
    let output = run(&["schema"]);
    assert!(output.status.success() && output.stderr.is_empty());
    serde_json::from_slice(&output.stdout).unwrap()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn files(folder: &str, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.extension().is_some_and(|found| found == extension)).collect()
}

fn parsed(text: &str) -> Option<Value> {
    text.parse::<toml::Table>().ok().map(|table| serde_json::to_value(table).unwrap())
}

#[track_caller]
fn accepts(validator: &Validator, text: &str) {
    let json = parsed(text).unwrap_or_else(|| panic!("this is no TOML:\n{text}"));
    let errors = validator.iter_errors(&json).map(|error| format!("{}: {error}", error.instance_path()));
    assert_eq!(errors.collect::<Vec<_>>(), [] as [String; 0], "{text}");
}

#[test]
fn what_is_shipped_and_documented_is_accepted() {
    let schema = schema();
    jsonschema::draft7::meta::validate(&schema).unwrap();
    let validator = jsonschema::draft7::new(&schema).unwrap();
    shipped().iter().chain(&documented()).for_each(|text| accepts(&validator, text));
}

#[test]
fn what_the_gateway_warns_about_is_accepted() {
    let validator = jsonschema::draft7::new(&schema()).unwrap();
    let warned = files("tests/warned", "toml");
    assert!(warned.len() > 5);
    warned.iter().for_each(|file| accepts(&validator, &fs::read_to_string(file).unwrap()));
}

#[test]
fn unknown_keys_wrong_types_and_numbers_out_of_range_are_refused() {
    let validator = jsonschema::draft7::new(&schema()).unwrap();
    // Messages about a key have its name in backticks. The schema cannot say which keys a store needs, nor the range of a text.
    let is_expressible = |message: &str| {
        let is_of_key = message.starts_with('`') || message.starts_with("each of `");
        let is_range =
            message.contains(" is out of range: ") || message.contains(" must be ") || message.ends_with(" is empty");
        message.starts_with("unknown key ") || message.contains(" is not a value of `") || (is_of_key && is_range)
    };
    let mut checked = 0;
    for file in files("tests/broken", "toml") {
        let said = fs::read_to_string(file.with_extension("stderr")).unwrap();
        if !said.lines().filter_map(|line| line.strip_prefix("error: ")).any(is_expressible) {
            continue;
        }
        let Some(json) = fs::read_to_string(&file).ok().and_then(|text| parsed(&text)) else { continue };
        assert!(!validator.is_valid(&json), "{}", file.display());
        checked += 1;
    }
    assert!(checked > 30, "{checked}");
}
