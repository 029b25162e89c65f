//! What keys do and what numbers mean.

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Rect};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Block, Clear, Paragraph, Widget};

use crate::commands::top::theme::Theme;

const TEXT: [&str; 18] = [
    "q, Ctrl-C         quit",
    "Tab, Shift-Tab    the next panel, the previous one",
    "Up, Down          another limit, or scroll",
    "PgUp, PgDn        the same by ten rows",
    "Home, End         to the first row, to the last",
    "s                 another order of the rows",
    "Enter             this panel alone, or all again",
    "Esc               back",
    "",
    "Rates are those of the last 5 seconds, latencies those",
    "of the last 30, and times are in UTC. Keys are counted",
    "since half an hour or an hour; ≈ may be too high.",
    "(shadow): the limit only reports, and refuses nothing.",
    "Below the limits is what the chosen one has decided since",
    "the start of the gateway.",
    "",
    "Nothing here changes the gateway. The dashboard and the",
    "API of the admin listener do: docs/admin.md.",
];

pub(super) fn draw(area: Rect, buffer: &mut Buffer, theme: Theme) {
    let (width, height) = (60, u16::try_from(TEXT.len()).unwrap_or(u16::MAX).saturating_add(2));
    let place = area.centered(Constraint::Length(width), Constraint::Length(height));
    Clear.render(place, buffer);
    let block = Block::bordered().border_style(theme.focus()).title(" Help ");
    let lines: Vec<_> = TEXT.iter().map(|line| Line::from(format!(" {line}"))).collect();
    Paragraph::new(Text::from(lines)).block(block).render(place, buffer);
}
