//! HTTP's rules for headers, and the identifiers of requests and traces.

pub mod header_list;
pub mod header_rules;
pub mod header_spelling;
pub mod request_id;
pub mod retry_after;
pub mod spare_headers;
pub mod trace_context;
pub mod via;
pub mod written_target;
