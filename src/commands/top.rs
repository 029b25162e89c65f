//! `gateway top`: the dashboard in a terminal. It follows the events of the admin listener and knows nothing else of the
//! gateway, which may run on another machine.
//!
//! One thread draws, one reads keys, and the main thread follows the gateway and waits for signals. So the program ends even
//! if the terminal takes no more output; numbers that it has no time for are dropped.
//!
//! It reads events with the same types that the admin listener writes (`admin/dashboard.rs`), so that no field can be
//! renamed on one side alone. All texts that it receives are made printable where they are read, so no panel can forget
//! it.

mod format;
mod recent;
mod quantiles;
mod feed;
mod model;
mod controls;
mod theme;
mod bars;
mod view;

use std::fmt;
use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use crossterm::event::{self, Event};
use crossterm::terminal::disable_raw_mode;
use ratatui::DefaultTerminal;
use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::commands::admin_client::{AdminClient, AskError};

use controls::{Action, Controls};
use feed::{EventStream, Update};
use model::Model;
use theme::Theme;

/// How often the screen is drawn if nothing is new, so that ages are right.
const REDRAW: Duration = Duration::from_secs(1);
/// How many messages wait for the screen. If the terminal takes no output, further numbers are dropped.
const WAITING: usize = 64;
/// How long the screen may take to end after a signal.
const STUCK: Duration = Duration::from_secs(1);

/// Why nothing is shown any more.
#[derive(Debug)]
pub enum TopError {
    /// Standard output is no terminal.
    NoTerminal,
    /// The terminal cannot be used, or is gone.
    Terminal(io::Error),
    /// The gateway at this location does not send its numbers.
    Gateway(String, AskError),
    /// The system has no thread, or no signals.
    System(io::Error),
    /// A part of the program has failed.
    Failed,
}

impl fmt::Display for TopError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoTerminal => f.write_str(
                "standard output is no terminal, and top needs one: programs can read /metrics and /api/events of the \
                 admin listener",
            ),
            Self::Terminal(error) => write!(f, "cannot use the terminal: {error}"),
            Self::Gateway(location, error) => write!(f, "{location}: {error}"),
            Self::System(error) => write!(f, "cannot start: {error}"),
            Self::Failed => f.write_str("it failed unexpectedly"),
        }
    }
}

impl std::error::Error for TopError {}

/// What the screen is told.
enum Message {
    Update(Update),
    Key(Action),
    /// Draw again, since the size may have changed.
    Redraw,
    Quit,
}

/// Shows the dashboard of a gateway until the user quits or the process is told to end.
///
/// # Errors
/// When the gateway cannot be asked at the beginning, or there is no terminal. Later a gateway may be away.
pub fn run(client: &AdminClient) -> Result<(), TopError> {
    if !io::stdout().is_terminal() {
        return Err(TopError::NoTerminal);
    }
    let runtime = Builder::new_current_thread().enable_all().build().map_err(TopError::System)?;
    let result = runtime.block_on(watch(client));
    // A file with a token may be on a file system that does not answer.
    runtime.shutdown_background();
    result
}

/// The signals that end the program. Ctrl-C is a key while the screen is there.
struct Stop([Signal; 3]);

impl Stop {
    fn new() -> io::Result<Self> {
        Ok(Self([signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?, signal(SignalKind::hangup())?]))
    }

    async fn wait(&mut self) {
        let [terminate, interrupt, hangup] = &mut self.0;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}

async fn watch(client: &AdminClient) -> Result<(), TopError> {
    let mut stop = Stop::new().map_err(TopError::System)?;
    let mut model = Model::new();
    // Errors before the screen is there are shown as those of any command.
    let stream = tokio::select! {
        opened = open(client, &mut model) => opened.map_err(|why| TopError::Gateway(client.location().to_string(), why))?,
        () = stop.wait() => return Ok(()),
    };
    let (sender, inbox) = sync_channel(WAITING);
    let (done, mut ended) = oneshot::channel();
    let terminal = ratatui::try_init().map_err(|error| {
        // Half of it may have succeeded.
        let _ = ratatui::try_restore();
        TopError::Terminal(error)
    })?;
    let address = client.location().to_string();
    let is_over = Arc::new(AtomicBool::new(false));
    let ending = is_over.clone();
    let show = move || {
        let shown = show(terminal, &inbox, &ending, model, &address);
        // The terminal may be gone.
        let _ = ratatui::try_restore();
        let _ = done.send(shown);
    };
    let keys = sender.clone();
    let threads = thread::Builder::new().name("screen".to_owned()).spawn(show);
    let threads = threads.and_then(|_| thread::Builder::new().name("keys".to_owned()).spawn(move || read_keys(&keys)));
    if let Err(error) = threads {
        let _ = ratatui::try_restore();
        return Err(TopError::System(error));
    }
    // If the terminal takes no output, numbers are dropped. The next ones come in a second.
    let send = |update| _ = sender.try_send(Message::Update(update));
    tokio::select! {
        ended = &mut ended => ended.map_err(|_| TopError::Failed)?.map_err(TopError::Terminal),
        () = stop.wait() => {
            // If there is no room, other messages wake it.
            is_over.store(true, Ordering::Relaxed);
            let _ = sender.try_send(Message::Quit);
            if timeout(STUCK, ended).await.is_err() {
                // The screen waits for the terminal, so nothing can be written to it.
                let _ = disable_raw_mode();
            }
            Ok(())
        }
        never = feed::follow(client, stream, send) => match never {},
        never = feed::follow_limits(client, send) => match never {},
    }
}

/// Opens the stream of events, and reads from it until there are numbers.
async fn open(client: &AdminClient, model: &mut Model) -> Result<EventStream, AskError> {
    let mut stream = EventStream::open(client).await?;
    while model.numbers(Instant::now()).is_none() {
        let update = stream.next().await?.ok_or(AskError::NotAGateway)?;
        model.take(update, Instant::now());
    }
    Ok(stream)
}

/// Tells the screen what the user presses, until the screen or the terminal is gone.
fn read_keys(screen: &SyncSender<Message>) {
    loop {
        let message = match event::read() {
            Ok(Event::Key(key)) if key.is_press() => Action::of(key).map(Message::Key),
            Ok(Event::Resize(..)) => Some(Message::Redraw),
            Ok(_) => None,
            Err(_) => Some(Message::Quit),
        };
        let is_last = matches!(message, Some(Message::Quit));
        let is_told = message.is_none_or(|message| screen.send(message).is_ok());
        if is_last || !is_told {
            return;
        }
    }
}

/// Draws until the user quits, or it is over.
fn show(
    mut terminal: DefaultTerminal,
    inbox: &Receiver<Message>,
    is_over: &AtomicBool,
    mut model: Model,
    address: &str,
) -> io::Result<()> {
    let (mut controls, theme) = (Controls::new(), Theme::of_environment());
    loop {
        let now = Instant::now();
        terminal.draw(|frame| view::draw(frame, &model, &mut controls, theme, address, now))?;
        let mut message = match inbox.recv_timeout(REDRAW) {
            Ok(message) => message,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        };
        // All that is there is taken before the next drawing.
        loop {
            if is_over.load(Ordering::Relaxed) {
                return Ok(());
            }
            match message {
                Message::Update(update) => model.take(update, Instant::now()),
                Message::Key(Action::Quit) | Message::Quit => return Ok(()),
                Message::Key(action) => controls.apply(action),
                Message::Redraw => {}
            }
            message = match inbox.try_recv() {
                Ok(message) => message,
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return Ok(()),
            };
        }
    }
}
