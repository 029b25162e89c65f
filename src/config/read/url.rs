//! URLs that are values. What may be secret in them is hidden where their lines are shown.

use super::Field;

impl Field<'_> {
    /// The same value, a URL whose query is hidden where this line is shown.
    pub(in crate::config) fn hiding_query(&self) -> &Self {
        if let Some((before, query)) = self.value.as_str().and_then(|text| text.split_once('?')) {
            let part = self.part(before.len() + 1..before.len() + 1 + query.len());
            self.source.hide(part.unwrap_or(self.span.clone()));
        }
        self
    }
}
