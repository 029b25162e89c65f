//! The last reloads, and why configurations and certificates were refused.

use std::cmp::Reverse;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::Widget;

use super::{View, panel};
use crate::admin::dashboard::{EndedReload, ReloadOutcome};
use crate::commands::top::controls::Panel;
use crate::commands::top::format;

pub(super) fn draw(area: Rect, buffer: &mut Buffer, view: &mut View<'_>) {
    let reloads = &view.numbers.reloads;
    let title = format!("Reloads: {} applied, {} refused", format::count(reloads.ok), format::count(reloads.refused));
    let inner = panel::frame(area, buffer, view, Panel::Reloads, &title);
    let certificates = view.numbers.certificates.recent.iter().map(|reload| (reload, ": certificates"));
    let mut recent: Vec<_> = reloads.recent.iter().map(|reload| (reload, "")).chain(certificates).collect();
    if recent.is_empty() {
        return panel::sentence(inner, buffer, view, "no reload since the start");
    }
    recent.sort_by_key(|(reload, _)| Reverse(reload.time));
    let lines: Vec<_> = recent.into_iter().flat_map(|(reload, what)| lines(view, reload, what)).collect();
    let first = view.controls.first_row(Panel::Reloads, lines.len(), usize::from(inner.height));
    for (line, row) in lines.into_iter().skip(first).zip(inner.rows()) {
        line.render(row, buffer);
    }
}

/// When and how it ended, and the first problem in lines of their own.
fn lines<'a>(view: &View<'_>, reload: &'a EndedReload, what: &'static str) -> Vec<Line<'a>> {
    let (text, style) = match reload.result {
        ReloadOutcome::Ok => ("applied", view.theme.good()),
        ReloadOutcome::Refused => ("refused", view.theme.bad()),
    };
    let when = format!("{} UTC  ", format::moment(reload.time));
    let mut lines = vec![Line::from(vec![Span::from(when), Span::styled(text, style), Span::from(what)])];
    if let Some(problem) = &reload.problem {
        let texts = [problem.place.as_deref(), Some(problem.message.as_str()), problem.help.as_deref()];
        lines.extend(texts.into_iter().flatten().map(|text| Line::from(vec![Span::from("  "), Span::from(text)])));
    }
    lines
}
