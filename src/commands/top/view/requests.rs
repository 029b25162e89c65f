//! The requests of the last minutes, by group.

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::Widget;

use super::{View, panel};
use crate::admin::outcome_groups::{GROUPS, by_group_of_names};
use crate::commands::top::bars::bars;
use crate::commands::top::controls::Panel;
use crate::commands::top::format;

/// From this width on, totals are shown, too.
const WITH_TOTALS: u16 = 100;
/// The most lines of a chart.
const HIGHEST: usize = 8;

pub(super) fn draw(area: Rect, buffer: &mut Buffer, view: &View<'_>) {
    let inner_width = area.width.saturating_sub(2);
    let numbers_width = if inner_width >= WITH_TOTALS { 50 } else { 32 };
    let chart_width = usize::from(inner_width.saturating_sub(numbers_width));
    let parts = view.model.rates_of_parts(chart_width);
    let most = parts.iter().flatten().flatten().fold(0.0, |most: f64, rate| most.max(*rate));
    let title = format!("Requests per second in 5 minutes, at most {}", format::rate(Some(most)));
    let inner = panel::frame(area, buffer, view, Panel::Requests, &title);
    let rates = view.model.rates();
    let all = rates.map(|rates| rates.iter().sum());
    let totals = by_group_of_names(&view.numbers.requests);
    let lines = usize::from(inner.height) / GROUPS.len();
    let lines = lines.clamp(1, HIGHEST);
    for (index, group) in GROUPS.iter().enumerate() {
        let top = inner.y + u16::try_from(index * lines).unwrap_or(u16::MAX);
        let height = u16::try_from(lines).unwrap_or(1);
        let place = Rect { y: top, height, ..inner }.intersection(inner);
        let [numbers, chart] =
            Layout::horizontal([Constraint::Length(numbers_width), Constraint::Fill(1)]).areas(place);
        let rate = rates.map(|rates| rates[index]);
        let style = view.theme.groups()[index];
        let has_total = inner_width >= WITH_TOTALS;
        let total = if has_total { format!("{:>9} in all", format::count(totals[index])) } else { String::new() };
        let text = format!("{:<12} {:>8} {:>8}{total}", group.name, format::rate(rate), format::share(rate, all));
        Line::from(Span::styled(text, style)).render(numbers, buffer);
        let of_group: Vec<_> = parts.iter().map(|part| part.map(|rates| rates[index])).collect();
        for (line, row) in bars(&of_group, most, lines).into_iter().zip(chart.rows()) {
            Line::styled(line, style).render(row, buffer);
        }
    }
}
