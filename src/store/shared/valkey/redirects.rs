//! The redirections of a node: commands for a slot that another node has, or is about to get.
//!
//! The node has not done such a command, so it is sent to the other one, once, and that one's reply takes the place of the
//! redirection. So a reader sees whether the command was done, and nothing is done twice. If the other node cannot be connected
//! to, the redirection stays, which is an error like any other. If it has got commands and does not answer, nobody knows whether
//! they are done, and the connection fails as if this node had not answered.

use std::collections::BTreeMap;
use std::mem;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use tokio::time::timeout;

use super::super::connection::Socket;
use super::super::failure::LinkFailure;
use super::super::protocol::{Garbage, Redirects};
use super::super::slots::SlotMap;
use super::cluster::{Redirection, TIMEOUT, redirection};
use super::frames::{self, Frame, whole};
use super::greeting::Introduction;
use crate::config::Login;

pub(super) struct Follower {
    login: Login,
    node: String,
    slots: Arc<SlotMap>,
    /// The commands to which no reply was seen yet.
    sent: BytesMut,
    /// How many bytes at the end of the input were not looked at.
    unseen: usize,
    /// Connections to other nodes, by address.
    others: BTreeMap<String, Socket>,
    following: Option<Following>,
}

type Following = Pin<Box<dyn Future<Output = Result<Followed, LinkFailure>> + Send>>;
type Followed = (BTreeMap<String, Socket>, Vec<Redirected>);

/// A command that another node does.
struct Redirected {
    to: Redirection,
    command: BytesMut,
    /// The place of its reply in the input.
    place: Range<usize>,
    /// From the other node, if it was asked.
    reply: Option<BytesMut>,
}

impl Follower {
    pub(super) fn new(login: Login, node: String, slots: Arc<SlotMap>) -> Self {
        let (sent, others) = (BytesMut::new(), BTreeMap::new());
        Self { login, node, slots, sent, unseen: 0, others, following: None }
    }

    /// Looks at the replies that were not looked at yet.
    fn redirected(&mut self, input: &[u8]) -> Result<Vec<Redirected>, Garbage> {
        let mut redirected = Vec::new();
        let mut at = input.len() - self.unseen;
        while let Some((reply, next)) = whole(input, at)? {
            // The node sends what nobody has asked for, if there is no command.
            let (_, length) = whole(&self.sent, 0)?.ok_or(Garbage)?;
            let command = self.sent.split_to(length);
            if let Frame::Error(error) = reply
                && let Some(to) = redirection(&input[error], &self.node)
            {
                if !to.is_moving {
                    self.slots.mark_stale();
                }
                redirected.push(Redirected { to, command, place: at..next, reply: None });
            }
            at = next;
        }
        self.unseen = input.len() - at;
        Ok(redirected)
    }
}

impl Redirects for Follower {
    fn sent(&mut self, commands: &[u8]) {
        self.sent.extend_from_slice(commands);
    }

    fn poll(&mut self, input: &mut BytesMut, more: usize, cx: &mut Context<'_>) -> Poll<Result<(), LinkFailure>> {
        self.unseen += more;
        if self.following.is_none() {
            let redirected = self.redirected(input)?;
            if redirected.is_empty() {
                return Poll::Ready(Ok(()));
            }
            self.following = Some(Box::pin(follow(self.login.clone(), mem::take(&mut self.others), redirected)));
        }
        let Some(following) = &mut self.following else { return Poll::Ready(Ok(())) };
        let (others, redirected) = ready!(following.as_mut().poll(cx))?;
        (self.others, self.following) = (others, None);
        let before = mem::take(input);
        let mut at = 0;
        for Redirected { place, reply, .. } in redirected {
            input.extend_from_slice(&before[at..place.start]);
            input.extend_from_slice(reply.as_deref().unwrap_or(&before[place.clone()]));
            at = place.end;
        }
        input.extend_from_slice(&before[at..]);
        Poll::Ready(Ok(()))
    }
}

/// Asks each of the other nodes for all that it does.
async fn follow(
    login: Login,
    mut others: BTreeMap<String, Socket>,
    mut redirected: Vec<Redirected>,
) -> Result<Followed, LinkFailure> {
    let servers: Vec<String> = redirected.iter().map(|one| one.to.server.clone()).collect();
    for server in servers {
        let mut theirs: Vec<_> =
            redirected.iter_mut().filter(|one| one.to.server == server && one.reply.is_none()).collect();
        if theirs.is_empty() {
            continue;
        }
        let socket = match others.remove(&server) {
            Some(socket) => Some(socket),
            None => {
                let greeting = Box::new(Introduction::to_node(&login));
                let opened = timeout(TIMEOUT, Socket::greet(&server, login.tls.as_deref(), greeting)).await;
                opened.ok().and_then(Result::ok)
            }
        };
        let Some(mut socket) = socket else { continue };
        let mut question = Vec::new();
        for Redirected { to, command, .. } in &theirs {
            if to.is_moving {
                frames::write([b"ASKING"], &mut question);
            }
            question.extend_from_slice(command);
        }
        let announced: Vec<bool> = theirs.iter().map(|one| one.to.is_moving).collect();
        let answers = socket.ask(question, |input| Ok(replies(input, &announced)?)).await?;
        for (one, reply) in theirs.iter_mut().zip(answers) {
            one.reply = Some(reply);
        }
        others.insert(server, socket);
    }
    Ok((others, redirected))
}

/// The bytes of the replies to so many commands, without those to announcements; `None` while they are incomplete.
fn replies(input: &[u8], announced: &[bool]) -> Result<Option<Vec<BytesMut>>, Garbage> {
    let (mut at, mut replies) = (0, Vec::new());
    for is_announced in announced {
        for is_reply in [false].into_iter().filter(|_| *is_announced).chain([true]) {
            let Some((_, next)) = whole(input, at)? else { return Ok(None) };
            if is_reply {
                replies.push(BytesMut::from(&input[at..next]));
            }
            at = next;
        }
    }
    Ok(Some(replies))
}
