//! Where servers are: the primary, as its sentinels say, and the slots of a cluster, as its nodes say.
//!
//! All sentinels are asked at once, for each connection and then once a second. One that was cut off from the others may still name the primary before
//! the last failover, so the address that most of them name is taken: once more than half do, or all have answered.
//!
//! A node may not know yet what the others have agreed on. Then the server that it names redirects or does not answer, and nodes
//! are asked again.
//!
//! Sources: <https://redis.io/docs/latest/develop/reference/sentinel-clients/>,
//! <https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/>.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::super::connection::Socket;
use super::super::protocol::LinkFailure;
use super::super::slots::{Part, SLOTS};
use super::frames::{self, Frame, whole};
use crate::config::Login;

/// The longest time that a sentinel may take to connect and to answer. The primary needs the rest of a second.
const TIMEOUT: Duration = Duration::from_millis(300);

/// How often the sentinels are asked whether the primary is still the same.
const EVERY: Duration = Duration::from_secs(1);

/// Ends when more than half of the sentinels name another address for this primary. After a failover that somebody has asked for, they
/// do so long before the server itself takes no more writes.
pub(super) async fn replaced(name: String, login: Login, address: String) -> LinkFailure {
    loop {
        sleep(EVERY).await;
        if let Ok((primary, votes)) = locate(&name, &login).await
            && primary != address
            && 2 * votes > login.sentinels.len()
        {
            return LinkFailure::Refused(format!("its sentinels name {primary} now"));
        }
    }
}

/// The address of the primary of this name, and how many sentinels say so. Fails if no sentinel knows it.
pub(super) async fn locate(name: &str, login: &Login) -> Result<(String, usize), LinkFailure> {
    let question = frames::written(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", name]);
    let mut asked = JoinSet::new();
    for sentinel in login.sentinels.clone() {
        let (question, tls) = (question.clone(), login.tls.clone());
        let answer = async move { Socket::connect(&sentinel, tls.as_deref()).await?.ask(question, primary).await };
        asked.spawn(async { timeout(TIMEOUT, answer).await.unwrap_or(Err(LinkFailure::Silent)) });
    }
    let (mut votes, mut last) = (BTreeMap::<_, usize>::new(), LinkFailure::Silent);
    while votes.values().all(|votes| 2 * votes <= login.sentinels.len())
        && let Some(Ok(answer)) = asked.join_next().await
    {
        match answer {
            Ok(address) => *votes.entry(address).or_insert(0) += 1,
            Err(failure) => last = failure,
        }
    }
    // One of several with as many votes may be no primary: then another one comes at the next attempt.
    votes.into_iter().max_by_key(|(_, votes)| (*votes, fastrand::u8(..))).ok_or_else(|| {
        let unknown = format!("no sentinel knows where \"{name}\" is: {last}");
        if last.is_refusal() { LinkFailure::Refused(unknown) } else { io::Error::other(unknown).into() }
    })
}

/// Reads host and port; `None` while they are incomplete.
fn primary(input: &[u8]) -> Result<Option<String>, LinkFailure> {
    // Null, as the second version of the protocol writes it.
    if input.starts_with(b"*-") {
        return Err(LinkFailure::Refused("it has no primary of this name".to_owned()));
    }
    let Some((told, _)) = whole(input, 0)? else { return Ok(None) };
    let text = |place: &Range<usize>| String::from_utf8_lossy(&input[place.clone()]).into_owned();
    match &told[..] {
        [Frame::Several(2), Frame::Text(host), Frame::Text(port)] => Ok(Some(joined(&text(host), &text(port), ""))),
        [Frame::Error(place), ..] => Err(LinkFailure::refused("SENTINEL", &input[place.clone()])),
        _ => Err(LinkFailure::Garbage),
    }
}

/// Reads the answer of `node` to `CLUSTER SLOTS`; `None` while it is incomplete.
pub(super) fn parts(input: &[u8], node: &str) -> Result<Option<Vec<Part>>, LinkFailure> {
    // First and last slot, and the primary; then its replicas. Of each server the host, the port, and more. So nothing else begins
    // with two numbers.
    let part = |told: &[Frame]| {
        let [_, Frame::Number(first), Frame::Number(last), _, host, Frame::Number(port)] = told else { return None };
        let host = if let Frame::Text(host) = host { &input[host.clone()] } else { b"" };
        let slots = usize::try_from(*first).ok()?..=usize::try_from(*last).ok()?;
        let server = joined(&String::from_utf8_lossy(host), &port.to_string(), node);
        (!slots.is_empty() && *slots.end() < SLOTS).then_some(Part { slots, server })
    };
    let Some((told, _)) = whole(input, 0)? else { return Ok(None) };
    let parts: Vec<_> = told.windows(6).filter_map(part).collect();
    match &told[0] {
        Frame::Several(0) => Err(LinkFailure::Refused("its cluster has no slots yet".to_owned())),
        Frame::Several(count) if parts.len() as u64 == *count => Ok(Some(parts)),
        Frame::Error(place) => Err(LinkFailure::refused("CLUSTER SLOTS", &input[place.clone()])),
        _ => Err(LinkFailure::Garbage),
    }
}

/// The address of a server that `sayer` has named. One that does not know its own host is at the sayer's.
pub(super) fn joined(host: &str, port: &str, sayer: &str) -> String {
    let host = if matches!(host, "" | "?") { sayer.rsplit_once(':').map_or(sayer, |(host, _)| host) } else { host };
    if host.contains(':') && !host.starts_with('[') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_when_all_of_it_is_there() {
        let input = b"*2\r\n$8\r\n10.0.0.1\r\n$4\r\n6379\r\n";
        let read = |input: &[u8]| primary(input).map_err(|failure| failure.to_string());
        for cut in 0..input.len() {
            assert_eq!(read(&input[..cut]), Ok(None), "{cut}");
        }
        assert_eq!(read(input), Ok(Some("10.0.0.1:6379".to_owned())));
        assert_eq!(read(b"*2\r\n$3\r\n::1\r\n$1\r\n7\r\n"), Ok(Some("[::1]:7".to_owned())));
        assert!(read(b"*-1\r\n").unwrap_err().contains("no primary"));
        assert!(read(b"-NOAUTH no\r\n").unwrap_err().contains("NOAUTH no"));
        for garbage in [&b"*1\r\n+a\r\n"[..], b":1\r\n", b"*2\r\n:1\r\n+1\r\n", b"HTTP/1.1 400\r\n"] {
            assert!(read(garbage).is_err());
        }
    }

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
}
