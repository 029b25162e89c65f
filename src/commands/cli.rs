//! The command line for clap: commands and arguments, with their help.

use std::ffi::OsString;
use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;

use bytes::Bytes;
use clap::{Parser, Subcommand};
use http::{HeaderName, HeaderValue, Method, Uri};

use super::admin_client::AdminLocation;
use super::simulate;
use super::source::Options;
use crate::base::http::written_target;

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

    #[command(flatten)]
    pub(super) options: Options,

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
        /// Print a configuration to begin with, and check nothing.
        #[arg(long, conflicts_with_all = ["file", "json", "against", "live", "ready"])]
        example: bool,
    },
    /// Print what would happen to a request: its route, limits, key and rates, and the response with empty counters.
    #[command(after_help = "Example: gateway explain -X POST -H 'x-api-key: k' http://api.example.com/v1/acme/users\n\
        It does not read the store. Exit codes: 0, or 2 if the file or the request is not valid.")]
    Explain(Explain),
    /// Print what the limits would have done to the traffic of access logs.
    #[command(after_help = "Example: gateway simulate --config gateway.toml /var/log/nginx/access.log*\n\
        It reads the Common and the Combined Log Format and JSON lines, also gzipped, and uses no store.\n\
        Exit codes: 0, 1 if a log could not be read to its end, or 2 if the file, the command line or a log is not valid.")]
    Simulate(simulate::Arguments),
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
    #[arg(short, long, value_name = "BODY", value_parser = body)]
    pub(super) data: Option<Bytes>,
    /// A header; can be repeated.
    #[arg(short = 'H', long, value_name = "NAME: VALUE", value_parser = header)]
    pub(super) header: Vec<(HeaderName, HeaderValue)>,
    /// The address that the request comes from.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub(super) from: IpAddr,
    /// Print keys in full; otherwise they are masked.
    #[arg(long)]
    pub(super) show_keys: bool,
    /// The URL, with or without scheme and host.
    #[arg(value_parser = url)]
    pub(super) url: Uri,
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

pub(super) fn header(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let (name, value) = text.split_once(':').ok_or("a header is NAME: VALUE")?;
    let name = name.trim().parse().map_err(|_| format!("{name:?} is not the name of a header"))?;
    let value =
        HeaderValue::from_str(value.trim()).map_err(|_| "the value has characters that a header cannot have")?;
    Ok((name, value))
}

/// The body itself, or `@` and the file that has it.
pub(super) fn body(text: &str) -> Result<Bytes, String> {
    match text.strip_prefix('@') {
        Some(file) => fs::read(file).map(Bytes::from).map_err(|error| format!("{file} cannot be read: {error}")),
        None => Ok(Bytes::copy_from_slice(text.as_bytes())),
    }
}

/// A path, or a URL with or without its scheme.
pub(super) fn url(text: &str) -> Result<Uri, String> {
    // The query may contain another URL.
    let has_scheme = text.split_once("://").is_some_and(|(scheme, _)| !scheme.contains(['/', '?']));
    if text.contains('#') {
        return Err("clients send no fragment: write `#` as %23".to_owned());
    }
    let text = if has_scheme || text.starts_with('/') { text.to_owned() } else { format!("http://{text}") };
    // As in a request, some bytes of the path count as their escapes.
    let scheme = text.find("://").filter(|_| !text.starts_with('/')).map_or(0, |at| at + 3);
    let path = text[scheme..].find('/').map_or(text.len(), |at| scheme + at);
    let escaped = written_target::read(&text.as_bytes()[path..]);
    let text = escaped.map_or(text.clone(), |escaped| format!("{}{escaped}", &text[..path]));
    text.parse().map_err(|error| format!("{error}: write it like http://host/path, host/path or /path"))
}
