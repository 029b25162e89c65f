//! Memcached: its text protocol, as far as counting needs it.
//!
//! Decisions use a client of this project, whose commands of an exchange are written and read together (`commands.rs`,
//! `replies.rs`). The crate `memcache` asks for statistics. It allocates for each operation, so it is used for nothing
//! else.

mod replies;
mod commands;
mod notes;

use memcache::{Client, MemcacheError};

use super::protocol::{Commands, Greeting, Protocol, Statistics};

use commands::TextCommands;
pub use notes::Notes;

/// Seconds that a server may take to connect and to answer when it is asked about itself.
const TIMEOUT: u32 = 1;

/// Memcached's protocol.
pub struct Memcached;

impl Protocol for Memcached {
    fn name(&self) -> &'static str {
        "memcached"
    }

    fn greeting(&self) -> Greeting {
        // A command that does nothing.
        Greeting { question: b"mn\r\n", answer: b"MN\r\n" }
    }

    fn commands(&self) -> Box<dyn Commands> {
        Box::<TextCommands>::default()
    }

    fn statistics(&self, address: &str) -> Option<Statistics> {
        // That a server does not answer is noticed elsewhere.
        statistics(address).ok()
    }
}

/// Asks a server about itself, on a connection of its own. One that takes only the text protocol says nothing: of the answer
/// in text, the crate reads the first line alone.
fn statistics(address: &str) -> Result<Statistics, MemcacheError> {
    let url = format!("memcache://{address}?timeout={TIMEOUT}&connect_timeout={TIMEOUT}");
    let client = Client::with_pool_size(url, 1)?;
    let stats = client.stats()?.pop().map(|(_, stats)| stats).unwrap_or_default();
    let number = |name: &str| stats.get(name).and_then(|text| text.parse::<u64>().ok());
    Ok(Statistics { time: number("time"), evictions: number("evictions").unwrap_or(0) })
}
