//! The command line for clap: commands and arguments, with their help.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand};
use http::{HeaderName, HeaderValue, Method, Uri};

use super::admin_client::AdminLocation;
use super::simulate::Field;
use super::values;

/// A reverse proxy that limits rates.
///
/// For every request it finds the route and the client, checks all rates of that client, and forwards the request or
/// answers
/// 429.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "SIGHUP reloads the configuration. SIGTERM and SIGINT finish the requests in flight and stop; a second one stops at once.\n\
    Exit codes: 0 success, 1 it could not start, failed, or was stopped at once,\n\
    2 the configuration or the command line is not valid."
)]
pub(super) struct Cli {
    /// The configuration: a file, a folder of *.toml files, an https:// URL, or env:NAME for a variable that names one
    /// of these [default: gateway.toml].
    #[arg(short, long, global = true, value_name = "SOURCE")]
    pub(super) config: Option<OsString>,

    /// How often to ask a URL for a new configuration, 1s to 1d [default: 10s].
    #[arg(long, value_name = "DURATION", value_parser = values::every)]
    pub(super) config_every: Option<Duration>,

    /// The folder for certificates that an authority issues, and for the last good configuration from a URL, for starts
    /// while its server is away [default: that of systemd, or ~/.local/state/gateway].
    #[arg(long, global = true, value_name = "FOLDER")]
    pub(super) state_dir: Option<PathBuf>,

    /// Read the configuration again when one of its files changes. SIGHUP does so at any time.
    #[arg(long)]
    pub(super) watch: bool,

    #[command(subcommand)]
    pub(super) command: Option<Command>,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Check the file and print its meaning: routes in the order they match, limits, the store.
    #[command(
        after_help = "--live asks /healthz of the admin listener, --ready asks /readyz, within 2 seconds and without a token.\n\
        Exit codes: 0, 1 if the gateway answers no or does not answer, or 2 if the file has no valid [admin]."
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
        /// Like --live, but fails while the gateway drains.
        #[arg(long, conflicts_with_all = ["json", "against"])]
        ready: bool,
    },
    /// Print what would happen to a request: its route, limits, key and rates, and the response with empty counters.
    #[command(after_help = "Example: gateway explain -X POST -H 'x-api-key: k' http://api.example.com/v1/acme/users\n\
        It does not read the store. Exit codes: 0, or 2 if the file or the request is not valid.")]
    Explain(Explain),
    /// Print what the limits would have done to the traffic of access logs.
    #[command(after_help = "Example: gateway simulate --config gateway.toml /var/log/nginx/access.log*\n\
        It reads the Common and the Combined Log Format and JSON lines, also gzipped, and uses no store.\n\
        Exit codes: 0, 1 if a log could not be read to its end, or 2 if the file, the command line or a log is not valid.")]
    Simulate(Simulate),
    /// Print the JSON schema of the configuration, with which editors check and complete it.
    #[command(after_help = "Example: gateway schema > gateway.schema.json, with this first line in gateway.toml:\n\
        #:schema ./gateway.schema.json\nIt reads no configuration.")]
    Schema,
    /// Show the limits, keys, upstreams and store of a running gateway in this terminal.
    #[command(after_help = "q quits. While the gateway does not answer, the last numbers stay, and top asks again.\n\
        A token is read from GATEWAY_ADMIN_TOKEN or --token-file. NO_COLOR is respected. It reads no configuration.\n\
        Exit codes: 0, 1 if the gateway or the terminal cannot be used, or 2 if the command line is not valid.")]
    Top(Top),
}

#[derive(Debug, clap::Args)]
pub(super) struct Explain {
    /// The method [default: GET, or POST with --data].
    #[arg(short = 'X', long, value_name = "METHOD")]
    pub(super) request: Option<Method>,
    /// The body, or @FILE to read it from a file; for limits that need it.
    #[arg(short, long, value_name = "BODY", value_parser = values::body)]
    pub(super) data: Option<bytes::Bytes>,
    /// A header; can be repeated.
    #[arg(short = 'H', long, value_name = "NAME: VALUE", value_parser = values::header)]
    pub(super) header: Vec<(HeaderName, HeaderValue)>,
    /// The address that the request comes from.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub(super) from: IpAddr,
    /// Print keys in full; otherwise they are masked.
    #[arg(long)]
    pub(super) show_keys: bool,
    /// The URL, with or without scheme and host.
    #[arg(value_parser = values::url)]
    pub(super) url: Uri,
}

#[derive(Debug, clap::Args)]
pub(super) struct Simulate {
    /// Print one JSON object.
    #[arg(long)]
    pub(super) json: bool,
    /// Write one page with charts, too.
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,
    /// Print sections to paste, with rates that would have touched few keys. With --json, they are part of the object.
    #[arg(long)]
    pub(super) suggest: bool,
    /// The field of JSON lines with the client, time, method, path, host, status, cost or header:NAME; can be repeated.
    #[arg(long, value_name = "NAME=FIELD")]
    pub(super) field: Vec<Field>,
    /// How far the time of a line may be behind the newest so far; lines further behind are skipped.
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = values::reorder)]
    pub(super) reorder: Duration,
    /// The host of requests whose lines name none [default: that of the routes, if they have only one].
    #[arg(long, value_name = "HOST", value_parser = values::host)]
    pub(super) host: Option<String>,
    /// The logs, in any order; `-` is standard input.
    #[arg(required = true, value_name = "LOG")]
    pub(super) logs: Vec<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(super) struct Top {
    /// The admin listener: a URL, or unix:PATH.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:9901")]
    pub(super) admin: AdminLocation,
    /// A file with the token of the admin listener; it is read again for each connection.
    #[arg(long, value_name = "FILE")]
    pub(super) token_file: Option<PathBuf>,
}
