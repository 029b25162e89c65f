//! The gateway as a process: started from a text, watched through its log, ended by signals.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};
use serde_json::Value;
use tempfile::TempDir;

use super::client::Client;
use super::clock::{align_hour, until};
use super::process;

/// For a start, a reload or an end on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Dropping it kills the process.
pub(crate) struct Gateway {
    child: Child,
    /// The address for clients.
    pub(crate) http: SocketAddr,
    /// The address for health and metrics.
    pub(crate) admin: SocketAddr,
    config: PathBuf,
    log: Arc<Log>,
    _directory: TempDir,
}

#[derive(Default)]
struct Log {
    lines: Mutex<(Vec<String>, bool)>,
    more: Condvar,
}

impl Gateway {
    /// `rest` is everything except `[server]` and `[admin]`.
    #[track_caller]
    pub(crate) fn start(rest: &str) -> Self {
        Self::with_server("", rest)
    }

    #[track_caller]
    pub(crate) fn with_server(server: &str, rest: &str) -> Self {
        Self::from_text(&text(server, "", rest))
    }

    #[track_caller]
    pub(crate) fn with_admin(admin: &str, rest: &str) -> Self {
        Self::from_text(&text_with_admin("", "", admin, rest))
    }

    #[track_caller]
    pub(crate) fn with_log(log: &str, rest: &str) -> Self {
        Self::from_text(&text("", log, rest))
    }

    /// With lookups of names in the file `hosts` first; `None` if the system does not permit this.
    #[track_caller]
    pub(crate) fn with_hosts(hosts: &Path, rest: &str) -> Option<Self> {
        // A bound file stays the same for the gateway as long as it is written in place.
        let bind = r#"mount --bind "$0" /etc/hosts && exec "$@""#;
        let mut unshare = Command::new("unshare");
        unshare.args(["--map-root-user", "--mount", "sh", "-c", bind]).arg(hosts);
        let mut trial = Command::new("unshare");
        trial.args(unshare.get_args()).arg("true").stderr(Stdio::null());
        if !trial.status().is_ok_and(|status| status.success()) {
            return None;
        }
        Some(Self::run(&text("", "", rest), Some(unshare)))
    }

    /// With more keys for `[server]`, and with a limit of file handles.
    #[track_caller]
    pub(crate) fn with_handles(handles: u32, server: &str, rest: &str) -> Self {
        Self::run(&text(server, "", rest), Some(limited_handles(handles)))
    }

    #[track_caller]
    pub(crate) fn with_variable(name: &str, value: &Path, rest: &str) -> Self {
        let mut env = Command::new("env");
        env.arg(format!("{name}={}", value.display()));
        Self::run(&text("", "", rest), Some(env))
    }

    #[track_caller]
    pub(crate) fn with_arguments(arguments: &[&str], rest: &str) -> Self {
        let mut env = Command::new("env");
        env.args(["sh", "-c", "exec \"$0\" \"$@\" $ARGUMENTS"]).env("ARGUMENTS", arguments.join(" "));
        Self::run(&text("", "", rest), Some(env))
    }

    /// Without being able to write into files, as if the disk were full.
    #[track_caller]
    pub(crate) fn with_full_disk(rest: &str) -> Self {
        let mut shell = Command::new("sh");
        // The program that replaces the shell ignores the signal, too.
        shell.args(["-c", "trap '' XFSZ; ulimit -f 0; exec \"$0\" \"$@\""]);
        Self::run(&text("", "", rest), Some(shell))
    }

    /// With an inherited listening socket, and with the service manager at `notify`.
    #[track_caller]
    pub(crate) fn with_socket(socket: &TcpListener, notify: &Path, rest: &str) -> Self {
        let listen = format!("listen = \"{}\"", socket.local_addr().unwrap());
        Self::run(&text(&listen, "", rest), Some(passing(socket, notify)))
    }

    /// With a socket that is not in `server.listen`.
    #[track_caller]
    pub(crate) fn with_unused_socket(socket: &TcpListener, rest: &str) -> Self {
        Self::run(&text("", "", rest), Some(passing(socket, Path::new(""))))
    }

    #[track_caller]
    pub(crate) fn from_text(text: &str) -> Self {
        Self::run(text, None)
    }

    /// Starts it with a file of this text, by another program if necessary.
    #[track_caller]
    fn run(text: &str, starter: Option<Command>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let config = directory.path().join("gateway.toml");
        std::fs::write(&config, text).unwrap();
        let mut command = match starter {
            Some(mut starter) => {
                starter.arg(env!("CARGO_BIN_EXE_gateway"));
                starter
            }
            None => {
                let mut command = Command::new(env!("CARGO_BIN_EXE_gateway"));
                command.stdin(Stdio::null());
                command
            }
        };
        command.arg("--config").arg(&config);
        let has = [!text.contains("listen = []"), !text.contains("listen = \"unix:")];
        Self::spawn(command, config, directory, has)
    }

    /// Starts it with these arguments, which name its configuration, and these environment variables. It must have
    /// listeners for HTTP and for the admin API.
    #[track_caller]
    pub(crate) fn with_source(arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gateway"));
        command.args(arguments).envs(variables.iter().copied()).stdin(Stdio::null());
        Self::spawn(command, PathBuf::new(), tempfile::tempdir().unwrap(), [true; 2])
    }

    /// With a failing system call: `fault` is like `openat:error=EIO`. With `paths`, only calls for these paths fail.
    #[track_caller]
    pub(crate) fn with_failing_call(arguments: &[&str], fault: &str, paths: &[&Path]) -> Self {
        let mut command = Command::new("strace");
        // With -D the gateway is the child, not strace.
        command.args(["-D", "-f", "-q", "-o/dev/null", "-e", &format!("inject={fault}")]);
        command.args(["-e", &format!("trace={}", fault.split_once(':').unwrap().0)]);
        paths.iter().for_each(|path| _ = command.arg("-P").arg(path));
        command.arg(env!("CARGO_BIN_EXE_gateway")).args(arguments).stdin(Stdio::null());
        Self::spawn(command, PathBuf::new(), tempfile::tempdir().unwrap(), [true; 2])
    }

    #[track_caller]
    fn spawn(mut command: Command, config: PathBuf, directory: TempDir, [has_http, has_admin]: [bool; 2]) -> Self {
        align_hour();
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let log = Arc::new(Log::default());
        log.follow(child.stderr.take().unwrap());
        let unknown = SocketAddr::from(([0; 4], 0));
        let mut gateway = Self { child, http: unknown, admin: unknown, config, log, _directory: directory };
        if has_http {
            gateway.http = gateway.listening("http");
        }
        if has_admin {
            gateway.admin = gateway.listening("admin");
        }
        gateway
    }

    #[track_caller]
    pub(crate) fn https(&self) -> SocketAddr {
        self.listening("https")
    }

    /// The address for other proxies.
    #[track_caller]
    pub(crate) fn decisions(&self) -> SocketAddr {
        self.listening("decisions")
    }

    #[track_caller]
    fn listening(&self, listener: &str) -> SocketAddr {
        self.listening_at(listener, "")
    }

    /// The address of the first listener of this kind whose address begins like this.
    #[track_caller]
    pub(crate) fn listening_at(&self, listener: &str, address: &str) -> SocketAddr {
        let line = self.wait_log(&format!("listening {listener} {address}"), |line| {
            let is_there = line["address"].as_str().is_some_and(|there| there.starts_with(address));
            line["message"] == "listening" && line["listener"] == listener && is_there
        });
        line["address"].as_str().unwrap().parse().unwrap()
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(self.http)
    }

    pub(crate) fn admin(&self, path: &str) -> super::Response {
        Client::connect(self.admin).call(format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.admin))
    }

    /// How much of the first rate of a limit this key has used, after all charges of this gateway.
    pub(crate) fn used(&self, limit: &str, key: &str) -> u64 {
        let response = self.admin(&format!("/api/limits/{limit}/keys/{key}"));
        assert_eq!(response.status, 200, "{key}: {}", response.text());
        response.json()["rates"][0]["used"].as_u64().unwrap()
    }

    /// The sum of a metric over its labels; `None` if there is no such metric.
    pub(crate) fn metric(&self, name: &str) -> Option<f64> {
        let text = self.admin("/metrics");
        let samples = text.text().lines().filter_map(|line| line.strip_prefix(name));
        let samples = samples.filter(|rest| rest.starts_with(['{', ' ']));
        samples.map(|rest| rest.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).reduce(|sum, more| sum + more)
    }

    /// Waits for the first log line that is as wanted.
    #[track_caller]
    pub(crate) fn wait_log(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let end = Instant::now() + PATIENCE;
        let (mut seen, mut lines) = (0, self.log.lines.lock().unwrap());
        loop {
            let fresh = &lines.0[seen..];
            if let Some(line) =
                fresh.iter().filter_map(|line| serde_json::from_str(line).ok()).find(|line| wanted(line))
            {
                return line;
            }
            seen = lines.0.len();
            let left = end.saturating_duration_since(Instant::now());
            if lines.1 || left.is_zero() {
                let end = if lines.1 { "it ended" } else { "in time" };
                // Dropping the gateway shows the log, for which the lock must be free.
                drop(lines);
                panic!("no line {what:?} before {end}:\n{}", self.log().join("\n"));
            }
            lines = self.log.more.wait_timeout(lines, left).unwrap().0;
        }
    }

    #[track_caller]
    pub(crate) fn wait_message(&self, message: &str) -> Value {
        self.wait_log(message, |line| line["message"] == message)
    }

    pub(crate) fn log(&self) -> Vec<String> {
        self.log.lines.lock().unwrap().0.clone()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        process::signal(&self.child, signal);
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Takes file handles from the running gateway, which has shared them out at its start.
    pub(crate) fn lower_handles(&self, handles: u64) {
        let lower = Rlimit { current: Some(handles), maximum: Some(handles) };
        prlimit(Some(self.pid()), Resource::Nofile, lower).unwrap();
    }

    pub(crate) fn reload(&self, server: &str, rest: &str) {
        std::fs::write(&self.config, text(server, "", rest)).unwrap();
        self.signal(Signal::HUP);
    }

    pub(crate) fn reload_admin(&self, admin: &str, rest: &str) {
        std::fs::write(&self.config, text_with_admin("", "", admin, rest)).unwrap();
        self.signal(Signal::HUP);
    }

    pub(crate) fn reload_and_wait(&self, server: &str, rest: &str) {
        let before = self.reloads();
        self.reload(server, rest);
        until("it reloads", PATIENCE, || self.reloads() > before);
    }

    /// How many files came into force since the start.
    pub(crate) fn reloads(&self) -> usize {
        self.log().iter().filter(|line| line.contains("\"reloaded\"")).count()
    }

    /// Writes a new file without asking the gateway to read it.
    pub(crate) fn write_config(&self, rest: &str) {
        // Atomically, because a reload may be reading it.
        let beside = self.config.with_extension("new");
        std::fs::write(&beside, text("", "", rest)).unwrap();
        std::fs::rename(beside, &self.config).unwrap();
    }

    pub(crate) fn config_path(&self) -> &Path {
        &self.config
    }

    pub(crate) fn remove_config(&self) {
        std::fs::remove_file(&self.config).unwrap();
    }

    /// Returns when the log is complete, too.
    #[track_caller]
    pub(crate) fn wait_exit(&mut self) -> ExitStatus {
        let end = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < end, "it does not end:\n{}", self.log().join("\n"));
            std::thread::sleep(Duration::from_millis(10));
        };
        let left = end.saturating_duration_since(Instant::now());
        let lines = self.log.lines.lock().unwrap();
        drop(self.log.more.wait_timeout_while(lines, left, |lines| !lines.1).unwrap());
        status
    }

    /// A figure of /proc/PID/status in bytes, such as `VmRSS` or its peak `VmHWM`.
    pub(crate) fn memory(&self, figure: &str) -> u64 {
        let path = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(path).unwrap();
        let line = status.lines().find(|line| line.starts_with(figure)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let mut err = std::io::stderr();
            let _ = writeln!(err, "--- log of the gateway\n{}", self.log().join("\n"));
        }
    }
}

impl Log {
    /// Collects in a separate thread, so that the gateway never waits for a reader of its log.
    fn follow(self: &Arc<Self>, stderr: ChildStderr) {
        let log = Arc::clone(self);
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines() {
                let Ok(line) = line else { break };
                log.lines.lock().unwrap().0.push(line);
                log.more.notify_all();
            }
            log.lines.lock().unwrap().1 = true;
            log.more.notify_all();
        });
    }
}

fn text(server: &str, log: &str, rest: &str) -> String {
    text_with_admin(server, log, "", rest)
}

fn text_with_admin(server: &str, log: &str, admin: &str, rest: &str) -> String {
    let workers = if server.contains("workers") { "" } else { "workers = 2" };
    let listen = if server.contains("listen =") { "" } else { "listen = \"127.0.0.1:0\"" };
    let server = format!("[server]\n{listen}\n{workers}\n{server}\n");
    let bound = if admin.contains("listen =") { "" } else { "listen = \"127.0.0.1:0\"" };
    format!("{server}[admin]\n{bound}\n{admin}\n[log]\nlevel = \"info\"\n{log}\n{rest}\n")
}

/// A program that runs another and passes it a listening socket.
fn passing(socket: &TcpListener, notify: &Path) -> Command {
    let script = "exec 3<&0 0</dev/null; LISTEN_FDS=1 LISTEN_PID=$$ WATCHDOG_PID=$$ exec \"$0\" \"$@\"";
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).env("NOTIFY_SOCKET", notify).env("WATCHDOG_USEC", "2000000");
    shell.stdin(OwnedFd::from(socket.try_clone().unwrap()));
    shell
}

/// A program that runs another with a limit of file handles.
fn limited_handles(handles: u32) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("ulimit -n {handles} && exec \"$0\" \"$@\"")]);
    shell
}

/// Runs a gateway that cannot start, with a limit of file handles, to its end.
pub(crate) fn run_with_handles(handles: u32, server: &str, rest: &str) -> Output {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("gateway.toml");
    std::fs::write(&config, text(server, "", rest)).unwrap();
    let mut command = limited_handles(handles);
    command.arg(env!("CARGO_BIN_EXE_gateway")).arg("--config").arg(&config);
    command.stdin(Stdio::null()).output().unwrap()
}

/// The limit `l` of one rate by this key, with more keys, on a route for everything.
pub(crate) fn limited(key: &str, rate: &str, more: &str) -> String {
    let limit = format!("[limits.l]\nkey = {key:?}\nrates = [{rate:?}]\n{more}\n");
    format!("{limit}[[routes]]\npath = \"/*\"\nlimits = [\"l\"]\nrespond = {{ status = 200 }}\n")
}

pub(crate) fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gateway"));
    command.args(arguments).stdin(Stdio::null()).output().unwrap()
}

#[track_caller]
pub(crate) fn run_json(arguments: &[&str]) -> Value {
    let output = run(arguments);
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}
