//! Where the slots of a cluster are, as its nodes say. A node may not know yet what the others have agreed on: then the server that it
//! names redirects or does not answer, and nodes are asked again.
//!
//! Source: <https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/>.

use std::ops::Range;

use super::super::protocol::{Garbage, LinkFailure};
use super::super::slots::{Part, SLOTS};
use super::frames::{Frame, frame};

/// Reads the answer of `node` to `CLUSTER SLOTS`; `None` while it is incomplete.
pub(super) fn parts(input: &[u8], node: &str) -> Result<Option<Vec<Part>>, LinkFailure> {
    let text = |place: &Range<usize>| String::from_utf8_lossy(&input[place.clone()]).into_owned();
    let part = |told: &Frame| {
        // First and last slot, and the primary; then its replicas. Of each server the host, the port, and more.
        let Frame::Several(told) = told else { return None };
        let [Frame::Number(first), Frame::Number(last), Frame::Several(primary), ..] = &told[..] else { return None };
        let (host, port) = match &primary[..] {
            [Frame::Text(host), Frame::Number(port), ..] => (text(host), port),
            [Frame::Null, Frame::Number(port), ..] => (String::new(), port),
            _ => return None,
        };
        let slots = usize::try_from(*first).ok()?..=usize::try_from(*last).ok()?;
        let server = address(&host, &port.to_string(), node);
        (!slots.is_empty() && *slots.end() < SLOTS).then_some(Part { slots, server })
    };
    match frame(input, 0)? {
        None => Ok(None),
        Some((Frame::Several(told), _)) if told.is_empty() => {
            Err(LinkFailure::Refused("its cluster has no slots yet".to_owned()))
        }
        Some((Frame::Several(told), _)) => Ok(Some(told.iter().map(part).collect::<Option<_>>().ok_or(Garbage)?)),
        Some((Frame::Error(place), _)) => Err(LinkFailure::refused("CLUSTER SLOTS", &input[place])),
        Some(_) => Err(LinkFailure::Garbage),
    }
}

/// The address of a server that `sayer` has named. One that does not know its own host is at the sayer's.
pub(super) fn address(host: &str, port: &str, sayer: &str) -> String {
    let host = if matches!(host, "" | "?") { sayer.rsplit_once(':').map_or(sayer, |(host, _)| host) } else { host };
    if host.contains(':') && !host.starts_with('[') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// How the error of a server that has forgotten a script begins.
pub(super) const FORGOTTEN: &[u8] = b"NOSCRIPT";

/// The server that does a command instead of this node, or this one if it has to learn the scripts again; `None` after other
/// errors.
pub(super) fn redirection(error: &[u8], node: &str) -> Option<String> {
    if error.starts_with(FORGOTTEN) {
        return Some(node.to_owned());
    }
    let mut words = str::from_utf8(error).ok()?.split(' ');
    if !matches!(words.next(), Some("ASK" | "MOVED")) {
        return None;
    }
    let (host, port) = words.nth(1)?.rsplit_once(':')?;
    Some(address(host, port, node))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(first: usize, last: usize, server: &str) -> Part {
        Part { slots: first..=last, server: server.to_owned() }
    }

    #[test]
    fn the_primaries_of_all_slots_are_read_when_all_is_there() {
        let input = b"*3\r\n\
            *4\r\n:0\r\n:5460\r\n\
            *4\r\n$9\r\n127.0.0.1\r\n:7001\r\n$2\r\nid\r\n*2\r\n$8\r\nhostname\r\n$1\r\nh\r\n\
            *4\r\n$9\r\n127.0.0.1\r\n:7004\r\n$2\r\nid\r\n*0\r\n\
            *3\r\n:5461\r\n:5461\r\n*4\r\n_\r\n:7002\r\n$2\r\nid\r\n*0\r\n\
            *3\r\n:5462\r\n:16383\r\n*3\r\n$3\r\n::1\r\n:7003\r\n$2\r\nid\r\n";
        let read = |input: &[u8]| parts(input, "node:7000").map_err(|failure| failure.to_string());
        for cut in 0..input.len() {
            assert_eq!(read(&input[..cut]), Ok(None), "{cut}");
        }
        let all = [part(0, 5460, "127.0.0.1:7001"), part(5461, 5461, "node:7002"), part(5462, 16_383, "[::1]:7003")];
        assert_eq!(read(input), Ok(Some(all.to_vec())));
        assert!(read(b"-NOPERM no\r\n").unwrap_err().contains("refuses CLUSTER SLOTS: it answered \"NOPERM no\""));
        let part = |first, last| format!("*1\r\n*3\r\n:{first}\r\n:{last}\r\n*2\r\n+h\r\n:1\r\n");
        assert!(read(part(9, 9).as_bytes()).is_ok());
        for garbage in [":1\r\n", "*1\r\n:1\r\n", "*1\r\n*2\r\n:0\r\n:1\r\n", &part(0, SLOTS), &part(9, 8)] {
            assert!(read(garbage.as_bytes()).is_err(), "{garbage}");
        }
    }

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
