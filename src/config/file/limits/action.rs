//! What happens over a limit: `on_limit`, and the keys that belong to one of its values.

use http::{HeaderValue, StatusCode};

use crate::config::file::content;
use crate::config::read::{Field, Section};
use crate::config::settings::limit;
use crate::config::{OnLimit, Role, values};

/// What happens to a request over the limit, and how it is answered.
pub(super) struct Reaction {
    pub(super) on_limit: OnLimit,
    pub(super) status: StatusCode,
    pub(super) body: String,
    pub(super) content_type: HeaderValue,
}

/// Reads what happens, with the status and the body of the answer.
pub(super) fn read(section: &Section<'_>) -> Reaction {
    let on_limit =
        match section.field(&limit::on_limit).map_or(Some(OnLimit::Reject), |_| section.given(&limit::on_limit)) {
            Some(on_limit) if on_limit.delay().is_none() => {
                section.misplaced(&[limit::max_delay.name], "`on_limit = \"delay\"`", "remove it, or use that");
                if section.field(&limit::slow).is_none() {
                    let owner = "`on_limit = \"delay\"` and `slow`";
                    section.misplaced(&[limit::max_delayed.name], owner, "remove it, or use one of them");
                }
                on_limit
            }
            // If the value is invalid, it is unknown which other keys belong to it.
            Some(_) | None => OnLimit::Delay {
                max_delay: section.read(&limit::max_delay),
                max_delayed: section.read(&limit::max_delayed),
            },
        };
    let (own, allowed) = on_limit.statuses();
    let status = |field: &Field<'_>| values::status(field, allowed.clone());
    let status = match own {
        Some(own) => section.field(&limit::status).and_then(|field| status(&field)).unwrap_or(own),
        None => section.read_as(&limit::status, status),
    };
    let (body, content_type) = content::read(section, &limit::body, &limit::content_type, status);
    if on_limit.role() == Role::Reports {
        let help = "it takes effect only if the limit refuses requests, with on_limit = \"reject\"";
        section.warn(
            &[limit::status.name, limit::body.name, limit::content_type.name, limit::overflow.name],
            "has no effect while the limit only reports",
            help,
        );
    } else if !on_limit.is_told() {
        let help = "remove it: a silent limit sends no headers, so that clients do not notice it";
        section.warn(&[limit::headers.name], "has no effect with `on_limit = \"silent\"`", help);
    }
    Reaction { on_limit, status, body, content_type }
}
