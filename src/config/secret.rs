//! Secrets: texts, or `file:PATH` or `env:NAME`, read each time that the configuration is loaded. Messages never show them.

use std::env;
use std::io;

use http::HeaderValue;

use super::read::Field;
use super::regular_file;
use super::report::{self, quoted};
use crate::base::byte_order_mark::without_mark;

/// In bytes.
const MAX_BYTES: u64 = 64 << 10;

/// For a secret that others may try to guess.
pub(super) const SHORTEST: usize = 16;

/// How a text begins that names the place of a secret.
const FILE: &str = "file:";
const VARIABLE: &str = "env:";

/// Whether the text names the place of a secret.
pub(super) fn is_place(text: &str) -> bool {
    text.starts_with(FILE) || text.starts_with(VARIABLE)
}

/// Whether the field names the place of a secret instead of containing it.
pub(super) fn is_named(field: &Field<'_>) -> bool {
    field.value.is_str() && field.text().is_some_and(is_place)
}

/// Reads the secret `what`, which the field has or names. A named secret must not be empty. A secret in the field is hidden
/// where its line is shown, and so is anything else in its place.
pub(super) fn read(field: &Field<'_>, what: &str) -> Option<String> {
    if !is_named(field) {
        field.source.hide(field.span.clone());
    }
    let text = field.text()?;
    if let Some(path) = text.strip_prefix(FILE) {
        return file(field, path, what);
    }
    if let Some(name) = text.strip_prefix(VARIABLE) {
        return variable(field, name, what);
    }
    Some(text.to_owned())
}

/// Like [`read`], for a secret that nobody must guess. `of` says whose secret it is.
pub(super) fn unguessable(field: &Field<'_>, of: &str) -> Option<String> {
    let secret = read(field, of)?;
    if secret.chars().count() >= SHORTEST {
        return Some(secret);
    }
    let message = format!("the secret has fewer than {SHORTEST} characters");
    field.report(message, "make one that nobody can guess: openssl rand -hex 32");
    None
}

/// The value of a header, which the field has or names. The value is marked as sensitive.
pub(super) fn header_value(field: &Field<'_>) -> Option<HeaderValue> {
    let text = read(field, "value of the header")?;
    match HeaderValue::try_from(text) {
        Ok(mut value) if value.to_str().is_ok() => {
            value.set_sensitive(true);
            Some(value)
        }
        _ => {
            field.report("the value cannot be sent in a header", "use visible ASCII characters and spaces");
            None
        }
    }
}

/// Blanks around the secret are removed, since most editors end a file with a newline.
fn file(field: &Field<'_>, path: &str, what: &str) -> Option<String> {
    let named = field.path(path)?;
    field.source.record(named.clone());
    let read = regular_file::read_up_to(MAX_BYTES, &named);
    let text = read.map(|bytes| without_mark(&bytes).to_vec());
    match text.and_then(|bytes| String::from_utf8(bytes).map_err(|_| io::Error::other("it is not UTF-8"))) {
        Ok(text) if text.trim_ascii().is_empty() => {
            let message = format!("the file {} for the {what} is empty", quoted(path));
            field.report(message, "write the secret into it, and nothing else");
            None
        }
        Ok(text) => Some(text.trim_ascii().to_owned()),
        Err(error) => {
            let help = report::how_to_read(error.kind(), "a relative path starts at the folder of this file");
            field.report(format!("cannot read the {what} from {}: {error}", quoted(path)), help);
            None
        }
    }
}

fn variable(field: &Field<'_>, name: &str, what: &str) -> Option<String> {
    // No variable has a name with one of these bytes.
    let is_name = !name.is_empty() && !name.contains(['=', '\0']);
    let variable = format!("environment variable {} for the {what}", quoted(name));
    let problem = match is_name.then(|| env::var(name)) {
        Some(Ok(value)) if !value.is_empty() => return Some(value),
        Some(Ok(_)) => format!("the {variable} is empty"),
        Some(Err(env::VarError::NotUnicode(_))) => format!("the {variable} is not UTF-8"),
        Some(Err(env::VarError::NotPresent)) | None => format!("there is no {variable}"),
    };
    field.report(problem, "set it where the gateway is started, or use \"file:PATH\"");
    None
}
