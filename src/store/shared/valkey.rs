//! Valkey and Redis: as much of their protocol, RESP3, as counting needs.

mod frames;
mod scripts;
mod replies;
mod commands;
mod greeting;
mod sentinels;
mod cluster;
mod redirects;

use std::future::ready;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::time::timeout;

use super::connection::Socket;
use super::failure::LinkFailure;
use super::protocol::{
    Commands, Finding, Garbage, Greeting, Locating, NoteAnswer, NoteCommand, Protocol, Redirects, Statistics, digits,
};
use super::slots::{SLOTS, SlotMap, slot_of};
use crate::base::hex;
use crate::config::{Login, UpstreamTls};

use commands::FrameCommands;
use frames::{Frame, frame};
use greeting::Introduction;
use redirects::Follower;

/// The longest time that a server may take to connect and to tell its statistics.
const TIMEOUT: Duration = Duration::from_secs(1);

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

    /// The name of an item that other gateways do not use.
    fn probe(&self) -> Vec<u8> {
        [self.prefix.as_bytes(), b":probe:", &hex::digits(fastrand::u64(..))].concat()
    }

    /// The same, in a slot of this node; `None` if it is not known to have any.
    fn probe_of(&self, node: &str, slots: &SlotMap) -> Option<Vec<u8>> {
        let parts = slots.parts().into_iter().filter(|part| part.server == node);
        let own: Vec<_> = parts.map(|part| part.slots).collect();
        let is_own = |name: &Vec<u8>| own.iter().any(|part| part.contains(&slot_of(name)));
        // Each slot is met once in so many names as there are slots.
        (0..16 * SLOTS).take_while(|_| !own.is_empty()).map(|_| self.probe()).find(is_own)
    }
}

impl Protocol for Valkey {
    fn name(&self) -> &'static str {
        "valkey"
    }

    fn tls(&self) -> Option<&UpstreamTls> {
        self.login.tls.as_deref()
    }

    fn locate(&self, server: String) -> Locating {
        match &*self.login.sentinels {
            [] => Box::pin(ready(Ok(server))),
            sentinels => Box::pin(sentinels::locate(server, sentinels.to_vec(), self.login.tls.clone())),
        }
    }

    fn greeting(&self, server: &str) -> Box<dyn Greeting> {
        let probe = match &self.slots {
            Some(slots) => self.probe_of(server, slots),
            None => Some(self.probe()),
        };
        Box::new(match probe {
            Some(probe) => Introduction::new(&self.login, &probe),
            None => Introduction::to_node(&self.login),
        })
    }

    fn slot_map(&self) -> Option<Arc<SlotMap>> {
        self.slots.clone()
    }

    fn find_slots(&self, nodes: Vec<String>) -> Finding {
        Box::pin(cluster::find(self.login.clone(), nodes))
    }

    fn redirects(&self, server: &str) -> Option<Box<dyn Redirects>> {
        let slots = self.slots.clone()?;
        Some(Box::new(Follower::new(self.login.clone(), server.to_owned(), slots)))
    }

    fn commands(&self) -> Box<dyn Commands> {
        Box::new(FrameCommands::new(self.slots.is_some()))
    }

    fn statistics(&self, address: &str) -> Option<Statistics> {
        let mut question = Vec::new();
        frames::write([b"TIME"], &mut question);
        frames::write([b"INFO", b"stats"], &mut question);
        let exchange = async {
            let mut socket = Socket::open(address.to_owned(), self).await?;
            socket.ask(question, statistics).await
        };
        // The time limit needs the runtime when it is made.
        let asked = async { timeout(TIMEOUT, exchange).await };
        let runtime = Builder::new_current_thread().enable_all().build().ok()?;
        // Other code notices that a server does not answer, and one may refuse just these commands.
        runtime.block_on(asked).ok()?.ok()
    }

    fn write_note(&self, name: &str, command: NoteCommand<'_>, out: &mut Vec<u8>) {
        let name = name.as_bytes();
        let set = |text: &str, lifetime: Duration, condition: &[&[u8]], out: &mut Vec<u8>| {
            let seconds = lifetime.as_secs().to_string();
            frames::command(5 + condition.len(), out);
            let words = [b"SET", name, text.as_bytes(), b"EX", seconds.as_bytes()];
            words.into_iter().chain(condition.iter().copied()).for_each(|word| frames::word(word, out));
        };
        match command {
            NoteCommand::Claim(text, lifetime) => set(text, lifetime, &[b"NX"], out),
            NoteCommand::Write(text, lifetime) => set(text, lifetime, &[], out),
            NoteCommand::Read => frames::write([b"GET", name], out),
            NoteCommand::Remove => frames::write([b"DEL", name], out),
        }
    }

    fn read_note(&self, command: NoteCommand<'_>, input: &[u8]) -> Result<Option<NoteAnswer>, Garbage> {
        let Some((frame, _)) = frame(input, 0)? else { return Ok(None) };
        let text = |place: Range<usize>| String::from_utf8(input[place].to_vec()).map_err(|_| Garbage);
        Ok(Some(match (frame, command) {
            (Frame::Text(place), NoteCommand::Read) => NoteAnswer::Text(text(place)?),
            (Frame::Null, NoteCommand::Claim(..)) => NoteAnswer::Exists,
            (Frame::Null, NoteCommand::Read) => NoteAnswer::Nothing,
            (Frame::Text(_) | Frame::Number(_), _) => NoteAnswer::Done,
            (Frame::Error(place), _) => NoteAnswer::Failed(text(place)?),
            (Frame::Null | Frame::Several(_), _) => return Err(Garbage),
        }))
    }
}

/// Reads the answers to `TIME` and `INFO stats`; `None` while they are incomplete.
fn statistics(input: &[u8]) -> Result<Option<Statistics>, LinkFailure> {
    let (mut texts, mut next) = ([0..0, 0..0, 0..0], 0);
    for (answer, text) in [None, Some(0), Some(1), Some(2)].into_iter().enumerate() {
        let Some((frame, after)) = frame(input, next)? else { return Ok(None) };
        match (frame, text) {
            (Frame::Several(2), None) => {}
            (Frame::Text(place), Some(text)) => texts[text] = place,
            (Frame::Error(place), _) if answer == 0 || answer == 3 => {
                return Err(LinkFailure::Failed(String::from_utf8_lossy(&input[place]).into_owned()));
            }
            _ => return Err(Garbage.into()),
        }
        next = after;
    }
    let [seconds, _, told] = texts.map(|place| &input[place]);
    let line = |line: &[u8]| line.strip_prefix(b"evicted_keys:").and_then(|count| digits(count.trim_ascii()));
    let evictions = told.split(|byte| *byte == b'\n').find_map(line);
    Ok(Some(Statistics { time: digits(seconds), evictions: evictions.unwrap_or(0) }))
}

#[cfg(test)]
mod tests {
    use super::super::slots::Part;
    use super::*;

    #[test]
    fn a_node_is_tried_with_a_key_in_one_of_its_slots() {
        let valkey = Valkey::new(Login { cluster: true, ..Login::default() }, "gw");
        let slots = valkey.slot_map().unwrap();
        assert_eq!(valkey.probe_of("a:1", &slots), None);
        let part = |slots, server: &str| Part { slots, server: server.to_owned() };
        slots.replace(vec![part(0..=16_380, "a:1"), part(16_381..=16_381, "b:1"), part(16_382..=16_383, "a:1")]);
        for _ in 0..20 {
            assert_eq!(slot_of(&valkey.probe_of("b:1", &slots).unwrap()), 16_381);
        }
        assert!(valkey.probe_of("a:1", &slots).unwrap().starts_with(b"gw:probe:"));
        assert_eq!(valkey.probe_of("c:1", &slots), None);
    }

    #[test]
    fn notes_are_items() {
        let valkey = Valkey::new(Login::default(), "gw");
        let written = |command| {
            let mut out = Vec::new();
            valkey.write_note("n", command, &mut out);
            String::from_utf8(out).unwrap()
        };
        let set = "$3\r\nSET\r\n$1\r\nn\r\n$2\r\nxy\r\n$2\r\nEX\r\n$2\r\n60\r\n";
        let minute = Duration::from_secs(60);
        assert_eq!(written(NoteCommand::Claim("xy", minute)), format!("*6\r\n{set}$2\r\nNX\r\n"));
        assert_eq!(written(NoteCommand::Write("xy", minute)), format!("*5\r\n{set}"));
        let read = |command, input: &[u8]| valkey.read_note(command, input).unwrap();
        assert_eq!(read(NoteCommand::Read, b"$2\r\nxy\r\n"), Some(NoteAnswer::Text("xy".to_owned())));
        assert_eq!([read(NoteCommand::Read, b"$2\r\nx"), read(NoteCommand::Remove, b":")], [None, None]);
        assert_eq!(read(NoteCommand::Read, b"_\r\n"), Some(NoteAnswer::Nothing));
        assert_eq!(read(NoteCommand::Claim("xy", minute), b"_\r\n"), Some(NoteAnswer::Exists));
        assert_eq!(read(NoteCommand::Claim("xy", minute), b"+OK\r\n"), Some(NoteAnswer::Done));
        assert_eq!(read(NoteCommand::Remove, b":0\r\n"), Some(NoteAnswer::Done));
        let failed = NoteAnswer::Failed("OOM no".to_owned());
        assert_eq!(read(NoteCommand::Write("xy", minute), b"-OOM no\r\n"), Some(failed));
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
        assert_eq!((time, evictions), (Some(1_795_809_528), 12));
        assert!(read(b"-NOPERM no\r\n-NOPERM no\r\n").unwrap_err().contains("NOPERM"));
        assert!(read(b"*3\r\n").is_err());
    }
}
