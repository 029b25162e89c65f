//! The keys of the chosen limit that are most refused and most busy, as the gateway masks them.

use jiff::Timestamp;
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Rect};
use ratatui::widgets::{Cell, Row};

use super::{View, limits, panel};
use crate::admin::dashboard::KeyCount;
use crate::commands::top::controls::Panel;
use crate::commands::top::format;
use crate::commands::top::model::FrequentKey;

pub(super) fn draw(area: Rect, buffer: &mut Buffer, view: &mut View<'_>) {
    let Some(limit) = limits::chosen(view) else {
        let inner = panel::frame(area, buffer, view, Panel::Keys, "Keys");
        return panel::sentence(inner, buffer, view, "no limit is configured");
    };
    let since = view.model.keys_since().parse::<Timestamp>();
    let since = since.map_or(String::new(), |since| since.strftime(" since %H:%M").to_string());
    let inner = panel::frame(area, buffer, view, Panel::Keys, &format!("Keys of {}{since}", limit.name));
    if let Some(why) = view.model.no_keys() {
        return panel::sentence(inner, buffer, view, why);
    }
    let mut keys = view.model.keys(&limit.name);
    if keys.is_empty() {
        return panel::sentence(inner, buffer, view, "no key yet");
    }
    let [refused, busy] =
        [|key: &FrequentKey| count(key.refused.as_ref()), |key: &FrequentKey| count(key.busy.as_ref())];
    match view.controls.order(Panel::Keys) {
        Some("requests") => keys.sort_by_key(|key| std::cmp::Reverse((busy(key), refused(key)))),
        _ => keys.sort_by_key(|key| std::cmp::Reverse((refused(key), busy(key)))),
    }
    let room = panel::room(inner);
    let first = view.controls.first_row(Panel::Keys, keys.len(), room);
    let row = |key: FrequentKey| {
        let refused = panel::number(written(key.refused.as_ref()));
        let refused = if key.refused.is_some() { refused.style(view.theme.refused()) } else { refused };
        let name = if key.key.is_empty() { "(no key)".to_owned() } else { key.key };
        Row::new([Cell::from(name), refused, panel::number(written(key.busy.as_ref()))])
    };
    let rows = keys.into_iter().skip(first).take(room).map(row).collect();
    let columns =
        [("key", Constraint::Fill(1)), (" refused", Constraint::Length(8)), (" requests", Constraint::Length(8))];
    panel::table(inner, buffer, view, &columns, rows);
}

fn count(count: Option<&KeyCount>) -> u64 {
    count.map_or(0, |count| count.count)
}

/// A count, which may be too high.
fn written(count: Option<&KeyCount>) -> String {
    let about = |count: &KeyCount| if count.error > 0 { "≈" } else { "" };
    count.map_or(format::UNKNOWN.to_owned(), |count| format!("{}{}", about(count), format::count(count.count)))
}
