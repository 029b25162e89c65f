//! A connection to one server, and the only owner of its socket: it connects, writes the commands of exchanges, and
//! reads their replies.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{self, Instant};

use super::commands::{Commands, NOTHING};
use super::replies::{Garbage, Reader, Replies};
use crate::deadline::Deadline;

/// The longest time that the lookup of the address and connecting may take. No request waits for it.
pub(super) const CONNECT: Duration = Duration::from_secs(1);
/// Bytes that can be read at once: in most cases the replies to a full exchange.
const INPUT: usize = 64 << 10;

/// Why a server does not answer.
#[derive(Debug)]
pub(super) enum Failure {
    /// It cannot be connected to, or the connection broke.
    Io(io::Error),
    /// It closed the connection.
    Closed,
    /// It did not answer in time.
    Silent,
    /// Its answer is not Memcached's protocol.
    Garbage,
    /// It answered, but did nothing of what it was asked.
    Failed(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::Closed => f.write_str("it closed the connection"),
            Self::Silent => f.write_str("it did not answer in time"),
            Self::Garbage => f.write_str("its answer is not Memcached's protocol"),
            Self::Failed(answer) => write!(f, "it answered \"{answer}\""),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<Garbage> for Failure {
    fn from(_: Garbage) -> Self {
        Self::Garbage
    }
}

/// A connection to a server that answers.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    /// The longest time that the server may take to answer an exchange.
    timeout: Duration,
    /// The commands that are being written, and how many bytes of them have been.
    output: Vec<u8>,
    written: usize,
    input: BytesMut,
    /// The exchanges that have not been answered: what reads the replies to each, and when it began.
    in_flight: VecDeque<(Reader, Instant)>,
    /// Fires when the first of them takes too long.
    silence: Deadline,
}

impl Connection {
    /// Connects, and checks that Memcached answers. The name is looked up each time, because its address may have
    /// changed.
    ///
    /// # Errors
    /// If that fails or takes too long: connecting longer than [`CONNECT`], or the first answer longer than `timeout`.
    pub(super) async fn open(address: &str, timeout: Duration) -> Result<Self, Failure> {
        let connected = time::timeout(CONNECT, TcpStream::connect(address)).await;
        let mut stream = connected.map_err(|_| Failure::Silent)??;
        stream.set_nodelay(true)?;
        let (question, expected) = NOTHING;
        let mut answer = [0; NOTHING.1.len()];
        let probe = async {
            stream.write_all(question).await?;
            stream.read_exact(&mut answer).await
        };
        time::timeout(timeout, probe).await.map_err(|_| Failure::Silent)??;
        if answer != *expected {
            return Err(Failure::Garbage);
        }
        let (output, input) = (Vec::new(), BytesMut::with_capacity(INPUT));
        let (in_flight, silence) = (VecDeque::new(), Deadline::now());
        Ok(Self { stream, timeout, output, written: 0, input, in_flight, silence })
    }

    /// Begins an exchange with these commands. [`Self::transfer`] writes them.
    pub(super) fn begin(&mut self, commands: &mut Commands) {
        let reader = commands.finish(&mut self.output);
        self.in_flight.push_back((reader, Instant::now()));
    }

    /// Writes what there is to write, until something has been read. If this future is dropped, nothing is lost.
    ///
    /// # Errors
    /// If the connection is closed or broken, or if the server is silent for too long.
    pub(super) async fn transfer(&mut self) -> Result<(), Failure> {
        let Self { stream, timeout, output, written, input, in_flight, silence } = self;
        let (mut read, mut write) = stream.split();
        let answer_by = in_flight.front().map(|(_, begun)| *begun + *timeout);
        answer_by.into_iter().for_each(|at| silence.set_at(at));
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
                length = read.read_buf(input) => return if length? == 0 { Err(Failure::Closed) } else { Ok(()) },
                () = poll_fn(|cx| silence.poll(cx)), if answer_by.is_some() => return Err(Failure::Silent),
            }
        }
    }

    /// Passes on the replies to each exchange that has been answered in full, and when it began.
    ///
    /// # Errors
    /// If what was read is not what Memcached replies, or if `take` fails.
    pub(super) fn take_replies(
        &mut self,
        mut take: impl FnMut(Replies<'_>, Instant) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        while let Some((reader, begun)) = self.in_flight.front_mut() {
            let Some(length) = reader.read(&self.input)? else { return Ok(()) };
            take(reader.replies(&self.input), *begun)?;
            self.in_flight.pop_front();
            self.input.advance(length);
        }
        // What is left was not asked for.
        if self.input.is_empty() { Ok(()) } else { Err(Failure::Garbage) }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    const LONG: Duration = Duration::from_secs(30);

    /// A connection, and the server's end of it, which has answered the first command so.
    async fn connect(answer: &[u8], timeout: Duration) -> (Result<Connection, Failure>, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let accept = async {
            let (mut server, _) = listener.accept().await.unwrap();
            let mut question = vec![0; NOTHING.0.len()];
            server.read_exact(&mut question).await.unwrap();
            assert_eq!(question, NOTHING.0);
            server.write_all(answer).await.unwrap();
            server
        };
        tokio::join!(Connection::open(&address, timeout), accept)
    }

    /// Begins an exchange that reads an item of this name.
    fn read(connection: &mut Connection, name: &str) {
        let mut commands = Commands::default();
        commands.read(|out| out.extend_from_slice(name.as_bytes()));
        connection.begin(&mut commands);
    }

    #[tokio::test]
    async fn replies_are_taken_in_order_whatever_the_pieces_in_which_they_come() {
        let (connection, mut server) = connect(NOTHING.1, LONG).await;
        let mut connection = connection.unwrap();
        ["a", "b"].iter().for_each(|name| read(&mut connection, name));
        let (mut sent, mut counts) = (Vec::new(), Vec::new());
        for piece in ["VALUE a 0 1 7\r\n5\r\nEN", "D\r\nVALUE b 0 1 8\r\n6\r\n", "END\r\n"] {
            server.write_all(piece.as_bytes()).await.unwrap();
            connection.transfer().await.unwrap();
            let take = |replies: Replies<'_>, _| {
                counts.push(replies.item(0).unwrap().count());
                Ok(())
            };
            connection.take_replies(take).unwrap();
            sent.push(counts.len());
        }
        assert_eq!((sent, counts), (vec![0, 1, 2], vec![5, 6]));
        let mut asked = [0; 16];
        server.read_exact(&mut asked).await.unwrap();
        assert_eq!(&asked, b"gets a\r\ngets b\r\n");
        server.write_all(b"END\r\n").await.unwrap();
        connection.transfer().await.unwrap();
        let unasked = connection.take_replies(|_, _| Ok(()));
        assert!(matches!(unasked, Err(Failure::Garbage)), "nobody asked for it");
    }

    #[tokio::test]
    async fn a_server_fails_if_it_does_not_answer_for_too_long_or_closes() {
        let (connection, server) = connect(NOTHING.1, Duration::from_millis(20)).await;
        let mut connection = connection.unwrap();
        let idle = time::timeout(Duration::from_millis(100), connection.transfer()).await;
        assert!(idle.is_err(), "it has_pending no answer");
        read(&mut connection, "a");
        let late = time::timeout(LONG, connection.transfer()).await.unwrap();
        assert!(matches!(late, Err(Failure::Silent)), "{late:?}");
        drop(server);
        let (connection, server) = connect(NOTHING.1, LONG).await;
        drop(server);
        let closed = time::timeout(LONG, connection.unwrap().transfer()).await.unwrap();
        assert!(matches!(closed, Err(Failure::Closed)), "{closed:?}");
    }

    #[tokio::test]
    async fn what_does_not_answer_like_memcached_is_no_server() {
        let (connection, _server) = connect(b"-ER\r", LONG).await;
        assert!(matches!(connection, Err(Failure::Garbage)));
        let (connection, _server) = connect(b"", Duration::from_millis(20)).await;
        assert!(matches!(connection, Err(Failure::Silent)));
    }
}
