//! Quotas of keys that are read from a store, through a cache that all workers share.

mod answer;

pub use answer::{LookupError, QuotaAnswer, QuotaChange};
