//! Describes where the counters are, and which gateways share the limits.

use std::fmt;

use crate::config::{OnError, Share, Store};

pub(super) fn describe(f: &mut fmt::Formatter<'_>, store: &Store) -> fmt::Result {
    match store {
        Store::Memory { max_keys, max_memory, snapshot, share } => {
            writeln!(f, "  memory, at most {max_keys} keys and {} MiB", max_memory >> 20)?;
            match share {
                Some(Share::Gateways(gateways)) => {
                    writeln!(f, "  {gateways} gateways share the limits: this one has its part of every rate")?;
                }
                Some(Share::Name(name)) => {
                    writeln!(f, "  as many gateways share the limits as {name} has addresses, looked up every 5 s")?;
                }
                None => {}
            }
            match snapshot {
                Some(path) => writeln!(f, "  saved to {} at the end, and read from it at the start", path.display()),
                None => Ok(()),
            }
        }
        Store::Shared(shared) => {
            writeln!(f, "  {} at {}", shared.software.word(), shared.servers.join(", "))?;
            let away = match shared.on_error {
                OnError::Local => "are counted in this process",
                OnError::Allow => "pass and are not counted",
                OnError::Reject => "are answered 503",
            };
            writeln!(f, "  keys begin with {}:", shared.prefix)?;
            if shared.strict {
                writeln!(f, "  strict: each admission is confirmed by {} first", shared.software.name())?;
            }
            writeln!(f, "  waits at most {:?}; without an answer requests {away}", shared.timeout)
        }
    }
}
