//! Draws the screen: a head, the panels that have room, and a line with keys. It reads no clock and asks nobody.

mod panel;
mod requests;
mod limits;
mod keys;
mod upstreams;
mod store;
mod reloads;
mod help;
#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Widget;

use super::controls::{Controls, Panel};
use super::format;
use super::model::Model;
use super::theme::Theme;
use crate::admin::dashboard::{Numbers, State, StoreNumbers};
use crate::admin::outcome_groups::{FAILED, LIMITED};

/// The smallest screen on which anything is shown.
const SMALLEST: (u16, u16) = (40, 10);
/// The smallest part of a screen, without head and keys, on which several panels are shown.
const SEVERAL: (u16, u16) = (72, 18);
/// The smallest one on which all panels are shown.
const ALL: (u16, u16) = (130, 32);
/// The lines of the requests, with their frame.
const REQUESTS: u16 = 7;
/// Numbers that are older are called old. There are new ones each second.
const OLD: Duration = Duration::from_secs(5);

/// What panels draw from.
struct View<'a> {
    model: &'a Model,
    numbers: &'a Numbers,
    controls: &'a mut Controls,
    theme: Theme,
}

/// Draws everything as of `now`. `address` is that of the gateway.
pub(super) fn draw(
    frame: &mut Frame<'_>,
    model: &Model,
    controls: &mut Controls,
    theme: Theme,
    address: &str,
    now: Instant,
) {
    let (area, buffer) = (frame.area(), frame.buffer_mut());
    if area.width < SMALLEST.0 || area.height < SMALLEST.1 {
        let text = format!("This terminal is too small: {} x {} are needed.", SMALLEST.0, SMALLEST.1);
        return Line::from(text).render(area, buffer);
    }
    let [head, body, foot] =
        Layout::vertical([Constraint::Length(3), Constraint::Fill(1), Constraint::Length(1)]).areas(area);
    let Some((numbers, age)) = model.numbers(now) else {
        return Line::from(format!(" {address}: no numbers yet")).render(head, buffer);
    };
    let view = &mut View { model, numbers, controls, theme };
    draw_head(head, buffer, view, address);
    for (panel, area) in places(body, view.controls) {
        match panel {
            Panel::Requests => requests::draw(area, buffer, view),
            Panel::Limits => limits::draw(area, buffer, view),
            Panel::Keys => keys::draw(area, buffer, view),
            Panel::Upstreams => upstreams::draw(area, buffer, view),
            Panel::Store => store::draw(area, buffer, view),
            Panel::Reloads => reloads::draw(area, buffer, view),
        }
    }
    Line::styled(KEYS, theme.soft()).render(foot, buffer);
    if age > OLD || model.away().is_some() {
        draw_away(area, buffer, view, address, (age, now));
    }
    if view.controls.shows_help {
        help::draw(area, buffer, theme);
    }
}

const KEYS: &str = " q quit   Tab panel   ↑↓ row   s sort   Enter zoom   ? help";

/// Which panels are shown where.
fn places(body: Rect, controls: &Controls) -> Vec<(Panel, Rect)> {
    let fits = |smallest: (u16, u16)| body.width >= smallest.0 && body.height >= smallest.1;
    if controls.is_zoomed || !fits(SEVERAL) {
        return vec![(controls.focus, body)];
    }
    if fits(ALL) {
        let [left, right] = Layout::horizontal([Constraint::Fill(6), Constraint::Fill(5)]).areas(body);
        let [requests, limits, keys] =
            Layout::vertical([Constraint::Length(REQUESTS + 5), Constraint::Fill(1), Constraint::Length(13)])
                .areas(left);
        let [upstreams, store, reloads] =
            Layout::vertical([Constraint::Fill(2), Constraint::Length(11), Constraint::Fill(1)]).areas(right);
        let areas = [requests, limits, keys, upstreams, store, reloads];
        return Panel::ALL.into_iter().zip(areas).collect();
    }
    let [requests, limits, low] =
        Layout::vertical([Constraint::Length(REQUESTS), Constraint::Fill(4), Constraint::Fill(5)]).areas(body);
    let [keys, shared] = Layout::horizontal([Constraint::Fill(9), Constraint::Fill(11)]).areas(low);
    let shown = [Panel::Requests, Panel::Limits, Panel::Keys, controls.shared];
    shown.into_iter().zip([requests, limits, keys, shared]).collect()
}

/// Which gateway it is, its state, and the numbers that matter most.
fn draw_head(area: Rect, buffer: &mut Buffer, view: &View<'_>, address: &str) {
    let (numbers, model, theme) = (view.numbers, view.model, view.theme);
    let state = match numbers.state {
        State::Ready => Span::styled("ready", theme.good()),
        State::Draining => Span::styled("draining: readiness is off", theme.bad()),
        State::Stopping => Span::styled("stopping", theme.bad()),
    };
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let name = Span::styled(format!(" gateway {}", numbers.version), bold);
    let first = vec![
        name,
        format!("  {address}  ").into(),
        state,
        format!("  up {}", format::span(numbers.uptime_seconds)).into(),
    ];
    Line::from(first).render(area, buffer);
    Line::from(format!("{} UTC ", format::time(numbers.time_ms / 1000))).right_aligned().render(area, buffer);
    let [_, second, third] = Layout::vertical([Constraint::Length(1); 3]).areas(area);

    let rates = model.rates();
    let all = rates.map(|rates| rates.iter().sum());
    let of = |group: usize| rates.map(|rates| rates[group]);
    let share = |group, style| {
        let is_zero = of(group).is_none_or(|rate| rate <= 0.0);
        Span::styled(format::share(of(group), all), if is_zero { Style::new() } else { style })
    };
    let [median, slow] = [0.5, 0.99].map(|share| format::latency(model.forwarded_within(share)));
    let traffic = vec![
        Span::styled(format!(" {}/s", format::rate(all)), bold),
        "  over a limit ".into(),
        share(LIMITED, theme.refused()),
        "  failed ".into(),
        share(FAILED, theme.bad()),
        format!("  latency {median}, 99 % {slow}").into(),
    ];
    Line::from(traffic).render(second, buffer);
    Line::from(facts(view)).render(third, buffer);
}

/// The store, the connections and the reloads in one line.
fn facts<'a>(view: &View<'_>) -> Vec<Span<'a>> {
    let (numbers, theme) = (view.numbers, view.theme);
    let store = match &numbers.store {
        Some(StoreNumbers::Memory(store)) => format!(" stored keys {}", format::count(store.keys as u64)).into(),
        Some(StoreNumbers::Memcached(store)) => {
            let up = store.servers.iter().filter(|server| server.up).count();
            let text = format!(" Memcached {up} of {} up", store.servers.len());
            Span::styled(text, if up == store.servers.len() { Style::new() } else { theme.bad() })
        }
        None => " no store".into(),
    };
    let connections = &numbers.connections;
    let (open, max) = (format::count(connections.open as u64), format::count(connections.max as u64));
    let held = format::count(numbers.held as u64);
    let reloads = &numbers.reloads;
    let refused = match (reloads.current, numbers.certificates.current) {
        (false, _) => ", last refused",
        (true, false) => ", certificates refused",
        (true, true) => "",
    };
    vec![
        store,
        format!("  connections {open} of {max}  held {held}  reloads {}", format::count(reloads.ok)).into(),
        Span::styled(refused, theme.bad()),
    ]
}

/// Greys out what is old, and says why there is nothing newer.
fn draw_away(area: Rect, buffer: &mut Buffer, view: &View<'_>, address: &str, (age, now): (Duration, Instant)) {
    buffer.set_style(area, view.theme.old());
    let mut again = String::new();
    let [first, foot] = [area.top(), area.bottom().saturating_sub(1)].map(|y| Rect { y, height: 1, ..area });
    if let Some(away) = view.model.away() {
        let wait = away.again.saturating_duration_since(now).as_secs_f64().ceil();
        again = if wait > 0.0 { format!(", asking again in {wait} s") } else { ", asking again".to_owned() };
        buffer.set_style(foot, Style::reset());
        Line::styled(format!(" {:<1$}", away.why, usize::from(area.width)), view.theme.bad()).render(foot, buffer);
    }
    let text = format!(" {address}  no numbers for {}{again}", format::span(age.as_secs()));
    let style = view.theme.bad().add_modifier(Modifier::REVERSED);
    Line::styled(format!("{text:<0$}", usize::from(area.width)), style).render(first, buffer);
}
