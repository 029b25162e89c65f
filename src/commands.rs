//! The command line: its arguments, its output and its exit codes.

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
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{CommandFactory, Parser, Subcommand};
use http::{HeaderName, HeaderValue, Method, Request, Uri};

use crate::admin::describe;
use crate::base::background::Background;
use crate::base::clock;
use crate::config::{self, Config, Problems};
use crate::process::{self, ConfigSource, Loaded, NoStart, Start, Stopped};
use crate::proxy::log;

use admin_client::{AdminClient, AdminLocation, TOKEN_VARIABLE, TokenSource};
use explain::Question;
use probe::Probe;
use simulate::{Field, Format};
use source::Options;

/// A reverse proxy that limits rates.
///
/// For every request it finds the route and the client, checks all rates of that client, and forwards the request or answers
/// 429.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "SIGHUP reloads the configuration. SIGTERM and SIGINT finish the requests in flight and stop; a second one stops at once.\n\
    Exit codes: 0 success, 1 it could not start, failed, or was stopped at once,\n\
    2 the configuration or the command line is not valid."
)]
struct Cli {
    /// The configuration: a file, a folder whose *.toml files are united, an https:// URL, or env:NAME for a variable that
    /// has one of them [default: gateway.toml].
    #[arg(short, long, global = true, value_name = "SOURCE")]
    config: Option<OsString>,

    /// How often a URL is asked for a new configuration, 1s to 1d [default: 10s].
    #[arg(long, value_name = "DURATION", value_parser = values::every)]
    config_every: Option<Duration>,

    /// The folder for the last good configuration of a URL, which is used at a start while its server is away [default:
    /// that of systemd, or ~/.local/state/gateway].
    #[arg(long, global = true, value_name = "FOLDER")]
    state_dir: Option<PathBuf>,

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
        /// The same as --config.
        #[arg(value_name = "SOURCE")]
        file: Option<OsString>,
        /// The configuration in use: print what a reload would do to its counters, and whether it needs a restart.
        #[arg(long, value_name = "SOURCE", conflicts_with = "json")]
        against: Option<OsString>,
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
    /// Print the JSON schema of the configuration, by which editors check and complete it.
    #[command(after_help = "Example: gateway schema > gateway.schema.json, with this first line in gateway.toml:\n\
        #:schema ./gateway.schema.json\nNo configuration is read.")]
    Schema,
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
    /// The method [default: GET, or POST with --data].
    #[arg(short = 'X', long, value_name = "METHOD")]
    request: Option<Method>,
    /// The body, or @ and the file that has it; for limits that need it.
    #[arg(short, long, value_name = "BODY", value_parser = values::body)]
    data: Option<bytes::Bytes>,
    /// A header; can be repeated.
    #[arg(short = 'H', long, value_name = "NAME: VALUE", value_parser = values::header)]
    header: Vec<(HeaderName, HeaderValue)>,
    /// The address that the request comes from.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    from: IpAddr,
    /// Print keys in full; otherwise they are masked.
    #[arg(long)]
    show_keys: bool,
    /// The URL, with or without scheme and host.
    #[arg(value_parser = values::url)]
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
    /// The field of JSON lines that has the client, time, method, path, host, status, cost or header:NAME; can be repeated.
    #[arg(long, value_name = "NAME=FIELD")]
    field: Vec<Field>,
    /// How much later than others a line may be; later ones are skipped.
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = values::reorder)]
    reorder: Duration,
    /// The host of requests whose line names none [default: the one that routes name, if there is only one].
    #[arg(long, value_name = "HOST", value_parser = values::host)]
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

/// The file or the command line is not valid.
const INVALID: u8 = 2;

/// The longest time to read the files.
const LOAD_LIMIT: Duration = Duration::from_secs(60);

/// Reads the configuration. If a mounted file system does not answer, the result is an error, so the command always ends.
fn load(source: &ConfigSource) -> Result<Config, Problems> {
    loaded(source, ConfigSource::load).map(|loaded| loaded.config)
}

/// The same for the start of the gateway, for which the last good copy will do.
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

/// Runs the command.
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
        Some(Command::Check { json, against, .. }) => with_config(&|config| checked(&config, *json, against.clone())),
        Some(Command::Explain(asked)) => with_config(&|config| explained(&config, asked)),
        Some(Command::Simulate(asked)) => with_config(&|config| simulated(&config, asked)),
        None => match load_first(&source) {
            Ok(loaded) => serve(Start { source, loaded, read_since, watch }),
            Err(why) => {
                complain(&why.to_string());
                // A supervisor may try again.
                if why.is_away { ExitCode::FAILURE } else { ExitCode::from(INVALID) }
            }
        },
    }
}

fn checked(config: &Config, json: bool, against: Option<OsString>) -> ExitCode {
    let mut text = if json { format!("{:#}\n", describe::json(config)) } else { describe::describe(config) };
    if let Some(name) = against {
        let described =
            source::named(name, &Options::default()).map_err(|why| format!("error: {why}")).and_then(|source| {
                let running = load(&source).map_err(|problems| problems.to_string())?;
                Ok(describe::describe_reload(&source, &running, config))
            });
        match described {
            Ok(described) => text += &described,
            Err(why) => {
                complain(&why);
                return ExitCode::from(INVALID);
            }
        }
    }
    if !config.warnings.is_empty() {
        complain(&config.warnings.to_string());
    }
    printed(&text)
}

fn printed(text: &str) -> ExitCode {
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
    let logging = match log::start(&start.loaded.config.log) {
        Ok(logging) => logging,
        Err(error) => {
            complain(&in_full(&error));
            return ExitCode::FAILURE;
        }
    };
    match process::run(start, &logging) {
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

/// The command line as clap describes it: the manual and completions are made from that.
pub fn command() -> clap::Command {
    Cli::command()
}

fn complain(text: &str) {
    let _ = writeln!(std::io::stderr(), "{}", text.trim_end());
}
