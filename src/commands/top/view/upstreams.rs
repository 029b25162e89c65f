//! The servers of each upstream.

use std::cmp::Ordering;

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Rect};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Row};

use super::{View, panel};
use crate::admin::dashboard::{ServerNumbers, UpstreamNumbers};
use crate::commands::top::controls::Panel;
use crate::commands::top::format;

/// From this width on, all columns are shown.
const WIDE: u16 = 60;

pub(super) fn draw(area: Rect, buffer: &mut Buffer, view: &mut View<'_>) {
    let inner = panel::frame(area, buffer, view, Panel::Upstreams, "Upstreams");
    if view.numbers.upstreams.is_empty() {
        return panel::sentence(inner, buffer, view, "no upstream is configured");
    }
    let is_wide = inner.width >= WIDE;
    let mut rows = Vec::new();
    for upstream in &view.numbers.upstreams {
        let (retries, waiting) = (format::count(upstream.retries), format::count(upstream.waiting as u64));
        let title = format!("{}: {retries} retries, {waiting} wait", upstream.name);
        rows.push(Row::new([Cell::from(Line::styled(title, view.theme.heading())).column_span(if is_wide {
            6
        } else {
            4
        })]));
        rows.extend(ordered(view, upstream).into_iter().map(|server| row(view, upstream, server, is_wide)));
    }
    let room = panel::room(inner);
    let first = view.controls.first_row(Panel::Upstreams, rows.len(), room);
    let rows = rows.into_iter().skip(first).take(room).collect();
    let mut columns = vec![("server", Constraint::Fill(1)), ("health", Constraint::Length(9))];
    columns.extend(is_wide.then_some((" in flight", Constraint::Length(11))));
    columns.push((" req/s", Constraint::Length(6)));
    columns.extend(is_wide.then_some((" failures", Constraint::Length(8))));
    columns.push((" latency", Constraint::Length(7)));
    panel::table(inner, buffer, view, &columns, rows);
}

fn row<'a>(view: &View<'_>, upstream: &UpstreamNumbers, server: &'a ServerNumbers, is_wide: bool) -> Row<'a> {
    let [requests, failures] = rates(view, upstream, server);
    let is_healthy = server.health == "healthy";
    let health = if is_healthy { view.theme.good() } else { view.theme.bad() };
    let mut cells = vec![Cell::from(server.server.as_str()), Cell::from(server.health.as_str()).style(health)];
    if is_wide {
        let most = server.max_in_flight.map_or(String::new(), |most| format!(" of {}", format::count(most as u64)));
        cells.push(panel::number(format!("{}{most}", format::count(server.in_flight as u64))));
    }
    cells.push(panel::number(format::rate(requests)));
    if is_wide {
        let is_failing = failures.is_some_and(|rate| rate > 0.0);
        let cell = panel::number(format::count(server.failures));
        cells.push(if is_failing { cell.style(view.theme.bad()) } else { cell });
    }
    cells.push(panel::number(format::latency(server.latency_seconds)));
    Row::new(cells)
}

/// The requests and failures per second.
fn rates(view: &View<'_>, upstream: &UpstreamNumbers, server: &ServerNumbers) -> [Option<f64>; 2] {
    view.model.server(&upstream.name, server).map_or([None; 2], |rates| rates.map(Some))
}

/// The servers of an upstream, in the order that the user wants.
fn ordered<'a>(view: &View<'a>, upstream: &'a UpstreamNumbers) -> Vec<&'a ServerNumbers> {
    let mut servers: Vec<_> = upstream.servers.iter().collect();
    let descending = |a: Option<f64>, b: Option<f64>| b.partial_cmp(&a).unwrap_or(Ordering::Equal);
    match view.controls.order(Panel::Upstreams) {
        Some("requests") => {
            servers.sort_by(|a, b| descending(rates(view, upstream, a)[0], rates(view, upstream, b)[0]));
        }
        Some("failures") => servers.sort_by_key(|server| std::cmp::Reverse(server.failures)),
        Some("latency") => servers.sort_by(|a, b| descending(a.latency_seconds, b.latency_seconds)),
        _ => {}
    }
    servers
}
