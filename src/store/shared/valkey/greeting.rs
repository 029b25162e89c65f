//! What a gateway says first to a Valkey or Redis: who it is, and then each command that it will need, for a key that lives
//! for a second. So a server that refuses something says so here and not in reply to a request. Besides, it learns the scripts. A
//! node of a cluster that may have no slot learns only these.

use super::super::protocol::{Greeting, Unwelcome};
use super::frames::{self, Frame};
use super::scripts::{ADD, APPEND, REPLACE};
use crate::config::Login;

/// All answers together, in bytes.
const LARGEST: usize = 64 << 10;

const NODE: &str = "it is a node of a cluster, and [store] has no `cluster = true`";
const NO_NODE: &str = "it is no node of a cluster, but [store] has `cluster = true`";

pub(super) struct Introduction {
    questions: Vec<u8>,
    /// The commands in `questions`, and how many of them are answered.
    commands: Vec<&'static str>,
    answered: usize,
    /// How many frames of the present answer are to come, and where the next one begins.
    open: usize,
    next: usize,
    is_cluster: bool,
    /// Whether the next frame says what the server is.
    is_mode: bool,
}

impl Introduction {
    /// With a key that this server has, which other gateways do not try.
    pub(super) fn new(login: &Login, key: &[u8]) -> Self {
        let mut new = Self::greet(login);
        new.try_commands(key);
        new
    }

    /// To a node of a cluster of which nobody knows whether it has slots.
    pub(super) fn to_node(login: &Login) -> Self {
        let mut new = Self::greet(login);
        for script in [&REPLACE, &APPEND, &ADD] {
            frames::write([b"SCRIPT", b"LOAD", script.source.as_bytes()], new.ask("SCRIPT"));
        }
        new
    }

    fn greet(login: &Login) -> Self {
        let Login { username, password, database, cluster: is_cluster, .. } = login;
        let (questions, commands) = (Vec::new(), Vec::new());
        let mut new =
            Self { questions, commands, answered: 0, open: 0, next: 0, is_cluster: *is_cluster, is_mode: false };
        match password.text() {
            "" => frames::write([b"HELLO", b"3"], new.ask("HELLO")),
            password => {
                let username = if username.is_empty() { "default" } else { username };
                let words = [&b"HELLO"[..], b"3", b"AUTH", username.as_bytes(), password.as_bytes()];
                frames::write(words, new.ask("HELLO"));
            }
        }
        if *database > 0 {
            frames::write([b"SELECT", itoa::Buffer::new().format(*database).as_bytes()], new.ask("SELECT"));
        }
        new
    }

    fn try_commands(&mut self, name: &[u8]) {
        frames::write([b"SET", name, b"=", b"EX", b"1"], self.ask("SET"));
        for script in [&REPLACE, &APPEND] {
            let out = self.ask("EVAL");
            script.teach(name, 3, out);
            [&b"="[..], b"=", b"1"].into_iter().for_each(|word| frames::word(word, out));
        }
        frames::write([b"SET", name, b"0", b"EX", b"1"], self.ask("SET"));
        let out = self.ask("EVAL");
        ADD.teach(name, 1, out);
        frames::word(b"1", out);
        let out = self.ask("EVALSHA");
        ADD.call(name, 1, out);
        frames::word(b"1", out);
        frames::write([b"MGET", name], self.ask("MGET"));
    }

    /// Where to write this command.
    fn ask(&mut self, command: &'static str) -> &mut Vec<u8> {
        self.commands.push(command);
        &mut self.questions
    }
}

impl Greeting for Introduction {
    fn proceed(&mut self, input: &[u8], output: &mut Vec<u8>) -> Result<bool, Unwelcome> {
        output.append(&mut self.questions);
        while let Some(&command) = self.commands.get(self.answered) {
            let Some((frame, next)) = frames::frame(input, self.next).map_err(|_| Unwelcome::Garbage)? else {
                return if input.len() < LARGEST { Ok(false) } else { Err(Unwelcome::Garbage) };
            };
            let is_inside = self.open > 0;
            self.open -= usize::from(is_inside);
            match frame {
                Frame::Error(place) if !is_inside => {
                    let answer = String::from_utf8_lossy(&input[place]).into_owned();
                    return Err(Unwelcome::Refused { command, answer });
                }
                Frame::Text(place) if self.is_mode => {
                    self.is_mode = false;
                    match (self.is_cluster, &input[place] == b"cluster") {
                        (false, true) => return Err(Unwelcome::Unlike(NODE)),
                        (true, false) => return Err(Unwelcome::Unlike(NO_NODE)),
                        _ => {}
                    }
                }
                Frame::Text(place) => self.is_mode = command == "HELLO" && &input[place] == b"mode",
                Frame::Several(more) => self.open = self.open.checked_add(more).ok_or(Unwelcome::Garbage)?,
                _ => {}
            }
            self.answered += usize::from(self.open == 0);
            self.next = next;
        }
        if self.next == input.len() { Ok(true) } else { Err(Unwelcome::Garbage) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SecretText;

    fn introduction(login: &Login) -> (Introduction, String) {
        let (mut introduction, mut out) = (Introduction::new(login, b"gw:probe:1"), Vec::new());
        assert_eq!(introduction.proceed(b"", &mut out), Ok(false));
        (introduction, String::from_utf8(out).unwrap())
    }

    const HELLO: &[u8] = b"%2\r\n+server\r\n$6\r\nvalkey\r\n+modules\r\n*1\r\n*0\r\n";
    const REST: &[u8] = b"+OK\r\n:1\r\n:1\r\n+OK\r\n:1\r\n:2\r\n*1\r\n$1\r\n2\r\n";

    #[test]
    fn the_password_and_the_database_are_said_if_there_are_any() {
        let (_, said) = introduction(&Login::default());
        assert!(said.starts_with("*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n*5\r\n$3\r\nSET"), "{said}");
        let login = Login { password: SecretText::new("secret".to_owned()), database: 3, ..Login::default() };
        let (_, said) = introduction(&login);
        let hello = "*5\r\n$5\r\nHELLO\r\n$1\r\n3\r\n$4\r\nAUTH\r\n$7\r\ndefault\r\n$6\r\nsecret\r\n";
        assert!(said.starts_with(&format!("{hello}*2\r\n$6\r\nSELECT\r\n$1\r\n3\r\n")), "{said}");
        let (_, said) = introduction(&Login { username: "gw".to_owned(), ..login });
        assert!(said.contains("$4\r\nAUTH\r\n$2\r\ngw\r\n$6\r\nsecret\r\n"), "{said}");
    }

    #[test]
    fn it_is_over_when_all_is_answered_however_the_bytes_arrive() {
        let (mut introduction, _) = introduction(&Login::default());
        let input = [HELLO, REST].concat();
        for cut in 0..input.len() {
            assert_eq!(introduction.proceed(&input[..cut], &mut Vec::new()), Ok(false), "{cut}");
        }
        assert_eq!(introduction.proceed(&input, &mut Vec::new()), Ok(true));
        assert_eq!(introduction.proceed(&[&input[..], b":1\r\n"].concat(), &mut Vec::new()), Err(Unwelcome::Garbage));
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
            let (mut introduction, _) = introduction(&Login { cluster, ..Login::default() });
            let proceeded = introduction.proceed(hello(mode).as_bytes(), &mut Vec::new());
            assert_eq!(proceeded, refused.map_or(Ok(false), |why| Err(Unwelcome::Unlike(why))), "{cluster} {mode}");
        }
    }

    #[test]
    fn a_node_that_may_have_no_slot_only_learns_the_scripts() {
        let (mut introduction, mut out) = (Introduction::to_node(&Login::default()), Vec::new());
        assert_eq!(introduction.proceed(b"", &mut out), Ok(false));
        let said = String::from_utf8(out).unwrap();
        assert_eq!((said.matches("LOAD").count(), said.contains("MGET")), (3, false));
        let answered = [HELLO, b"$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n"].concat();
        assert_eq!(introduction.proceed(&answered, &mut Vec::new()), Ok(true));
    }

    #[test]
    fn the_first_refusal_tells_what_is_refused() {
        let refused = |input: &[u8]| introduction(&Login::default()).0.proceed(input, &mut Vec::new()).unwrap_err();
        let because = |command, answer: &str| Unwelcome::Refused { command, answer: answer.to_owned() };
        assert_eq!(refused(b"-NOAUTH a\r\n-NOAUTH b\r\n"), because("HELLO", "NOAUTH a"));
        assert_eq!(refused(&[HELLO, b"+OK\r\n-NOPERM no\r\n"].concat()), because("EVAL", "NOPERM no"));
        assert_eq!(refused(&[HELLO, b"-READONLY no\r\n"].concat()), because("SET", "READONLY no"));
        assert_eq!(refused(b"HTTP/1.1 400\r\n"), Unwelcome::Garbage);
        assert_eq!(refused(&b"*1\r\n".repeat(LARGEST / 4)), Unwelcome::Garbage);
    }
}
