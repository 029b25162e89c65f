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
use std::ops::Range;
use std::time::Duration;

use memchr::memchr;
use tokio::time::timeout;

use super::super::connection::Redirects;
use super::super::protocol::{Garbage, LinkFailure};
use super::addresses::joined;
use super::frames::{self, Frame, whole};
use super::{Valkey, greeting};

/// The longest time that another node may take to connect and to answer.
const TIMEOUT: Duration = Duration::from_secs(1);
/// How often other nodes are asked for the commands that were read at once, before a redirection stays.
const MOST: usize = 16;

/// A command that another node does.
struct Redirected {
    /// After `ASKING`: without it, a node refuses what it is about to get.
    command: Vec<u8>,
    /// The place of the redirection in the input.
    place: Range<usize>,
    /// Takes that place: from the last node that was asked.
    reply: Vec<u8>,
    /// Where it redirects to; `None` if that node cannot be connected to.
    to: Option<String>,
}

/// Follows the redirections of this node.
pub(super) fn follower(valkey: Valkey, node: String) -> Redirects {
    Box::new(move |sent, input| {
        // To look at each reply would take a sixth of a decision. Errors begin with this byte, and counts do not have it.
        let has_errors = memchr(b'-', input).is_some();
        let redirected = if has_errors { redirected(sent, input, &node)? } else { Vec::new() };
        if redirected.is_empty() {
            return Ok(None);
        }
        Ok(Some(Box::pin(follow(valkey.clone(), redirected, input.to_vec()))))
    })
}

/// What was not done of the exchanges that are answered in full. The input begins with the replies to the first of them.
fn redirected(sent: &VecDeque<Vec<u8>>, input: &[u8], node: &str) -> Result<Vec<Redirected>, Garbage> {
    let (mut redirected, mut at) = (Vec::new(), 0);
    for exchange in sent {
        let (before, mut begin, mut is_forgotten) = (redirected.len(), 0, false);
        while begin < exchange.len() {
            let Some((reply, next)) = whole(input, at)? else {
                redirected.truncate(before);
                return Ok(redirected);
            };
            let (_, end) = whole(exchange, begin)?.ok_or(Garbage)?;
            let to = match &reply[..] {
                [Frame::Error(error)] => redirection(&input[error.clone()], node),
                [Frame::Several(_), ..] if is_forgotten => Some(node.to_owned()),
                _ => None,
            };
            is_forgotten |= to.as_deref() == Some(node);
            if to.is_some() {
                let command = [&frames::written(&["ASKING"])[..], &exchange[begin..end]].concat();
                redirected.push(Redirected { command, place: at..next, reply: input[at..next].to_vec(), to });
            }
            (at, begin) = (next, end);
        }
    }
    Ok(redirected)
}

/// Asks other nodes, each for all that it does, on connections that also learn where the slots are now. A connection that was kept
/// could have ended meanwhile, and each node would keep one to each other. Returns the replies with those of other nodes.
async fn follow(valkey: Valkey, mut redirected: Vec<Redirected>, mut replies: Vec<u8>) -> Result<Vec<u8>, LinkFailure> {
    for _ in 0..MOST {
        let Some(server) = redirected.iter().find_map(|one| one.to.clone()) else { break };
        let mut theirs: Vec<_> = redirected.iter_mut().filter(|one| one.to.as_ref() == Some(&server)).collect();
        let Ok(Ok(mut socket)) = timeout(TIMEOUT, greeting::open(&valkey, &server, false)).await else {
            theirs.into_iter().for_each(|one| one.to = None);
            continue;
        };
        let question = theirs.iter().flat_map(|one| one.command.clone()).collect();
        socket.ask(question, |input| take_replies(input, &mut theirs, &server)).await?;
    }
    redirected.into_iter().rev().for_each(|one| drop(replies.splice(one.place, one.reply)));
    Ok(replies)
}

/// Takes the replies of a node to these commands; `None` while they are incomplete. The answer to `ASKING` comes before each.
fn take_replies(input: &[u8], to: &mut [&mut Redirected], node: &str) -> Result<Option<()>, LinkFailure> {
    let mut at = 0;
    for one in to {
        let Some((_, begin)) = whole(input, at)? else { return Ok(None) };
        let Some((reply, end)) = whole(input, begin)? else { return Ok(None) };
        one.to = if let [Frame::Error(error)] = &reply[..] { redirection(&input[error.clone()], node) } else { None };
        one.reply = input[begin..end].to_vec();
        at = end;
    }
    Ok(Some(()))
}

/// The server that does a command instead of this node, or this one if it has to learn the scripts again; `None` after other
/// errors.
fn redirection(error: &[u8], node: &str) -> Option<String> {
    let mut words = str::from_utf8(error).ok()?.split(' ');
    match words.next()? {
        "NOSCRIPT" => Some(node.to_owned()),
        "ASK" | "MOVED" => words.nth(1)?.rsplit_once(':').map(|(host, port)| joined(host, port, node)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirections_name_a_server() {
        let read = |error: &str| redirection(error.as_bytes(), "[::1]:7000");
        let to = |server: &str| Some(server.to_owned());
        assert_eq!(read("MOVED 3999 127.0.0.1:6381"), to("127.0.0.1:6381"));
        assert_eq!(read("ASK 3999 node.internal:6381"), to("node.internal:6381"));
        assert_eq!(read("MOVED 3999 ::2:6381"), to("[::2]:6381"));
        assert_eq!(read("MOVED 3999 :6381"), to("[::1]:6381"));
        assert_eq!(read("NOSCRIPT No matching script."), to("[::1]:7000"));
        for other in ["ERR MOVED 1 a:1", "MOVED", "MOVED 1", "MOVED 1 a", "CLUSTERDOWN The cluster is down"] {
            assert_eq!(read(other), None, "{other}");
        }
    }
}
