//! What PostgreSQL answers to a lookup: a row, whose columns are found by name, or an error, and how that is shown.

use tokio_postgres::types::{FromSql, Kind, Type};
use tokio_postgres::{Column, Error, Row};

use crate::sources::quotas::{LookupError, QuotaAnswer};

/// `None` if the query has no such column.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Columns {
    rates: Option<usize>,
    tier: Option<usize>,
    exempt: Option<usize>,
    block: Option<usize>,
}

impl Columns {
    /// Ignores columns with other names. Fails when there is none, or one is there twice or has another type than it should: a
    /// message for people.
    pub(super) fn find(columns: &[Column]) -> Result<Self, String> {
        let find = |name: &str, types: &[&Type], expected: &str| {
            let mut found = columns.iter().enumerate().filter(|(_, column)| column.name() == name);
            let Some((index, column)) = found.next() else { return Ok(None) };
            if found.next().is_some() {
                return Err(format!("the query has two columns {name}"));
            }
            if !types.contains(&column.type_()) {
                return Err(format!(
                    "the column {name} has the type {}, and {expected} is expected",
                    written(column.type_())
                ));
            }
            Ok(Some(index))
        };
        let texts = [&Type::TEXT_ARRAY, &Type::VARCHAR_ARRAY];
        let text = [&Type::TEXT, &Type::VARCHAR];
        let found = Self {
            rates: find("rates", &texts, "text[]")?,
            tier: find("tier", &text, "text")?,
            exempt: find("exempt", &[&Type::BOOL], "boolean")?,
            block: find("block", &[&Type::BOOL], "boolean")?,
        };
        if found == Self::default() {
            let names: Vec<_> = columns.iter().map(Column::name).collect();
            let names = names.join(", ");
            return Err(format!("the query has no column rates, tier, exempt or block, but {names}"));
        }
        Ok(found)
    }

    /// `None` if the row grants nothing. Fails when it cannot be used.
    pub(super) fn read(&self, row: &Row) -> Result<Option<QuotaAnswer>, LookupError> {
        let rates: Option<Vec<Option<String>>> = value(row, self.rates, "rates")?;
        let rates: Option<Vec<_>> = rates.unwrap_or_default().into_iter().collect();
        let answer = QuotaAnswer {
            rates: rates.ok_or_else(|| LookupError::Unusable("there is a null in the column rates".to_owned()))?,
            tier: value(row, self.tier, "tier")?,
            exempt: value(row, self.exempt, "exempt")?.unwrap_or_default(),
            block: value(row, self.block, "block")?.unwrap_or_default(),
        };
        Ok(Some(answer).filter(|answer| *answer != QuotaAnswer::default()))
    }
}

/// As in SQL.
fn written(column: &Type) -> String {
    match column.kind() {
        Kind::Array(element) => format!("{element}[]"),
        _ => column.to_string(),
    }
}

/// `None` if the value is null, or if there is no such column.
fn value<'a, T: FromSql<'a>>(row: &'a Row, index: Option<usize>, name: &str) -> Result<Option<T>, LookupError> {
    let Some(index) = index else { return Ok(None) };
    row.try_get(index)
        .map_err(|error| LookupError::Unusable(format!("the column {name} cannot be read: {}", chain(&error))))
}

/// The classes of SQLSTATE that say nothing about the query or the key (PostgreSQL, appendix A): connections, rollbacks,
/// resources, object state such as locks, operator intervention, system errors, internal errors.
const OF_THE_SERVER: [&str; 7] = ["08", "40", "53", "55", "57", "58", "XX"];

/// The classes whose messages may contain the key, which may be secret: data exceptions, constraints, and errors that
/// functions raise.
const OF_VALUES: [&str; 3] = ["22", "23", "P0"];

/// `query_canceled`: the query has taken longer than `statement_timeout` with this key. What waits for a lock ends earlier, by
/// `lock_timeout`.
const CANCELED: &str = "57014";

/// The answers to a prepared statement that must be prepared again: its columns have changed, or a pool has given the session to
/// another connection.
const OUTDATED: [&str; 2] = ["0A000", "26000"];

/// An error with its causes.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let all = std::iter::successors(Some(error), |error| error.source());
    all.map(ToString::to_string).collect::<Vec<_>>().join(": ")
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
        Some(code) if code.code() == CANCELED || !OF_THE_SERVER.iter().any(|class| code.code().starts_with(class)) => {
            LookupError::Unusable(text)
        }
        _ => LookupError::Away(text),
    }
}

/// Whether the same lookup may succeed after the query is prepared again.
pub(super) fn is_outdated(error: &Error) -> bool {
    error.code().is_some_and(|code| OUTDATED.contains(&code.code()))
}
