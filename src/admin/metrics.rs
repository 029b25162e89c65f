//! `/metrics`: all metrics, as families. No client's key is ever a label, and all other values of labels are from the
//! configuration or from fixed lists, so that clients cannot create series; but for a bounded number of names of models.

mod acme;
mod connections;
mod limits;
mod models;
mod process;
mod quotas;
mod requests;
mod spans;
mod store;
mod system;
mod tokens;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, VARY};
use http::{HeaderMap, HeaderValue, StatusCode};

use super::View;
use super::exposition::Format;
use super::{shed, source, upstreams};
use crate::proxy::respond::{self, LocalResponse};

/// The response with all metrics, in the format that the headers of the request ask for.
pub(super) fn respond(view: &View, headers: &HeaderMap) -> LocalResponse {
    let mut families = Vec::from(process::families(view));
    families.push(view.gatekeeper.family());
    families.extend(source::metrics(view));
    families.extend(system::families());
    families.extend(requests::families(view));
    families.extend(limits::families(view));
    families.extend(models::families(view));
    families.extend(upstreams::metrics(view));
    families.extend(shed::metrics(view));
    families.extend(connections::families(view));
    families.extend(acme::families(&view.acme));
    families.extend(tokens::families(&view.shared));
    families.extend(quotas::families(&view.shared));
    families.extend(store::families(view));
    families.push(spans::family(&view.shared));
    let format = Format::accepted(headers);
    let mut response = respond::text(StatusCode::OK, Bytes::from(format.write(&families)));
    response.headers_mut().insert(CONTENT_TYPE, format.content_type());
    response.headers_mut().insert(VARY, HeaderValue::from_static("accept"));
    response
}
