//! Quotas of keys that are read from a store, through a cache that all workers share.

mod answer;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(not(feature = "postgres"))]
mod without_postgres;

pub use answer::{LookupError, QuotaAnswer, QuotaChange};
#[cfg(feature = "postgres")]
pub use postgres::Postgres;
#[cfg(not(feature = "postgres"))]
pub use without_postgres::Postgres;
