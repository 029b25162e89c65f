//! The connection to one server. It alone owns the socket, connects, reads and writes.

use std::pin::Pin;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::link::LinkFailure;
use super::protocol::Greeting;

/// Bytes per read: in most cases the replies to a full exchange.
const INPUT: usize = 64 << 10;

pub(super) enum Connection {
    Closed,
    Connecting(Pin<Box<dyn Future<Output = Result<Socket, LinkFailure>>>>),
    Open(Socket),
}

/// A socket to a server that has answered the greeting.
pub(super) struct Socket {
    stream: TcpStream,
    /// The bytes to be written, and how many of them have been.
    output: Vec<u8>,
    written: usize,
    input: BytesMut,
}

impl Connection {
    /// [`Self::proceed`] makes the connection. The name is looked up each time, because its address may have changed.
    pub(super) fn open(address: String, greeting: Greeting) -> Self {
        Self::Connecting(Box::pin(Socket::open(address, greeting)))
    }

    pub(super) fn write(&mut self, bytes: Vec<u8>) {
        match self {
            Self::Open(Socket { output, .. }) if output.is_empty() => *output = bytes,
            Self::Open(Socket { output, .. }) => output.extend_from_slice(&bytes),
            Self::Closed | Self::Connecting(_) => {}
        }
    }

    /// Until the connection is made (`None`), or something was read: returns all that is not taken yet. Cancel-safe.
    ///
    /// # Errors
    /// If the server cannot be connected to or does not answer as it should, or if the connection is closed or broken.
    pub(super) async fn proceed(&mut self) -> Result<Option<&mut BytesMut>, LinkFailure> {
        match self {
            Self::Closed => std::future::pending().await,
            Self::Connecting(connecting) => {
                let opened = connecting.await;
                // A completed future must not be polled again.
                *self = Self::Closed;
                *self = Self::Open(opened?);
                Ok(None)
            }
            Self::Open(socket) => socket.transfer().await.map(|()| Some(&mut socket.input)),
        }
    }
}

impl Socket {
    async fn open(address: String, greeting: Greeting) -> Result<Self, LinkFailure> {
        let mut stream = TcpStream::connect(&address).await?;
        stream.set_nodelay(true)?;
        let mut answer = vec![0; greeting.answer.len()];
        stream.write_all(greeting.question).await?;
        stream.read_exact(&mut answer).await?;
        if answer != greeting.answer {
            return Err(LinkFailure::Garbage);
        }
        Ok(Self { stream, output: Vec::new(), written: 0, input: BytesMut::with_capacity(INPUT) })
    }

    async fn transfer(&mut self) -> Result<(), LinkFailure> {
        let Self { stream, output, written, input } = self;
        let (mut read, mut write) = stream.split();
        loop {
            tokio::select! {
                biased;
                length = write.write(&output[*written..]), if *written < output.len() => {
                    *written += length?;
                    if *written == output.len() {
                        output.clear();
                        *written = 0;
                    }
                }
                length = read.read_buf(input) => return if length? == 0 { Err(LinkFailure::Closed) } else { Ok(()) },
            }
        }
    }
}
