//! Valkey and Redis: as much of their protocol, RESP3, as counting needs.

mod frames;
mod scripts;
mod replies;
mod commands;
mod greeting;
mod sentinels;
mod cluster;
mod redirects;

use std::sync::Arc;

use super::connection::Redirects;
use super::protocol::{Asking, Commands, Finding, LinkFailure, Opening, Protocol, Statistics, digits};
use super::slots::{SLOTS, SlotMap, slot_of};
use crate::base::hex;
use crate::config::Login;

use commands::FrameCommands;
use frames::{Frame, frame};
use redirects::Follower;

pub struct Valkey {
    login: Login,
    prefix: String,
    /// Of a cluster.
    slots: Option<Arc<SlotMap>>,
}

/// By what servers know the scripts that add to a count, replace a value, and append to one.
pub fn script_digests() -> [&'static str; 3] {
    [&scripts::ADD, &scripts::REPLACE, &scripts::APPEND].map(|script| script.digest.as_str())
}

impl Valkey {
    pub fn new(login: Login, prefix: &str) -> Self {
        let slots = login.cluster.then(Arc::default);
        Self { login, prefix: prefix.to_owned(), slots }
    }

    /// The name of an item that other gateways do not use, in a cluster in a slot of this node; `None` if it is not known to
    /// have any.
    fn probe(&self, node: &str) -> Option<Vec<u8>> {
        let name = |_| [self.prefix.as_bytes(), b":probe:", &hex::digits(fastrand::u64(..))].concat();
        let Some(slots) = &self.slots else { return Some(name(0)) };
        let mut own = slots.parts.lock().clone();
        own.retain(|part| part.server == node);
        // Each slot is met once in so many names as there are slots.
        let tries = if own.is_empty() { 0 } else { 16 * SLOTS };
        (0..tries).map(name).find(|name| own.iter().any(|part| part.slots.contains(&slot_of(name))))
    }
}

impl Protocol for Valkey {
    fn open(&self, server: &str) -> Opening {
        let (probe, login, server) = (self.probe(server), self.login.clone(), server.to_owned());
        let follower = self.slots.clone().map(|slots| Follower::new(login.clone(), server.clone(), slots));
        Box::pin(async move {
            let address = if login.sentinels.is_empty() { server } else { sentinels::locate(&server, &login).await? };
            let mut socket = greeting::open(&address, &login, probe.as_deref()).await?;
            socket.redirects = follower.map(|follower| Box::new(follower) as Box<dyn Redirects>);
            Ok(socket)
        })
    }

    fn commands(&self) -> Box<dyn Commands> {
        Box::new(FrameCommands::new(self.slots.is_some()))
    }

    fn statistics(&self, server: &str) -> Asking {
        let (opening, mut question) = (self.open(server), Vec::new());
        frames::write(&[b"TIME"], &mut question);
        frames::write(&[b"INFO", b"stats"], &mut question);
        Box::pin(async { opening.await.ok()?.ask(question, statistics).await.ok() })
    }

    fn slot_map(&self) -> Option<Arc<SlotMap>> {
        self.slots.clone()
    }

    fn find_slots(&self, nodes: Vec<String>) -> Finding {
        Box::pin(cluster::find(self.login.clone(), nodes))
    }
}

/// Reads the answers to `TIME` and `INFO stats`; `None` while they are incomplete.
fn statistics(input: &[u8]) -> Result<Option<Statistics>, LinkFailure> {
    let Some((time, next)) = frame(input, 0)? else { return Ok(None) };
    let Some((told, _)) = frame(input, next)? else { return Ok(None) };
    let (Frame::Several(time), Frame::Text(told)) = (time, told) else { return Err(LinkFailure::Garbage) };
    let [Frame::Text(seconds), _] = &time[..] else { return Err(LinkFailure::Garbage) };
    let line = |line: &[u8]| line.strip_prefix(b"evicted_keys:").and_then(|count| digits(count.trim_ascii()));
    let evictions = input[told].split(|byte| *byte == b'\n').find_map(line);
    let time = digits(&input[seconds.clone()]).ok_or(LinkFailure::Garbage)?;
    Ok(Some(Statistics { time, evictions: evictions.unwrap_or(0) }))
}

#[cfg(test)]
mod tests {
    use super::super::slots::Part;
    use super::*;

    #[test]
    fn a_node_is_tried_with_a_key_in_one_of_its_slots() {
        let valkey = Valkey::new(Login { cluster: true, ..Login::default() }, "gw");
        let slots = valkey.slot_map().unwrap();
        assert_eq!(valkey.probe("a:1"), None);
        let part = |slots, server: &str| Part { slots, server: server.to_owned() };
        *slots.parts.lock() = vec![part(0..=16_380, "a:1"), part(16_381..=16_381, "b:1"), part(16_382..=16_383, "a:1")];
        for _ in 0..20 {
            assert_eq!(slot_of(&valkey.probe("b:1").unwrap()), 16_381);
        }
        assert!(valkey.probe("a:1").unwrap().starts_with(b"gw:probe:"));
        assert_eq!(valkey.probe("c:1"), None);
    }

    #[test]
    fn statistics_are_read_when_all_is_there() {
        let time = b"*2\r\n$10\r\n1795809528\r\n$6\r\n489245\r\n";
        let told = b"=51\r\ntxt:# Stats\r\nexpired_keys:7\r\nevicted_keys:12\r\nx:1\r\n\r\n";
        let input = [&time[..], told].concat();
        let read = |input: &[u8]| statistics(input).map_err(|failure| failure.to_string());
        for cut in 0..input.len() {
            assert!(read(&input[..cut]).unwrap().is_none(), "{cut}");
        }
        let Statistics { time, evictions } = read(&input).unwrap().unwrap();
        assert_eq!((time, evictions), (1_795_809_528, 12));
        for refused in ["-NOPERM no\r\n-NOPERM no\r\n", "*1\r\n:1\r\n+x\r\n"] {
            assert!(read(refused.as_bytes()).is_err());
        }
    }
}
