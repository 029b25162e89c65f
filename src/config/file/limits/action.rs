//! What happens over a limit: `on_limit`, and the keys that belong to one of its values.

use std::ops::RangeInclusive;
use std::time::Duration;

use http::{HeaderValue, StatusCode};

use crate::config::file::content;
use crate::config::read::{Section, set};
use crate::config::{OnLimit, Role, values};

const OF_DELAY: [&str; 2] = ["max_delay", "max_delayed"];
const DELAYS: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(300);

/// What happens to a request over the limit, and how it is answered.
pub(super) struct Reaction {
    pub(super) on_limit: OnLimit,
    pub(super) status: StatusCode,
    pub(super) body: String,
    pub(super) content_type: HeaderValue,
}

/// Reads what happens, with the status and the body of the answer.
pub(super) fn read(section: &Section<'_>) -> Reaction {
    let words = OnLimit::ALL.map(|on_limit| (on_limit.word(), on_limit));
    let field = section.field("on_limit");
    let on_limit = match field.map_or(Some(OnLimit::Reject), |field| field.choice(&words)) {
        Some(on_limit) if on_limit.delay().is_none() => {
            section.misplaced(&OF_DELAY, "`on_limit = \"delay\"`", "remove it, or use that");
            on_limit
        }
        // If the value is invalid, it is unknown which other keys belong to it.
        Some(_) | None => delay(section),
    };
    let (mut status, allowed) = on_limit.statuses();
    set(&mut status, section.field("status").and_then(|field| values::status(&field, allowed)));
    let (body, content_type) = content::read(section, status);
    if on_limit.role() == Role::Reports {
        let help = "it takes effect only if the limit refuses requests, with on_limit = \"reject\"";
        section.warn(&["status", "body", "content_type"], "has no effect while the limit only reports", help);
    } else if !on_limit.is_told() {
        let help = "remove it: a silent limit sends no headers, so that clients do not notice it";
        section.warn(&["headers"], "has no effect with `on_limit = \"silent\"`", help);
    }
    Reaction { on_limit, status, body, content_type }
}

fn delay(section: &Section<'_>) -> OnLimit {
    let (mut max_delay, mut max_delayed) = OnLimit::DEFAULT_DELAY;
    set(&mut max_delay, values::wait(section, "max_delay", DELAYS));
    let most = section.field("max_delayed").and_then(|field| field.integer(1..=100_000));
    set(&mut max_delayed, most.and_then(|most| usize::try_from(most).ok()));
    OnLimit::Delay { max_delay, max_delayed }
}
