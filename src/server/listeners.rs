//! The listeners of one worker, which a reload may open and close.
//!
//! The task of a closed listener accepts what the kernel has already accepted, and its connections end after the request in
//! flight.

use std::cell::Cell;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use rustix::net::sockopt::set_tcp_nodelay;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

use super::{Acceptor, Handler, Stage};
use crate::net::Traffic;

/// After a failed accept, which usually means that file handles or memory are exhausted.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(20);

pub struct Listener {
    /// Unique in its worker, and never used again.
    pub id: usize,
    pub socket: std::net::TcpListener,
    pub is_tls: bool,
    pub traffic: Traffic,
}

pub enum ListenerChange {
    Open(Listener),
    /// The listener with this id accepts no more connections. Those that it has accepted end after the request in flight.
    Close(usize),
    /// Whether new connections of the listener with this id use TLS. Those that it has accepted end after the request in flight.
    UseTls(usize, bool),
}

pub(super) struct Listeners<H> {
    acceptors: [Rc<Acceptor<H>>; 2],
    stage: watch::Receiver<Stage>,
    open: Vec<Open>,
    pub(super) accepting: JoinSet<()>,
}

struct Open {
    id: usize,
    is_tls: Rc<Cell<bool>>,
    /// Dropping this ends the task.
    _close: oneshot::Sender<()>,
}

impl<H: Handler> Listeners<H> {
    /// They accept connections until [`Stage::Draining`].
    pub(super) fn new(acceptors: [Rc<Acceptor<H>>; 2], stage: watch::Receiver<Stage>) -> Self {
        Self { acceptors, stage, open: Vec::new(), accepting: JoinSet::new() }
    }

    pub(super) fn change(&mut self, change: ListenerChange) {
        match change {
            ListenerChange::Open(listener) => {
                if let Err(error) = self.begin(listener) {
                    tracing::error!(%error, "a worker cannot use a listener");
                }
            }
            ListenerChange::Close(id) => self.open.retain(|open| open.id != id),
            ListenerChange::UseTls(id, is_tls) => {
                self.open.iter().filter(|open| open.id == id).for_each(|open| open.is_tls.set(is_tls));
                self.acceptors.iter().for_each(|acceptor| acceptor.connections.end_of_listener(id));
            }
        }
    }

    fn begin(&mut self, listener: Listener) -> io::Result<()> {
        let Listener { id, socket, is_tls, traffic } = listener;
        // The sockets of its connections inherit the option.
        if let Err(error) = set_tcp_nodelay(&socket, true) {
            tracing::debug!(%error, "cannot set TCP_NODELAY");
        }
        let (socket, is_tls) = (TcpListener::from_std(socket)?, Rc::new(Cell::new(is_tls)));
        let (close, closed) = oneshot::channel::<()>();
        let mut stage = self.stage.clone();
        let closing = async move {
            tokio::select! {
                _ = stage.wait_for(|stage| *stage >= Stage::Draining) => {}
                _ = closed => {}
            }
        };
        let acceptor = self.acceptors[traffic as usize].clone();
        self.open.push(Open { id, is_tls: is_tls.clone(), _close: close });
        self.accepting.spawn_local(async move {
            accept(socket, id, is_tls, &acceptor, closing).await;
            acceptor.connections.end_of_listener(id);
        });
        Ok(())
    }
}

async fn accept<H: Handler>(
    listener: TcpListener,
    id: usize,
    is_tls: Rc<Cell<bool>>,
    acceptor: &Rc<Acceptor<H>>,
    closing: impl Future<Output = ()>,
) {
    let mut closing = pin!(closing);
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut closing => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                let Some(mut place) = acceptor.permit(peer) else { continue };
                let is_closed = tokio::select! {
                    biased;
                    () = acceptor.connections.wait_for_place(&mut place) => false,
                    () = &mut closing => true,
                };
                // While the gateway stops there may be no place.
                if place.take() {
                    acceptor.open(stream, peer, id, is_tls.get(), place);
                }
                if is_closed {
                    break;
                }
            }
            Err(error) => match error.kind() {
                // The client has closed the connection before it was accepted.
                io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::Interrupted => {}
                _ => {
                    acceptor.connections.exhausted(&error);
                    tokio::time::sleep(EXHAUSTED_PAUSE).await;
                }
            },
        }
    }
    // The kernel may have accepted further connections, and would reset them when the socket is closed. The system is asked
    // directly, because the runtime may not know of them yet.
    let Ok(listener) = listener.into_std() else { return };
    while let Ok((stream, peer)) = listener.accept() {
        let Some(mut place) = acceptor.permit(peer) else { continue };
        if !place.take() {
            continue;
        }
        match stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream)) {
            Ok(stream) => acceptor.open(stream, peer, id, is_tls.get(), place),
            Err(error) => tracing::error!(%error, "cannot serve a connection"),
        }
    }
}
