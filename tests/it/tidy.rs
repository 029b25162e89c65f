//! Rules for the source files: modules import only modules below them, no imports form a circle, and files are short.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Lines of code in a file, without its tests.
const LONGEST_FILE: usize = 400;

fn sources() -> Vec<(PathBuf, String)> {
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push((path.clone(), fs::read_to_string(&path).unwrap()));
            }
        }
    }
    assert!(files.len() > 30, "only {} files", files.len());
    files
}

/// The path inside `src`, without `.rs`: `upstream/connection`.
fn name(path: &Path) -> String {
    let inside = path.strip_prefix(Path::new(env!("CARGO_MANIFEST_DIR")).join("src")).unwrap();
    inside.with_extension("").to_str().unwrap().to_owned()
}

/// The file `src/upstream/connection.rs` is in the module `upstream`.
fn module(path: &Path) -> String {
    name(path).split('/').next().unwrap().to_owned()
}

/// The code of a file without test-only items and their attributes. The code is formatted, so an item ends in its first line, or
/// with a brace below that line's first letter.
fn code(text: &str) -> String {
    let mut lines = text.lines();
    let mut code = String::new();
    while let Some(line) = lines.next() {
        if !["#[cfg(test)]", "#[cfg(any(test, fuzzing))]"].contains(&line.trim_start()) {
            code.extend([line, "\n"]);
            continue;
        }
        let is_attribute = |line: &&str| line.trim_start().starts_with("#[") || line.trim_start().starts_with("//");
        let item = lines.by_ref().find(|line| !is_attribute(line)).unwrap_or_default();
        if !item.ends_with([';', ',', '}']) {
            let indent = &item[..item.len() - item.trim_start().len()];
            lines.by_ref().find(|line| line.strip_prefix(indent).is_some_and(|rest| rest.starts_with('}')));
        }
    }
    code
}

#[test]
fn only_what_is_for_tests_is_no_code() {
    let text = "a;\n#[cfg(test)]\nmod tests;\nb;\nimpl C {\n    #[cfg(test)]\n    #[must_use]\n    fn d() {\n        e();\n    }\n\n    \
                fn f() {}\n}\n#[cfg(test)]\nuse g::{\n    h,\n};\n#[cfg(test)]\nmod tests {\n    i;\n}\nj;\n\
                #[cfg(any(test, fuzzing))]\nmod k;\n";
    assert_eq!(code(text), "a;\nb;\nimpl C {\n\n    fn f() {}\n}\nj;\n");
}

fn is_test(path: &Path) -> bool {
    path.file_stem().is_some_and(|name| name == "tests")
        || path.parent().is_some_and(|folder| folder.ends_with("tests"))
}

/// The modules at the top of `src` in the order of lib.rs.
fn plan() -> Vec<String> {
    let lib = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs")).unwrap();
    code(&lib).lines().filter_map(|line| Some(line.strip_prefix("pub mod ")?.strip_suffix(';')?.to_owned())).collect()
}

#[test]
fn modules_import_only_modules_below_them() {
    let plan = plan();
    assert!((5..=14).contains(&plan.len()), "too many for one page: {plan:?}");
    let mut wrong = BTreeSet::new();
    for (path, text) in sources() {
        let here = module(&path);
        let Some(level) = plan.iter().position(|module| *module == here) else { continue };
        // `crate::module::…`, also inside code, and `use crate::{module, …}`.
        let grouped =
            text.lines().filter_map(|line| line.trim().strip_prefix("use crate::{")).flat_map(|list| list.split(", "));
        let named = text.split("crate::").skip(1).chain(grouped);
        for name in named.map(|rest| rest.split(|c: char| !c.is_ascii_lowercase() && c != '_').next().unwrap()) {
            if plan.iter().position(|module| module == name).is_some_and(|other| other < level) {
                wrong.insert(format!("{here} imports {name}, which comes before it"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The names that follow `prefix` in a file's code: one, or those of a list in braces.
fn named_after<'a>(code: &'a str, prefix: &str) -> Vec<&'a str> {
    let is_separator = |c: char| !c.is_alphanumeric() && c != '_';
    // In `super::super::a` only the first `super::` begins a path.
    let paths = code.match_indices(prefix).filter(|(at, _)| !code[..*at].ends_with("super::"));
    let names = paths.flat_map(|(at, _)| {
        let rest = &code[at + prefix.len()..];
        match rest.strip_prefix('{') {
            Some(list) => list.split('}').next().unwrap().split(is_separator).collect(),
            None => vec![rest.split(is_separator).next().unwrap()],
        }
    });
    // Between a comma and a space there is no name.
    names.filter(|name| !name.is_empty()).collect()
}

#[test]
fn files_of_one_folder_import_each_other_one_way() {
    let without_comments = |text: &str| {
        code(text).lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
    };
    let files: BTreeMap<_, _> = sources()
        .iter()
        .filter(|(path, _)| !is_test(path))
        .map(|(path, text)| (name(path), without_comments(text)))
        .collect();
    let mut circles = BTreeMap::new();
    for (folder, parent) in &files {
        let inside = |file: &'_ str| file.strip_prefix(folder.as_str())?.strip_prefix('/').map(str::to_owned);
        // The child module behind each name: its own, and what the parent imports or re-exports from it.
        let mut owners = BTreeMap::new();
        for child in files.keys().filter_map(|file| inside(file)).filter(|file| !file.contains('/')) {
            for item in named_after(parent, &format!("use {child}::")) {
                owners.insert(item.to_owned(), child.clone());
            }
            owners.insert(child.clone(), child);
        }
        let mut imports: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for (file, code) in &files {
            let Some(file) = inside(file) else { continue };
            let child = file.split('/').next().unwrap();
            let prefixes =
                ["super::".repeat(file.split('/').count()), format!("crate::{}::", folder.replace('/', "::"))];
            let found =
                prefixes.iter().flat_map(|prefix| named_after(code, prefix)).filter_map(|item| owners.get(item));
            imports.entry(child.to_owned()).or_default().extend(found.filter(|other| *other != child).cloned());
        }
        // If imports form no circle, one of the modules imports none of the others.
        while let Some(last) =
            imports.iter().find(|(_, others)| others.iter().all(|other| !imports.contains_key(other)))
        {
            let last = last.0.clone();
            imports.remove(&last);
        }
        if !imports.is_empty() {
            circles.insert(folder.as_str(), imports);
        }
    }
    assert!(circles.is_empty(), "{circles:#?}");
}

#[test]
fn the_limiter_imports_only_the_base() {
    let limit = |path: &Path| module(path) == "limit" && !is_test(path);
    let imported: BTreeSet<_> = sources()
        .iter()
        .filter(|(path, _)| limit(path))
        .flat_map(|(_, text)| {
            text.split("crate::").skip(1).map(|rest| rest.split("::").take(2).collect::<Vec<_>>().join("::"))
        })
        .collect();
    // `limit` could be published as a crate together with these.
    assert_eq!(
        imported.iter().map(String::as_str).collect::<Vec<_>>(),
        ["base::clock", "base::fingerprint", "base::share", "base::units"]
    );
}

#[test]
fn files_are_small_and_say_what_they_are_for() {
    let mut wrong = Vec::new();
    for (path, text) in sources() {
        let lines = code(&text).lines().count();
        if lines > LONGEST_FILE {
            wrong.push(format!("{}: {lines} lines", path.display()));
        }
        if !text.starts_with("//! ") {
            wrong.push(format!("{}: no purpose in its first line", path.display()));
        }
        if text.contains("head of this file") {
            wrong.push(format!("{}: an item is described by a pointer to another comment", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn the_shared_store_does_not_know_which_servers_it_has() {
    let is_neutral = |name: &str| name.starts_with("store/shared/") && !name.starts_with("store/shared/memcached");
    let neutral = sources().into_iter().filter(|(path, _)| is_neutral(&name(path)) && !is_test(path));
    let named = neutral.filter(|(_, text)| code(text).to_lowercase().contains("memcache"));
    assert_eq!(named.map(|(path, _)| path).collect::<Vec<_>>(), [] as [PathBuf; 0]);
}

#[test]
fn what_has_one_place_stays_there() {
    for (what, places) in [
        ("clock_gettime", &["base/clock", "proxy/shed/cpu"][..]),
        ("memcache::", &["store/shared/memcached"]),
        ("prometheus::", &["admin"]),
        ("procfs::", &["admin"]),
        ("h2::", &["server", "upstream"]),
        ("clap::", &["commands"]),
        ("socket2::", &["net"]),
        ("aho_corasick::", &["config/overrides"]),
        ("aws_lc_rs::digest", &["admin", "config/known_keys", "net/tls", "proxy/tunnel", "store/shared/valkey"]),
        ("x509_cert::", &["net/tls"]),
        ("rustls_native_certs::", &["net/tls"]),
        ("notify::", &["process"]),
        ("jsonwebtoken::", &["base/jwt"]),
        ("prost::", &["proxy/envoy", "proxy/respond/grpc", "request/descriptors", "sources/otlp"]),
        ("tokio_postgres::", &["config", "sources/quotas"]),
        ("flate2::", &["commands/simulate", "process/source"]),
        ("indicatif::", &["commands/simulate"]),
        ("maud::", &["commands/simulate"]),
        ("ratatui::", &["commands/top"]),
    ] {
        let users: BTreeSet<_> = sources()
            .iter()
            .filter(|(path, text)| !is_test(path) && code(text).contains(what))
            .map(|(path, _)| name(path))
            .collect();
        assert!(!users.is_empty(), "no module uses {what}");
        let is_inside = |user: &str, place: &str| {
            user.strip_prefix(place).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let is_right = |user: &String| places.iter().any(|place| is_inside(user, place));
        assert!(users.iter().all(is_right), "{what} is used in {users:?}");
    }
}

#[test]
fn every_file_is_a_module() {
    for (path, _) in sources() {
        let (name, folder) = (path.file_stem().unwrap().to_str().unwrap(), path.parent().unwrap());
        if ["lib", "main"].contains(&name) {
            continue;
        }
        let face = if folder.ends_with("src") { folder.join("lib.rs") } else { folder.with_extension("rs") };
        let text = fs::read_to_string(&face).unwrap();
        let is_named = text.lines().any(|line| line.trim_start_matches("pub ") == format!("mod {name};"));
        assert!(is_named, "{} is not compiled: {} does not name it", path.display(), face.display());
    }
}
