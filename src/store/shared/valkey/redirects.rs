//! What a server has not done: commands for a slot that another node has or is about to get, and scripts that it has forgotten.
//!
//! A node has not done a command that it redirects, so it is sent to the other one, and that one's reply takes the place of the
//! redirection. A slot may move again, so that one may redirect, too. So a reader sees whether the command was done, and nothing is
//! done twice. If the other node cannot be connected to, the redirection stays, which is an error like any other. If it has got
//! commands and does not answer, nobody knows whether they are done, and the connection fails as if this node had not answered.
//!
//! A forgotten script is a redirection to the same server, because each new connection teaches the scripts. What was read after it
//! is read again, so that it shows the write.

use std::collections::VecDeque;
use std::mem;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::BytesMut;
use memchr::memchr;
use tokio::time::timeout;

use super::super::connection::Redirects;
use super::super::protocol::{Garbage, LinkFailure};
use super::cluster::{FORGOTTEN, redirection};
use super::frames::{self, Frame, frame};
use super::{Valkey, greeting};

/// The longest time that another node may take to connect and to answer.
const TIMEOUT: Duration = Duration::from_secs(1);
/// How often other nodes are asked for the commands that were read at once, before a redirection stays.
const MOST: usize = 16;

pub(super) struct Follower {
    valkey: Valkey,
    node: String,
    /// The exchanges that are not answered yet.
    sent: VecDeque<Vec<u8>>,
    /// Whether the input may have errors that were not looked at.
    has_errors: bool,
    /// Whether a script was forgotten, and how many of `sent` may have been read before it is run again.
    is_forgotten: bool,
    unsure: usize,
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
        Self { valkey, node, sent: VecDeque::new(), has_errors: false, is_forgotten: false, unsure: 0, following: None }
    }

    /// Looks at all replies to the exchanges that are not answered yet, with which the input begins.
    fn redirected(&mut self, input: &[u8]) -> Result<Vec<Redirected>, Garbage> {
        let (mut redirected, mut at) = (Vec::new(), 0);
        for (number, exchange) in self.sent.iter().enumerate() {
            let mut begin = 0;
            while begin < exchange.len() {
                let Some((reply, next)) = frame(input, at)? else {
                    self.has_errors = at < input.len();
                    return Ok(redirected);
                };
                let (_, end) = frame(exchange, begin)?.ok_or(Garbage)?;
                let to = match reply {
                    Frame::Error(error) => {
                        if input[error.clone()].starts_with(FORGOTTEN) {
                            (self.is_forgotten, self.unsure) = (true, self.sent.len());
                        }
                        redirection(&input[error], &self.node)
                    }
                    Frame::Several(_) if number < self.unsure => Some(self.node.clone()),
                    _ => None,
                };
                if let Some(to) = to {
                    let (command, reply) = (BytesMut::from(&exchange[begin..end]), BytesMut::from(&input[at..next]));
                    redirected.push(Redirected { command, place: at..next, reply, to: Some(to) });
                }
                (at, begin) = (next, end);
            }
        }
        self.has_errors = false;
        Ok(redirected)
    }
}

impl Redirects for Follower {
    fn sent(&mut self, exchange: &[u8]) {
        self.sent.push_back(exchange.to_vec());
    }

    fn answered(&mut self, exchanges: usize) {
        self.sent.drain(..exchanges);
        self.unsure = self.unsure.saturating_sub(exchanges);
    }

    fn poll(&mut self, input: &mut BytesMut, more: usize, cx: &mut Context<'_>) -> Poll<Result<(), LinkFailure>> {
        if self.following.is_none() {
            // To look at each reply would take a sixth of a decision. Errors begin with this byte, and counts do not have it.
            self.has_errors |= memchr(b'-', &input[input.len() - more..]).is_some();
            if self.unsure == 0 && !self.has_errors {
                return Poll::Ready(Ok(()));
            }
            let redirected = self.redirected(input)?;
            if redirected.is_empty() {
                return Poll::Ready(Ok(()));
            }
            self.following = Some(Box::pin(follow(self.valkey.clone(), redirected)));
        }
        let Some(following) = &mut self.following else { return Poll::Ready(Ok(())) };
        let redirected = ready!(following.as_mut().poll(cx))?;
        self.following = None;
        if mem::take(&mut self.is_forgotten) {
            self.unsure = self.sent.len();
        }
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
