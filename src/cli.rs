//! The command line: what was asked for, and what to print for it.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::{config, describe, log, serve};

/// A reverse proxy that limits rates.
///
/// It stands in front of APIs, finds the route and the client of every request, checks all rates that client has to
/// keep, and forwards the request or answers 429. One binary, one file.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "SIGHUP reloads the file, SIGTERM and SIGINT finish what is under way and stop.\n\
    Exit codes: 0 all went well, 1 it could not start, 2 the file or the command line is not valid."
)]
struct Cli {
    /// The configuration file.
    #[arg(long, global = true, value_name = "FILE", default_value = "gateway.toml")]
    config: PathBuf,

    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Check the file and print what was understood: routes in the order they match, limits, the store.
    Check,
}

/// The file or the command line is not valid.
const INVALID: u8 = 2;

/// Does what the command line says.
pub fn run() -> ExitCode {
    let cli = Cli::parse();
    let config = match config::load(&cli.config) {
        Ok(config) => config,
        Err(problems) => {
            complain(&problems.to_string());
            return ExitCode::from(INVALID);
        }
    };
    match cli.command {
        Some(Command::Check) => {
            // A reader that went away is no reason to fail.
            let _ = std::io::stdout().write_all(describe::describe(&config).as_bytes());
            ExitCode::SUCCESS
        }
        None => {
            let logging = match log::start(&config.log) {
                Ok(logging) => logging,
                Err(error) => return failed(&error),
            };
            let ended = serve::run(&cli.config, config);
            drop(logging);
            ended.map_or_else(|error| failed(&error), |()| ExitCode::SUCCESS)
        }
    }
}

fn failed(error: &dyn std::error::Error) -> ExitCode {
    let mut text = format!("error: {error}");
    let mut source = error.source();
    while let Some(cause) = source {
        // Writing to a string cannot fail.
        let _ = write!(text, ": {cause}");
        source = cause.source();
    }
    complain(&text);
    ExitCode::FAILURE
}

fn complain(text: &str) {
    let _ = writeln!(std::io::stderr(), "{}", text.trim_end());
}
