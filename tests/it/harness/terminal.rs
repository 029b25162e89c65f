//! A terminal for a program: its screen, its keys and its size.

use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};
use vt100::Parser;

use super::process::Process;

/// For a start, an event or an end on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// Dropping it kills the program.
pub(crate) struct Terminal {
    pub(crate) program: Process,
    keyboard: Option<File>,
    /// The program's side, which keeps its settings after the program has ended.
    inside: OwnedFd,
    before: Termios,
    output: Arc<Mutex<Output>>,
    reader: Arc<Reader>,
}

/// The state of the thread that reads output.
#[derive(Default)]
struct Reader {
    pauses: AtomicBool,
    is_over: AtomicBool,
}

struct Output {
    parser: Parser,
    bytes: Vec<u8>,
}

fn cells(count: u16) -> NonZero<u16> {
    NonZero::new(count).unwrap()
}

fn size(columns: u16, rows: u16) -> Winsize {
    Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

impl Terminal {
    pub(crate) fn start(arguments: &[&str], variables: &[(&str, &str)], (columns, rows): (u16, u16)) -> Self {
        let outside = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&outside).unwrap();
        unlockpt(&outside).unwrap();
        tcsetwinsize(&outside, size(columns, rows)).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let inside = rustix::fs::open(ptsname(&outside, Vec::new()).unwrap(), flags, Mode::empty()).unwrap();
        let before = tcgetattr(&inside).unwrap();
        // Makes it the controlling terminal of the process, which is necessary for its signals.
        let mut command = Command::new("setsid");
        command.arg("--ctty").arg(env!("CARGO_BIN_EXE_gateway")).args(arguments);
        command.env_remove("NO_COLOR").env_remove("GATEWAY_ADMIN_TOKEN").envs(variables.iter().copied());
        let copy = || inside.try_clone().unwrap();
        command.stdin(copy()).stdout(copy()).stderr(copy());
        let program = Process(command.spawn().unwrap());
        let output =
            Arc::new(Mutex::new(Output { parser: Parser::new(cells(rows), cells(columns), 0), bytes: Vec::new() }));
        let reader = Arc::<Reader>::default();
        let keyboard = File::from(outside);
        let (mut screen, read, told) = (keyboard.try_clone().unwrap(), output.clone(), reader.clone());
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // Ends when nobody has the inside any more.
            while let Ok(count @ 1..) = screen.read(&mut bytes) {
                let mut output = read.lock().unwrap();
                output.parser.process(&bytes[..count]);
                output.bytes.extend_from_slice(&bytes[..count]);
                drop(output);
                while told.pauses.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(10));
                }
                if told.is_over.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        Self { program, keyboard: Some(keyboard), inside, before, output, reader }
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.keyboard.as_mut().unwrap().write_all(keys.as_bytes()).unwrap();
    }

    pub(crate) fn resize(&self, columns: u16, rows: u16) {
        self.output.lock().unwrap().parser.screen_mut().set_size(cells(rows), cells(columns));
        tcsetwinsize(self.keyboard.as_ref().unwrap(), size(columns, rows)).unwrap();
    }

    pub(crate) fn screen(&self) -> String {
        self.output.lock().unwrap().parser.screen().contents()
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.output.lock().unwrap().bytes.clone()
    }

    /// Closes the user's side, like a closed window.
    pub(crate) fn hang_up(&mut self) {
        self.keyboard = None;
        self.reader.is_over.store(true, Ordering::Relaxed);
    }

    /// Pauses or resumes reading of the output.
    pub(crate) fn read(&self, reads: bool) {
        self.reader.pauses.store(!reads, Ordering::Relaxed);
    }

    /// Bytes of output that wait to be read.
    pub(crate) fn unread(&self) -> u64 {
        rustix::io::ioctl_fionread(self.keyboard.as_ref().unwrap()).unwrap()
    }

    #[track_caller]
    pub(crate) fn wait(&mut self, what: &str, wanted: impl Fn(&str) -> bool) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            let screen = self.screen();
            if wanted(&screen) {
                return screen;
            }
            let ended = self.program.try_wait().unwrap();
            assert!(Instant::now() < end && ended.is_none(), "no {what}, {ended:?}:\n{screen}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    #[track_caller]
    pub(crate) fn wait_exit(&mut self) -> ExitStatus {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.program.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < end, "it does not end:\n{}", self.screen());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    #[track_caller]
    pub(crate) fn expect_restored(&self) {
        assert!(self.has_old_settings(), "other settings: {:?}", tcgetattr(&self.inside));
        super::until("the screen is restored", PATIENCE, || {
            let output = self.output.lock().unwrap();
            let screen = output.parser.screen();
            !screen.alternate_screen() && !screen.hide_cursor()
        });
    }

    /// Whether lines are edited and keys are signals, as before the program.
    pub(crate) fn has_old_settings(&self) -> bool {
        let now = tcgetattr(&self.inside).unwrap();
        (now.local_modes, now.input_modes, now.output_modes)
            == (self.before.local_modes, self.before.input_modes, self.before.output_modes)
    }
}
