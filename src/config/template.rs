//! Texts with placeholders that each request fills in: locations of redirects, rewritten paths, and values of headers.

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    pub text: String,
    pub parts: Vec<TemplatePart>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TemplatePart {
    Text(String),
    /// `{client_ip}`: the address of the client.
    ClientIp,
    /// `{host}`, without the port.
    Host,
    /// `{request_id}`
    RequestId,
    /// `{path}`
    Path,
    /// `{query}`, without the question mark.
    Query,
    /// The question mark and the query of the request, if there is a query. For locations without a query of their own.
    QueryIfAny,
    /// `{name}`: the segment of the path with this index.
    Segment(usize),
    /// `{rest}`: the path after this many segments, without the slash before it.
    Rest(usize),
}

impl Template {
    pub fn needs_host(&self) -> bool {
        self.parts.contains(&TemplatePart::Host)
    }
}
