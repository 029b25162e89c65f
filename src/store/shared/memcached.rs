//! Memcached: its text protocol, as far as counting needs it.
//!
//! Decisions use a client of this project, whose commands of an exchange are written and read together (`commands.rs`,
//! `replies.rs`). The crate `memcache` asks for statistics. It allocates for each operation, so it is used for nothing
//! else.

mod replies;
mod commands;
mod notes;
mod statistics;

use super::protocol::{Commands, Protocol, Statistics};

use commands::TextCommands;
pub use notes::Notes;

/// Memcached's protocol.
pub struct Memcached;

impl Protocol for Memcached {
    fn name(&self) -> &'static str {
        "memcached"
    }

    fn greeting(&self) -> (&'static [u8], &'static [u8]) {
        // A command that does nothing.
        (b"mn\r\n", b"MN\r\n")
    }

    fn commands(&self) -> Box<dyn Commands> {
        Box::<TextCommands>::default()
    }

    fn statistics(&self, address: &str) -> Option<Statistics> {
        // That a server does not answer is noticed elsewhere.
        statistics::ask(address).ok()
    }
}
