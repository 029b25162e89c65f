//! The messages of `envoy.service.ratelimit.v3` and `grpc.health.v1` with the fields that the gateway reads or writes, from
//! `rls.proto`, `ratelimit.proto`, `base.proto` and `health.proto` in `envoy/service/ratelimit/v3`,
//! `envoy/extensions/common/ratelimit/v3`, `envoy/config/core/v3` and `grpc/health/v1`. Unknown fields are skipped, as
//! Protocol Buffers require.
//!
//! Texts in calls are read as bytes: Envoy copies what clients send into them, and would let the request pass if the call
//! failed because a text is not UTF-8.

use bytes::Bytes;

use crate::limit::{Rate, Strategy, Unit as CalendarUnit};

/// A call, which asks whether its descriptors may pass.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RateLimitRequest {
    /// Selects the rules for the descriptors.
    #[prost(bytes = "bytes", tag = "1")]
    pub domain: Bytes,
    #[prost(message, repeated, tag = "2")]
    pub descriptors: Vec<RateLimitDescriptor>,
    /// The cost of each descriptor that states none; 0 means 1.
    #[prost(uint32, tag = "3")]
    pub hits_addend: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct RateLimitDescriptor {
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<Entry>,
    /// The rate instead of those of the configured limits.
    #[prost(message, optional, tag = "2")]
    pub limit: Option<RateLimitOverride>,
    /// The cost; 0 only asks.
    #[prost(message, optional, tag = "3")]
    pub hits_addend: Option<u64>,
    /// Whether `hits_addend` is given back instead.
    #[prost(bool, tag = "4")]
    pub is_negative_hits: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub struct RateLimitOverride {
    /// 0 lets nothing pass.
    #[prost(uint32, tag = "1")]
    pub requests_per_unit: u32,
    #[prost(enumeration = "Unit", tag = "2")]
    pub unit: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Entry {
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    /// The value in this request.
    #[prost(bytes = "bytes", tag = "2")]
    pub value: Bytes,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct RateLimitResponse {
    /// The decision for the whole request.
    #[prost(enumeration = "Code", tag = "1")]
    pub overall_code: i32,
    /// One for each descriptor, in the same order.
    #[prost(message, repeated, tag = "2")]
    pub statuses: Vec<DescriptorStatus>,
    #[prost(message, repeated, tag = "3")]
    pub response_headers_to_add: Vec<HeaderValue>,
    /// The body for a refused client.
    #[prost(bytes = "bytes", tag = "5")]
    pub raw_body: Bytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Code {
    Unknown = 0,
    Ok = 1,
    OverLimit = 2,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct DescriptorStatus {
    #[prost(enumeration = "Code", tag = "1")]
    pub code: i32,
    /// The deciding rate; `None` if no rule limits the descriptor.
    #[prost(message, optional, tag = "2")]
    pub current_limit: Option<RateLimit>,
    #[prost(uint32, tag = "3")]
    pub limit_remaining: u32,
    #[prost(message, optional, tag = "4")]
    pub duration_until_reset: Option<Duration>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct RateLimit {
    #[prost(uint32, tag = "1")]
    pub requests_per_unit: u32,
    #[prost(enumeration = "Unit", tag = "2")]
    pub unit: i32,
    #[prost(string, tag = "3")]
    pub name: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Unit {
    /// Any other window.
    Unknown = 0,
    Second = 1,
    Minute = 2,
    Hour = 3,
    Day = 4,
    Month = 5,
    Year = 6,
    Week = 7,
}

/// The windows of units in seconds. Days have 24 hours, and a month has 30 days. A year is longer than any rate.
const WINDOWS: [(Unit, u64); 6] = [
    (Unit::Second, 1),
    (Unit::Minute, 60),
    (Unit::Hour, 3_600),
    (Unit::Day, 86_400),
    (Unit::Week, 7 * 86_400),
    (Unit::Month, 30 * 86_400),
];

impl Unit {
    pub fn window(self) -> Option<std::time::Duration> {
        let seconds = WINDOWS.iter().find(|(unit, _)| *unit == self).map(|(_, seconds)| *seconds);
        seconds.map(std::time::Duration::from_secs)
    }

    /// The unit of a rate, if the protocol has a name for its window.
    pub fn of(rate: &Rate) -> Self {
        match rate.strategy() {
            Strategy::Calendar(calendar) if calendar.unit() == CalendarUnit::Day => Self::Day,
            Strategy::Calendar(_) => Self::Month,
            _ => WINDOWS
                .iter()
                .find(|(unit, _)| unit.window() == Some(rate.window()))
                .map_or(Self::Unknown, |(unit, _)| *unit),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Duration {
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct HeaderValue {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(string, tag = "2")]
    pub value: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct HealthCheckRequest {
    /// The name of the service; empty for the whole server.
    #[prost(string, tag = "1")]
    pub service: String,
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct HealthCheckResponse {
    #[prost(enumeration = "Serving", tag = "1")]
    pub status: i32,
}

/// The states of a service that the gateway sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Serving {
    Unknown = 0,
    Serving = 1,
    NotServing = 2,
}
