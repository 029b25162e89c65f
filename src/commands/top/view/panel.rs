//! What all panels have: a frame with a title, and rows of which some fit.

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Rect};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Block, BorderType, Cell, Row, Table, Widget};

use super::View;
use crate::commands::top::controls::Panel;

/// Draws the frame of a panel. Returns the area inside.
pub(super) fn frame(area: Rect, buffer: &mut Buffer, view: &View<'_>, panel: Panel, title: &str) -> Rect {
    let controls = &view.controls;
    let is_focus = controls.focus == panel;
    let style = if is_focus { view.theme.focus() } else { view.theme.soft() };
    let kind = if is_focus { BorderType::Thick } else { BorderType::Plain };
    let order = controls.order(panel).filter(|_| is_focus).map_or(String::new(), |order| format!(", by {order}"));
    let block = Block::bordered().border_type(kind).border_style(style).title(format!(" {title}{order} "));
    let inner = block.inner(area);
    block.render(area, buffer);
    inner
}

/// Draws a table whose first row is of headings. Columns whose heading begins with a space are those of numbers.
pub(super) fn table(
    area: Rect,
    buffer: &mut Buffer,
    view: &View<'_>,
    columns: &[(&'static str, Constraint)],
    rows: Vec<Row<'_>>,
) {
    let headings = columns.iter().map(|(heading, _)| {
        let line = Line::from(heading.trim_start());
        Cell::from(if heading.starts_with(' ') { line.right_aligned() } else { line })
    });
    let widths = columns.iter().map(|(_, width)| *width);
    let table = Table::new(rows, widths).header(Row::new(headings).style(view.theme.heading()));
    Widget::render(table, area, buffer);
}

/// How many rows of a table fit below its headings.
pub(super) fn room(area: Rect) -> usize {
    usize::from(area.height.saturating_sub(1))
}

/// A cell with a number.
pub(super) fn number<'a>(text: String) -> Cell<'a> {
    Cell::from(Text::from(text).right_aligned())
}

/// Draws a sentence in place of rows.
pub(super) fn sentence(area: Rect, buffer: &mut Buffer, view: &View<'_>, text: &str) {
    Line::styled(text, view.theme.soft()).render(area, buffer);
}
