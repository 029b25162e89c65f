//! Small things that every module may use. Nothing here knows the configuration or does I/O of its own.

pub mod back_off;
pub mod threads;
pub mod body_gate;
pub mod byte_order_mark;
pub mod clock;
pub mod deadline;
pub mod event_stream;
pub mod fingerprint;
pub mod hex;
pub mod http;
pub mod in_force;
pub mod json;
pub mod jwt;
pub mod letter_case;
pub mod metrics;
pub mod partition;
pub mod percent;
pub mod printable;
pub mod random;
pub mod readiness;
pub mod reason;
pub mod repeated_event;
pub mod share;
pub mod spans;
pub mod units;
pub mod wildcard;
