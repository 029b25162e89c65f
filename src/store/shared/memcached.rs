//! Memcached: as much of its text protocol as counting needs.
//!
//! All commands of an exchange are written and read together (`commands.rs`, `replies.rs`). Crates allocate for each operation.

mod replies;
mod commands;

use super::connection::Socket;
use super::protocol::{Commands, LinkFailure, Opening, Protocol, ReadStatistics, Statistics, digits};

use commands::TextCommands;

pub struct Memcached;

impl Protocol for Memcached {
    fn open(&self, server: &str) -> Opening {
        let server = server.to_owned();
        Box::pin(async move {
            let mut socket = Socket::connect(&server, None).await?;
            // The no-op of the meta commands.
            socket.ask(b"mn\r\n".to_vec(), greeted).await?;
            Ok(socket)
        })
    }

    fn commands(&self) -> Box<dyn Commands> {
        Box::<TextCommands>::default()
    }

    fn statistics(&self) -> (&'static [u8], ReadStatistics) {
        (b"stats\r\n", statistics)
    }
}

fn greeted(input: &[u8]) -> Result<Option<()>, LinkFailure> {
    let rest = b"MN\r\n".strip_prefix(input).ok_or(LinkFailure::Garbage)?;
    Ok(rest.is_empty().then_some(()))
}

fn statistics(input: &[u8]) -> Result<Option<Statistics>, LinkFailure> {
    let mut statistics = Statistics::default();
    for line in input.split_inclusive(|byte| *byte == b'\n') {
        let mut words = line.trim_ascii_end().split(|byte| *byte == b' ');
        match [words.next(), words.next(), words.next()] {
            [Some(b"ERROR"), ..] => return Err(LinkFailure::Garbage),
            [Some(b"END"), None, _] if line.ends_with(b"\n") => return Ok(Some(statistics)),
            [Some(b"STAT"), Some(b"time"), Some(time)] => statistics.time = digits(time),
            [Some(b"STAT"), Some(b"evictions"), Some(count)] => statistics.evictions = digits(count).unwrap_or(0),
            _ => {}
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_greeting_waits_for_all_of_its_answer() {
        let read = |input: &[u8]| greeted(input).ok();
        assert_eq!([&b"M"[..], b"MN\r", b"MN\r\n"].map(read), [Some(None), Some(None), Some(Some(()))]);
        assert_eq!([&b"ERROR\r\n"[..], b"MN\r\nM", b"HTTP/1.1 400\r\n"].map(read), [None; 3]);
    }

    #[test]
    fn statistics_are_read_when_all_is_there() {
        let input = b"STAT pid 7\r\nSTAT time 1795809528\r\nSTAT version 1.6.18\r\nSTAT evictions 12\r\nEND\r\n";
        let read = |input: &[u8]| statistics(input).unwrap().map(|told| (told.time, told.evictions));
        assert!((0..input.len()).all(|cut| read(&input[..cut]).is_none()));
        assert_eq!(read(input), Some((Some(1_795_809_528), 12)));
        assert!(statistics(b"ERROR\r\n").is_err());
    }
}
