//! The redirections of a node: commands for a slot that another node has, or is about to get.
//!
//! The node has not done such a command, so it is sent to the other one, and that one's reply takes the place of the redirection.
//! A slot may move again, so that one may redirect, too. So a reader sees whether the command was done, and nothing is done twice.
//! If the other node cannot be connected to, the redirection stays, which is an error like any other. If it has got commands and
//! does not answer, nobody knows whether they are done, and the connection fails as if this node had not answered.

use std::collections::BTreeMap;
use std::mem;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use tokio::time::timeout;

use super::super::connection::{Redirects, Socket};
use super::super::protocol::{Garbage, LinkFailure};
use super::super::slots::SlotMap;
use super::cluster::{TIMEOUT, redirection};
use super::frames::{self, Frame, outer};
use super::greeting;
use crate::config::Login;

/// How often other nodes are asked for the commands that were read at once, before a redirection stays.
const MOST: usize = 16;

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
    /// `None` if it needs no further node, or that one cannot be connected to.
    to: Option<String>,
    command: BytesMut,
    /// The place of its reply in the input.
    place: Range<usize>,
    /// From the last other node that was asked.
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
        while let Some((reply, next)) = outer(input, at)? {
            // The node sends what nobody has asked for, if there is no command.
            let (_, length) = outer(&self.sent, 0)?.ok_or(Garbage)?;
            let command = self.sent.split_to(length);
            if let Frame::Error(error) = reply
                && let Some(to) = redirection(&input[error], &self.node)
            {
                self.slots.stale.notify_one();
                redirected.push(Redirected { to: Some(to), command, place: at..next, reply: None });
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

/// Asks other nodes, each for all that it does.
async fn follow(
    login: Login,
    mut others: BTreeMap<String, Socket>,
    mut redirected: Vec<Redirected>,
) -> Result<Followed, LinkFailure> {
    for _ in 0..MOST {
        let Some(server) = redirected.iter().find_map(|one| one.to.clone()) else { break };
        let theirs: Vec<_> = redirected.iter_mut().filter(|one| one.to.as_ref() == Some(&server)).collect();
        let socket = match others.remove(&server) {
            Some(socket) => Ok(Ok(socket)),
            None => timeout(TIMEOUT, greeting::open(&server, &login, None)).await,
        };
        let Ok(Ok(mut socket)) = socket else {
            theirs.into_iter().for_each(|one| one.to = None);
            continue;
        };
        let mut question = Vec::new();
        for one in &theirs {
            // Without it, a node refuses what it is about to get.
            frames::write(&[b"ASKING"], &mut question);
            question.extend_from_slice(&one.command);
        }
        let answers = socket.ask(question, |input| Ok(replies(input, theirs.len(), &server)?)).await?;
        for (one, (reply, to)) in theirs.into_iter().zip(answers) {
            (one.reply, one.to) = (Some(reply), to);
        }
        others.insert(server, socket);
    }
    Ok((others, redirected))
}

type Reply = (BytesMut, Option<String>);

/// The replies of a node to so many commands, and where they redirect to; `None` while they are incomplete. The answer to
/// `ASKING` comes before each.
fn replies(input: &[u8], commands: usize, node: &str) -> Result<Option<Vec<Reply>>, Garbage> {
    let (mut at, mut replies) = (0, Vec::new());
    for _ in 0..commands {
        let Some((_, begin)) = outer(input, at)? else { return Ok(None) };
        let Some((reply, end)) = outer(input, begin)? else { return Ok(None) };
        let to = if let Frame::Error(error) = reply { redirection(&input[error], node) } else { None };
        replies.push((BytesMut::from(&input[begin..end]), to));
        at = end;
    }
    Ok(Some(replies))
}
