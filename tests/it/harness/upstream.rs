//! Upstreams: one that answers HTTP and remembers its requests, and one whose bytes the test writes itself.

use std::collections::HashMap;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use super::clock::until;
use super::wire::{Framing, Headers, Wire};

#[derive(Clone, Debug)]
pub(crate) struct Received {
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) headers: Headers,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Headers,
}

/// Runs in a thread for as long as the tests run, or until the test ends it.
pub(crate) struct Upstream {
    address: SocketAddr,
    ended: Arc<Mutex<Ended>>,
    connections: Arc<AtomicUsize>,
    received: Arc<Mutex<Vec<Received>>>,
}

/// Whether a server was ended, and what must be closed then.
#[derive(Default)]
struct Ended {
    is_over: bool,
    open: HashMap<usize, TcpStream>,
}

impl Upstream {
    /// Answers every whole request with the bytes that `answer` makes, and keeps connections open.
    pub(crate) fn start(answer: impl Fn(&Received) -> Vec<u8> + Send + Sync + 'static) -> Self {
        let received = Arc::new(Mutex::new(Vec::new()));
        let record = Arc::clone(&received);
        let ended = Arc::new(Mutex::new(Ended::default()));
        let ending = Arc::clone(&ended);
        let mut upstream = Self::listen(ended, move |mut wire, number| {
            ending.lock().unwrap().open.insert(number, wire.stream().try_clone().unwrap());
            while let Ok(Some(request)) = receive(&mut wire) {
                record.lock().unwrap().push(request.clone());
                if wire.write(&answer(&request)).is_err() {
                    break;
                }
            }
            ending.lock().unwrap().open.remove(&number);
        });
        upstream.received = received;
        upstream
    }

    /// Passes every connection to `serve` in a new thread, with its number from 0.
    pub(crate) fn raw(serve: impl Fn(Wire, usize) + Send + Sync + 'static) -> Self {
        Self::listen(Arc::default(), serve)
    }

    fn listen(ended: Arc<Mutex<Ended>>, serve: impl Fn(Wire, usize) + Send + Sync + 'static) -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        // Some tests open a thousand connections at once.
        socket.listen(4096).unwrap();
        let listener = TcpListener::from(socket);
        let address = listener.local_addr().unwrap();
        let (connections, serve) = (Arc::new(AtomicUsize::new(0)), Arc::new(serve));
        let (count, ending) = (Arc::clone(&connections), Arc::clone(&ended));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { break };
                if ending.lock().unwrap().is_over {
                    break;
                }
                let number = count.fetch_add(1, Ordering::SeqCst);
                let serve = Arc::clone(&serve);
                std::thread::spawn(move || serve(Wire::new(stream), number));
            }
        });
        Self { address, ended, connections, received: Arc::default() }
    }

    /// Ends it as if its process had been killed: its connections are closed, and no more are accepted.
    pub(crate) fn end(self) {
        {
            let mut ended = self.ended.lock().unwrap();
            ended.is_over = true;
            ended.open.drain().for_each(|(_, stream)| _ = stream.shutdown(Shutdown::Both));
        }
        // The accepting thread checks for the end after each connection.
        let _ = TcpStream::connect(self.address);
    }

    /// Holds back its answers on `/held` until the returned value is dropped.
    pub(crate) fn holding() -> (Self, Sender<()>) {
        let (go, held): (_, Receiver<()>) = channel();
        let held = Mutex::new(held);
        let up = Self::start(move |request| {
            if request.target == "/held" {
                let _ = held.lock().unwrap().recv();
            }
            reply(200, "hello")
        });
        (up, go)
    }

    pub(crate) fn everything(&self) -> String {
        format!("{}\n[[routes]]\npath = \"/*\"\nupstream = \"up\"\n", self.section())
    }

    pub(crate) fn section(&self) -> String {
        format!("[upstreams.up]\nservers = [\"http://{}\"]\n", self.address)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    pub(crate) fn received(&self) -> Vec<Received> {
        self.received.lock().unwrap().clone()
    }

    #[track_caller]
    pub(crate) fn wait_connections(&self, count: usize) {
        until("the upstream is asked", Duration::from_secs(10), || self.connections() >= count);
    }
}

/// One whole request; an error if it is cut short.
pub(crate) fn receive(wire: &mut Wire) -> std::io::Result<Option<Received>> {
    let Some((line, headers)) = wire.head()? else { return Ok(None) };
    let mut words = line.split(' ').map(str::to_owned);
    let (method, target) = (words.next().unwrap(), words.next().unwrap());
    let mut body = Vec::new();
    let framing = headers.framing(Framing::Length(0))?;
    let trailers = wire.body(framing, &mut |piece| body.extend_from_slice(piece))?;
    Ok(Some(Received { method, target, headers, body, trailers }))
}

pub(crate) fn reply(status: u16, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status} Word\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

/// A port that refuses connections, and that no other process gets while the socket is open.
pub(crate) fn closed_port() -> (Socket, SocketAddr) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    (socket, address)
}

/// A port for a server of another project, which no other process gets while the socket is open. A server with
/// SO_REUSEADDR, which is usual, can listen on it.
pub(crate) fn reserved_port() -> (Socket, SocketAddr) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    (socket, address)
}

/// A listener with a full queue, so that the system drops further attempts, and the sockets that fill the queue.
pub(crate) fn full_queue(address: SocketAddr) -> std::io::Result<(TcpListener, Vec<Socket>)> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.bind(&address.into())?;
    socket.listen(0)?;
    let address = socket.local_addr()?;
    let mut waiting = Vec::new();
    for _ in 0..16 {
        let client = Socket::new(Domain::for_address(address.as_socket().unwrap()), Type::STREAM, None)?;
        let is_full = client.connect_timeout(&address, Duration::from_millis(200)).is_err();
        waiting.push(client);
        if is_full {
            break;
        }
    }
    Ok((socket.into(), waiting))
}
