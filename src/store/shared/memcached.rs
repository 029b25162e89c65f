//! Memcached: as much of its text protocol as counting needs.
//!
//! Decisions use a client of our own, which writes and reads all commands of an exchange together (`commands.rs`,
//! `replies.rs`). The crate `memcache` asks for statistics only, since it allocates for each operation.

mod replies;
mod commands;

use memcache::{Client, MemcacheError};

use super::protocol::{Commands, Garbage, Greeting, NoteAnswer, NoteCommand, Protocol, Statistics, Unwelcome};

use commands::TextCommands;

/// In seconds: to connect for statistics, and to wait for them.
const TIMEOUT: u32 = 1;

pub struct Memcached;

impl Protocol for Memcached {
    fn name(&self) -> &'static str {
        "memcached"
    }

    fn greeting(&self, _: &str) -> Box<dyn Greeting> {
        Box::new(NoOperation)
    }

    fn commands(&self) -> Box<dyn Commands> {
        Box::<TextCommands>::default()
    }

    fn statistics(&self, address: &str) -> Option<Statistics> {
        // Other code notices that a server does not answer.
        statistics(address).ok()
    }

    fn write_note(&self, name: &str, command: NoteCommand<'_>, out: &mut Vec<u8>) {
        let command = match command {
            NoteCommand::Claim(text, lifetime) => {
                format!("add {name} 0 {} {}\r\n{text}\r\n", lifetime.as_secs(), text.len())
            }
            NoteCommand::Write(text, lifetime) => {
                format!("set {name} 0 {} {}\r\n{text}\r\n", lifetime.as_secs(), text.len())
            }
            NoteCommand::Read => format!("get {name}\r\n"),
            NoteCommand::Remove => format!("delete {name}\r\n"),
        };
        out.extend_from_slice(command.as_bytes());
    }

    fn read_note(&self, _: NoteCommand<'_>, input: &[u8]) -> Result<Option<NoteAnswer>, Garbage> {
        let text = str::from_utf8(input).map_err(|_| Garbage)?;
        let Some((first, rest)) = text.split_once("\r\n") else { return Ok(None) };
        Ok(Some(match first {
            "STORED" | "DELETED" | "NOT_FOUND" => NoteAnswer::Done,
            "NOT_STORED" => NoteAnswer::Exists,
            "END" => NoteAnswer::Nothing,
            value if value.starts_with("VALUE ") => match rest.strip_suffix("\r\nEND\r\n") {
                Some(text) => NoteAnswer::Text(text.to_owned()),
                None => return Ok(None),
            },
            other => NoteAnswer::Failed(other.to_owned()),
        }))
    }
}

/// The no-op of the meta commands.
struct NoOperation;

impl Greeting for NoOperation {
    fn proceed(&mut self, input: &[u8], output: &mut Vec<u8>) -> Result<bool, Unwelcome> {
        const ANSWER: &[u8] = b"MN\r\n";
        if input.is_empty() {
            output.extend_from_slice(b"mn\r\n");
        }
        if ANSWER.starts_with(input) { Ok(input == ANSWER) } else { Err(Unwelcome::Garbage) }
    }
}

/// Asks a server for statistics, on a separate connection. A server with only the text protocol gives none, because the crate
/// reads just the first line of such an answer.
fn statistics(address: &str) -> Result<Statistics, MemcacheError> {
    let url = format!("memcache://{address}?timeout={TIMEOUT}&connect_timeout={TIMEOUT}");
    let client = Client::with_pool_size(url, 1)?;
    let stats = client.stats()?.pop().map(|(_, stats)| stats).unwrap_or_default();
    let number = |name: &str| stats.get(name).and_then(|text| text.parse::<u64>().ok());
    Ok(Statistics { time: number("time"), evictions: number("evictions").unwrap_or(0) })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_greeting_waits_for_all_of_its_answer() {
        let answered = |input: &[u8]| NoOperation.proceed(input, &mut Vec::new());
        assert_eq!([&b"M"[..], b"MN\r", b"MN\r\n"].map(answered), [Ok(false), Ok(false), Ok(true)]);
        for input in [&b"ERROR\r\n"[..], b"MN\r\nM", b"HTTP/1.1 400\r\n"] {
            assert_eq!(answered(input), Err(Unwelcome::Garbage));
        }
        let mut said = Vec::new();
        assert_eq!((NoOperation.proceed(b"", &mut said), &said[..]), (Ok(false), &b"mn\r\n"[..]));
    }

    #[test]
    fn notes_are_items() {
        let minute = Duration::from_secs(60);
        let written = |command| {
            let mut out = Vec::new();
            Memcached.write_note("n", command, &mut out);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(written(NoteCommand::Claim("xy", minute)), "add n 0 60 2\r\nxy\r\n");
        assert_eq!(written(NoteCommand::Write("xy", minute)), "set n 0 60 2\r\nxy\r\n");
        let read = |input: &[u8]| Memcached.read_note(NoteCommand::Read, input).unwrap();
        assert_eq!(read(b"VALUE n 0 2\r\nxy\r\nEND\r\n"), Some(NoteAnswer::Text("xy".to_owned())));
        assert_eq!([read(b"VALUE n 0 2\r\nxy\r\nEN"), read(b"STORE")], [None, None]);
        assert_eq!(read(b"END\r\n"), Some(NoteAnswer::Nothing));
        assert_eq!(read(b"NOT_STORED\r\n"), Some(NoteAnswer::Exists));
        assert_eq!([read(b"STORED\r\n"), read(b"NOT_FOUND\r\n")], [Some(NoteAnswer::Done), Some(NoteAnswer::Done)]);
        let failed = NoteAnswer::Failed("SERVER_ERROR out of memory".to_owned());
        assert_eq!(read(b"SERVER_ERROR out of memory\r\n"), Some(failed));
    }
}
