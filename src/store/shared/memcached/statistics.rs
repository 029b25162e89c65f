//! What a server says of itself, asked on a connection of its own.

use memcache::{Client, MemcacheError};

use super::super::protocol::Statistics;

/// Seconds that a server may take to connect and to answer.
const TIMEOUT: u32 = 1;

/// Asks a server. One that takes only the text protocol says nothing: of the answer in text, the crate reads the first line alone.
pub(super) fn ask(address: &str) -> Result<Statistics, MemcacheError> {
    let url = format!("memcache://{address}?timeout={TIMEOUT}&connect_timeout={TIMEOUT}");
    let client = Client::with_pool_size(url, 1)?;
    let stats = client.stats()?.pop().map(|(_, stats)| stats).unwrap_or_default();
    let number = |name: &str| stats.get(name).and_then(|text| text.parse::<u64>().ok());
    Ok(Statistics { time: number("time"), evictions: number("evictions").unwrap_or(0) })
}
