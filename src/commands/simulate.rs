//! `gateway simulate`: what the limits would have done to the traffic of access logs. The gateway's own steps decide, by
//! the clock of the log, with separate counters.

mod record;
mod fields;
mod needs;
mod common_log;
mod json_line;
mod lines;
mod reorder;
mod input;
mod timeline;
mod statistics;
mod replay;
mod report;
mod notes;
mod machine_readable;
mod text;
mod html;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fs::Metadata;
use std::path::PathBuf;
use std::time::Duration;

use fields::FieldNames;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use input::Input;
use lines::Lines;
use needs::{Needs, Unknown, only_host};
use notes::Notes;
use replay::Replay;
use report::LimitReport;

use crate::base::http::host;
use crate::base::units;
use crate::config::{self, Config, OnLimit, Role};
use crate::store::Store;
use crate::store::memory::Memory;

pub use fields::{Attribute, Field};
pub use html::html;
pub use machine_readable::{json, toml};
pub use report::Report;
pub use text::text;

/// Requests that are read before the first decision, to learn what the log has.
const LOOK_AHEAD: usize = 100_000;

/// For counters in place of those on servers: more keys than a log is likely to have.
const MAX_KEYS: usize = 8 << 20;
/// In bytes, for these counters.
const MAX_MEMORY: usize = 2 << 30;

#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    /// Write one page with charts, too.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Print sections to paste, with rates that would have touched few keys. With --json, they are part of the object.
    #[arg(long)]
    pub suggest: bool,
    /// The field of JSON lines with the client, time, method, path, host, status, cost or header:NAME; can be repeated.
    #[arg(long, value_name = "NAME=FIELD")]
    pub field: Vec<Field>,
    /// How far the time of a line may be behind the newest so far; lines further behind are skipped.
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = reorder)]
    pub reorder: Duration,
    /// The host of requests whose lines name none [default: that of the routes, if they have only one].
    #[arg(long, value_name = "HOST", value_parser = host)]
    pub host: Option<String>,
    /// The logs, in any order; `-` is standard input.
    #[arg(required = true, value_name = "LOG")]
    pub logs: Vec<PathBuf>,
}

/// Decides the requests of the logs. The error is a message, if there is nothing to simulate or a log cannot be opened.
pub fn simulate(config: &Config, asked: &Arguments) -> Result<Report, String> {
    if config.routes.iter().all(|route| route.limits.is_empty()) {
        return Err("no route has limits, so there is nothing to simulate".to_owned());
    }
    for (place, field) in asked.field.iter().enumerate() {
        if asked.field.iter().take(place).any(|other| other.attribute == field.attribute) {
            return Err(format!("--field {} is given twice", field.attribute));
        }
    }
    let needs = Needs::of(config);
    let names = FieldNames::new(&needs.headers, &asked.field);
    let bar = progress_bar(&asked.logs);
    let mut input = Input::new(open(&asked.logs, &bar)?, needs.clone(), names, asked.reorder);
    input.look_ahead(LOOK_AHEAD);
    let default_host = asked.host.as_deref().or_else(|| only_host(config));
    let unknown = |input: &Input| -> Vec<Unknown> {
        config.limits.iter().map(|limit| input.seen.unknown(limit, default_host.is_some())).collect()
    };
    let at_first = unknown(&input);
    let keyless =
        at_first.iter().enumerate().filter(|(_, unknown)| unknown.is_keyless).map(|(place, _)| place).collect();
    let simulated = simulated(config, &keyless);
    let mut replay = Replay::new(&simulated, store(&config.store), default_host);
    while let Some(record) = input.next() {
        replay.add(&record);
    }
    bar.finish_and_clear();
    let at_last = unknown(&input).into_iter().zip(at_first).map(|(last, first)| {
        if first.is_keyless { Unknown { is_found_later: !last.is_keyless, ..first } } else { last }
    });
    let limit = |(place, (limit, unknown)): (usize, (&config::Limit, Unknown))| {
        Some(LimitReport::new(limit, unknown, replay.limits.get(place)?, replay.metrics(&limit.name)))
    };
    let limits = config.limits.iter().zip(at_last).enumerate().filter_map(limit).collect();
    let notes = Notes { config, needs: &needs, input: &input, replay: &replay, fields: &asked.field, default_host };
    let notes = notes.all();
    Ok(Report {
        totals: replay.totals,
        skipped: input.skipped,
        limits,
        notes,
        broken: input.broken,
        is_json: input.seen.json,
    })
}

const LONGEST_REORDER: Duration = Duration::from_secs(24 * 3600);

fn reorder(text: &str) -> Result<Duration, String> {
    let window = if text == "0" { Ok(Duration::ZERO) } else { units::duration(text) };
    let window = window.map_err(|error| format!("{error}: write it like 10m or 30s"))?;
    if window > LONGEST_REORDER { Err("it is at most 24h".to_owned()) } else { Ok(window) }
}

fn host(text: &str) -> Result<String, String> {
    let host = host::normal(text).filter(|host| !host.is_empty());
    host.map(Cow::into_owned).ok_or(format!("{text:?} is not a host"))
}

/// The error names all logs that cannot be opened.
fn open(logs: &[PathBuf], bar: &ProgressBar) -> Result<Vec<Lines>, String> {
    let mut names = BTreeSet::new();
    let (mut opened, mut problems) = (Vec::new(), Vec::new());
    for log in logs {
        if !names.insert(log) {
            problems.push(format!("{} is named twice", log.display()));
            continue;
        }
        match Lines::open(log, bar) {
            Ok(lines) => opened.push(lines),
            Err(error) => problems.push(format!("{} cannot be read: {error}", log.display())),
        }
    }
    if problems.is_empty() { Ok(opened) } else { Err(problems.join("\nerror: ")) }
}

/// The configuration for the simulation, without limits whose keys cannot be read. A log does not say how long a request
/// would have been held, so limits that hold requests refuse them; a silent limit refuses them, too.
fn simulated(config: &Config, keyless: &BTreeSet<usize>) -> Config {
    // The simulation counts frequent keys itself.
    let mut simulated = Config { admin: None, ..config.clone() };
    // Rates and suggestions are those of all gateways together, so the log must have the requests of all.
    simulated.share_among(1);
    for limit in &mut simulated.limits {
        if limit.on_limit.role() == Role::Refuses {
            limit.on_limit = OnLimit::Reject;
        }
        // Nobody waits, but the statistics show how full the limit was.
        limit.slow.iter_mut().for_each(|slow| slow.up_to = Duration::ZERO);
    }
    for route in &mut simulated.routes {
        route.limits.retain(|limit| !keyless.contains(limit));
        route.pools.retain(|limit| !keyless.contains(limit));
    }
    simulated
}

/// Empty, and as large as that of the configuration.
fn store(config: &config::Store) -> Store {
    let memory = match config {
        config::Store::Memory { max_keys, max_memory, .. } => Memory::new(*max_keys, *max_memory),
        config::Store::Shared(_) => Memory::new(MAX_KEYS, MAX_MEMORY),
    };
    Store::from(memory).simulated()
}

/// A bar on standard error, if that is a terminal.
fn progress_bar(logs: &[PathBuf]) -> ProgressBar {
    let size = |log: &PathBuf| log.metadata().ok().filter(Metadata::is_file).map(|metadata| metadata.len());
    let bytes: Option<u64> = logs.iter().map(size).sum();
    let template = match bytes {
        Some(_) => "{bar:40} {percent:>3} %  {binary_bytes_per_sec}  {eta} left",
        None => "{spinner} {binary_bytes} read  {binary_bytes_per_sec}",
    };
    let bar = ProgressBar::with_draw_target(bytes, ProgressDrawTarget::stderr());
    // With an invalid template, the library uses its own bar.
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}
