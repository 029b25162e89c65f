//! Texts with placeholders, which each request fills in: the location of a redirect, the path of a rewrite, and the values
//! of headers.

/// A text with placeholders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    /// As written.
    pub text: String,
    /// Its parts in their order.
    pub parts: Vec<TemplatePart>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TemplatePart {
    Text(String),
    /// `{client_ip}`: the address of the client.
    ClientIp,
    /// `{host}`: the host of the request, without the port.
    Host,
    /// `{request_id}`: the id of the request.
    RequestId,
    /// `{path}`: the path of the request.
    Path,
    /// `{query}`: the query of the request, without the question mark.
    Query,
    /// The question mark and the query of the request, if it has one. Stands where a location has no query of its own.
    QueryIfAny,
    /// `{name}`: the segment of the path with this index.
    Segment(usize),
    /// `{rest}`: what follows after so many segments of the path, without the slash before it.
    Rest(usize),
}

impl Template {
    /// Whether the host of the request is a part of it.
    pub fn needs_host(&self) -> bool {
        self.parts.contains(&TemplatePart::Host)
    }
}
