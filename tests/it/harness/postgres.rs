//! A real PostgreSQL that can be killed, stopped and started again on the same port.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, geteuid, kill_process};
use socket2::Socket;
use tempfile::TempDir;

use super::clock::until;
use super::process::{self, Process};
use super::tls::Issued;
use super::upstream::reserved_port;

/// As root, servers run as this user (`nobody`), because PostgreSQL refuses to run as root.
const NOBODY: u32 = 65534;

/// For a start on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// One server with the database `postgres`, whose owner has the same name and no password; dropping it kills it.
pub(crate) struct Postgres {
    child: Process,
    folder: TempDir,
    options: Vec<String>,
    pub(crate) address: SocketAddr,
    /// Keeps the port while no server listens on it.
    _held: Socket,
}

impl Postgres {
    pub(crate) fn start() -> Self {
        Self::start_with(&[], None)
    }

    /// With more settings, and with TLS if there is a certificate.
    pub(crate) fn start_with(settings: &[&str], certificate: Option<&Issued>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        own(folder.path());
        let data = folder.path().join("data");
        let mut create = command("initdb");
        create.arg("--pgdata").arg(&data).args(["--username=postgres", "--auth=trust", "--encoding=UTF8"]);
        let created = create.args(["--no-sync", "--no-locale"]).output();
        let created =
            created.expect("initdb: install PostgreSQL (the package postgresql), or run scripts/test, which does");
        assert!(
            created.status.success(),
            "initdb, of the package postgresql: {}",
            String::from_utf8_lossy(&created.stderr)
        );
        let mut options: Vec<_> = settings.iter().map(|setting| (*setting).to_owned()).collect();
        if let Some(Issued { cert, key }) = certificate {
            for (from, to) in [(cert, "server.crt"), (key, "server.key")] {
                let to = data.join(to);
                fs::copy(from, &to).unwrap();
                fs::set_permissions(&to, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
                own(&to);
            }
            options.push("ssl=on".to_owned());
        }
        let (held, address) = reserved_port();
        let child = spawn(folder.path(), address, &options);
        let mut started = Self { child, folder, options, address, _held: held };
        started.wait();
        started
    }

    pub(crate) fn url(&self, user: &str) -> String {
        format!("postgres://{user}@{}/postgres?sslmode=disable", self.address)
    }

    pub(crate) fn unix_url(&self, user: &str) -> String {
        let folder = self.folder.path().to_str().unwrap();
        format!("postgres:///postgres?user={user}&host={folder}&port={}", self.address.port())
    }

    /// Runs SQL as the owner, and returns the selected fields.
    pub(crate) fn sql(&self, text: &str) -> String {
        self.try_sql(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    /// Runs SQL later, in another thread.
    pub(crate) fn later(&self) -> impl Fn(&str) -> Result<String, String> + Send + use<> {
        let (folder, port) = (self.folder.path().to_owned(), self.address.port());
        move |text| psql(&folder, port, text)
    }

    fn try_sql(&self, text: &str) -> Result<String, String> {
        psql(self.folder.path(), self.address.port(), text)
    }

    pub(crate) fn authenticate(&self, rules: &str) {
        fs::write(self.folder.path().join("data/pg_hba.conf"), rules).unwrap();
        self.sql("select pg_reload_conf()");
        until("the rules are in force", PATIENCE, || {
            self.sql("select count(*) from pg_hba_file_rules") == rules.lines().count().to_string()
        });
    }

    pub(crate) fn kill(&mut self) {
        let killed = self.signal_all(Signal::KILL);
        self.child.wait().unwrap();
        // The server cannot start again while one of them still has the shared memory.
        until("its processes have ended", PATIENCE, || killed.iter().all(|pid| has_ended(*pid)));
    }

    /// Stops the server without waiting for sessions.
    pub(crate) fn stop(&mut self) {
        process::signal(&self.child, Signal::INT);
        self.child.wait().unwrap();
    }

    /// Starts it again in the same place, with the same data.
    pub(crate) fn restart(&mut self) {
        self.child = spawn(self.folder.path(), self.address, &self.options);
        self.wait();
    }

    /// Stops all its processes: the kernel accepts connections, and nobody reads them.
    pub(crate) fn freeze(&self) {
        self.signal_all(Signal::STOP);
    }

    pub(crate) fn thaw(&self) {
        self.signal_all(Signal::CONT);
    }

    /// Sends a signal to the server and to all its children, which are returned.
    fn signal_all(&self, signal: Signal) -> Vec<Pid> {
        let server = Pid::from_child(&self.child);
        if signal != Signal::CONT {
            // The server starts no others meanwhile.
            process::signal(&self.child, Signal::STOP);
        }
        let listed = Command::new("ps").args(["-A", "-o", "ppid=,pid="]).output().unwrap();
        let mut children = Vec::new();
        for line in String::from_utf8(listed.stdout).unwrap().lines() {
            let mut numbers = line.split_whitespace().map(|number| number.parse::<i32>().unwrap());
            let is_child = numbers.next() == Some(server.as_raw_nonzero().get());
            if let (true, Some(pid)) = (is_child, numbers.next().and_then(Pid::from_raw)) {
                // It may have ended meanwhile.
                let _ = kill_process(pid, signal);
                children.push(pid);
            }
        }
        process::signal(&self.child, signal);
        children
    }

    fn wait(&mut self) {
        until("PostgreSQL is there", PATIENCE, || {
            let has_ended = self.child.try_wait().unwrap().is_some();
            assert!(!has_ended, "{}", fs::read_to_string(self.folder.path().join("log")).unwrap());
            TcpStream::connect(self.address).is_ok() && self.try_sql("select 1").is_ok()
        });
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            self.signal_all(Signal::KILL);
        }
    }
}

/// Whether a process has ended, even if its parent has not waited for it.
fn has_ended(pid: Pid) -> bool {
    let shown = Command::new("ps").args(["-o", "stat=", "-p", &pid.as_raw_nonzero().to_string()]).output().unwrap();
    shown.stdout.is_empty() || shown.stdout.starts_with(b"Z")
}

fn psql(folder: &Path, port: u16, text: &str) -> Result<String, String> {
    let mut psql = Command::new("psql");
    psql.args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--set=ON_ERROR_STOP=1"]);
    psql.arg("--host").arg(folder).args(["--username=postgres", "--dbname=postgres"]);
    let output = psql.args(["--port", &port.to_string(), "--command", text]).output();
    let output = output.expect("psql: install PostgreSQL (the package postgresql)");
    if output.status.success() {
        Ok(String::from_utf8(output.stdout).unwrap().trim_end().to_owned())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

fn spawn(folder: &Path, address: SocketAddr, options: &[String]) -> Process {
    let mut command = command("postgres");
    command.arg("-D").arg(folder.join("data")).arg("-k").arg(folder);
    command.args(["-h", &address.ip().to_string(), "-p", &address.port().to_string()]);
    // The data ends with the test.
    for option in ["fsync=off", "full_page_writes=off"] {
        command.args(["-c", option]);
    }
    for option in options {
        command.args(["-c", option]);
    }
    let log = fs::File::create(folder.join("log")).unwrap();
    Process(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap())
}

/// Gives a file to the user of the servers.
fn own(path: &Path) {
    if geteuid().is_root() {
        chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
}

/// One of the server's programs, as a user who is not root.
fn command(name: &str) -> Command {
    let program = program(name);
    if !geteuid().is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args([format!("--reuid={NOBODY}"), format!("--regid={NOBODY}"), "--clear-groups".to_owned()]);
    command.arg("--").arg(program).current_dir("/");
    command
}

/// Debian has the programs of servers in a folder for each version.
fn program(name: &str) -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let installed = versions.map(|version| version.path().join("bin").join(name)).filter(|path| path.exists());
    installed.max().unwrap_or_else(|| PathBuf::from(name))
}
