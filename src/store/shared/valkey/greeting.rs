//! What a gateway says first to a Valkey or Redis: who it is, the scripts, and then each command that it will need, for a key that
//! lives for a second. So a server that refuses something says so here and not in reply to a request. A node of a cluster is asked
//! where the slots are; one without slots only learns the scripts.

use std::mem;

use memchr::memmem;

use super::super::connection::Socket;
use super::super::protocol::LinkFailure;
use super::Valkey;
use super::addresses::parts;
use super::frames::{self, Frame, whole};
use super::scripts::{ADD, APPEND, REPLACE};
use crate::config::Login;

/// Among the answers of a node of a cluster to `HELLO`.
const IS_NODE: &[u8] = b"mode\r\n$7\r\ncluster";
const NODE: &str = "it is a node of a cluster, and [store] has no `cluster = true`";
const NO_NODE: &str = "it is no node of a cluster, but [store] has `cluster = true`";

/// Connects to a server, and greets it. Not each connection `tries` the commands, because the item for that may be in a slot of
/// a cluster that moves. Fails if it cannot be used.
pub(super) async fn open(valkey: &Valkey, address: &str, tries: bool) -> Result<Socket, LinkFailure> {
    let Valkey { login, slots, .. } = valkey;
    let mut socket = Socket::connect(address, login.tls.as_deref()).await?;
    let database = login.database.to_string();
    let mut commands = introduction(login);
    if login.database > 0 {
        commands.push(vec!["SELECT", &database]);
    }
    if let Some(slots) = slots {
        // Only then it is known which key this node can be tried with.
        ask(&mut socket, &mem::take(&mut commands), login.cluster).await?;
        let question = frames::written(&["CLUSTER", "SLOTS"]);
        slots.send_replace(socket.ask(question, |input| parts(input, address)).await?);
    }
    let name = valkey.probe(address).filter(|_| tries);
    commands.extend(name.iter().flat_map(|name| trial(name)));
    if !commands.is_empty() {
        ask(&mut socket, &commands, login.cluster).await?;
    }
    Ok(socket)
}

async fn ask(socket: &mut Socket, commands: &[Vec<&str>], is_cluster: bool) -> Result<(), LinkFailure> {
    let question = commands.iter().flat_map(|command| frames::written(command)).collect();
    socket.ask(question, |input| answered(input, commands, is_cluster)).await
}

fn introduction(login: &Login) -> Vec<Vec<&str>> {
    let username = if login.username.is_empty() { "default" } else { &login.username };
    let mut commands = vec![match &*login.password.0 {
        "" => vec!["HELLO", "3"],
        password => vec!["HELLO", "3", "AUTH", username, password],
    }];
    commands.extend([REPLACE, APPEND, ADD].map(|script| vec!["SCRIPT", "LOAD", script.source]));
    commands
}

/// Each command that is needed, for an item of this name.
fn trial(name: &str) -> Vec<Vec<&str>> {
    // As long as the mark, the version and the number of a value, so that the scripts go on to their last command.
    let (version, value) = ("=versions", "=versions1234");
    vec![
        vec!["SET", name, value, "EX", "1"],
        vec!["EVALSHA", REPLACE.digest, "1", name, version, value, "1"],
        vec!["EVALSHA", APPEND.digest, "1", name, version, "+", "1"],
        vec!["SET", name, "0", "EX", "1"],
        vec!["EVALSHA", ADD.digest, "1", name, "1"],
        vec!["MGET", name],
    ]
}

/// Whether all is answered, as it should be.
fn answered(input: &[u8], commands: &[Vec<&str>], is_cluster: bool) -> Result<Option<()>, LinkFailure> {
    let mut at = 0;
    for command in commands {
        let Some((answer, next)) = whole(input, at)? else { return Ok(None) };
        if let [Frame::Error(place)] = &answer[..] {
            return Err(LinkFailure::refused(command[0], &input[place.clone()]));
        }
        if command[0] == "HELLO" && memmem::find(&input[at..next], IS_NODE).is_some() != is_cluster {
            return Err(LinkFailure::Refused(if is_cluster { NO_NODE } else { NODE }.to_owned()));
        }
        at = next;
    }
    if at == input.len() { Ok(Some(())) } else { Err(LinkFailure::Garbage) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::hidden::Hidden;

    /// The outcome of these answers to all commands, or to the first ones alone.
    fn after(commands: &[Vec<&str>], is_cluster: bool, input: &[u8]) -> Result<bool, String> {
        let read = answered(input, commands, is_cluster);
        read.map(|read| read.is_some()).map_err(|failure| failure.to_string())
    }

    fn after_all(input: &[u8]) -> Result<bool, String> {
        let login = Login::default();
        after(&[introduction(&login), trial("gw:probe:1")].concat(), false, input)
    }

    const HELLO: &[u8] = b"%2\r\n+server\r\n$6\r\nvalkey\r\n+modules\r\n*1\r\n*0\r\n";
    const LEARNED: &[u8] = b"$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n";
    const REST: &[u8] = b"+OK\r\n:1\r\n:1\r\n+OK\r\n:1\r\n*1\r\n$1\r\n1\r\n";

    #[test]
    fn the_password_is_said_if_there_is_one() {
        let said = |login: &Login| introduction(login)[0].join(" ");
        assert_eq!(said(&Login::default()), "HELLO 3");
        let login = Login { password: Hidden("secret".to_owned()), ..Login::default() };
        assert_eq!(said(&login), "HELLO 3 AUTH default secret");
        assert_eq!(said(&Login { username: "gw".to_owned(), ..login }), "HELLO 3 AUTH gw secret");
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
        let hello =
            |mode: &str| format!("%2\r\n$4\r\nmode\r\n${}\r\n{mode}\r\n$4\r\nrole\r\n$6\r\nmaster\r\n", mode.len());
        for (cluster, mode, refused) in [
            (false, "standalone", None),
            (false, "cluster", Some(NODE)),
            (true, "standalone", Some(NO_NODE)),
            (true, "cluster", None),
        ] {
            let outcome = after(&introduction(&Login::default()), cluster, hello(mode).as_bytes());
            assert_eq!(outcome, refused.map_or(Ok(false), |why| Err(why.to_owned())), "{cluster} {mode}");
        }
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
