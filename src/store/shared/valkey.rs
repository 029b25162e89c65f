//! Valkey and Redis: as much of their protocol, RESP3, as counting needs.

mod frames;
mod scripts;
mod replies;
mod commands;
mod greeting;
mod addresses;
mod redirects;

use std::sync::Arc;

use super::protocol::{Asking, Commands, LinkFailure, Opening, Protocol, Statistics, digits};
use super::slots::{SLOTS, SlotMap, slot_of};
use crate::config::Login;

use commands::FrameCommands;
use frames::{Frame, frame};

pub use scripts::DIGESTS;

#[derive(Clone)]
pub struct Valkey {
    login: Login,
    prefix: String,
    /// Of a cluster.
    slots: Option<Arc<SlotMap>>,
}

impl Valkey {
    pub fn new(login: Login, prefix: &str) -> Self {
        let slots = login.cluster.then(Arc::default);
        Self { login, prefix: prefix.to_owned(), slots }
    }

    /// The name of an item that other gateways do not use, in a cluster in a slot of this node; `None` if it has none.
    fn probe(&self, node: &str) -> Option<String> {
        let name = |_| format!("{}:probe:{:x}", self.prefix, fastrand::u64(..));
        let Some(slots) = &self.slots else { return Some(name(0)) };
        let parts = slots.borrow();
        let own: Vec<_> = parts.iter().filter(|part| part.server == node).collect();
        // Each slot is met once in so many names as there are slots.
        let tries = if own.is_empty() { 0 } else { 16 * SLOTS };
        (0..tries).map(name).find(|name| own.iter().any(|part| part.slots.contains(&slot_of(name.as_bytes()))))
    }
}

impl Protocol for Valkey {
    fn open(&self, server: &str) -> Opening {
        let (valkey, server) = (self.clone(), server.to_owned());
        Box::pin(async move {
            let login = valkey.login.clone();
            let has_sentinels = !login.sentinels.is_empty();
            let address = if has_sentinels { addresses::locate(&server, &login).await?.0 } else { server.clone() };
            let mut socket = greeting::open(&valkey, &address, true).await?;
            if has_sentinels {
                socket.end = Some(Box::pin(addresses::replaced(server, login, address.clone())));
            }
            socket.redirects = Some(redirects::follower(valkey, address));
            Ok(socket)
        })
    }

    fn commands(&self) -> Box<dyn Commands> {
        Box::new(FrameCommands::new(self.slots.is_some()))
    }

    fn statistics(&self, server: &str) -> Asking {
        let opening = self.open(server);
        Box::pin(async { opening.await.ok()?.ask(frames::written(&["INFO"]), statistics).await.ok() })
    }

    fn slot_map(&self) -> Option<Arc<SlotMap>> {
        self.slots.clone()
    }
}

/// Reads the answer to `INFO`; `None` while it is incomplete.
fn statistics(input: &[u8]) -> Result<Option<Statistics>, LinkFailure> {
    let Some((answer, _)) = frame(input, 0)? else { return Ok(None) };
    let Frame::Text(told) = answer else { return Err(LinkFailure::Garbage) };
    let lines = || input[told.clone()].split(|byte| *byte == b'\n');
    let number = |name: &[u8]| lines().find_map(|line| digits(line.strip_prefix(name)?.trim_ascii()));
    let time = number(b"server_time_usec:").ok_or(LinkFailure::Garbage)? / 1_000_000;
    Ok(Some(Statistics { time, evictions: number(b"evicted_keys:").unwrap_or(0) }))
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
        let parts = vec![part(0..=16_380, "a:1"), part(16_381..=16_381, "b:1"), part(16_382..=16_383, "a:1")];
        slots.send_replace(parts);
        for _ in 0..20 {
            assert_eq!(slot_of(valkey.probe("b:1").unwrap().as_bytes()), 16_381);
        }
        assert!(valkey.probe("a:1").unwrap().starts_with("gw:probe:"));
        assert_eq!(valkey.probe("c:1"), None);
    }

    #[test]
    fn statistics_are_read_when_all_is_there() {
        let told = "# Server\r\nserver_time_usec:1795809528489245\r\n\r\n# Stats\r\nexpired_keys:7\r\nevicted_keys:12\r\nx:1\r\n";
        let input = format!("={}\r\ntxt:{told}\r\n", told.len() + 4).into_bytes();
        let read = |input: &[u8]| statistics(input).map_err(|failure| failure.to_string());
        for cut in 0..input.len() {
            assert!(read(&input[..cut]).unwrap().is_none(), "{cut}");
        }
        let Statistics { time, evictions } = read(&input).unwrap().unwrap();
        assert_eq!((time, evictions), (1_795_809_528, 12));
        for refused in ["-NOPERM no\r\n", "*1\r\n:1\r\n", "+x\r\n"] {
            assert!(read(refused.as_bytes()).is_err());
        }
    }
}
