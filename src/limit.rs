//! Limits, pure: what is counted and what the counts allow. No I/O, no clock, no configuration.

mod rate;

pub use rate::{Edge, MAX_PRECISION, MAX_QUOTA, MAX_WINDOW, MIN_WINDOW, Rate, RateError};
