//! A real Valkey or Redis that can be killed, stopped and started again on the same port.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use std::{env, fs};

use rustix::process::Signal;
use socket2::Socket;
use tempfile::TempDir;

use super::clock::until;
use super::process::{self, Process};
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
        let start = |program: &str| {
            let mut command = Command::new(program);
            command.arg(&file).arg("--sentinel").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            command.spawn()
        };
        let started = Self { child: run(start), options: Vec::new(), folder, address, _held: held };
        started.wait();
        started
    }

    /// `[store]` with this server and more keys. Unless one of them is `timeout`, requests wait long enough on a busy
    /// machine.
    pub(crate) fn store_with(&self, more: &str) -> String {
        let timeout = if more.contains("timeout") { "" } else { "timeout = \"5s\"" };
        format!("[store]\ntype = \"valkey\"\nservers = [\"{}\"]\n{timeout}\n{more}\n", self.address)
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it again, empty, at the same address.
    pub(crate) fn restart(&mut self) {
        self.child = spawn(self.address, &self.folder, &self.options);
        self.wait();
    }

    pub(crate) fn signal(&self, signal: Signal) {
        process::signal(&self.child, signal);
    }

    fn wait(&self) {
        until("the server is there", PATIENCE, || TcpStream::connect(self.address).is_ok());
    }

    /// The texts and numbers of the answer, one after the other; an error begins with `-`.
    pub(crate) fn ask(&self, words: &[&str]) -> Vec<String> {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let word = |word: &&str| format!("${}\r\n{word}\r\n", word.len());
        let command = format!("*{}\r\n{}", words.len(), words.iter().map(word).collect::<String>());
        stream.write_all(command.as_bytes()).unwrap();
        let mut texts = Vec::new();
        read(&mut BufReader::new(&stream), &mut texts);
        texts
    }

    /// A number from `INFO`, such as `evicted_keys`.
    pub(crate) fn stat(&self, name: &str) -> u64 {
        let told = self.ask(&["INFO", "everything"]).remove(0);
        let line = told.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap();
        line.trim().parse().unwrap()
    }

    /// The counts in it, without those of values.
    pub(crate) fn counters(&self) -> BTreeMap<String, u64> {
        let count = |name: String| {
            let value = self.ask(&["GET", &name]);
            Some((name, value.first()?.split(' ').next()?.parse().ok()?))
        };
        self.ask(&["KEYS", "*{*"]).into_iter().filter_map(count).collect()
    }

    pub(crate) fn counted(&self) -> u64 {
        self.counters().values().sum()
    }
}

fn read(from: &mut impl BufRead, texts: &mut Vec<String>) {
    let mut line = String::new();
    from.read_line(&mut line).unwrap();
    let line = line.trim_end();
    match (&line[..1], line[1..].parse::<usize>()) {
        ("$" | "*", Err(_)) => {}
        ("*", Ok(count)) => (0..count).for_each(|_| read(from, texts)),
        ("$", Ok(length)) => {
            let mut text = vec![0; length + 2];
            from.read_exact(&mut text).unwrap();
            texts.push(String::from_utf8_lossy(&text[..length]).into_owned());
        }
        ("-", _) => texts.push(line.to_owned()),
        _ => texts.push(line[1..].to_owned()),
    }
}

fn spawn(address: SocketAddr, folder: &TempDir, options: &[String]) -> Process {
    let (host, port) = (address.ip().to_string(), address.port().to_string());
    let start = |program: &str| {
        let mut command = Command::new(program);
        command.args(["--bind", &host, "--port", &port, "--save", "", "--dir"]).arg(folder.path());
        command.args(options.iter().map(|option| option.replace("PORT", &port)));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
    };
    // Not every build has TLS.
    match options.iter().any(|option| option == "--tls-port") {
        true => Process(start("redis-server").expect(INSTALL)),
        false => run(start),
    }
}

const INSTALL: &str = "install Valkey or Redis (the package redis-server), or run scripts/test, which does";

fn run(start: impl Fn(&str) -> io::Result<Child>) -> Process {
    let child = match env::var("VALKEY_SERVER") {
        Ok(program) => start(&program),
        Err(_) => start("valkey-server").or_else(|_| start("redis-server")),
    };
    Process(child.expect(INSTALL))
}
