//! docs/scale.md: each figure with a formula equals the formula's result, the simulation agrees with it, and each
//! command exists.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use clap::Parser;
use exmex::Express;

#[allow(dead_code)]
#[path = "../../benches/fleet/arguments.rs"]
mod arguments;

use crate::fleet::network::ZONE;
use crate::fleet::plan::Plan;
use crate::fleet::server::Work;
use crate::fleet::share;
use crate::fleet::traffic::Traffic;
use crate::fleet::world::Fleet;

const PAGE: &str = include_str!("../../docs/scale.md");

/// The tables of the page: their lines as the texts in their columns, and the line after each.
fn tables() -> Vec<(Vec<Vec<&'static str>>, &'static str)> {
    let (mut tables, mut lines) = (Vec::new(), PAGE.lines());
    while let Some(first) = lines.by_ref().find(|line| line.starts_with('|')) {
        let rest = lines.by_ref().take_while(|line| line.starts_with('|'));
        let rows = std::iter::once(first).chain(rest).filter(|line| !line.starts_with("|---"));
        let rows = rows.map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect()).collect();
        tables.push((rows, lines.clone().find(|line| !line.is_empty()).unwrap_or("")));
    }
    tables
}

/// A number of the page, and its decimals.
fn number(text: &str) -> (f64, usize) {
    let digits: String = text.chars().filter(|character| *character != ' ').collect();
    let decimals = digits.split_once('.').map_or(0, |(_, decimals)| decimals.len());
    (digits.parse().unwrap_or_else(|_| panic!("{text:?} is no number")), decimals)
}

fn evaluate(formula: &str, values: &BTreeMap<&str, f64>) -> f64 {
    let expression = exmex::parse::<f64>(formula).unwrap_or_else(|error| panic!("{formula}: {error}"));
    let value =
        |name: &String| *values.get(name.as_str()).unwrap_or_else(|| panic!("{formula}: {name} stands nowhere before"));
    expression.eval(&expression.var_names().iter().map(value).collect::<Vec<_>>()).unwrap()
}

/// The named values, in the order of the page. Calls `check(name, formula, value)` for each that has a formula.
fn values(mut check: impl FnMut(&str, &str, (f64, f64))) -> BTreeMap<&'static str, f64> {
    let mut values = BTreeMap::new();
    for (table, _) in tables() {
        let Some(at) = table[0].iter().position(|title| *title == "value") else { continue };
        let formula = table[0].iter().position(|title| *title == "formula");
        for row in &table[1..] {
            let (name, (value, decimals)) = (row[0].trim_matches('`'), number(row[at]));
            if let Some(formula) = formula.map(|column| row[column].trim_matches('`')) {
                let exact = evaluate(formula, &values);
                let rounded = (exact * 10_f64.powi(i32::try_from(decimals).unwrap())).round();
                check(name, formula, (rounded / 10_f64.powi(i32::try_from(decimals).unwrap()), value));
                values.insert(name, exact);
            } else {
                values.insert(name, value);
            }
        }
    }
    values
}

fn float(number: u64) -> f64 {
    f64::from(u32::try_from(number).unwrap())
}

#[test]
fn figures_are_what_their_formulas_give() {
    let mut checked = 0;
    values(|name, formula, (exact, stated)| {
        assert!((exact - stated).abs() < 1e-9, "{name} = {formula} is {exact}, stated {stated}");
        checked += 1;
    });
    assert!(checked >= 10, "only {checked} formulas were found");
}

#[test]
fn the_simulation_makes_as_many_exchanges_as_the_formula_says() {
    let mut formulas = BTreeMap::new();
    let mut values = values(|name, formula, _| {
        formulas.insert(name.to_owned(), formula.to_owned());
    });
    for (gateways, servers, requests) in [(4, 1, 4_000_u32), (2, 2, 4_000), (10, 2, 4_000)] {
        let seconds = 0.5;
        let plan = Plan {
            servers,
            traffic: Traffic::new(f64::from(requests) / f64::from(gateways), 100_000, 0.0),
            length: Duration::from_secs_f64(seconds),
            network: ZONE,
            rates: vec!["10/s".parse().unwrap(), "3000/10m".parse().unwrap()],
            ..Plan::new(usize::try_from(gateways).unwrap(), "10/s".parse().unwrap(), 1.0, 1)
        };
        let outcome = Fleet::run(plan, 100_000);
        values.extend([
            ("requests", f64::from(requests)),
            ("gateways", f64::from(gateways)),
            ("servers", float(servers as u64)),
        ]);
        values.insert("decisions", evaluate(&formulas["decisions"], &values));
        let expected = evaluate(&formulas["exchanges"], &values);
        let all: u64 = outcome.work.iter().map(|work| work.exchanges).sum();
        let found = float(all) / seconds / values["servers"];
        let share = found / expected;
        assert!((0.8..1.2).contains(&share), "{gateways} gateways, {servers} servers: {found}, expected {expected}");
        // What a request carries, too, because all keys are new.
        let work = |count: fn(&Work) -> u64| {
            let all: u64 = outcome.work.iter().map(count).sum();
            float(all) / float(outcome.requests) / values["rates"]
        };
        for (name, found) in [
            ("names", work(|work| work.reads)),
            ("writes", work(|work| work.writes)),
            ("bytes_in", work(|work| work.bytes_in)),
            ("bytes_out", work(|work| work.bytes_out)),
        ] {
            let share = found / values[name];
            assert!((0.9..1.1).contains(&share), "{name}: {found}, stated {}", values[name]);
        }
    }
}

#[test]
fn the_figures_of_gateways_that_share_limits_are_those_of_the_simulation() {
    for row in share::steady(1).into_iter().chain(share::changing(1)) {
        assert!(PAGE.lines().any(|line| line == row), "not on the page: {row}");
    }
}

#[test]
#[ignore = "needs Python"]
fn each_table_names_its_command_and_each_command_exists() {
    for (table, after) in tables() {
        let is_known = ["formula", "command", "where it is from"].iter().any(|title| table[0].contains(title));
        assert!(is_known || after.starts_with("Command: `"), "no command for the table {:?}", table[0]);
    }
    let help = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/bench")).arg("--help").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let mut found = 0;
    for command in PAGE.split('`').skip(1).step_by(2) {
        let words: Vec<&str> = command.split_whitespace().collect();
        match &words[..] {
            ["cargo", "bench", "--bench", "fleet", rest @ ..] => {
                let words = std::iter::once("fleet").chain(rest.iter().copied().skip(1));
                let parsed = arguments::Arguments::try_parse_from(words);
                assert!(parsed.is_ok_and(|parsed| parsed.what.is_some() != rest.is_empty()), "{command}");
            }
            ["scripts/bench", rest @ ..] => {
                let known = |word: &str| word.parse::<u32>().is_ok() || help.contains(word);
                assert!(rest.iter().flat_map(|words| words.split(',')).all(known), "{command}");
            }
            _ => continue,
        }
        found += 1;
    }
    assert!(found >= 8, "only {found} commands were found");
}
