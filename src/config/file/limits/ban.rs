//! `ban`: when keys are banned that were refused too often.

use crate::config::read::Section;
use crate::config::settings::{ban, limit};
use crate::config::{Ban, OnLimit, Role};

/// Reads the table, if there is one.
pub(super) fn read(limit: &Section<'_>, on_limit: OnLimit) -> Option<Ban> {
    let field = limit.field(&limit::ban)?;
    if !field.is_table() {
        field.mistyped("a table", format!("write when keys are banned: ban = {}", limit::ban.example()));
        return None;
    }
    let section = field.section(ban::TABLE.title, &ban::TABLE)?;
    let (after, within, first) = (section.read(&ban::after), section.read(&ban::within), section.read(&ban::r#for));
    let longest = section.given(&ban::max_for).unwrap_or_else(|| section.read(&ban::max_for).max(first));
    if longest < first {
        let help = "make it at least as long: the first ban lasts `for`";
        section.refuse(&[ban::max_for.name], "is shorter than `for`", help);
    }
    let respond = section.read(&ban::respond);
    section.close();
    if on_limit.role() == Role::Reports {
        let help =
            "a key is banned for refusals, and this limit refuses nothing; remove it, or use on_limit = \"reject\"";
        limit.warn(&[limit::ban.name], "has no effect while the limit only reports", help);
        return None;
    }
    Some(Ban { after, within, first, longest, respond })
}
