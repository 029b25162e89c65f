//! What a gateway says first to a Valkey or Redis: who it is, the scripts, and then each command that it will need, for a key that
//! lives for a second. So a server that refuses something says so here and not in reply to a request. A node of a cluster that may
//! have no slot only learns the scripts.

use super::super::connection::Socket;
use super::super::protocol::LinkFailure;
use super::frames::{self, Frame, frame};
use super::scripts::{ADD, APPEND, REPLACE};
use crate::config::Login;

const NODE: &str = "it is a node of a cluster, and [store] has no `cluster = true`";
const NO_NODE: &str = "it is no node of a cluster, but [store] has `cluster = true`";

/// Connects to a server, and greets it. `probe` is the name of an item that it has and that other gateways do not try; `None` if
/// nobody knows which slots it has.
///
/// # Errors
/// If it cannot be used.
pub(super) async fn open(address: &str, login: &Login, probe: Option<&[u8]>) -> Result<Socket, LinkFailure> {
    let mut socket = Socket::connect(address, login.tls.as_deref()).await?;
    let (questions, commands) = introduction(login, probe);
    socket.ask(questions, |input| answered(input, &commands, login.cluster)).await?;
    Ok(socket)
}

/// All questions, and the command of each.
fn introduction(login: &Login, probe: Option<&[u8]>) -> (Vec<u8>, Vec<&'static str>) {
    let Login { username, password, database, .. } = login;
    let (mut questions, mut commands) = (Vec::new(), Vec::new());
    let mut ask = |command: &'static str, rest: &[&[u8]]| {
        frames::write(&[&[command.as_bytes()], rest].concat(), &mut questions);
        commands.push(command);
    };
    let username = if username.is_empty() { "default" } else { username };
    match password.text() {
        "" => ask("HELLO", &[b"3"]),
        password => ask("HELLO", &[b"3", b"AUTH", username.as_bytes(), password.as_bytes()]),
    }
    if *database > 0 {
        ask("SELECT", &[itoa::Buffer::new().format(*database).as_bytes()]);
    }
    for script in [&REPLACE, &APPEND, &ADD] {
        ask("SCRIPT", &[b"LOAD", script.source.as_bytes()]);
    }
    if let Some(name) = probe {
        let [replace, append, add] = [&REPLACE, &APPEND, &ADD].map(|script| script.digest.as_bytes());
        ask("SET", &[name, b"=", b"EX", b"1"]);
        ask("EVALSHA", &[replace, b"1", name, b"=", b"=", b"1"]);
        ask("EVALSHA", &[append, b"1", name, b"=", b"=", b"1"]);
        ask("SET", &[name, b"0", b"EX", b"1"]);
        ask("EVALSHA", &[add, b"1", name, b"1"]);
        ask("MGET", &[name]);
    }
    (questions, commands)
}

/// Whether all is answered, as it should be.
fn answered(input: &[u8], commands: &[&'static str], is_cluster: bool) -> Result<Option<()>, LinkFailure> {
    let mut at = 0;
    for command in commands {
        let Some((answer, next)) = frame(input, at)? else { return Ok(None) };
        match answer {
            Frame::Error(place) => return Err(LinkFailure::refused(command, &input[place])),
            Frame::Several(told) if *command == "HELLO" => {
                let is =
                    |frame: &Frame, text: &[u8]| matches!(frame, Frame::Text(place) if input[place.clone()] == *text);
                let mode = told.chunks(2).find(|pair| is(&pair[0], b"mode")).map(|pair| is(&pair[1], b"cluster"));
                match mode {
                    Some(true) if !is_cluster => return Err(LinkFailure::Refused(NODE.to_owned())),
                    Some(false) if is_cluster => return Err(LinkFailure::Refused(NO_NODE.to_owned())),
                    _ => {}
                }
            }
            _ => {}
        }
        at = next;
    }
    if at == input.len() { Ok(Some(())) } else { Err(LinkFailure::Garbage) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SecretText;

    fn said(login: &Login) -> String {
        String::from_utf8(introduction(login, Some(b"gw:probe:1")).0).unwrap()
    }

    /// The outcome of answers to all commands.
    fn after(login: &Login, probe: Option<&[u8]>, input: &[u8]) -> Result<bool, String> {
        let read = answered(input, &introduction(login, probe).1, login.cluster);
        read.map(|read| read.is_some()).map_err(|failure| failure.to_string())
    }

    fn after_all(input: &[u8]) -> Result<bool, String> {
        after(&Login::default(), Some(b"gw:probe:1"), input)
    }

    const HELLO: &[u8] = b"%2\r\n+server\r\n$6\r\nvalkey\r\n+modules\r\n*1\r\n*0\r\n";
    const LEARNED: &[u8] = b"$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n";
    const REST: &[u8] = b"+OK\r\n:1\r\n:1\r\n+OK\r\n:1\r\n*1\r\n$1\r\n1\r\n";

    #[test]
    fn the_password_and_the_database_are_said_if_there_are_any() {
        let plain = said(&Login::default());
        assert!(plain.starts_with("*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n*3\r\n$6\r\nSCRIPT"), "{plain}");
        let login = Login { password: SecretText::new("secret".to_owned()), database: 3, ..Login::default() };
        let hello = "*5\r\n$5\r\nHELLO\r\n$1\r\n3\r\n$4\r\nAUTH\r\n$7\r\ndefault\r\n$6\r\nsecret\r\n";
        let secret = said(&login);
        assert!(secret.starts_with(&format!("{hello}*2\r\n$6\r\nSELECT\r\n$1\r\n3\r\n")), "{secret}");
        let named = said(&Login { username: "gw".to_owned(), ..login });
        assert!(named.contains("$4\r\nAUTH\r\n$2\r\ngw\r\n$6\r\nsecret\r\n"), "{named}");
    }

    #[test]
    fn it_is_over_when_all_is_answered_however_the_bytes_arrive() {
        let input = [HELLO, LEARNED, REST].concat();
        for cut in 0..input.len() {
            assert_eq!(after_all(&input[..cut]), Ok(false), "{cut}");
        }
        assert_eq!(after_all(&input), Ok(true));
        assert!(after_all(&[&input[..], b":1\r\n"].concat()).unwrap_err().contains("protocol"));
    }

    #[test]
    fn a_node_of_a_cluster_is_told_from_other_servers() {
        let hello = |mode: &str| format!("%2\r\n+mode\r\n+{mode}\r\n+role\r\n+master\r\n");
        for (cluster, mode, refused) in [
            (false, "standalone", None),
            (false, "cluster", Some(NODE)),
            (true, "standalone", Some(NO_NODE)),
            (true, "cluster", None),
        ] {
            let outcome = after(&Login { cluster, ..Login::default() }, None, hello(mode).as_bytes());
            assert_eq!(outcome, refused.map_or(Ok(false), |why| Err(why.to_owned())), "{cluster} {mode}");
        }
    }

    #[test]
    fn a_node_that_may_have_no_slot_only_learns_the_scripts() {
        let said = String::from_utf8(introduction(&Login::default(), None).0).unwrap();
        assert_eq!((said.matches("LOAD").count(), said.contains("MGET")), (3, false));
        assert_eq!(after(&Login::default(), None, &[HELLO, LEARNED].concat()), Ok(true));
    }

    #[test]
    fn the_first_refusal_tells_what_is_refused() {
        let refused = |input: &[u8]| after_all(input).unwrap_err();
        assert_eq!(refused(b"-NOAUTH a\r\n-NOAUTH b\r\n"), "it refuses HELLO: it answered \"NOAUTH a\"");
        let no_scripts = [HELLO, LEARNED, b"+OK\r\n-NOPERM no\r\n"].concat();
        assert_eq!(refused(&no_scripts), "it refuses EVALSHA: it answered \"NOPERM no\"");
        let read_only = [HELLO, LEARNED, b"-READONLY no\r\n"].concat();
        assert_eq!(refused(&read_only), "it refuses SET: it answered \"READONLY no\"");
        assert!(refused(b"HTTP/1.1 400\r\n").contains("protocol"));
    }
}
