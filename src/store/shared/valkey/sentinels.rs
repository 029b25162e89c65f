//! Where a primary is, as its sentinels say.
//!
//! All sentinels are asked at once, for each connection. One that was cut off from the others may still name the primary before
//! the last failover, so the address that most of them name is taken: once more than half do, or all have answered.
//!
//! Source: <https://redis.io/docs/latest/develop/reference/sentinel-clients/>.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;

use super::super::connection::Socket;
use super::super::protocol::LinkFailure;
use super::cluster;
use super::frames::{self, Frame, frame};
use crate::config::Login;

/// The longest time that a sentinel may take to connect and to answer. The primary needs the rest of a second.
const TIMEOUT: Duration = Duration::from_millis(300);

/// The address of the primary of this name.
///
/// # Errors
/// If no sentinel knows it.
pub(super) async fn locate(name: &str, login: &Login) -> io::Result<String> {
    let (mut asked, mut question) = (JoinSet::new(), Vec::new());
    frames::write(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", name], &mut question);
    for sentinel in login.sentinels.clone() {
        let (question, tls) = (question.clone(), login.tls.clone());
        let answer = async move { Socket::connect(&sentinel, tls.as_deref()).await?.ask(question, address).await };
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
    let elected = votes.into_iter().max_by_key(|(_, votes)| *votes);
    let unknown = || io::Error::other(format!("no sentinel knows where \"{name}\" is: {last}"));
    elected.map(|(address, _)| address).ok_or_else(unknown)
}

/// Reads host and port; `None` while they are incomplete.
fn address(input: &[u8]) -> Result<Option<String>, LinkFailure> {
    // Null, as the second version of the protocol writes it.
    if input.starts_with(b"*-") {
        return Err(LinkFailure::Failed("it has no primary of this name".to_owned()));
    }
    let Some((answer, _)) = frame(input, 0)? else { return Ok(None) };
    let text = |place: &Range<usize>| String::from_utf8_lossy(&input[place.clone()]).into_owned();
    match &answer {
        Frame::Several(told) if let [Frame::Text(host), Frame::Text(port)] = &told[..] => {
            Ok(Some(cluster::address(&text(host), &text(port), "")))
        }
        Frame::Error(place) => Err(LinkFailure::Failed(text(place))),
        _ => Err(LinkFailure::Garbage),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_when_all_of_it_is_there() {
        let input = b"*2\r\n$8\r\n10.0.0.1\r\n$4\r\n6379\r\n";
        let read = |input: &[u8]| address(input).map_err(|failure| failure.to_string());
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
}
