//! Faults between a gateway and a server of its store, at will: a proxy that delays, breaks or invents answers.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{JoinHandle, spawn};
use std::time::{Duration, Instant};

use socket2::{Domain, SockRef, Socket, Type};

use super::valkey::cut_commands;

/// Not an answer to any command.
const GARBAGE: &[u8] = b"HTTP/1.1 400 Bad Request\r\n\r\n\0\xff\xfe";
const OUT_OF_MEMORY: &[u8] = b"SERVER_ERROR out of memory storing object\r\n";
/// The same as Valkey says it.
const OOM: &[u8] = b"-OOM command not allowed when used memory > 'maxmemory'.\r\n";
/// The commands with a data block, with the index of the word that tells its length.
const WITH_DATA: [(&str, usize); 7] =
    [("ms", 2), ("set", 4), ("add", 4), ("replace", 4), ("append", 4), ("prepend", 4), ("cas", 4)];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Pass,
    /// Every answer is delayed by this.
    Slow(Duration),
    /// Every answer is held until the mode changes.
    Hold,
    /// Every connection is reset in the middle of its next answer.
    Reset,
    /// Every answer is bytes of no protocol.
    Garbage,
    /// Every command gets this answer, except those that only ask whether the server is there.
    OutOfMemory,
    /// There is no listener, and open connections are closed.
    Refuse,
    /// Connections are accepted, and nothing else happens.
    Freeze,
}

/// Dropping it closes everything and ends its threads.
pub(crate) struct Fault {
    /// Where the gateway shall look for the server.
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
    /// Keeps the port while there is no listener on it.
    _held: Socket,
}

struct Shared {
    target: SocketAddr,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    mode: Mode,
    listening: bool,
    ended: bool,
    pairs: Vec<Weak<Pair>>,
    threads: Vec<JoinHandle<()>>,
}

/// A connection of the gateway and its counterpart at the server.
struct Pair {
    client: TcpStream,
    server: TcpStream,
}

impl Fault {
    pub(crate) fn start(target: SocketAddr, mode: Mode) -> Self {
        let held = bound(SocketAddr::from(([127, 0, 0, 1], 0)));
        let address = held.local_addr().unwrap().as_socket().unwrap();
        let state = State { mode, listening: false, ended: false, pairs: Vec::new(), threads: Vec::new() };
        let shared = Arc::new(Shared { target, state: Mutex::new(state), changed: Condvar::new() });
        let acceptor = shared.clone();
        let acceptor = Some(spawn(move || acceptor.listen(address)));
        let fault = Self { address, shared, acceptor, _held: held };
        fault.set(mode);
        fault
    }

    /// Sets the mode; returns when the port listens or refuses accordingly.
    pub(crate) fn set(&self, mode: Mode) {
        self.change(|state| state.mode = mode);
        let mut state = self.shared.lock();
        while state.listening == (mode == Mode::Refuse) {
            state = self.shared.wait(state);
        }
    }

    pub(crate) fn open(&self) -> usize {
        self.shared.lock().pairs.iter().filter(|pair| pair.strong_count() > 0).count()
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.shared.lock();
        change(&mut state);
        if state.ended || state.mode == Mode::Refuse {
            state.pairs.drain(..).filter_map(|pair| pair.upgrade()).for_each(|pair| pair.close());
            // A connection wakes the acceptor, which then sees the change.
            drop(state.listening.then(|| TcpStream::connect(self.address)));
        }
        self.shared.changed.notify_all();
    }
}

impl Drop for Fault {
    fn drop(&mut self) {
        self.change(|state| state.ended = true);
        self.acceptor.take().into_iter().for_each(|thread| thread.join().unwrap());
        let threads = std::mem::take(&mut self.shared.lock().threads);
        for thread in threads {
            // A failed thread has reported its failure.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    fn listen(self: &Arc<Self>, address: SocketAddr) {
        loop {
            let mut state = self.lock();
            while state.mode == Mode::Refuse && !state.ended {
                state = self.wait(state);
            }
            if state.ended {
                return;
            }
            let listener = bound(address);
            listener.listen(128).unwrap();
            state.listening = true;
            self.changed.notify_all();
            drop(state);
            self.accept(&listener.into());
        }
    }

    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        loop {
            let accepted = listener.accept();
            let mut state = self.lock();
            if state.mode == Mode::Refuse || state.ended {
                // Before anybody is told.
                SockRef::from(listener).shutdown(Shutdown::Both).unwrap();
                state.listening = false;
                self.changed.notify_all();
                return;
            }
            // Without a server the connection is closed.
            let (Ok((client, _)), Ok(server)) = (accepted, TcpStream::connect(self.target)) else { continue };
            client.set_nodelay(true).unwrap();
            server.set_nodelay(true).unwrap();
            let pair = Arc::new(Pair { client, server });
            state.pairs.retain(|pair| pair.strong_count() > 0);
            state.pairs.push(Arc::downgrade(&pair));
            let (asking, answering) = (self.clone(), self.clone());
            let both = pair.clone();
            state.threads.push(spawn(move || asking.questions(&both)));
            state.threads.push(spawn(move || answering.answers(&pair)));
        }
    }

    /// The mode, once it lets anything happen; `None` at the end.
    fn mode(&self) -> Option<Mode> {
        let mut state = self.lock();
        while state.mode == Mode::Freeze && !state.ended {
            state = self.wait(state);
        }
        (!state.ended).then_some(state.mode)
    }

    fn pause(&self, span: Duration) {
        let (end, mut state) = (Instant::now() + span, self.lock());
        while let left = end.saturating_duration_since(Instant::now())
            && !left.is_zero()
            && !state.ended
        {
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn hold(&self) {
        let mut state = self.lock();
        while state.mode == Mode::Hold && !state.ended {
            state = self.wait(state);
        }
    }

    fn questions(&self, pair: &Pair) {
        let (mut buffer, mut commands) = (vec![0; 1 << 16], Commands::default());
        while let Ok(length @ 1..) = (&pair.client).read(&mut buffer)
            && let Some(mode) = self.mode()
        {
            let bytes = &buffer[..length];
            let done = match mode {
                Mode::Garbage => (&pair.client).write_all(GARBAGE),
                Mode::OutOfMemory => (&pair.client).write_all(&commands.refuse(bytes)),
                _ => (&pair.server).write_all(bytes),
            };
            if done.is_err() {
                break;
            }
        }
        // The other thread then sees the end, and closes the rest.
        let _ = pair.server.shutdown(Shutdown::Both);
    }

    fn answers(&self, pair: &Pair) {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(length @ 1..) = (&pair.server).read(&mut buffer)
            && let Some(mode) = self.mode()
        {
            match mode {
                Mode::Slow(span) => self.pause(span),
                Mode::Hold => self.hold(),
                Mode::Reset => {
                    let _ = (&pair.client).write_all(&buffer[..length.div_ceil(2)]);
                    return pair.reset();
                }
                _ => {}
            }
            if (&pair.client).write_all(&buffer[..length]).is_err() {
                break;
            }
        }
        pair.close();
    }
}

impl Pair {
    fn close(&self) {
        // Either may be closed already.
        let _ = self.client.shutdown(Shutdown::Both);
        let _ = self.server.shutdown(Shutdown::Both);
    }

    /// Resets the connection when the last thread drops it, and makes both threads drop it.
    fn reset(&self) {
        let _ = SockRef::from(&self.client).set_linger(Some(Duration::ZERO));
        // Closing both directions would end the connection cleanly first.
        let _ = self.client.shutdown(Shutdown::Read);
        let _ = self.server.shutdown(Shutdown::Both);
    }
}

#[derive(Default)]
struct Commands {
    pending: Vec<u8>,
    /// The rest of a data block.
    data: usize,
}

impl Commands {
    /// The answers of a server without memory to the commands that are complete now.
    fn refuse(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.pending.extend_from_slice(bytes);
        if self.data == 0 && self.pending.first() == Some(&b'*') {
            return OOM.repeat(cut_commands(&mut self.pending).len());
        }
        let mut answers = Vec::new();
        loop {
            let data = self.data.min(self.pending.len());
            self.pending.drain(..data);
            self.data -= data;
            let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') else { return answers };
            let line = String::from_utf8_lossy(&self.pending[..end]).into_owned();
            self.pending.drain(..=end);
            let words: Vec<_> = line.split_whitespace().collect();
            let command = words.first().copied().unwrap_or_default();
            if let Some((_, word)) = WITH_DATA.iter().find(|(name, _)| *name == command) {
                self.data = words.get(*word).and_then(|length| length.parse::<usize>().ok()).map_or(0, |data| data + 2);
            }
            answers.extend_from_slice(match command {
                "mn" => b"MN\r\n",
                "version" => b"VERSION 1.6.0\r\n",
                _ => OUT_OF_MEMORY,
            });
        }
    }
}

fn bound(address: SocketAddr) -> Socket {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.bind(&address.into()).unwrap();
    socket
}
