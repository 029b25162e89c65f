//! Short texts that gateways leave for each other on the servers of a shared store, such as the answers to an authority's
//! challenges. They are rare, so each has a connection of its own, from any thread.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::connection::Socket;
use super::failure::LinkFailure;
use super::names::place;
use super::protocol::{Garbage, NoteAnswer, NoteCommand, Protocol};
use crate::config::SharedStore;

/// The longest time that a server may take to connect and to answer.
const TIMEOUT: Duration = Duration::from_secs(1);
/// In bytes, with what is around the text.
const LONGEST: usize = 4096;

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

    /// Writes the note of this subject, unless there is one. Returns whether there was none.
    ///
    /// # Errors
    /// When the server does not answer, or does not take it.
    pub async fn claim(&self, subject: &str, text: &str, lifetime: Duration) -> io::Result<bool> {
        match self.ask(subject, NoteCommand::Claim(text, lifetime)).await? {
            NoteAnswer::Done => Ok(true),
            NoteAnswer::Failed(why) => Err(io::Error::other(why)),
            _ => Ok(false),
        }
    }

    /// Writes the note of this subject, and replaces an earlier one.
    ///
    /// # Errors
    /// When the server does not answer, or does not take it.
    pub async fn write(&self, subject: &str, text: &str, lifetime: Duration) -> io::Result<()> {
        match self.ask(subject, NoteCommand::Write(text, lifetime)).await? {
            NoteAnswer::Done => Ok(()),
            other => Err(io::Error::other(format!("{other:?}"))),
        }
    }

    /// `None` if there is no note, or an empty one.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn read(&self, subject: &str) -> io::Result<Option<String>> {
        match self.ask(subject, NoteCommand::Read).await? {
            NoteAnswer::Text(text) => Ok(Some(text).filter(|text| !text.is_empty())),
            _ => Ok(None),
        }
    }

    /// # Errors
    /// When the server does not answer.
    pub async fn remove(&self, subject: &str) -> io::Result<()> {
        self.ask(subject, NoteCommand::Remove).await.map(drop)
    }

    async fn ask(&self, subject: &str, command: NoteCommand<'_>) -> io::Result<NoteAnswer> {
        // Host names may be too long for names of items.
        let name = format!("{}#note:{}", self.prefix, blake3::hash(subject.as_bytes()).to_hex());
        let mut question = Vec::new();
        self.protocol.write_note(&name, command, &mut question);
        let read = |input: &[u8]| match self.protocol.read_note(command, input)? {
            None if input.len() > LONGEST => Err(Garbage.into()),
            answer => Ok(answer),
        };
        let exchange = async {
            let mut socket = self.open(&name).await?;
            socket.ask(question, read).await
        };
        match timeout(TIMEOUT, exchange).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(LinkFailure::Io(error))) => Err(error),
            Ok(Err(failure)) => Err(io::Error::other(failure.to_string())),
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// A connection to the server with this note. In a cluster any node knows which one that is.
    async fn open(&self, name: &str) -> Result<Socket, LinkFailure> {
        let first = place(name.as_bytes(), &self.servers);
        let others = self.servers.iter().filter(|_| self.protocol.slot_map().is_some());
        let mut last = LinkFailure::Silent;
        for server in self.servers.get(first).into_iter().chain(others) {
            match Socket::open(server.clone(), &*self.protocol).await {
                Ok(socket) => return Ok(socket.following(self.protocol.redirects(server))),
                Err(failure) => last = failure,
            }
        }
        Err(last)
    }
}
