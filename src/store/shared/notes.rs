//! Short texts that gateways leave for each other on the servers of a shared store, such as the answers to an authority's
//! challenges. They are rare, so each has a connection of its own, from any thread.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select_ok;
use tokio::time::timeout;

use super::connection::Socket;
use super::failure::LinkFailure;
use super::names::place;
use super::protocol::{Commands, Condition, Lifetime, Name, Protocol, Replies, Written};
use crate::base::clock;
use crate::config::SharedStore;

/// The longest time that a server may take to connect and to answer.
const TIMEOUT: Duration = Duration::from_secs(1);

pub struct Notes {
    protocol: Arc<dyn Protocol>,
    servers: Vec<String>,
    prefix: String,
}

impl fmt::Debug for Notes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "notes at {:?}", self.servers)
    }
}

impl Notes {
    pub fn new(config: &SharedStore) -> Self {
        let SharedStore { servers, prefix, .. } = config.clone();
        Self { protocol: super::protocol_of(config), servers, prefix }
    }

    /// Writes the note of this subject, unless there is one. Returns whether there was none. Fails when the server does not
    /// answer, or does not take it.
    pub async fn claim(&self, subject: &str, text: &str, lifetime: Duration) -> io::Result<bool> {
        let (written, _) = self.ask(subject, store(text, Condition::Missing, lifetime)).await?;
        Ok(written == Written::Done)
    }

    /// Writes the note of this subject, and replaces an earlier one. Fails when the server does not answer, or does not take
    /// it.
    pub async fn write(&self, subject: &str, text: &str, lifetime: Duration) -> io::Result<()> {
        self.ask(subject, store(text, Condition::Always, lifetime)).await.map(drop)
    }

    /// `None` if there is no note, or an empty one. Fails when the server does not answer.
    pub async fn read(&self, subject: &str) -> io::Result<Option<String>> {
        let (_, text) = self.ask(subject, |commands, name| commands.read(name)).await?;
        Ok(text.filter(|text| !text.is_empty()))
    }

    /// Fails when the server does not answer.
    pub async fn remove(&self, subject: &str) -> io::Result<()> {
        self.ask(subject, |commands, name| commands.delete(name)).await.map(drop)
    }

    /// The result of a write, and the text that was read.
    async fn ask(
        &self,
        subject: &str,
        collect: impl FnOnce(&mut dyn Commands, Name<'_>),
    ) -> io::Result<(Written, Option<String>)> {
        // Host names may be too long for names of items.
        let name = format!("{}#note:{}", self.prefix, blake3::hash(subject.as_bytes()).to_hex());
        let mut question = Vec::new();
        let mut reader = {
            let mut commands = self.protocol.commands();
            collect(&mut *commands, &|out| out.extend_from_slice(name.as_bytes()));
            commands.finish(&mut question)
        };
        let read = |input: &[u8]| {
            let Some(outcome) = reader.read(input)? else { return Ok(None) };
            let replies = Replies { outcome: &outcome, input };
            let text = replies.item(0).map(|item| String::from_utf8_lossy(item.value).into_owned());
            match &outcome.failure {
                Some(failure) => Err(LinkFailure::Failed(failure.clone())),
                None => Ok(Some((replies.written(0), text))),
            }
        };
        let exchange = async { self.open(&name).await?.ask(question, read).await };
        match timeout(TIMEOUT, exchange).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(LinkFailure::Io(error))) => Err(error),
            Ok(Err(failure)) => Err(io::Error::other(failure)),
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// A connection to the server with this note. In a cluster any node knows which one that is.
    async fn open(&self, name: &str) -> Result<Socket, LinkFailure> {
        let first = place(name.as_bytes(), &self.servers);
        let is_cluster = self.protocol.slot_map().is_some();
        let servers = if is_cluster { &self.servers[..] } else { self.servers.get(first..=first).unwrap_or_default() };
        select_ok(servers.iter().map(|server| self.protocol.open(server))).await.map(|(socket, _)| socket)
    }
}

/// Stores a note.
fn store(text: &str, condition: Condition, lifetime: Duration) -> impl FnOnce(&mut dyn Commands, Name<'_>) {
    let lifetime = Lifetime { seconds: lifetime.as_secs(), from: clock::now().seconds() };
    move |commands, name| commands.store(name, text.as_bytes(), condition, lifetime, 0)
}
