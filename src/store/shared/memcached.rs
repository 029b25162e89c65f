//! Memcached: as much of its text protocol as counting needs.
//!
//! Decisions use a client of our own, which writes and reads all commands of an exchange together (`commands.rs`,
//! `replies.rs`). The crate `memcache` asks for statistics only, since it allocates for each operation.

mod replies;
mod commands;

use memcache::Client;
use tokio::task::spawn_blocking;

use super::connection::Socket;
use super::protocol::{Asking, Commands, LinkFailure, Opening, Protocol, Statistics};

use commands::TextCommands;

/// In seconds: to connect for statistics, and to wait for them.
const TIMEOUT: u32 = 1;

pub struct Memcached;

impl Protocol for Memcached {
    fn open(&self, server: &str) -> Opening {
        let server = server.to_owned();
        Box::pin(async move {
            let mut socket = Socket::connect(&server, None).await?;
            // The no-op of the meta commands.
            socket.ask(b"mn\r\n".to_vec(), greeted).await?;
            Ok(socket)
        })
    }

    fn commands(&self) -> Box<dyn Commands> {
        Box::<TextCommands>::default()
    }

    /// A server with only the text protocol tells none, because the crate reads just the first line of such an answer.
    fn statistics(&self, server: &str) -> Asking {
        let url = format!("memcache://{server}?timeout={TIMEOUT}&connect_timeout={TIMEOUT}");
        Box::pin(async {
            let asked = spawn_blocking(|| Client::with_pool_size(url, 1)?.stats());
            let (_, told) = asked.await.ok()?.ok()?.pop()?;
            let number = |name: &str| told.get(name)?.parse::<u64>().ok();
            Some(Statistics { time: number("time")?, evictions: number("evictions").unwrap_or(0) })
        })
    }
}

fn greeted(input: &[u8]) -> Result<Option<()>, LinkFailure> {
    let rest = b"MN\r\n".strip_prefix(input).ok_or(LinkFailure::Garbage)?;
    Ok(rest.is_empty().then_some(()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_greeting_waits_for_all_of_its_answer() {
        let read = |input: &[u8]| greeted(input).ok();
        assert_eq!([&b"M"[..], b"MN\r", b"MN\r\n"].map(read), [Some(None), Some(None), Some(Some(()))]);
        assert_eq!([&b"ERROR\r\n"[..], b"MN\r\nM", b"HTTP/1.1 400\r\n"].map(read), [None; 3]);
    }
}
