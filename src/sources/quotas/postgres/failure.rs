//! What errors of PostgreSQL mean for a lookup, and how they are shown.

use tokio_postgres::Error;

use crate::sources::quotas::LookupError;

/// The classes of SQLSTATE that say nothing about the query or the key (PostgreSQL, appendix A): connections, rollbacks,
/// resources, object state such as locks, operator intervention, system errors, internal errors.
const OF_THE_SERVER: [&str; 7] = ["08", "40", "53", "55", "57", "58", "XX"];

/// The classes whose messages may contain the key, which may be secret: data exceptions, constraints, and errors that
/// functions raise.
const OF_VALUES: [&str; 3] = ["22", "23", "P0"];

/// The answers to a prepared statement that must be prepared again: its columns have changed, or a pool has given the session to
/// another connection.
const OUTDATED: [&str; 2] = ["0A000", "26000"];

/// An error with its causes.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// The text of an error for people.
pub(super) fn describe(error: &Error) -> String {
    match error.as_db_error() {
        Some(error) => format!("{}: {} (SQLSTATE {})", error.severity(), error.message(), error.code().code()),
        None => chain(error),
    }
}

/// Of a lookup, or of preparing its query.
pub(super) fn of_query(error: &Error) -> LookupError {
    let text = describe(error);
    match error.code() {
        Some(code) if OF_VALUES.iter().any(|class| code.code().starts_with(class)) => {
            LookupError::Unusable(format!("the query fails with this key (SQLSTATE {})", code.code()))
        }
        Some(code) if !OF_THE_SERVER.iter().any(|class| code.code().starts_with(class)) => LookupError::Unusable(text),
        _ => LookupError::Away(text),
    }
}

/// Whether the same lookup may succeed after the query is prepared again.
pub(super) fn is_outdated(error: &Error) -> bool {
    error.code().is_some_and(|code| OUTDATED.contains(&code.code()))
}
