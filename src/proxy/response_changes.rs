//! The changes of a route to the headers of every response to one request: `response_headers`, then `cors`.

use http::{HeaderMap, HeaderValue, Response};

use crate::config::{HeaderChanges, Scheme};
use crate::proxy::respond::LocalResponse;
use crate::proxy::respond::cors::CorsHeaders;
use crate::proxy::snapshot::CompiledRoute;
use crate::request::route::{CurrentChanges, RouteConditions, TemplateInput};

pub struct ResponseChanges<'r> {
    headers: Option<CurrentChanges<'r>>,
    cors: Option<CorsHeaders<'r>>,
    is_over_tls: bool,
}

impl<'r> ResponseChanges<'r> {
    pub fn new(route: &'r CompiledRoute, request: RouteConditions<'_>, input: &TemplateInput<'_>) -> Self {
        Self {
            headers: route.response_headers.as_ref().map(|changes| changes.of(input)),
            cors: route.cors.as_ref().map(|cors| cors.headers(request.method, request.headers)),
            is_over_tls: request.scheme == Scheme::Https,
        }
    }

    pub fn headers(&self) -> Option<&HeaderChanges<HeaderValue>> {
        self.headers.as_deref()
    }

    /// The answer of `cors` to a preflight, with all its headers of CORS.
    pub fn preflight(&mut self, request: &HeaderMap) -> Option<LocalResponse> {
        self.cors.take().map(|cors| cors.policy().preflight(request))
    }

    pub fn apply<B>(&self, response: &mut Response<B>) {
        if let Some(changes) = &self.headers {
            changes.apply(response.headers_mut(), self.is_over_tls);
        }
        if let Some(cors) = &self.cors {
            cors.apply(response.headers_mut());
        }
    }
}
