//! Memcached: as much of its text protocol as counting needs.
//!
//! Decisions use a client of our own, which writes and reads all commands of an exchange together (`commands.rs`,
//! `replies.rs`). The crate `memcache` asks for statistics only, since it allocates for each operation. Notes are rare, so
//! each has its own connection, from any thread.

mod replies;
mod commands;

use std::io;
use std::time::Duration;

use memcache::{Client, MemcacheError};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::names::place;
use super::protocol::{Commands, Greeting, Protocol, Statistics};
use crate::config::SharedStore;

use commands::TextCommands;

/// In seconds: to connect for statistics, and to wait for them.
const TIMEOUT: u32 = 1;
/// The longest time that a server may take to connect for a note, and to answer.
const NOTE_TIMEOUT: Duration = Duration::from_secs(1);
const LONGEST_NOTE: u64 = 4096;

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

/// Short texts that gateways leave for each other, such as the answers to an authority's challenges.
#[derive(Debug, PartialEq, Eq)]
pub struct Notes {
    servers: Vec<String>,
    prefix: String,
}

impl Notes {
    pub fn new(config: &SharedStore) -> Self {
        Self { servers: config.servers.clone(), prefix: config.prefix.clone() }
    }

    /// Writes the note of this subject, unless there is one. Returns whether there was none.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn claim(&self, subject: &str, text: &str, lifetime: Duration) -> io::Result<bool> {
        let (answer, _) = self.ask("add", subject, Some((text, lifetime))).await?;
        Ok(answer == "STORED")
    }

    /// Writes the note of this subject, and replaces an earlier one.
    ///
    /// # Errors
    /// When the server does not answer, or does not take it.
    pub async fn write(&self, subject: &str, text: &str, lifetime: Duration) -> io::Result<()> {
        let (answer, _) = self.ask("set", subject, Some((text, lifetime))).await?;
        if answer == "STORED" { Ok(()) } else { Err(io::Error::other(answer)) }
    }

    /// `None` if there is no note, or an empty one.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn read(&self, subject: &str) -> io::Result<Option<String>> {
        let (_, text) = self.ask("get", subject, None).await?;
        Ok(text.filter(|text| !text.is_empty()))
    }

    /// # Errors
    /// When the server does not answer.
    pub async fn remove(&self, subject: &str) -> io::Result<()> {
        self.ask("delete", subject, None).await.map(|_| ())
    }

    /// Returns the first line of the answer, and the text that follows it, if any.
    async fn ask(
        &self,
        verb: &str,
        subject: &str,
        value: Option<(&str, Duration)>,
    ) -> io::Result<(String, Option<String>)> {
        // Host names may be too long for names of Memcached.
        let name = format!("{}#note:{}", self.prefix, blake3::hash(subject.as_bytes()).to_hex());
        let command = match value {
            Some((text, lifetime)) => format!("{verb} {name} 0 {} {}\r\n{text}\r\n", lifetime.as_secs(), text.len()),
            None => format!("{verb} {name}\r\n"),
        };
        let server = self.servers.get(place(name.as_bytes(), &self.servers)).ok_or(io::ErrorKind::NotFound)?;
        let exchange = async {
            let mut stream = TcpStream::connect(server).await?;
            stream.write_all(command.as_bytes()).await?;
            let mut lines = BufReader::new(stream.take(LONGEST_NOTE)).lines();
            let first = lines.next_line().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
            let text = if first.starts_with("VALUE ") { lines.next_line().await? } else { None };
            Ok((first, text))
        };
        timeout(NOTE_TIMEOUT, exchange).await.unwrap_or(Err(io::ErrorKind::TimedOut.into()))
    }
}
