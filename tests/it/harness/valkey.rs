//! A real Valkey or Redis that can be killed, stopped and started again on the same port.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{env, fs};

use rustix::process::Signal;
use socket2::Socket;
use tempfile::TempDir;

use super::clock::until;
use super::process::{self, Process};
use super::server::{Control, Software};
use super::upstream::reserved_port;

/// For a start on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// Dropping it kills it.
pub(crate) struct Valkey {
    child: Process,
    options: Vec<String>,
    folder: TempDir,
    pub(crate) address: SocketAddr,
    /// Keeps the port while no server listens on it.
    _held: Socket,
}

impl Valkey {
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// With more options for its command line, in which `PORT` is its port.
    pub(crate) fn start_with(options: &[&str]) -> Self {
        let (held, address) = reserved_port();
        let folder = tempfile::tempdir().unwrap();
        let options: Vec<_> = options.iter().map(|&option| option.to_owned()).collect();
        let child = spawn(address, &folder, &options);
        let started = Self { child, options, folder, address, _held: held };
        started.wait();
        started
    }

    /// At this address, which nobody else may listen on.
    pub(crate) fn start_at(address: SocketAddr) -> Self {
        let (held, _) = reserved_port();
        let folder = tempfile::tempdir().unwrap();
        let started = Self { child: spawn(address, &folder, &[]), options: Vec::new(), folder, address, _held: held };
        started.wait();
        started
    }

    /// A sentinel that watches the primary of this name. Two must miss it before another server takes its place.
    pub(crate) fn sentinel(name: &str, primary: SocketAddr) -> Self {
        let (held, address) = reserved_port();
        let folder = tempfile::tempdir().unwrap();
        let rules = ["down-after-milliseconds NAME 1000", "failover-timeout NAME 3000"];
        let rules = rules.map(|rule| format!("sentinel {}\n", rule.replace("NAME", name))).concat();
        let (host, port) = (primary.ip(), primary.port());
        let text = format!(
            "bind 127.0.0.1\nport {}\ndir {}\nsentinel monitor {name} {host} {port} 2\n{rules}",
            address.port(),
            folder.path().display()
        );
        // The sentinel writes into it what it learns.
        let file = folder.path().join("sentinel.conf");
        fs::write(&file, text).unwrap();
        let mut command = Command::new(program(false));
        command.arg(&file).arg("--sentinel").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let started =
            Self { child: Process(command.spawn().unwrap()), options: Vec::new(), folder, address, _held: held };
        started.wait();
        started
    }

    /// `[store]` with this server and more keys. Unless one of them is `timeout`, requests wait long enough on a busy
    /// machine.
    pub(crate) fn store_with(&self, more: &str) -> String {
        Software::Valkey.store(&[self.address], more)
    }

    fn wait(&self) {
        until("the server is there", PATIENCE, || TcpStream::connect(self.address).is_ok());
    }

    pub(crate) fn ask(&self, words: &[&str]) -> Vec<String> {
        ask(self.address, words)
    }

    /// A number from `INFO`, such as `evicted_keys`.
    pub(crate) fn stat(&self, name: &str) -> u64 {
        let told = self.ask(&["INFO", "everything"]).remove(0);
        let line = told.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap();
        line.trim().parse().unwrap()
    }

    /// How often these commands were executed, also in scripts.
    fn calls<const COMMANDS: usize>(&self, commands: [&str; COMMANDS]) -> [u64; COMMANDS] {
        let told = self.ask(&["INFO", "commandstats"]).remove(0);
        commands.map(|command| {
            let line = told.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
            line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
        })
    }

    /// The names of what gateways keep in it, except notes.
    pub(crate) fn names(&self) -> Vec<String> {
        self.ask(&["KEYS", "*{*"])
    }
}

impl Control for Valkey {
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn restart(&mut self) {
        self.child = spawn(self.address, &self.folder, &self.options);
        self.wait();
    }

    fn signal(&self, signal: Signal) {
        process::signal(&self.child, signal);
    }

    /// Scripts and reads, without three scripts and a read in each greeting.
    fn commands(&self) -> u64 {
        let [scripts, reads, greetings] = self.calls(["evalsha", "mget", "hello"]);
        scripts + reads - 4 * greetings
    }

    fn lookups(&self) -> u64 {
        let [reads, greetings] = self.calls(["mget", "hello"]);
        reads - greetings
    }

    fn items(&self) -> u64 {
        self.ask(&["DBSIZE"])[0].parse().unwrap()
    }

    fn connections(&self) -> u64 {
        self.stat("connected_clients") - 1
    }

    fn counters(&self) -> BTreeMap<String, u64> {
        let count = |name: String| {
            // One that ends meanwhile is nothing.
            let value = self.ask(&["GET", &name]);
            Some((name, value.first()?.split(' ').next()?.parse().ok()?))
        };
        self.names().into_iter().filter_map(count).collect()
    }

    fn evict(&self) {
        let most = (self.stat("used_memory") + (1 << 20)).to_string();
        let policy = ["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"];
        assert_eq!([self.ask(&policy), self.ask(&["CONFIG", "SET", "maxmemory", &most])].concat(), ["OK", "OK"]);
        let (text, mut number) = ("x".repeat(10_000), 0);
        // What only lists the names is no use of the counters, which would keep them.
        until("all counters are evicted", PATIENCE, || {
            number += 1;
            self.ask(&["SET", &format!("other:{number}"), &text]);
            self.names().is_empty()
        });
        assert_eq!(self.ask(&["CONFIG", "SET", "maxmemory", "0"]), ["OK"]);
    }

    fn flush(&self) {
        assert_eq!(self.ask(&["FLUSHALL"]), ["OK"]);
    }

    fn set(&self, name: &str, text: &str) {
        assert_eq!(self.ask(&["SET", name, text]), ["OK"]);
    }

    fn get(&self, name: &str) -> Option<String> {
        // Version and number of the value come before.
        self.ask(&["GETRANGE", name, "13", "-1"]).pop().filter(|text| !text.is_empty())
    }
}

/// The texts and numbers of the answer, one after the other; an error begins with `-`. Asks again if the connection is reset: a
/// replica resets all when it becomes the primary.
pub(crate) fn ask(address: SocketAddr, words: &[&str]) -> Vec<String> {
    let word = |word: &&str| format!("${}\r\n{word}\r\n", word.len());
    let command = format!("*{}\r\n{}", words.len(), words.iter().map(word).collect::<String>());
    let attempt = || {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        stream.write_all(command.as_bytes())?;
        let mut texts = Vec::new();
        read(&mut BufReader::new(&stream), &mut texts).map(|()| texts)
    };
    loop {
        match attempt() {
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
            answered => return answered.unwrap(),
        }
    }
}

fn read(from: &mut impl BufRead, texts: &mut Vec<String>) -> io::Result<()> {
    let mut line = String::new();
    if from.read_line(&mut line)? == 0 {
        return Err(ErrorKind::ConnectionReset.into());
    }
    let line = line.trim_end();
    match (&line[..1], line[1..].parse::<usize>()) {
        ("$" | "*", Err(_)) => {}
        ("*", Ok(count)) => {
            for _ in 0..count {
                let before = texts.len();
                read(from, texts)?;
                // Nothing is an empty text here.
                texts.resize(texts.len().max(before + 1), String::new());
            }
        }
        ("$", Ok(length)) => {
            let mut text = vec![0; length + 2];
            from.read_exact(&mut text)?;
            texts.push(String::from_utf8_lossy(&text[..length]).into_owned());
        }
        ("-", _) => texts.push(line.to_owned()),
        _ => texts.push(line[1..].to_owned()),
    }
    Ok(())
}

fn spawn(address: SocketAddr, folder: &TempDir, options: &[String]) -> Process {
    let (host, port) = (address.ip().to_string(), address.port().to_string());
    let is_tls = options.iter().any(|option| option == "--tls-port");
    let mut command = Command::new("sh");
    // A file that must not grow is then an error instead of the end.
    command.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\"", &program(is_tls)]);
    command.args(["--bind", &host, "--port", &port, "--save", "", "--enable-debug-command", "yes"]);
    command.arg("--dir").arg(folder.path()).args(options.iter().map(|option| option.replace("PORT", &port)));
    Process(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
}

/// What to start.
fn program(is_tls: bool) -> String {
    let is_there = |program: &&str| Command::new(program).arg("--version").stdout(Stdio::null()).status().is_ok();
    // Not every build has TLS.
    let own = env::var("VALKEY_SERVER").ok().filter(|_| !is_tls);
    let installed = if is_tls { &["redis-server"][..] } else { &["valkey-server", "redis-server"] };
    own.or_else(|| installed.iter().copied().find(is_there).map(str::to_owned))
        .expect("install Valkey or Redis (the package redis-server), or run scripts/test, which does")
}

/// Takes the commands that are complete from what a client has sent.
pub(crate) fn cut_commands(sent: &mut Vec<u8>) -> Vec<Vec<String>> {
    let mut commands = Vec::new();
    while let Some((command, length)) = first_command(sent) {
        sent.drain(..length);
        commands.push(command);
    }
    commands
}

/// With its length in bytes.
fn first_command(sent: &[u8]) -> Option<(Vec<String>, usize)> {
    let mut at = 0;
    let number = |kind: u8, at: &mut usize| {
        let end = *at + sent[*at..].iter().position(|byte| *byte == b'\n')?;
        assert_eq!(sent[*at], kind);
        let number: usize = str::from_utf8(&sent[*at + 1..end - 1]).unwrap().parse().unwrap();
        *at = end + 1;
        Some(number)
    };
    let mut words = Vec::new();
    for _ in 0..number(b'*', &mut at)? {
        let length = number(b'$', &mut at)?;
        words.push(String::from_utf8_lossy(sent.get(at..at + length + 2)?.split_at(length).0).into_owned());
        at += length + 2;
    }
    Some((words, at))
}
