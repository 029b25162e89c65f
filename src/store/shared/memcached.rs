//! Memcached: as much of its text protocol as counting needs.
//!
//! Decisions use a client of our own, which writes and reads all commands of an exchange together (`commands.rs`,
//! `replies.rs`). The crate `memcache` asks for statistics only, since it allocates for each operation.

mod replies;
mod commands;
mod notes;

use memcache::{Client, MemcacheError};

use super::protocol::{Commands, Greeting, Protocol, Statistics};

use commands::TextCommands;
pub use notes::Notes;

/// In seconds: to connect for statistics, and to wait for them.
const TIMEOUT: u32 = 1;

pub struct Memcached;

impl Protocol for Memcached {
    fn name(&self) -> &'static str {
        "memcached"
    }

    fn greeting(&self) -> Greeting {
        // The no-op of the meta commands.
        Greeting { question: b"mn\r\n", answer: b"MN\r\n" }
    }

    fn commands(&self) -> Box<dyn Commands> {
        Box::<TextCommands>::default()
    }

    fn statistics(&self, address: &str) -> Option<Statistics> {
        // Other code notices that a server does not answer.
        statistics(address).ok()
    }
}

/// Asks a server for statistics, on a separate connection. A server with only the text protocol gives none, because the crate
/// reads just the first line of such an answer.
fn statistics(address: &str) -> Result<Statistics, MemcacheError> {
    let url = format!("memcache://{address}?timeout={TIMEOUT}&connect_timeout={TIMEOUT}");
    let client = Client::with_pool_size(url, 1)?;
    let stats = client.stats()?.pop().map(|(_, stats)| stats).unwrap_or_default();
    let number = |name: &str| stats.get(name).and_then(|text| text.parse::<u64>().ok());
    Ok(Statistics { time: number("time"), evictions: number("evictions").unwrap_or(0) })
}
