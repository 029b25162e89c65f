//! The connection to one server: connect in the background, exchange, and on any failure begin again after a pause.
//!
//! A request never finds out for itself that a server is away: that is known here, and so is when it is back.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use super::commands::{Commands, NOTHING};
use super::driver::Driver;
use super::known::MOMENT;
use super::replies::{Garbage, Reader};
use super::servers::Due;
use crate::clock::micros;
use crate::deadline::Deadline;

/// The pause after the second failure in a row; it doubles with every further one.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// The longest that finding the address and connecting may take. Nobody waits for it.
const CONNECT: Duration = Duration::from_secs(1);
/// Bytes that can be read at once: the replies to an exchange that is full, in most cases.
const INPUT: usize = 64 << 10;
/// A connection that lasted for this long was no failure.
const LASTING: Duration = Duration::from_secs(1);

/// Why a server is not to be had.
#[derive(Debug)]
pub(super) enum Failure {
    /// It cannot be connected to, or the connection broke.
    Io(io::Error),
    /// It closed the connection.
    Closed,
    /// It did not answer in time.
    Silent,
    /// What it answered is not Memcached's protocol.
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

/// Keeps the connection to a server, for ever.
pub(super) async fn keep(driver: &Driver, server: usize) {
    let mut pause = Duration::ZERO;
    loop {
        let (failure, was_good) = match connect(driver, server).await {
            Ok(stream) => {
                driver.up(server);
                let mut exchanges = Exchanges::new(driver, server);
                let begun = Instant::now();
                let Err(failure) = exchanges.run(stream).await;
                (failure, exchanges.good || begun.elapsed() >= LASTING)
            }
            Err(failure) => (failure, false),
        };
        driver.down(server, &failure);
        if was_good {
            // Most likely it has been restarted.
            pause = Duration::ZERO;
        }
        sleep(pause).await;
        pause = (pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
    }
}

/// Connects and sees that somebody answers. The name is looked up each time, since its address may have changed.
async fn connect(driver: &Driver, server: usize) -> Result<TcpStream, Failure> {
    let attempt = timeout(CONNECT, TcpStream::connect(driver.address(server)));
    tokio::pin!(attempt);
    let connected = match timeout(driver.timeout, &mut attempt).await {
        Ok(connected) => connected,
        Err(_) => {
            // Those who have waited for it so far need not go on.
            driver.down(server, &Failure::Silent);
            attempt.await
        }
    };
    let mut stream = connected.map_err(|_| Failure::Silent)??;
    stream.set_nodelay(true)?;
    let (question, expected) = NOTHING;
    let mut answer = [0; NOTHING.1.len()];
    let probe = async {
        stream.write_all(question).await?;
        stream.read_exact(&mut answer).await
    };
    timeout(driver.timeout, probe).await.map_err(|_| Failure::Silent)??;
    if answer == *expected { Ok(stream) } else { Err(Failure::Garbage) }
}

/// The exchanges on one connection.
struct Exchanges<'a> {
    driver: &'a Driver,
    server: usize,
    /// What reads the replies to each, and when it began.
    under_way: VecDeque<(Reader, Instant)>,
    /// The commands of the next one.
    commands: Commands,
    /// When what is owed leaves, whether there is somebody to travel with or not.
    departure: Option<Instant>,
    /// Whether any of them came to something.
    good: bool,
}

/// What never is.
enum Never {}

impl<'a> Exchanges<'a> {
    fn new(driver: &'a Driver, server: usize) -> Self {
        let (under_way, commands) = (VecDeque::new(), Commands::default());
        Self { driver, server, under_way, commands, departure: None, good: false }
    }

    /// Sends what is due and takes over what comes, until something fails.
    async fn run(&mut self, mut stream: TcpStream) -> Result<Never, Failure> {
        let (mut read, mut write) = stream.split();
        let (mut out, mut input) = (Vec::new(), BytesMut::with_capacity(INPUT));
        let mut written = 0;
        let (mut leaving, mut silence) = (Deadline::now(), Deadline::now());
        loop {
            self.compose(&mut out);
            let (leaves, waits) =
                (self.departure, self.under_way.front().map(|(_, begun)| *begun + self.driver.timeout));
            leaves.into_iter().for_each(|at| leaving.set_at(at));
            waits.into_iter().for_each(|at| silence.set_at(at));
            tokio::select! {
                biased;
                more = write.write(&out[written..]), if written < out.len() => {
                    written += more?;
                    if written == out.len() {
                        out.clear();
                        written = 0;
                    }
                }
                more = read.read_buf(&mut input) => {
                    if more? == 0 {
                        return Err(Failure::Closed);
                    }
                    self.take_answers(&mut input)?;
                }
                () = self.driver.wakes(self.server) => {}
                () = poll_fn(|cx| leaving.poll(cx)), if leaves.is_some() => self.compose_one(&mut out),
                () = poll_fn(|cx| silence.poll(cx)), if waits.is_some() => return Err(Failure::Silent),
            }
        }
    }

    /// Writes all exchanges that are due.
    fn compose(&mut self, out: &mut Vec<u8>) {
        loop {
            let due = self.driver.due(self.server);
            match due {
                Due::Now => self.compose_one(out),
                Due::Soon => {
                    self.departure.get_or_insert_with(|| Instant::now() + MOMENT);
                    return;
                }
                Due::Never => return,
            }
        }
    }

    fn compose_one(&mut self, out: &mut Vec<u8>) {
        self.departure = None;
        if self.driver.compose(self.server, &mut self.commands) {
            self.driver.health.round_trips.one();
            self.under_way.push_back((self.commands.finish(out), Instant::now()));
        }
    }

    /// Takes over the replies to every exchange that has been answered in full.
    fn take_answers(&mut self, input: &mut BytesMut) -> Result<(), Failure> {
        while let Some((reader, begun)) = self.under_way.front_mut() {
            let Some(length) = reader.read(input)? else { return Ok(()) };
            self.driver.health.latency.observe(micros(begun.elapsed()));
            self.driver.answered(self.server, reader.replies(input), *begun).map_err(Failure::Failed)?;
            self.under_way.pop_front();
            self.good = true;
            input.advance(length);
        }
        // Nobody asked for what is left.
        if input.is_empty() { Ok(()) } else { Err(Failure::Garbage) }
    }
}
