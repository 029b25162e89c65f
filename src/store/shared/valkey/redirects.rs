//! The redirections of a node: commands for a slot that another node has, or is about to get.
//!
//! The node has not done such a command, so it is sent to the other one, and that one's reply takes the place of the redirection.
//! A slot may move again, so that one may redirect, too. So a reader sees whether the command was done, and nothing is done twice.
//! If the other node cannot be connected to, the redirection stays, which is an error like any other. If it has got commands and
//! does not answer, nobody knows whether they are done, and the connection fails as if this node had not answered.

use std::mem;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::BytesMut;
use tokio::time::timeout;

use super::super::connection::Redirects;
use super::super::protocol::{Garbage, LinkFailure};
use super::cluster::redirection;
use super::frames::{self, Frame, frame};
use super::{Valkey, greeting};

/// The longest time that another node may take to connect and to answer.
const TIMEOUT: Duration = Duration::from_secs(1);
/// How often other nodes are asked for the commands that were read at once, before a redirection stays.
const MOST: usize = 16;

pub(super) struct Follower {
    valkey: Valkey,
    node: String,
    /// The commands to which no reply was seen yet.
    sent: BytesMut,
    /// How many bytes at the end of the input were not looked at.
    unseen: usize,
    following: Option<Following>,
}

type Following = Pin<Box<dyn Future<Output = Result<Vec<Redirected>, LinkFailure>> + Send>>;

/// A command that another node does.
struct Redirected {
    command: BytesMut,
    /// The place of the redirection in the input.
    place: Range<usize>,
    /// Takes that place: from the last node that was asked.
    reply: BytesMut,
    /// Where it redirects to; `None` if that node cannot be connected to.
    to: Option<String>,
}

impl Follower {
    pub(super) fn new(valkey: Valkey, node: String) -> Self {
        Self { valkey, node, sent: BytesMut::new(), unseen: 0, following: None }
    }

    /// Looks at the replies that were not looked at yet.
    fn redirected(&mut self, input: &[u8]) -> Result<Vec<Redirected>, Garbage> {
        let mut redirected = Vec::new();
        let mut at = input.len() - self.unseen;
        while let Some((reply, next)) = frame(input, at)? {
            // The node sends what nobody has asked for, if there is no command.
            let (_, length) = frame(&self.sent, 0)?.ok_or(Garbage)?;
            let command = self.sent.split_to(length);
            if let Frame::Error(error) = reply
                && let Some(to) = redirection(&input[error], &self.node)
            {
                self.valkey.slots.iter().for_each(|slots| slots.stale.notify_one());
                let reply = BytesMut::from(&input[at..next]);
                redirected.push(Redirected { command, place: at..next, reply, to: Some(to) });
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
            self.following = Some(Box::pin(follow(self.valkey.clone(), redirected)));
        }
        let Some(following) = &mut self.following else { return Poll::Ready(Ok(())) };
        let redirected = ready!(following.as_mut().poll(cx))?;
        self.following = None;
        let before = mem::take(input);
        let mut at = 0;
        for Redirected { place, reply, .. } in redirected {
            input.extend_from_slice(&before[at..place.start]);
            input.extend_from_slice(&reply);
            at = place.end;
        }
        input.extend_from_slice(&before[at..]);
        Poll::Ready(Ok(()))
    }
}

/// Asks other nodes, each for all that it does, on connections that also learn where the slots are now. A connection that was kept
/// could have ended meanwhile, and each node would keep one to each other.
async fn follow(valkey: Valkey, mut redirected: Vec<Redirected>) -> Result<Vec<Redirected>, LinkFailure> {
    for _ in 0..MOST {
        let Some(server) = redirected.iter().find_map(|one| one.to.clone()) else { break };
        let mut theirs: Vec<_> = redirected.iter_mut().filter(|one| one.to.as_ref() == Some(&server)).collect();
        let Ok(Ok(mut socket)) = timeout(TIMEOUT, greeting::open(&valkey, &server, false)).await else {
            theirs.into_iter().for_each(|one| one.to = None);
            continue;
        };
        let mut question = Vec::new();
        for one in &theirs {
            // Without it, a node refuses what it is about to get.
            frames::write(&["ASKING"], &mut question);
            question.extend_from_slice(&one.command);
        }
        socket.ask(question, |input| take_replies(input, &mut theirs, &server)).await?;
    }
    Ok(redirected)
}

/// Takes the replies of a node to these commands; `None` while they are incomplete. The answer to `ASKING` comes before each.
fn take_replies(input: &[u8], to: &mut [&mut Redirected], node: &str) -> Result<Option<()>, LinkFailure> {
    let mut at = 0;
    for one in to {
        let Some((_, begin)) = frame(input, at)? else { return Ok(None) };
        let Some((reply, end)) = frame(input, begin)? else { return Ok(None) };
        one.to = if let Frame::Error(error) = reply { redirection(&input[error], node) } else { None };
        one.reply = BytesMut::from(&input[begin..end]);
        at = end;
    }
    Ok(Some(()))
}
