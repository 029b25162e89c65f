//! The last reloads, and why configurations were refused.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::Widget;

use super::{View, panel};
use crate::dashboard::{EndedReload, ReloadOutcome};
use crate::top::controls::Panel;
use crate::top::format;

pub(super) fn draw(area: Rect, buffer: &mut Buffer, view: &mut View<'_>) {
    let reloads = &view.numbers.reloads;
    let title = format!("Reloads: {} applied, {} refused", format::count(reloads.ok), format::count(reloads.refused));
    let inner = panel::frame(area, buffer, view, Panel::Reloads, &title);
    if reloads.recent.is_empty() {
        return panel::sentence(inner, buffer, view, "no reload since the start");
    }
    let lines: Vec<_> = reloads.recent.iter().flat_map(|reload| lines(view, reload)).collect();
    let first = view.controls.first_row(Panel::Reloads, lines.len(), usize::from(inner.height));
    for (line, row) in lines.into_iter().skip(first).zip(inner.rows()) {
        line.render(row, buffer);
    }
}

/// When and how it ended, and the first problem in lines of their own.
fn lines<'a>(view: &View<'_>, reload: &'a EndedReload) -> Vec<Line<'a>> {
    let (text, style) = match reload.result {
        ReloadOutcome::Ok => ("applied", view.theme.good()),
        ReloadOutcome::Refused => ("refused", view.theme.bad()),
    };
    let when = format!("{} UTC  ", format::moment(reload.time));
    let mut lines = vec![Line::from(vec![Span::from(when), Span::styled(text, style)])];
    if let Some(problem) = &reload.problem {
        let texts = [problem.place.as_deref(), Some(problem.message.as_str()), problem.help.as_deref()];
        lines.extend(texts.into_iter().flatten().map(|text| Line::from(vec![Span::from("  "), Span::from(text)])));
    }
    lines
}
