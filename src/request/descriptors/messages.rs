//! The messages of `envoy.service.ratelimit.v3` and `grpc.health.v1` that the gateway reads and writes, with the fields that it
//! knows. Others are skipped, as Protocol Buffers have it.
//!
//! Texts in calls are read as bytes: Envoy writes into them what clients send, and a call that fails because that is not UTF-8
//! would let the request pass.
//!
//! They are those of `envoy/service/ratelimit/v3/rls.proto`, `envoy/extensions/common/ratelimit/v3/ratelimit.proto`,
//! `envoy/config/core/v3/base.proto` and `grpc/health/v1/health.proto`.

use bytes::Bytes;

/// A call: may these pass?
#[derive(Clone, PartialEq, prost::Message)]
pub struct RateLimitRequest {
    /// To which rules the descriptors belong.
    #[prost(bytes = "bytes", tag = "1")]
    pub domain: Bytes,
    /// What is counted.
    #[prost(message, repeated, tag = "2")]
    pub descriptors: Vec<RateLimitDescriptor>,
    /// What each descriptor costs that does not say it itself; 0 is 1.
    #[prost(uint32, tag = "3")]
    pub hits_addend: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct RateLimitDescriptor {
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<Entry>,
    /// What it costs; 0 only asks.
    #[prost(message, optional, tag = "3")]
    pub hits_addend: Option<u64>,
    /// Whether that much is given back instead.
    #[prost(bool, tag = "4")]
    pub is_negative_hits: bool,
}

/// One entry of a descriptor.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Entry {
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    /// What this request has of it.
    #[prost(bytes = "bytes", tag = "2")]
    pub value: Bytes,
}

/// The answer to a call.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RateLimitResponse {
    /// That of the request.
    #[prost(enumeration = "Code", tag = "1")]
    pub overall_code: i32,
    /// One for each descriptor, in their order.
    #[prost(message, repeated, tag = "2")]
    pub statuses: Vec<DescriptorStatus>,
    /// Headers that the client gets.
    #[prost(message, repeated, tag = "3")]
    pub response_headers_to_add: Vec<HeaderValue>,
    /// The body that a refused client gets.
    #[prost(bytes = "bytes", tag = "5")]
    pub raw_body: Bytes,
}

/// Whether something may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Code {
    /// Nothing was decided.
    Unknown = 0,
    /// It may.
    Ok = 1,
    /// It may not.
    OverLimit = 2,
}

/// What is said about one descriptor.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DescriptorStatus {
    /// Whether its limits admit it.
    #[prost(enumeration = "Code", tag = "1")]
    pub code: i32,
    /// The rate that decides; none if nothing limits it.
    #[prost(message, optional, tag = "2")]
    pub current_limit: Option<RateLimit>,
    /// How much more that rate admits.
    #[prost(uint32, tag = "3")]
    pub limit_remaining: u32,
    /// How long until it admits more.
    #[prost(message, optional, tag = "4")]
    pub duration_until_reset: Option<Duration>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct RateLimit {
    /// How many.
    #[prost(uint32, tag = "1")]
    pub requests_per_unit: u32,
    /// Per what.
    #[prost(enumeration = "Unit", tag = "2")]
    pub unit: i32,
    /// The name of the limit.
    #[prost(string, tag = "3")]
    pub name: String,
}

/// The windows that have a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Unit {
    /// Any other.
    Unknown = 0,
    /// A second.
    Second = 1,
    /// A minute.
    Minute = 2,
    Hour = 3,
    Day = 4,
    Month = 5,
    Year = 6,
    Week = 7,
}

/// `google.protobuf.Duration`
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Duration {
    /// Whole seconds.
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    /// The rest.
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

/// A line of a header.
#[derive(Clone, PartialEq, prost::Message)]
pub struct HeaderValue {
    /// Its name.
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(string, tag = "2")]
    pub value: String,
}

/// Whether a service is served.
#[derive(Clone, PartialEq, prost::Message)]
pub struct HealthCheckRequest {
    /// Its name; empty for the server.
    #[prost(string, tag = "1")]
    pub service: String,
}

/// The answer to that.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct HealthCheckResponse {
    #[prost(enumeration = "Serving", tag = "1")]
    pub status: i32,
}

/// The states of a service that the gateway knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Serving {
    /// Nothing is known.
    Unknown = 0,
    Serving = 1,
    /// It is not, because the gateway drains.
    NotServing = 2,
}
