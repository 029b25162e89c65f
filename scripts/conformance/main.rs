//! limitspec: a conformance suite for rate limiters. It sends requests to a limiter with a stated policy, and says which behaviours
//! it has. It uses nothing of the gateway, so that it cannot share its mistakes. `scripts/limitspec` runs it.

#![allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]

pub(crate) mod policy;
mod exchange;
mod http1;
mod http2;
mod memory;
pub(crate) mod target;
pub(crate) mod behaviour;
mod judge;
mod never_more;
mod keys;
mod never_fewer;
mod truth;
mod fields;
mod forgetting;
mod accuracy;
mod cost;
pub(crate) mod suite;
mod arguments;
mod report;

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;

use arguments::Arguments;

/// How long a limiter may need until it listens.
const START: Duration = Duration::from_secs(10);

/// Runs the suite with a command line. Returns what is printed, and the exit code.
pub(crate) async fn run(arguments: impl IntoIterator<Item = OsString>) -> Result<(String, u8), String> {
    let arguments = match Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments,
        Err(error) if error.use_stderr() => return Err(error.render().to_string()),
        Err(help) => return Ok((help.render().to_string(), 0)),
    };
    if arguments.page {
        return Ok((report::page(), 0));
    }
    let (selection, target) = (arguments.selection()?, Arc::new(arguments.target()?));
    suite::wait_for(&target, START).await?;
    let findings = suite::run(&target, &selection).await;
    let text = if arguments.json {
        format!("{:#}\n", report::json(&target, &findings))
    } else {
        report::text(&target, &findings)
    };
    Ok((text, suite::exit_code(&findings)))
}

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let done =
        runtime.map_err(|error| error.to_string()).and_then(|runtime| runtime.block_on(run(std::env::args_os())));
    match done {
        Ok((text, code)) => match io::stdout().write_all(text.as_bytes()) {
            Ok(()) => ExitCode::from(code),
            Err(_) => ExitCode::from(2),
        },
        Err(message) => {
            let _ = writeln!(io::stderr(), "{}", message.trim_end());
            ExitCode::from(2)
        }
    }
}
