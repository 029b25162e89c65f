//! Bodies of requests to the admin listener: short JSON objects.

use std::fmt;
use std::time::Duration;

use http::StatusCode;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use serde::de::{self, Deserialize, DeserializeOwned, Deserializer, MapAccess, Visitor};
use serde_json::{Map, Value};
use tokio::time::timeout;

use crate::proxy::respond::{self, LocalResponse};

const MAX_BYTES: usize = 64 << 10;
const TIMEOUT: Duration = Duration::from_secs(10);

/// The members of an object, none of them twice: of two, the client could mean either.
pub(super) struct Members(pub(super) Map<String, Value>);

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MembersVisitor)
    }
}

struct MembersVisitor;

impl<'de> Visitor<'de> for MembersVisitor {
    type Value = Members;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Members, A::Error> {
        let mut members = Map::new();
        while let Some((name, value)) = from.next_entry::<String, Value>()? {
            if members.insert(name.clone(), value).is_some() {
                return Err(de::Error::custom(format!("duplicate field `{name}`")));
            }
        }
        Ok(Members(members))
    }
}

/// Reads a body as JSON. The error is the answer to a body that is too long, too slow or not valid.
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
