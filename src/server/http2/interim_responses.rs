//! Where the interim responses to a request go (RFC 9110, section 15.2), such as Early Hints.

use std::rc::Rc;

use http::Response;

use super::streams::Stream;

/// See the head of this file. The HTTP library can send none to a client of HTTP/1.1.
#[derive(Debug)]
pub struct InterimResponses(Rc<Stream>);

impl InterimResponses {
    /// Those of a request on this stream.
    pub(super) fn new(stream: Rc<Stream>) -> Self {
        Self(stream)
    }

    /// Sends one at once, without the headers of a connection. It is dropped if all of them together become too large.
    pub fn send(&self, response: Response<()>) {
        self.0.inform(response);
    }
}
