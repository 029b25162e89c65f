//! Runs the command line, with its output and its exit codes.

mod cli;
mod explain;
pub mod simulate;
mod top;
mod probe;
pub mod admin_client;
mod source;
mod told_request;

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::{CommandFactory, Parser};

use crate::admin::describe;
use crate::base::clock;
use crate::base::threads::Background;
use crate::config::{self, Config, Problems};
use crate::process::{self, ConfigSource, NoStart, Prepared, Start, Stopped};
use crate::proxy::log;
use crate::sources::acme;

use admin_client::{AdminClient, TOKEN_VARIABLE, TokenSource};
use cli::{Cli, Command, Top};
use probe::Probe;
use source::Options;

const INVALID: u8 = 2;
const FAILED: u8 = 1;

/// Runs as it is.
const EXAMPLE: &str = include_str!("../gateway.toml");

/// The longest time to read the files.
const LOAD_LIMIT: Duration = Duration::from_secs(60);

/// Reads the configuration. The command always ends: a mounted file system that does not answer is an error.
fn load(source: &ConfigSource) -> Result<Config, Problems> {
    loaded(source, ConfigSource::load)
}

fn loaded<T: Send + 'static, E: From<Problems> + Send + 'static>(
    source: &ConfigSource,
    load: fn(&ConfigSource) -> Result<T, E>,
) -> Result<T, E> {
    let unreadable = |error: std::io::Error| source.unreadable(&error);
    let loading = source.clone();
    let loading = Background::start("load", LOAD_LIMIT, move |_| load(&loading)).map_err(unreadable)?;
    loading.wait().unwrap_or_else(|error| Err(unreadable(error).into()))
}

/// What is said on standard error before the process ends with this code.
struct Failure {
    text: String,
    code: u8,
}

impl Failure {
    /// The command line or the configuration is wrong.
    fn invalid(why: impl fmt::Display) -> Self {
        Self { text: format!("error: {why}"), code: INVALID }
    }

    fn other(text: String) -> Self {
        Self { text, code: FAILED }
    }
}

impl From<Problems> for Failure {
    fn from(problems: Problems) -> Self {
        Self { text: problems.to_string(), code: INVALID }
    }
}

pub fn run() -> ExitCode {
    try_run(Cli::parse()).unwrap_or_else(|Failure { text, code }| {
        complain(&text);
        ExitCode::from(code)
    })
}

fn try_run(Cli { config, options, command }: Cli) -> Result<ExitCode, Failure> {
    let name = match (config, &command) {
        (Some(_), Some(Command::Top(_))) => {
            return Err(Failure::invalid("top reads no configuration: name the gateway with --admin"));
        }
        (Some(_), Some(Command::Check { file: Some(file), .. })) => {
            let file = file.to_string_lossy();
            return Err(Failure::invalid(format!("both --config and {file} name a configuration: remove one of them")));
        }
        (None, Some(Command::Check { file: Some(file), .. })) => file.clone(),
        (name, _) => name.unwrap_or(OsString::from("gateway.toml")),
    };
    let source = source::named(name, &options).map_err(Failure::invalid)?;
    let read_since = clock::now();
    match &command {
        Some(Command::Top(asked)) => topped(asked),
        Some(Command::Schema) => Ok(printed(&format!("{:#}\n", config::schema()))),
        Some(Command::Check { example: true, .. }) => Ok(printed(EXAMPLE)),
        Some(Command::Check { live: true, .. }) => probed(&source, Probe::Live),
        Some(Command::Check { ready: true, .. }) => probed(&source, Probe::Ready),
        Some(Command::Check { json, against, .. }) => {
            checked(load(&source)?, source::state(&options).as_deref(), *json, against.clone())
        }
        Some(Command::Explain(asked)) => {
            explain::explain(&load(&source)?, asked).map(|text| printed(&text)).map_err(Failure::invalid)
        }
        Some(Command::Simulate(asked)) => simulated(&load(&source)?, asked),
        None => {
            let prepared = Prepared::new().map_err(|error| Failure::other(format!("cannot start: {error}")))?;
            // If the source is away, a supervisor may try again.
            let no_start = |NoStart { text, is_away }| Failure { text, code: if is_away { FAILED } else { INVALID } };
            let loaded = loaded(&source, ConfigSource::load_first).map_err(no_start)?;
            serve(prepared, Start { source, loaded, read_since, watch: options.watch, state: source::state(&options) })
        }
    }
}

fn checked(config: Config, state: Option<&Path>, json: bool, against: Option<OsString>) -> Result<ExitCode, Failure> {
    let (issued, unread) = acme::stored(&config, state).map_err(Failure::invalid)?;
    if let Some(error) = unread {
        complain(&format!("warning: a certificate of the authority is not known: {error}"));
    }
    let config = &config.with_issued(issued.as_ref());
    let mut text = if json { format!("{:#}\n", describe::json(config)) } else { describe::describe(config) };
    let mut is_refused = false;
    if let Some(name) = against {
        let source = source::named(name, &Options::default()).map_err(Failure::invalid)?;
        let described = describe::describe_reload(&source, &load(&source)?, config);
        is_refused = described.is_err();
        text += &described.unwrap_or_else(|refused| refused);
    }
    if !config.warnings.is_empty() {
        complain(&config.warnings.to_string());
    }
    let printed = printed(&text);
    Ok(if is_refused { ExitCode::from(INVALID) } else { printed })
}

fn printed(text: &str) -> ExitCode {
    // A reader that has closed the pipe is no error.
    let _ = std::io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
}

fn probed(source: &ConfigSource, probe: Probe) -> Result<ExitCode, Failure> {
    probe.ask(source.load_admin()?.as_ref())?;
    Ok(ExitCode::SUCCESS)
}

fn topped(asked: &Top) -> Result<ExitCode, Failure> {
    let token = TokenSource::new(asked.token_file.clone(), std::env::var_os(TOKEN_VARIABLE));
    let client = AdminClient::new(asked.admin.clone(), token.map_err(Failure::invalid)?, None);
    top::run(&client).map_err(|error| Failure::other(format!("error: {error}")))?;
    Ok(ExitCode::SUCCESS)
}

fn serve(prepared: Prepared, start: Start) -> Result<ExitCode, Failure> {
    let logging = log::start(&start.loaded.config.log).map_err(|error| Failure::other(format!("error: {error}")))?;
    Ok(match process::run(prepared, start, &logging) {
        Ok(Stopped::Drained) => ExitCode::SUCCESS,
        Ok(Stopped::AtOnce) => ExitCode::FAILURE,
        Err(error) => {
            // The log writes the error, so the process ends even if nobody reads standard error any more.
            logging.write(&format!("error: {error}\n"));
            ExitCode::FAILURE
        }
    })
}

fn simulated(config: &Config, asked: &simulate::Arguments) -> Result<ExitCode, Failure> {
    // Reports a file that cannot be written before all logs are read.
    if let Some(path) = &asked.html
        && let Err(error) = File::options().write(true).create(true).truncate(false).open(path)
    {
        return Err(Failure::invalid(format!("{} cannot be written: {error}", path.display())));
    }
    let report = simulate::simulate(config, asked).map_err(Failure::invalid)?;
    printed(&match (asked.json, asked.suggest) {
        (true, suggest) => simulate::json(&report, suggest),
        (false, true) => simulate::toml(&report),
        (false, false) => simulate::text(&report),
    });
    let mut problems = report.broken.clone();
    if let Some(path) = &asked.html
        && let Err(error) = std::fs::write(path, simulate::html(&report))
    {
        problems.push(format!("{} cannot be written: {error}", path.display()));
    }
    problems.iter().for_each(|problem| complain(&format!("error: {problem}")));
    Ok(if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The manual and the completions are made from this description.
pub fn command() -> clap::Command {
    Cli::command()
}

fn complain(text: &str) {
    let _ = writeln!(std::io::stderr(), "{}", text.trim_end());
}
