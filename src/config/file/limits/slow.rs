//! How a limit slows requests down: `slow`.

use std::time::Duration;

use crate::config::read::Section;
use crate::config::settings::{limit, slow};
use crate::config::{OnLimit, Role, Slow};

const EXAMPLE: &str = "write from when on and for how long: slow = { from = 0.8, up_to = \"2s\" }";

/// Reads it, for a limit that may have `rates`.
pub(super) fn read(section: &Section<'_>, on_limit: OnLimit, has_rates: bool) -> Option<Slow> {
    let field = section.field(&limit::slow)?;
    if !field.is_table() {
        field.mistyped("a table", EXAMPLE);
        return None;
    }
    if on_limit.role() == Role::Reports {
        let help = "it takes effect only if the limit refuses requests, with on_limit = \"reject\"";
        section.warn(&[limit::slow.name], "has no effect while the limit only reports", help);
    } else if !has_rates {
        section.warn(&[limit::slow.name], "has no effect without `rates`", "add rates, or remove it");
    }
    let table = field.section(slow::TABLE.title, &slow::TABLE)?;
    let from = table.required(&slow::from, EXAMPLE).and_then(|_| table.given(&slow::from));
    let up_to: Option<Duration> = table.required(&slow::up_to, EXAMPLE).and_then(|_| table.given(&slow::up_to));
    table.close();
    Some(Slow { from: from?, up_to: up_to?, max_delayed: section.read(&limit::max_delayed) })
}
