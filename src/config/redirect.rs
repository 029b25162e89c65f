//! Where a route with `redirect` sends clients.

use http::StatusCode;

use super::template::{Template, TemplatePart};

/// `redirect` of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// The location. Its texts need no escapes.
    pub to: Template,
    /// 301, 302, 303, 307 or 308.
    pub status: StatusCode,
}

impl Redirect {
    /// Whether each request over TLS is sent to its own URL again, so that clients would never arrive.
    pub fn is_same_url_over_tls(&self) -> bool {
        matches!(
            &self.to.parts[..],
            [TemplatePart::Text(scheme), TemplatePart::Host, TemplatePart::Path, TemplatePart::QueryIfAny]
                if scheme == "https://"
        )
    }
}
