//! The limits: what they decide now, and their refusals over the last hour. One of them is chosen.

use std::cmp::Ordering;

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Margin, Rect};
use ratatui::style::Style;
use ratatui::text::Line;
use ratatui::widgets::{Cell, Row, Widget};

use super::{View, panel};
use crate::admin::dashboard::{Decisions, LimitNumbers};
use crate::commands::top::bars::bars;
use crate::commands::top::controls::Panel;
use crate::commands::top::format;
use crate::commands::top::model::MINUTES;
use crate::commands::top::theme::Theme;

/// From this width on, the rates of limits are shown.
const WITH_RATES: u16 = 100;

pub(super) fn draw(area: Rect, buffer: &mut Buffer, view: &mut View<'_>) {
    let inner = panel::frame(area, buffer, view, Panel::Limits, "Limits");
    let order = ordered(view);
    let Some(chosen) = choose(view, &order) else {
        return panel::sentence(inner, buffer, view, "no limit is configured");
    };
    if let Some(limit) = order.get(chosen) {
        let place = Rect { y: area.bottom().saturating_sub(1), height: 1, ..area }.inner(Margin::new(2, 0));
        Line::styled(format!(" {} ", decisions(&limit.decisions)), view.theme.soft()).render(place, buffer);
    }
    let room = panel::room(inner);
    let first = view.controls.first_row_with(Panel::Limits, order.len(), room, chosen);
    let has_rates = inner.width >= WITH_RATES;
    let chart = inner.width.saturating_sub(if has_rates { 72 } else { 50 }).min(60);
    let shown = order.into_iter().enumerate().skip(first).take(room);
    let rows = shown.map(|(index, limit)| {
        let row = row(view, limit, has_rates, usize::from(chart));
        if index == chosen { row.style(Theme::chosen()) } else { row }
    });
    let rows = rows.collect();
    let mut columns = vec![("limit", Constraint::Fill(1))];
    columns.extend(has_rates.then_some(("rates", Constraint::Length(22))));
    columns.extend([
        (" admitted/s", Constraint::Length(10)),
        (" refused/s", Constraint::Length(9)),
        (" last hour", Constraint::Length(9)),
        ("refused by minute", Constraint::Length(chart)),
    ]);
    panel::table(inner, buffer, view, &columns, rows);
}

fn row<'a>(view: &View<'_>, limit: &'a LimitNumbers, has_rates: bool, chart: usize) -> Row<'a> {
    let [admitted, refused] = rates(view, limit);
    let minutes = view.model.refusals(&limit.name);
    let hour = minutes.iter().fold(0, |sum: u64, minute| sum.saturating_add(*minute));
    let is_refusing = refused.is_some_and(|rate| rate > 0.0);
    let style = if is_refusing { view.theme.refused() } else { Style::new() };
    let described = view.model.described(&limit.name);
    // A limit that only reports refuses nothing.
    let only_reports = described.is_some_and(|known| known.on_limit == "shadow");
    let name = if only_reports { format!("{} (shadow)", limit.name) } else { limit.name.clone() };
    let mut cells = vec![Cell::from(name)];
    if has_rates {
        cells.push(Cell::from(described.map_or(String::new(), |known| known.rates.join(" "))));
    }
    cells.extend([
        panel::number(format::rate(admitted)),
        panel::number(format::rate(refused)).style(style),
        panel::number(format::count(hour)),
        Cell::from(by_minute(minutes, chart)).style(view.theme.refused()),
    ]);
    Row::new(cells)
}

/// What a limit has decided since the start of the gateway, without what never happened.
fn decisions(decisions: &Decisions) -> String {
    let all = [
        (decisions.admitted, "admitted"),
        (decisions.rejected, "rejected"),
        (decisions.shadowed, "shadowed"),
        (decisions.silenced, "silenced"),
        (decisions.delayed, "delayed"),
        (decisions.overflowed, "overflowed"),
        (decisions.exempt, "exempt"),
        (decisions.blocked, "blocked"),
        (decisions.banned, "banned"),
        (decisions.not_charged, "not charged"),
        (decisions.skipped, "skipped"),
        (decisions.keyless, "without key"),
        (decisions.unknown, "unknown"),
    ];
    let happened = all.iter().filter(|(count, _)| *count > 0);
    let words: Vec<_> = happened.map(|(count, name)| format!("{} {name}", format::count(*count))).collect();
    if words.is_empty() { "no decision yet".to_owned() } else { words.join(", ") }
}

/// The chart of the last hour. Each column is as many minutes as it needs to fit.
fn by_minute(minutes: &[u64], width: usize) -> String {
    if width == 0 {
        return String::new();
    }
    let group = MINUTES.div_ceil(width);
    // The last column ends with the minute in progress.
    let columns: Vec<_> =
        minutes.rchunks(group).rev().map(|part| part.iter().map(|count| format::float(*count)).sum()).collect();
    let most = columns.iter().fold(0.0, |most: f64, column: &f64| most.max(*column));
    bars(&columns.into_iter().map(Some).collect::<Vec<_>>(), most, 1).concat()
}

/// What a limit admits and refuses per second.
fn rates(view: &View<'_>, limit: &LimitNumbers) -> [Option<f64>; 2] {
    view.model.decisions(&limit.name).map_or([None; 2], |rates| rates.map(Some))
}

/// All limits, in the order that the user wants.
fn ordered<'a>(view: &View<'a>) -> Vec<&'a LimitNumbers> {
    let mut limits: Vec<_> = view.numbers.limits.iter().collect();
    let descending = |a: Option<f64>, b: Option<f64>| b.partial_cmp(&a).unwrap_or(Ordering::Equal);
    match view.controls.order(Panel::Limits) {
        Some("refused/s") => limits.sort_by(|a, b| descending(rates(view, a)[1], rates(view, b)[1])),
        Some("admitted/s") => limits.sort_by(|a, b| descending(rates(view, a)[0], rates(view, b)[0])),
        Some("name") => limits.sort_by(|a, b| a.name.cmp(&b.name)),
        _ => {}
    }
    limits
}

/// The place of the limit that is chosen, after the moves that the user wants; `None` if there are no limits.
fn choose(view: &mut View<'_>, order: &[&LimitNumbers]) -> Option<usize> {
    let moved = std::mem::take(&mut view.controls.moved);
    let last = order.len().checked_sub(1)?;
    let before = view.controls.limit.as_ref().and_then(|name| order.iter().position(|limit| limit.name == *name));
    let chosen = before.unwrap_or(0).saturating_add_signed(moved).min(last);
    if moved != 0 {
        view.controls.limit = order.get(chosen).map(|limit| limit.name.clone());
    }
    Some(chosen)
}

/// The limit that is chosen; `None` if there are no limits.
pub(super) fn chosen<'a>(view: &mut View<'a>) -> Option<&'a LimitNumbers> {
    let order = ordered(view);
    let chosen = choose(view, &order)?;
    order.get(chosen).copied()
}
