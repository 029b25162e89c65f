//! What errors of PostgreSQL mean for a lookup, and how they are shown.

use tokio_postgres::Error;

use crate::sources::quotas::LookupError;

/// The classes of SQLSTATE that say nothing about the query or the key (PostgreSQL, appendix A): connections, rollbacks,
/// resources, locks and settings that are not as needed, an operator who intervenes, the system, and the server itself.
const OF_THE_SERVER: [&str; 7] = ["08", "40", "53", "55", "57", "58", "XX"];

/// The classes whose messages may have the key in them, which may be secret: data exceptions, constraints, and what
/// functions raise.
const OF_VALUES: [&str; 3] = ["22", "23", "P0"];

/// What a prepared statement is answered when it has to be prepared again: its columns have changed, or a pool has
/// given the session to another connection.
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

/// An error as people should read it.
pub(super) fn describe(error: &Error) -> String {
    match error.as_db_error() {
        Some(error) => format!("{}: {} (SQLSTATE {})", error.severity(), error.message(), error.code().code()),
        None => chain(error),
    }
}

/// What an error of a lookup, or of the preparation of its query, means.
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

/// Whether the same lookup may succeed once the query is prepared again.
pub(super) fn is_outdated(error: &Error) -> bool {
    error.code().is_some_and(|code| OUTDATED.contains(&code.code()))
}
