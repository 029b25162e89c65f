//! The configurations of gateway.toml, README.md and docs: each is valid, the recipes also all together.

use std::fs;
use std::path::Path;
use std::process::Command;

use jsonwebtoken::Algorithm;
use toml::{Table, Value, toml};

use crate::documents::pages;
use crate::harness::{Authority, OCSP_RESPONSE, Signer, key_set};

const SHIPPED: &str = include_str!("../../gateway.toml");

fn named_files() -> Authority {
    let authority = Authority::new();
    let write = |name: &str, text: &str| fs::write(authority.folder().join(name), text).unwrap();
    fs::create_dir(authority.folder().join("tls")).unwrap();
    for name in ["tls/site", "tls/wild", "tls/client"] {
        authority.issue(name, "site", &["site.test"]);
    }
    for name in ["tls/ca.pem", "tls/clients-ca.pem"] {
        fs::copy(authority.ca(), authority.folder().join(name)).unwrap();
    }
    write("keys.txt", "partner-7\n");
    write("quotas.csv", "key,rates\npartner-7,500/s 50000000/month\nstolen-key,block\n");
    write("admin-token", "secret");
    write("origin", "secret");
    write("valkey-password", "secret");
    fs::write(authority.folder().join("tls/wild.ocsp"), OCSP_RESPONSE).unwrap();
    write("jwks.json", &key_set(&[&Signer::new(Algorithm::ES256, "a")]));
    authority
}

/// The problems that `gateway check` finds in a configuration whose files are in this folder.
fn said_against(folder: &Path, text: &str) -> Option<String> {
    let file = folder.join("gateway.toml");
    fs::write(&file, text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_gateway"));
    let variables =
        [("COLLECTOR_TOKEN", "secret"), ("APP_AUTHORIZATION", "secret"), ("NOTICE_SECRET", "sixteen-letters-and-more")];
    let output = command.arg("check").arg(&file).envs(variables).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    (!output.status.success() || !said.is_empty()).then(|| format!("{said}in:\n{text}"))
}

/// gateway.toml as it is, with each of its recipes, and with all.
pub(crate) fn shipped() -> Vec<String> {
    let (live, recipes) = SHIPPED.split_at(SHIPPED.find("\n## ").unwrap());
    let used = |recipe: &str| {
        let (heading, lines) = recipe.split_once('\n').unwrap();
        assert!(heading.starts_with("## ") && lines.lines().all(|line| line.starts_with("# ")), "{recipe}");
        let text = format!("\n{heading}\n{}\n", lines.trim_end().replace("\n# ", "\n").trim_start_matches("# "));
        assert!(text.parse::<Table>().is_ok_and(|table| !table.is_empty()), "{text}");
        text
    };
    let recipes: Vec<_> = recipes.trim_start().split("\n\n").map(used).collect();
    assert!(recipes.len() > 15, "{} recipes", recipes.len());
    let alone = [String::new()].into_iter().chain(recipes.iter().cloned()).chain([recipes.concat()]);
    alone.map(|text| live.to_owned() + &text).collect()
}

/// The configurations in a page, and paragraphs of code that only look like one.
fn configurations(page: &str) -> (Vec<String>, Vec<String>) {
    let (mut blocks, mut is_fenced) = (vec![String::new()], false);
    for line in page.lines() {
        let fence = line.strip_prefix("```");
        is_fenced ^= fence.is_some();
        let code = if is_fenced || line.is_empty() { Some(line) } else { line.strip_prefix("    ") };
        // A file within commands is its own block.
        let is_edge = |code: &str| fence.is_some() || code == "END" || code == "EOF" || code.contains("<<'");
        match code.filter(|code| !is_edge(code)) {
            Some(code) => blocks.last_mut().unwrap().extend([code, "\n"]),
            None => blocks.push(String::new()),
        }
    }
    let is_name = |text: &str| text.chars().all(|sign| sign.is_ascii_alphanumeric() || "_-.[]".contains(sign));
    let is_title = |line: &str| line.starts_with('[') && line.split(['#', ']']).next().is_some_and(is_name);
    let is_setting = |line: &str| line.split_once(" = ").is_some_and(|(key, _)| is_name(key));
    let (mut found, mut others) = (Vec::<String>::new(), Vec::new());
    for block in blocks {
        let mut goes_on = false;
        for paragraph in block.split("\n\n").map(str::trim_end) {
            let looks_like_it = paragraph.lines().any(|line| is_title(line) || is_setting(line));
            let is_it = looks_like_it && paragraph.parse::<Table>().is_ok();
            match found.last_mut() {
                Some(begun) if is_it && goes_on => begun.extend(["\n\n", paragraph]),
                _ if is_it => found.push(paragraph.to_owned()),
                _ if looks_like_it => others.push(paragraph.to_owned()),
                _ => (),
            }
            goes_on = is_it;
        }
    }
    (found, others)
}

fn table<'a>(of: &'a mut Table, name: &str) -> &'a mut Table {
    of.entry(name).or_insert_with(|| Table::new().into()).as_table_mut().unwrap()
}

/// Adds what a configuration of a page lacks: servers, keys, rates, a route for its limits.
fn completed(text: &str) -> String {
    let mut whole: Table = text.parse().unwrap_or_else(|why| panic!("{why} in:\n{text}"));
    if let Some(overrides) = whole.remove("overrides") {
        let limit = table(table(&mut whole, "limits"), "l");
        limit.extend([("key".to_owned(), "header:x-api-key".into()), ("known_keys".to_owned(), "keys.txt".into())]);
        limit.insert("overrides".to_owned(), overrides);
    }
    let names = |of: &mut Table| of.keys().cloned().map(Value::String).collect::<Vec<_>>();
    let decides_only = whole.get("decisions").is_some_and(|decisions| decisions.get("descriptors").is_some());
    if !whole.contains_key("routes") && !decides_only {
        let mut route = toml! { path = "/{customer}/*" };
        route.insert("limits".to_owned(), names(table(&mut whole, "limits")).into());
        match names(table(&mut whole, "upstreams")).pop() {
            Some(upstream) => route.insert("upstream".to_owned(), upstream),
            None => route.insert("respond".to_owned(), toml! { status = 200 }.into()),
        };
        whole.insert("routes".to_owned(), vec![route].into());
    }
    for route in whole.get("routes").and_then(Value::as_array).cloned().unwrap_or_default() {
        if let Some(upstream) = route.get("upstream").and_then(Value::as_str) {
            table(table(&mut whole, "upstreams"), upstream);
        }
        for limit in route.get("limits").and_then(Value::as_array).into_iter().flatten() {
            table(table(&mut whole, "limits"), limit.as_str().unwrap());
        }
    }
    for (_, upstream) in table(&mut whole, "upstreams").iter_mut() {
        upstream.as_table_mut().unwrap().entry("servers").or_insert(vec!["http://10.0.1.1:9000"].into());
    }
    for (_, limit) in table(&mut whole, "limits").iter_mut().map(|(name, limit)| (name, limit.as_table_mut().unwrap()))
    {
        limit.entry("key").or_insert("client-ip".into());
        if !limit.contains_key("max_in_flight") {
            limit.entry("rates").or_insert(vec!["10/s"].into());
        }
    }
    whole.to_string().replace("file:/run/secrets/", "file:")
}

/// The configurations of all pages, completed.
pub(crate) fn documented() -> Vec<String> {
    let (found, others): (Vec<_>, Vec<_>) = pages().values().map(|page| configurations(page)).unzip();
    let (found, others) = (found.concat(), others.concat());
    // A formula and a program.
    assert_eq!(others.len(), 2, "{}", others.join("\n\n"));
    assert!(found.len() > 60, "{} configurations", found.len());
    found.iter().map(|text| completed(text)).collect()
}

#[test]
fn every_recipe_can_be_used_alone_and_with_all_others() {
    let files = named_files();
    let wrong: Vec<_> = shipped().iter().filter_map(|text| said_against(files.folder(), text)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_configuration_of_the_documentation_is_valid() {
    let files = named_files();
    let wrong: Vec<_> = documented().iter().filter_map(|text| said_against(files.folder(), text)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
