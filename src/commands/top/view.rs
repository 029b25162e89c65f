//! Draws the screen: the state of the gateway, and the panels below it. Uses no clock and no I/O.

mod panels;
#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use ratatui::Frame;
use ratatui::layout::{Constraint, Direction, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize as _};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Clear, Paragraph, Row, Table};

use super::feed::Model;
use crate::admin::dashboard::State;
use crate::admin::numbers::{FAILED, GROUPS, LIMITED, by_group_of_names};

/// The smallest terminal, in columns and rows.
const SMALLEST: [u16; 2] = [40, 14];
/// Columns from which keys and upstreams are side by side.
const WIDE: u16 = 72;
/// Numbers of this age are called old. The gateway sends new ones each second.
const OLD: Duration = Duration::from_secs(5);
/// The least width of the first column of a table. Columns without room are left out.
const NAMES: u16 = 14;

/// For less important text.
const SOFT: Style = Style::new().add_modifier(Modifier::DIM);
/// For what is well.
const GOOD: Style = Style::new().fg(Color::Green);
/// For what needs attention.
const BAD: Style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);
const REFUSED: Style = Style::new().fg(Color::Yellow);

pub(super) struct Screen {
    pub(super) address: String,
    /// Whether the user wants colours. Words say everything that colours say.
    pub(super) has_colours: bool,
    pub(super) model: Model,
}

/// A table below a title. The first column has texts, the others have numbers, the most important first.
struct Panel<'a> {
    title: &'a str,
    /// Headings with widths. The first column gets the rest of the width.
    columns: &'a [(&'a str, u16)],
    empty: &'a str,
}

impl<'a> Panel<'a> {
    fn draw(&self, frame: &mut Frame<'_>, area: Rect, rows: impl ExactSizeIterator<Item = Vec<Line<'a>>>) {
        let room = usize::from(area.height.saturating_sub(2));
        let part = if rows.len() > room { format!(", {room} of {}", rows.len()) } else { String::new() };
        let block = titled(format!(" {}{part} ", self.title));
        if rows.len() == 0 {
            return frame.render_widget(Paragraph::new(self.empty).style(SOFT).block(block), area);
        }
        let mut left = area.width.saturating_sub(NAMES);
        let fitting = self.columns.iter().skip(1).map_while(|(_, width)| {
            left = left.checked_sub(width + 1)?;
            Some(Constraint::Length(*width))
        });
        let widths = [Constraint::Fill(1)].into_iter().chain(fitting);
        let row = |cells: Vec<Line<'a>>| {
            let aligned = |(index, cell): (usize, Line<'a>)| if index > 0 { cell.right_aligned() } else { cell };
            Row::new(cells.into_iter().enumerate().map(aligned))
        };
        let headings = row(self.columns.iter().map(|(heading, _)| Line::from(*heading)).collect());
        let rows: Vec<_> = rows.take(room).map(row).collect();
        frame.render_widget(Table::new(rows, widths).header(headings.style(SOFT)).block(block), area);
    }
}

fn titled(title: String) -> Block<'static> {
    Block::new().borders(Borders::TOP).border_style(SOFT).title(title.bold())
}

impl Screen {
    pub(super) fn draw(&self, frame: &mut Frame<'_>, now: Instant) {
        let area = frame.area();
        let [width, height] = SMALLEST;
        if area.width < width || area.height < height {
            return frame.render_widget(format!("This terminal is too small: {width} x {height} are needed."), area);
        }
        let (direction, parts, gap) =
            if area.width < WIDE { (Direction::Vertical, 2, 0) } else { (Direction::Horizontal, 1, 2) };
        let [head, limits, middle, store, foot] = Layout::vertical([
            Constraint::Length(3),
            Constraint::Fill(1),
            Constraint::Fill(parts),
            Constraint::Length(3),
            Constraint::Length(1),
        ])
        .areas(area);
        let halves = Layout::new(direction, [Constraint::Fill(4), Constraint::Fill(5)]);
        let [keys, upstreams] = halves.spacing(gap).areas(middle);
        frame.render_widget(Paragraph::new(self.head()), head);
        self.draw_limits(frame, limits);
        self.draw_keys(frame, keys);
        self.draw_upstreams(frame, upstreams);
        self.draw_store(frame, store);
        let (age, away) = (now.saturating_duration_since(self.model.received), &self.model.away);
        if age > OLD || away.is_some() {
            frame.buffer_mut().set_style(area, Style::reset().patch(SOFT));
            let text = format!("{}  no numbers for {}, asking again", self.address, span(age.as_secs()));
            frame.render_widget(Clear, Rect { height: 1, ..head });
            frame.render_widget(Line::styled(text, BAD.reversed()), head);
        }
        let why = Span::styled(away.as_deref().unwrap_or_default(), BAD);
        frame.render_widget(Line::from(vec!["q quit   ".into(), why]), foot);
        if !self.has_colours {
            frame.buffer_mut().set_style(area, Style::new().fg(Color::Reset).bg(Color::Reset));
        }
    }

    /// The state of the gateway, the requests by group, connections and reloads.
    fn head(&self) -> Vec<Line<'_>> {
        let numbers = &self.model.numbers;
        let (state, style) = match numbers.state {
            State::Ready => ("ready", GOOD),
            State::Draining => ("draining: readiness is off", BAD),
            State::Stopping => ("stopping", BAD),
        };
        let first = vec![
            format!("gateway {}", numbers.version).bold(),
            format!("  {}  ", self.address).into(),
            Span::styled(state, style),
            format!("  up {}", span(numbers.uptime_seconds)).into(),
        ];
        let requests = GROUPS.iter().enumerate().map(|(index, group)| {
            let number = self.model.per_second(|numbers| Some(by_group_of_names(&numbers.requests)[index]));
            let style = match index {
                LIMITED => REFUSED,
                FAILED => BAD,
                _ => Style::new(),
            };
            Span::styled(format!("  {} {}", group.name, rate(number)), when(number, style))
        });
        let requests = ["requests/s".into()].into_iter().chain(requests).collect::<Line<'_>>();
        let [open, max, held] =
            [numbers.connections.open, numbers.connections.max, numbers.held].map(|number| count(number as u64));
        let refused = match (numbers.reloads.current, numbers.certificates.current) {
            (false, _) => ", last refused",
            (true, false) => ", certificates refused",
            (true, true) => "",
        };
        let rest = format!("connections {open} of {max}  held {held}  reloads {}", count(numbers.reloads.ok));
        vec![first.into(), requests, vec![rest.into(), Span::styled(refused, BAD)].into()]
    }
}

/// 12,345.
fn count(number: u64) -> String {
    grouped(&number.to_string())
}

/// 0, 0.4, 12, 1,234, or – if the rate is not known.
fn rate(number: Option<f64>) -> String {
    match number {
        None => "–".to_owned(),
        Some(number) if number > 0.0 && number < 0.05 => "<0.1".to_owned(),
        Some(number) if number > 0.0 && number < 9.95 => format!("{number:.1}"),
        Some(number) => grouped(&format!("{number:.0}")),
    }
}

/// One number with a unit: 2.1ms.
fn latency(seconds: Option<f64>) -> String {
    let duration = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    duration.map_or("–".to_owned(), |duration| format!("{duration:.1?}"))
}

/// Puts a comma before each group of three digits.
fn grouped(digits: &str) -> String {
    let begins_group = |index: usize| index > 0 && (digits.len() - index).is_multiple_of(3);
    let group = |(index, digit)| [begins_group(index).then_some(','), Some(digit)];
    digits.char_indices().flat_map(group).flatten().collect()
}

/// Uses `style` only for a rate above zero.
fn when(rate: Option<f64>, style: Style) -> Style {
    if rate > Some(0.0) { style } else { Style::new() }
}

fn span(seconds: u64) -> humantime::FormattedDuration {
    humantime::format_duration(Duration::from_secs(seconds))
}
