//! Bodies of requests to the admin listener: short JSON objects.

use std::time::Duration;

use http::StatusCode;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::proxy::respond::{self, LocalResponse};

const MAX_BYTES: usize = 64 << 10;
const TIMEOUT: Duration = Duration::from_secs(10);

/// Reads a body as JSON.
///
/// # Errors
/// The answer to a body that is too long, too slow or not valid.
pub(super) async fn read<T: DeserializeOwned>(body: Incoming) -> Result<T, LocalResponse> {
    let bytes = match timeout(TIMEOUT, Limited::new(body, MAX_BYTES).collect()).await {
        Ok(Ok(bytes)) => bytes.to_bytes(),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => {
            let why = format!("The body is longer than {MAX_BYTES} bytes.");
            return Err(respond::problem(StatusCode::PAYLOAD_TOO_LARGE, &why));
        }
        Ok(Err(_)) => return Err(respond::problem(StatusCode::BAD_REQUEST, "The body did not arrive in full.")),
        Err(_) => {
            let response = respond::problem(StatusCode::REQUEST_TIMEOUT, "The body did not arrive in time.");
            return Err(respond::closing(response));
        }
    };
    serde_json::from_slice(&bytes)
        .map_err(|error| respond::problem(StatusCode::BAD_REQUEST, &format!("The body is not as expected: {error}.")))
}
