//! docs/tour.md: the commands run as written, in order, in one shell and an empty folder, and print what the page shows. Only
//! the two build commands do not run: the tests have built the binary already.
//!
//! The ports of the page become free ones. On the page, `...` stands for any lines, or for the rest of its line. Values that
//! differ between runs are compared by their kind ([`steady`]). A command that only looks is repeated until it shows the right
//! output, because lines and counters are written after the response.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::harness::{Terminal, Upstream, reply, reserved_port, unix};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/tour.md");
/// The commands that do not run.
const BUILD: [&str; 2] = ["cargo build --release --locked", "PATH=\"$PWD/target/release:$PATH\""];
/// The window of the limits on the page, in seconds.
const WINDOW: u64 = 600;
const PATIENCE: Duration = Duration::from_secs(60);

struct Step {
    command: String,
    shown: String,
}

fn steps(page: &str) -> Vec<Step> {
    let mut steps = Vec::<Step>::new();
    let mut document = false;
    for line in page.lines() {
        let code = line.strip_prefix("    ");
        match (code.or((document && line.is_empty()).then_some("")), steps.last_mut()) {
            (Some(code), Some(step)) if document => {
                step.command.extend([code, "\n"]);
                document = code != "END";
            }
            (Some(code), last) => match (code.strip_prefix("$ "), last) {
                (Some(command), _) => {
                    document = command.ends_with("<<'END'");
                    steps.push(Step { command: format!("{command}\n"), shown: String::new() });
                }
                (None, Some(step)) => step.shown.extend([code, "\n"]),
                (None, None) => panic!("output before any command: {code}"),
            },
            (None, _) => {}
        }
    }
    steps
}

/// A line without what differs between runs: digits of times, identifiers of requests, durations, the time of new room, and
/// the alignment of columns.
fn steady(line: &str) -> String {
    let mut line = line.split_whitespace().collect::<Vec<_>>().join(" ");
    let variable = [
        "\"timestamp\":\"",
        "\"seconds\":",
        "\"until\":\"",
        "\"request_id\":\"",
        "micros\":",
        "\"reset\":",
        "\"retry_after\":",
    ];
    for before in variable.into_iter().chain(["retry-after: ", ";t="]) {
        let mut from = 0;
        while let Some(at) = line[from..].find(before) {
            let begin = from + at + before.len();
            let rest = &line[begin..];
            let length = rest.find(|sign: char| !sign.is_ascii_alphanumeric() && !"-:.".contains(sign));
            let length = length.unwrap_or(rest.len());
            // An empty value is of another kind than a value.
            let kind = if length > 0 && rest.as_bytes()[0].is_ascii_hexdigit() { "#" } else { &rest[..length] };
            let whole = format!("{}{kind}{}", &line[..begin], &rest[length..]);
            (line, from) = (whole, begin);
        }
    }
    line
}

fn is_like(shown: &[String], lines: &[String]) -> bool {
    match shown.split_first() {
        None => lines.is_empty(),
        Some((any, rest)) if any == "..." => (0..=lines.len()).any(|from| is_like(rest, &lines[from..])),
        Some((first, rest)) => lines.split_first().is_some_and(|(line, more)| {
            let is_same = first.strip_suffix("...").map_or(first == line, |begin| line.starts_with(begin.trim_end()));
            is_same && is_like(rest, more)
        }),
    }
}

fn expect(step: &Step, said: &str) -> Result<(), String> {
    let lines = |text: &str| text.trim_end().lines().map(steady).collect::<Vec<_>>();
    let Step { command, shown } = step;
    let is_so = is_like(&lines(shown), &lines(said));
    is_so.then_some(()).ok_or_else(|| format!("$ {command}--- it prints\n{said}\n--- the page shows\n{shown}"))
}

/// The shell of the commands. Dropping it kills the shell and its children.
struct Shell {
    shell: Child,
    commands: ChildStdin,
    lines: Receiver<String>,
}

impl Shell {
    fn start(folder: &Path) -> Self {
        let binaries = Path::new(env!("CARGO_BIN_EXE_gateway")).parent().unwrap().display().to_string();
        let mut bash = Command::new("bash");
        bash.args(["--noprofile", "--norc"]).current_dir(folder).process_group(0);
        bash.env("PATH", binaries + ":" + &std::env::var("PATH").unwrap());
        let mut shell = bash.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (commands, output) = (shell.stdin.take().unwrap(), shell.stdout.take().unwrap());
        let (sender, lines) = channel();
        thread::spawn(move || {
            BufReader::new(output).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        let mut shell = Self { shell, commands, lines };
        shell.run("exec 2>&1\n").unwrap();
        shell
    }

    fn run(&mut self, command: &str) -> Result<String, String> {
        const END: &str = "--- the command has ended ---";
        // The last line may have no end.
        writeln!(self.commands, "{command}printf '\\n{END}\\n'").unwrap();
        let (end, mut said) = (Instant::now() + PATIENCE, String::new());
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) if line == END => return Ok(said),
                Ok(line) => said.extend([line.as_str(), "\n"]),
                Err(error) => return Err(format!("$ {command}{error} after\n{said}")),
            }
        }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = kill_process_group(Pid::from_child(&self.shell), Signal::KILL);
        let _ = self.shell.wait();
    }
}

/// Whether a command changes nothing, so that it can be repeated.
fn only_looks(command: &str) -> bool {
    let beginnings = ["grep ", "gateway simulate ", "curl -sS http://127.0.0.1:"];
    beginnings.iter().any(|beginning| command.starts_with(beginning))
}

fn walk(steps: &[Step]) -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    let up = Upstream::start(|_| reply(200, "hi"));
    let (_clients, clients) = reserved_port();
    let (_admin, admin) = reserved_port();
    let addresses = [("8080", clients), ("9901", admin), ("3000", up.address())];
    let mapped = |text: &str| {
        addresses.iter().fold(text.to_owned(), |text, (port, address)| {
            text.replace(&format!("127.0.0.1:{port}"), &address.to_string())
        })
    };
    let mut shell = Shell::start(folder.path());
    for step in steps {
        let step = Step { command: mapped(&step.command), shown: mapped(&step.shown) };
        if let Some(arguments) = step.command.strip_prefix("gateway top") {
            let arguments: Vec<_> = ["top"].into_iter().chain(arguments.split_whitespace()).collect();
            let mut top = Terminal::start(&arguments, &[], (80, 24));
            let end = Instant::now() + PATIENCE;
            while let Err(why) = expect(&step, &top.screen()) {
                if Instant::now() > end {
                    return Err(why);
                }
                thread::sleep(Duration::from_millis(20));
            }
            top.press("q");
            top.wait_exit();
            continue;
        }
        let end = Instant::now() + PATIENCE;
        while let Err(why) = expect(&step, &shell.run(&step.command)?) {
            if !only_looks(&step.command) || Instant::now() > end {
                return Err(why);
            }
            thread::sleep(Duration::from_millis(50));
        }
    }
    Ok(())
}

#[test]
#[ignore = "needs curl"]
fn the_commands_of_the_tour_print_what_it_shows() {
    let steps = steps(&std::fs::read_to_string(PAGE).unwrap());
    let (build, evening) = steps.split_at(BUILD.len());
    assert!(build.iter().zip(BUILD).all(|(step, command)| step.command.trim_end() == command));
    assert!(evening.len() > 20, "{} commands", evening.len());
    let window = || unix().as_secs() / WINDOW;
    for _ in 0..2 {
        let begun = window();
        match walk(evening) {
            // In the next window of the limits, other counts are right.
            Err(_) if window() != begun => {}
            result => return result.unwrap_or_else(|why| panic!("{why}")),
        }
    }
    panic!("two windows have ended during it");
}

#[test]
fn a_page_that_is_wrong_is_noticed() {
    let step = |shown: &str| Step { command: String::new(), shown: shown.to_owned() };
    let said = "a\n  20 200\nretry-after: 17\n\"retry_after\":3,\"used\":4}\nz";
    for (shown, is_right) in [
        ("a\n20 200\nretry-after: 99\n\"retry_after\":9,\"used\":4}\nz\n", true),
        ("a\n...\nz\n", true),
        ("...\nretry-after: 1\n...\n", true),
        ("a\n21 200\n...\n", false),
        ("a\n20 200\nretry-after: 99\n\"retry_after\":9,\"used\":5}\nz\n", false),
        ("a\n20 200\nretry-after: 99\n\"retry_after\":null,\"used\":4}\nz\n", false),
        ("a\n20...\n...\nz\n", true),
        ("a\n21...\n...\nz\n", false),
        ("a\n...\ny\n", false),
        ("a\n20 200\nretry-after: 99\n", false),
        ("20 200\n...\n", false),
    ] {
        assert_eq!(expect(&step(shown), said).is_ok(), is_right, "{shown}");
    }
}
