//! The command line: its arguments, its output and its exit codes.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use http::{HeaderName, HeaderValue, Method, Request, Uri};

use crate::admin_client::{AdminClient, AdminLocation, TOKEN_VARIABLE, TokenSource};
use crate::background::Background;
use crate::clock;
use crate::config::{Config, ConfigSource, Problems};
use crate::explain::{self, Question};
use crate::probe::Probe;
use crate::runtime::{self, Start, Stopped};
use crate::simulate::{self, Field, Format};
use crate::{describe, log, route, top, units};

/// A reverse proxy that limits rates.
///
/// For every request it finds the route and the client, checks all rates of that client, and forwards the request or answers
/// 429.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "SIGHUP reloads the file. SIGTERM and SIGINT finish the requests in flight and stop; a second one stops at once.\n\
    Exit codes: 0 success, 1 it could not start, failed, or was stopped at once,\n\
    2 the file or the command line is not valid."
)]
struct Cli {
    /// The configuration: a file, or a folder whose *.toml files are united [default: gateway.toml].
    #[arg(short, long, global = true, value_name = "FILE|FOLDER")]
    config: Option<PathBuf>,

    /// Read the configuration again when one of its files changes. SIGHUP does it at any time.
    #[arg(long)]
    watch: bool,

    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Check the file and print its meaning: routes in the order they match, limits, the store.
    #[command(
        after_help = "--live asks /healthz of the admin listener, --ready asks /readyz, within 2 seconds and without a token.\n\
        Exit codes: 0, 1 if the gateway does not answer yes, or 2 if the file has no [admin] that is valid."
    )]
    Check {
        /// The file or folder; the same as --config.
        #[arg(value_name = "FILE")]
        file: Option<PathBuf>,
        /// The file in use: print what a reload would do to its counters, and whether it needs a restart.
        #[arg(long, value_name = "FILE", conflicts_with = "json")]
        against: Option<PathBuf>,
        /// Print the settings as JSON, with every default; secrets are masked.
        #[arg(long)]
        json: bool,
        /// Ask the gateway that runs with this file whether it is alive, for health checks.
        #[arg(long, conflicts_with_all = ["json", "against", "ready"])]
        live: bool,
        /// The same, but ask whether it takes requests: not while it drains.
        #[arg(long, conflicts_with_all = ["json", "against"])]
        ready: bool,
    },
    /// Print what would happen to a request: its route, limits, key and rates, and the response with empty counters.
    #[command(after_help = "Example: gateway explain -X POST -H 'x-api-key: k' http://api.example.com/v1/acme/users\n\
        It does not read the store. Exit codes: 0, or 2 if the file or the request is not valid.")]
    Explain(Explain),
    /// Print what the limits would have done to the traffic of access logs.
    #[command(after_help = "Example: gateway simulate --config gateway.toml /var/log/nginx/access.log*\n\
        It reads the Common and the Combined Log Format and JSON lines, also compressed by gzip, and asks no store.\n\
        Exit codes: 0, 1 if a log could not be read to its end, or 2 if the file, the command line or a log is not valid.")]
    Simulate(Simulate),
    /// Show the dashboard of a running gateway in this terminal.
    #[command(
        after_help = "Keys: q quits, Tab goes to the next panel, arrows choose and scroll, s sorts, Enter enlarges, ? helps.\n\
        A token is read from GATEWAY_ADMIN_TOKEN or --token-file. NO_COLOR is respected. No configuration is read.\n\
        Exit codes: 0, 1 if the gateway or the terminal cannot be used, or 2 if the command line is not valid."
    )]
    Top(Top),
}

#[derive(Debug, clap::Args)]
struct Explain {
    /// The method.
    #[arg(short = 'X', long, value_name = "METHOD", default_value = "GET")]
    request: Method,
    /// A header; can be repeated.
    #[arg(short = 'H', long, value_name = "NAME: VALUE", value_parser = header)]
    header: Vec<(HeaderName, HeaderValue)>,
    /// The address that the request comes from.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    from: IpAddr,
    /// Print keys in full; otherwise they are masked.
    #[arg(long)]
    show_keys: bool,
    /// The URL, with or without scheme and host.
    #[arg(value_parser = url)]
    url: Uri,
}

#[derive(Debug, clap::Args)]
struct Simulate {
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// Write one page with charts, too.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print sections with rates to paste, which would have touched few keys. With --json they are part of it.
    #[arg(long)]
    suggest: bool,
    /// The field of JSON lines that has the client, time, method, path, host, status or header:NAME; can be repeated.
    #[arg(long, value_name = "NAME=FIELD")]
    field: Vec<Field>,
    /// How much later than others a line may be; later ones are skipped.
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = reorder)]
    reorder: Duration,
    /// The host of requests whose line names none [default: the one that routes name, if there is only one].
    #[arg(long, value_name = "HOST", value_parser = host)]
    host: Option<String>,
    /// The logs, in any order; `-` is standard input.
    #[arg(required = true, value_name = "LOG")]
    logs: Vec<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct Top {
    /// The admin listener: a URL, or unix:PATH.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:9901")]
    admin: AdminLocation,
    /// A file with the token of the admin listener; it is read again for each connection.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

/// The longest time by which a line may be later than others.
const LONGEST_REORDER: Duration = Duration::from_secs(24 * 3600);

fn reorder(text: &str) -> Result<Duration, String> {
    let window = if text == "0" { Ok(Duration::ZERO) } else { units::duration(text) };
    let window = window.map_err(|error| format!("{error}: write it like 10m or 30s"))?;
    if window > LONGEST_REORDER { Err("it is at most 24h".to_owned()) } else { Ok(window) }
}

fn host(text: &str) -> Result<String, String> {
    let host = route::host::normal(text).filter(|host| !host.is_empty());
    host.map(Cow::into_owned).ok_or(format!("{text:?} is not a host"))
}

fn header(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let (name, value) = text.split_once(':').ok_or("a header is NAME: VALUE")?;
    let name = name.trim().parse().map_err(|_| format!("{name:?} is not the name of a header"))?;
    let value =
        HeaderValue::from_str(value.trim()).map_err(|_| "the value has characters that a header cannot have")?;
    Ok((name, value))
}

/// A path, or a URL that may lack its scheme.
fn url(text: &str) -> Result<Uri, String> {
    // A query may contain a URL.
    let has_scheme = text.split_once("://").is_some_and(|(scheme, _)| !scheme.contains(['/', '?']));
    let whole = has_scheme || text.starts_with('/');
    let read = if whole { text.parse::<Uri>() } else { format!("http://{text}").parse() };
    read.map_err(|error| format!("{error}: write it like http://host/path, host/path or /path"))
}

/// The file or the command line is not valid.
const INVALID: u8 = 2;

/// The longest time to read the files.
const LOAD_LIMIT: Duration = Duration::from_secs(60);

/// Reads the configuration. If a mounted file system does not answer, the result is an error, so the command always ends.
fn load(source: &ConfigSource) -> Result<Config, Problems> {
    let unreadable = |error: std::io::Error| source.unreadable(&error);
    let loaded = source.clone();
    let loading = Background::start("load", LOAD_LIMIT, move |_| loaded.load()).map_err(unreadable)?;
    loading.wait().unwrap_or_else(|error| Err(unreadable(error)))
}

/// Runs the command.
pub fn run() -> ExitCode {
    let Cli { config: path, watch, command } = Cli::parse();
    let path = match (path, &command) {
        (Some(_), Some(Command::Top(_))) => {
            complain("error: top reads no configuration: name the gateway with --admin");
            return ExitCode::from(INVALID);
        }
        (Some(_), Some(Command::Check { file: Some(file), .. })) => {
            complain(&format!("error: both --config and {} name a file: remove one of them", file.display()));
            return ExitCode::from(INVALID);
        }
        (None, Some(Command::Check { file: Some(file), .. })) => file.clone(),
        (path, _) => path.unwrap_or(PathBuf::from("gateway.toml")),
    };
    let source = ConfigSource::Path(path);
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
        Some(Command::Check { live: true, .. }) => probed(&source, Probe::Live),
        Some(Command::Check { ready: true, .. }) => probed(&source, Probe::Ready),
        Some(Command::Check { json, against, .. }) => {
            with_config(&|config| checked(&config, *json, against.clone().map(ConfigSource::Path)))
        }
        Some(Command::Explain(asked)) => with_config(&|config| explained(&config, asked)),
        Some(Command::Simulate(asked)) => with_config(&|config| simulated(&config, asked)),
        None => with_config(&|config| serve(Start { source: source.clone(), config, read_since, watch })),
    }
}

fn checked(config: &Config, json: bool, against: Option<ConfigSource>) -> ExitCode {
    let mut text = if json { format!("{:#}\n", describe::json(config)) } else { describe::describe(config) };
    if let Some(source) = against {
        match load(&source) {
            Ok(running) => text += &describe::describe_reload(&source, &running, config),
            Err(problems) => {
                complain(&problems.to_string());
                return ExitCode::from(INVALID);
            }
        }
    }
    if !config.warnings.is_empty() {
        complain(&config.warnings.to_string());
    }
    // It is not an error if the reader has closed the pipe.
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

fn serve(start: Start) -> ExitCode {
    let logging = match log::start(&start.config.log) {
        Ok(logging) => logging,
        Err(error) => {
            complain(&in_full(&error));
            return ExitCode::FAILURE;
        }
    };
    match runtime::run(start, &logging) {
        Ok(Stopped::Drained) => ExitCode::SUCCESS,
        Ok(Stopped::AtOnce) => ExitCode::FAILURE,
        Err(error) => {
            // Written through the log, so that the process ends even if standard error is not read any more.
            logging.write(&format!("{}\n", in_full(&error)));
            ExitCode::FAILURE
        }
    }
}

fn explained(config: &Config, asked: &Explain) -> ExitCode {
    let mut request = Request::new(());
    (*request.method_mut(), *request.uri_mut()) = (asked.request.clone(), asked.url.clone());
    for (name, value) in &asked.header {
        request.headers_mut().append(name, value.clone());
    }
    match explain::explain(config, &Question { request, peer: asked.from, show_keys: asked.show_keys }) {
        Ok(text) => {
            let _ = std::io::stdout().write_all(text.as_bytes());
            ExitCode::SUCCESS
        }
        Err(why) => {
            complain(&format!("error: {why}"));
            ExitCode::from(INVALID)
        }
    }
}

fn simulated(config: &Config, asked: &Simulate) -> ExitCode {
    // A file that cannot be written is reported before all logs are read.
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

/// An error with its causes.
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

fn complain(text: &str) {
    let _ = writeln!(std::io::stderr(), "{}", text.trim_end());
}

#[cfg(test)]
mod tests;
