//! Runs the command line, with its output and its exit codes.

mod cli;
pub mod explain;
pub mod simulate;
pub mod top;
pub mod probe;
pub mod admin_client;
mod source;
mod told_request;
mod values;

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::{CommandFactory, Parser};
use http::{Method, Request};

use crate::admin::describe;
use crate::base::clock;
use crate::base::threads::Background;
use crate::config::{self, Config, Problems};
use crate::process::{self, ConfigSource, Loaded, NoStart, Prepared, Start, Stopped};
use crate::proxy::log;
use crate::sources::acme;

use admin_client::{AdminClient, TOKEN_VARIABLE, TokenSource};
use cli::{Cli, Command, Explain, Simulate, Top};
use explain::Question;
use probe::Probe;
use simulate::Format;
use source::Options;

const INVALID: u8 = 2;

/// The longest time to read the files.
const LOAD_LIMIT: Duration = Duration::from_secs(60);

/// Reads the configuration. The command always ends: a mounted file system that does not answer is an error.
fn load(source: &ConfigSource) -> Result<Config, Problems> {
    loaded(source, ConfigSource::load).map(|loaded| loaded.config)
}

/// Like [`load`], for the start of the gateway: the last good copy will do.
fn load_first(source: &ConfigSource) -> Result<Loaded, NoStart> {
    loaded(source, ConfigSource::load_first)
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

pub fn run() -> ExitCode {
    let Cli { config, config_every, state_dir, watch, command } = Cli::parse();
    let name = match (config, &command) {
        (Some(_), Some(Command::Top(_))) => {
            complain("error: top reads no configuration: name the gateway with --admin");
            return ExitCode::from(INVALID);
        }
        (Some(_), Some(Command::Check { file: Some(file), .. })) => {
            let file = file.to_string_lossy();
            complain(&format!("error: both --config and {file} name a configuration: remove one of them"));
            return ExitCode::from(INVALID);
        }
        (None, Some(Command::Check { file: Some(file), .. })) => file.clone(),
        (name, _) => name.unwrap_or(OsString::from("gateway.toml")),
    };
    let options = Options { every: config_every, state: state_dir, watch };
    let source = match source::named(name, &options) {
        Ok(source) => source,
        Err(why) => {
            complain(&format!("error: {why}"));
            return ExitCode::from(INVALID);
        }
    };
    let read_since = clock::now();
    let with_config = |run: &dyn Fn(Config) -> ExitCode| match load(&source) {
        Ok(config) => run(config),
        Err(problems) => {
            complain(&problems.to_string());
            ExitCode::from(INVALID)
        }
    };
    match &command {
        Some(Command::Top(asked)) => topped(asked),
        Some(Command::Schema) => printed(&format!("{:#}\n", config::schema())),
        Some(Command::Check { live: true, .. }) => probed(&source, Probe::Live),
        Some(Command::Check { ready: true, .. }) => probed(&source, Probe::Ready),
        Some(Command::Check { json, against, .. }) => {
            with_config(&|config| checked(config, source::state(&options).as_deref(), *json, against.clone()))
        }
        Some(Command::Explain(asked)) => with_config(&|config| explained(&config, asked)),
        Some(Command::Simulate(asked)) => with_config(&|config| simulated(&config, asked)),
        None => {
            let prepared = match Prepared::new() {
                Ok(prepared) => prepared,
                Err(error) => {
                    complain(&format!("cannot start: {error}"));
                    return ExitCode::FAILURE;
                }
            };
            match load_first(&source) {
                Ok(loaded) => {
                    serve(prepared, Start { source, loaded, read_since, watch, state: source::state(&options) })
                }
                Err(why) => {
                    complain(&why.to_string());
                    // A supervisor may try again.
                    if why.is_away { ExitCode::FAILURE } else { ExitCode::from(INVALID) }
                }
            }
        }
    }
}

fn checked(config: Config, state: Option<&Path>, json: bool, against: Option<OsString>) -> ExitCode {
    let issued = match acme::stored(&config, state) {
        Ok((issued, unread)) => {
            if let Some(error) = unread {
                complain(&format!("warning: a certificate of the authority is not known: {error}"));
            }
            issued
        }
        Err(why) => {
            complain(&format!("error: {why}"));
            return ExitCode::from(INVALID);
        }
    };
    let config = &config.with_issued(issued.as_ref());
    let mut text = if json { format!("{:#}\n", describe::json(config)) } else { describe::describe(config) };
    let mut is_refused = false;
    if let Some(name) = against {
        let described =
            source::named(name, &Options::default()).map_err(|why| format!("error: {why}")).and_then(|source| {
                let running = load(&source).map_err(|problems| problems.to_string())?;
                Ok(describe::describe_reload(&source, &running, config))
            });
        match described {
            Ok(Ok(described)) => text += &described,
            Ok(Err(refused)) => {
                text += &refused;
                is_refused = true;
            }
            Err(why) => {
                complain(&why);
                return ExitCode::from(INVALID);
            }
        }
    }
    if !config.warnings.is_empty() {
        complain(&config.warnings.to_string());
    }
    let printed = printed(&text);
    if is_refused { ExitCode::from(INVALID) } else { printed }
}

fn printed(text: &str) -> ExitCode {
    // A reader that has closed the pipe is no error.
    let _ = std::io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
}

fn probed(source: &ConfigSource, probe: Probe) -> ExitCode {
    let admin = match source.load_admin() {
        Ok(admin) => admin,
        Err(problems) => {
            complain(&problems.to_string());
            return ExitCode::from(INVALID);
        }
    };
    match probe.ask(admin.as_ref()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format!("error: {error}"));
            if error.is_configuration() { ExitCode::from(INVALID) } else { ExitCode::FAILURE }
        }
    }
}

fn topped(asked: &Top) -> ExitCode {
    let token = match TokenSource::new(asked.token_file.clone(), std::env::var_os(TOKEN_VARIABLE)) {
        Ok(token) => token,
        Err(why) => {
            complain(&format!("error: {why}"));
            return ExitCode::from(INVALID);
        }
    };
    match top::run(&AdminClient::new(asked.admin.clone(), token)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format!("error: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn serve(prepared: Prepared, start: Start) -> ExitCode {
    let logging = match log::start(&start.loaded.config.log) {
        Ok(logging) => logging,
        Err(error) => {
            complain(&in_full(&error));
            return ExitCode::FAILURE;
        }
    };
    match process::run(prepared, start, &logging) {
        Ok(Stopped::Drained) => ExitCode::SUCCESS,
        Ok(Stopped::AtOnce) => ExitCode::FAILURE,
        Err(error) => {
            // The log writes the error, so the process ends even if nobody reads standard error any more.
            logging.write(&format!("{}\n", in_full(&error)));
            ExitCode::FAILURE
        }
    }
}

fn explained(config: &Config, asked: &Explain) -> ExitCode {
    let (mut head, ()) = Request::new(()).into_parts();
    let default = asked.data.as_ref().map_or(Method::GET, |_| Method::POST);
    (head.method, head.uri) = (asked.request.clone().unwrap_or(default), asked.url.clone());
    head.headers.extend(asked.header.iter().cloned());
    let question = Question { head, body: asked.data.clone(), peer: asked.from, show_keys: asked.show_keys };
    match explain::explain(config, question) {
        Ok(text) => printed(&text),
        Err(why) => {
            complain(&format!("error: {why}"));
            ExitCode::from(INVALID)
        }
    }
}

fn simulated(config: &Config, asked: &Simulate) -> ExitCode {
    // Reports a file that cannot be written before all logs are read.
    if let Some(path) = &asked.html
        && let Err(error) = File::options().write(true).create(true).truncate(false).open(path)
    {
        complain(&format!("error: {} cannot be written: {error}", path.display()));
        return ExitCode::from(INVALID);
    }
    let Simulate { json, suggest, field, reorder, host, logs, .. } = asked;
    let question =
        simulate::Question { logs: logs.clone(), fields: field.clone(), reorder: *reorder, host: host.clone() };
    let report = match simulate::simulate(config, &question) {
        Ok(report) => report,
        Err(why) => {
            complain(&format!("error: {why}"));
            return ExitCode::from(INVALID);
        }
    };
    let format = match (json, suggest) {
        (true, suggest) => Format::Json { suggest: *suggest },
        (false, true) => Format::Toml,
        (false, false) => Format::Text,
    };
    let _ = std::io::stdout().write_all(report.write(format).as_bytes());
    let mut problems: Vec<_> = report.broken().to_vec();
    if let Some(path) = &asked.html
        && let Err(error) = std::fs::write(path, report.write(Format::Html))
    {
        problems.push(format!("{} cannot be written: {error}", path.display()));
    }
    problems.iter().for_each(|problem| complain(&format!("error: {problem}")));
    if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn in_full(error: &dyn std::error::Error) -> String {
    let mut text = format!("error: {error}");
    let mut source = error.source();
    while let Some(cause) = source {
        // Writing to a string cannot fail.
        let _ = write!(text, ": {cause}");
        source = cause.source();
    }
    text
}

/// The manual and the completions are made from this description.
pub fn command() -> clap::Command {
    Cli::command()
}

fn complain(text: &str) {
    let _ = writeln!(std::io::stderr(), "{}", text.trim_end());
}
