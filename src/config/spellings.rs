//! The paths of routes beside the spellings that servers take for the same path.

use super::file::RouteDraft;
use super::read::Source;
use super::report::quoted;
use super::{EscapedSlashes, PathMatching, PathRules, Segment};

/// Reports a literal that no request can have, because its spelling is refused or means something else.
pub(super) fn unmatchable(route: &RouteDraft<'_>, rules: PathRules, source: &Source<'_>) {
    let Some(path) = &route.path else { return };
    for segment in &path.segments {
        let Segment::Literal(text) = segment else { continue };
        let has_slash = text.contains("%2F") || text.contains("%5C");
        let why = match rules.escaped_slashes {
            EscapedSlashes::Reject if has_slash => "requests with %2F or %5C in their path are refused",
            EscapedSlashes::Decode if has_slash => "%2F and %5C in the path of a request are slashes",
            _ if text.contains(';') && rules.matching == PathMatching::Forgiving => {
                "a `;` and what follows it in a segment make no other path"
            }
            _ => continue,
        };
        let help = if has_slash {
            "write a slash, or escaped_slashes = \"keep\" in [server] if it is part of a segment to your upstreams"
        } else {
            "leave it out, or write path_matching = \"exact\" in [server]"
        };
        let message = format!("the path {} can never match: {why}", quoted(&path.text));
        source.report(route.path_span.clone(), message, help);
        return;
    }
}
