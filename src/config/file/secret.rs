//! A secret: as it is, or `file:PATH`, or `env:NAME`. Messages never show it.

use std::io;

use crate::config::read::{Field, Wrong};
use crate::config::regular_file;
use crate::config::report::{self, quoted};

/// Reads the `what` that the field has or names. Of a file, blanks around the secret do not belong to it.
pub(super) fn read(field: &Field<'_>, what: &str) -> Option<String> {
    let text = field.text()?;
    if let Some(path) = text.strip_prefix("file:") {
        let named = field.path(path)?;
        field.source.record(named.clone());
        let text = regular_file::read(&named).and_then(|bytes| String::from_utf8(bytes).map_err(io::Error::other));
        match text {
            Ok(text) => Some(text.trim_ascii().to_owned()),
            Err(error) => {
                let help = report::how_to_read(error.kind(), "its path starts at the folder of this file");
                field.report(format!("cannot read the {what} from {}: {error}", quoted(path)), help);
                None
            }
        }
    } else if let Some(name) = text.strip_prefix("env:") {
        // A name with one of these bytes would not be looked up.
        let is_name = !name.is_empty() && !name.contains(['=', '\0']);
        let value = is_name.then(|| std::env::var(name).ok()).flatten();
        if value.is_none() {
            let message = format!("there is no environment variable {} for the {what}", quoted(name));
            let help = "set it where the gateway is started, or use \"file:PATH\"";
            field.refuse(Wrong::new(message, help));
        }
        value
    } else {
        Some(text.to_owned())
    }
}
