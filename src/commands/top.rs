//! `gateway top`: the numbers of a gateway, of this machine or another one, on one screen of a terminal.
//!
//! One thread draws, one reads keys, and the main thread follows the gateway and waits for signals. So the program ends even
//! if the terminal takes no more output. Numbers that come faster than the screen draws are dropped.

mod feed;
mod view;

use std::io::{self, IsTerminal};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyModifiers};
use crossterm::terminal::disable_raw_mode;
use ratatui::DefaultTerminal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::base::threads::block_on;
use crate::commands::admin_client::AdminClient;

use feed::{Feed, Model, Update};
use view::Screen;

/// Redraws if nothing is new, so that ages are right.
const REDRAW: Duration = Duration::from_secs(1);
/// Messages that wait for the screen. If the terminal takes no output, further numbers are dropped.
const WAITING: usize = 64;
/// How long the screen may take to end after a signal.
const STUCK: Duration = Duration::from_secs(1);

enum Message {
    Update(Update),
    /// The size may have changed.
    Redraw,
    Quit,
}

/// Shows the numbers until the user quits or a signal ends the process. The error says why the gateway cannot be asked at the
/// start, or the terminal cannot be used. Later the gateway may be away.
pub(super) fn run(client: &AdminClient) -> Result<(), String> {
    if !io::stdout().is_terminal() {
        let why = "standard output is not a terminal, and top needs one: programs can read /metrics and /api/events of the \
                   admin listener";
        return Err(why.to_owned());
    }
    block_on(watch(client)).map_err(|error| cannot_start(&error))?
}

fn cannot_start(error: &io::Error) -> String {
    format!("cannot start: {error}")
}

/// While the screen is there, Ctrl-C is a key and no signal.
fn stop_signal() -> io::Result<impl Future<Output = ()>> {
    let [mut terminate, mut interrupt, mut hangup] =
        [signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?, signal(SignalKind::hangup())?];
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = hangup.recv() => {}
        }
    })
}

async fn watch(client: &AdminClient) -> Result<(), String> {
    let mut stop = std::pin::pin!(stop_signal().map_err(|error| cannot_start(&error))?);
    let address = client.location.to_string();
    // Errors from before the screen appear like those of any command.
    let mut feed = Feed::new(client);
    let first = tokio::select! {
        first = feed.next() => first.map_err(|why| format!("{address}: {why}"))?,
        () = &mut stop => return Ok(()),
    };
    let unusable = |error: io::Error| format!("cannot use the terminal: {error}");
    let terminal = ratatui::try_init().map_err(|error| {
        // Half of it may have succeeded.
        let _ = ratatui::try_restore();
        unusable(error)
    })?;
    // https://no-color.org/
    let has_colours = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let screen = Screen { address, has_colours, model: Model::new(first, Instant::now()) };
    let (sender, inbox) = sync_channel(WAITING);
    let mut shown = spawn_blocking(move || {
        let shown = show(terminal, screen, &inbox);
        // The terminal may be gone.
        let _ = ratatui::try_restore();
        shown
    });
    let keys = sender.clone();
    spawn_blocking(move || read_keys(&keys));
    let send = |update| _ = sender.try_send(Message::Update(update));
    tokio::select! {
        shown = &mut shown => shown.unwrap_or_else(|failed| Err(failed.into())).map_err(unusable),
        () = &mut stop => {
            let _ = sender.try_send(Message::Quit);
            if timeout(STUCK, shown).await.is_err() {
                // The screen waits for the terminal, so nothing can be written to it.
                let _ = disable_raw_mode();
            }
            Ok(())
        }
        never = feed.follow(send) => match never {},
        never = feed::follow_limits(client, send) => match never {},
    }
}

/// Tells the screen what the user does, until the screen or the terminal is gone.
fn read_keys(screen: &SyncSender<Message>) {
    let quits = |key: KeyEvent| match key.code {
        KeyCode::Char('q' | 'Q') => true,
        KeyCode::Char('c' | 'd') => key.modifiers.contains(KeyModifiers::CONTROL),
        _ => false,
    };
    loop {
        let message = match event::read() {
            Ok(Event::Key(key)) if quits(key) => Message::Quit,
            Ok(_) => Message::Redraw,
            Err(_) => Message::Quit,
        };
        if screen.send(message).is_err() {
            return;
        }
    }
}

fn show(mut terminal: DefaultTerminal, mut screen: Screen, inbox: &Receiver<Message>) -> io::Result<()> {
    loop {
        terminal.draw(|frame| screen.draw(frame, Instant::now()))?;
        // Takes all waiting messages before the next drawing.
        for message in inbox.recv_timeout(REDRAW).into_iter().chain(inbox.try_iter()) {
            match message {
                Message::Update(update) => screen.model.take(update, Instant::now()),
                Message::Redraw => {}
                Message::Quit => return Ok(()),
            }
        }
    }
}
