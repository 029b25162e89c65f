//! Where the counters are and how it goes there, and the connections of clients.

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::Line;
use ratatui::widgets::Widget;

use super::{View, panel};
use crate::admin::dashboard::{MemcachedNumbers, MemoryNumbers, StoreNumbers};
use crate::commands::top::controls::Panel;
use crate::commands::top::format::{count, latency, rate, size};

/// A name with a value, and whether somebody should look at it.
type Fact = (String, String, bool);

pub(super) fn draw(area: Rect, buffer: &mut Buffer, view: &mut View<'_>) {
    let (title, mut facts) = match &view.numbers.store {
        Some(StoreNumbers::Memory(store)) => ("Store: in memory", memory(store)),
        Some(StoreNumbers::Memcached(store)) => ("Store: in Memcached", memcached(view, store)),
        None => ("Store", Vec::new()),
    };
    let connections = &view.numbers.connections;
    let fact = |name: &str, value: String| (name.to_owned(), value, false);
    facts.extend([
        fact("connections", format!("{} of {}", count(connections.open as u64), count(connections.max as u64))),
        fact("closed, one address has too many", count(connections.refused)),
        fact("closed to make room", count(connections.evicted)),
        fact("ended, the client did not read", count(connections.stalled)),
        fact("requests held by limits", count(view.numbers.held as u64)),
    ]);
    let inner = panel::frame(area, buffer, view, Panel::Store, title);
    let first = view.controls.first_row(Panel::Store, facts.len(), usize::from(inner.height));
    for ((name, value, is_bad), row) in facts.iter().skip(first).zip(inner.rows()) {
        let width = u16::try_from(value.chars().count()).unwrap_or(u16::MAX);
        let [left, right] = Layout::horizontal([Constraint::Fill(1), Constraint::Length(width)]).spacing(1).areas(row);
        Line::from(name.as_str()).render(left, buffer);
        let style = if *is_bad { view.theme.bad() } else { Style::new() };
        Line::styled(value.as_str(), style).render(right, buffer);
    }
}

fn memory(store: &MemoryNumbers) -> Vec<Fact> {
    let fact = |name: &str, value: String| (name.to_owned(), value, false);
    let gateways = (store.gateways > 1).then(|| fact("gateways that share the limits", count(store.gateways)));
    let facts = [
        fact("keys", format!("{} of {}", count(store.keys as u64), count(store.max_keys as u64))),
        fact("memory", format!("{} of {}", size(store.bytes as u64), size(store.max_bytes as u64))),
        fact("keys evicted in use", count(store.evictions)),
        fact("latency", "none: no round trip".to_owned()),
    ];
    gateways.into_iter().chain(facts).collect()
}

fn memcached(view: &View<'_>, store: &MemcachedNumbers) -> Vec<Fact> {
    let servers = store.servers.iter().map(|server| {
        let state = if server.up { "up" } else { "down" };
        (server.server.clone(), state.to_owned(), !server.up)
    });
    let fact = |name: &str, value: String| (name.to_owned(), value, false);
    let [median, slow] = [0.5, 0.99].map(|share| latency(view.model.round_trips_within(share)));
    let facts = [
        fact("latency, median", median),
        fact("latency, 99 %", slow),
        fact("round trips per second", rate(view.model.round_trips())),
        fact("errors", count(store.errors)),
        fact("decided without Memcached", count(store.local)),
        fact("counters lost", count(store.lost)),
    ];
    servers.chain(facts).collect()
}
