//! One order of a certificate, from the account to the file (RFC 8555, section 7). Its requests to the authority are sent by
//! the client that the gateway uses for all servers that it asks.

use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderValue, Request, StatusCode};
use http_body_util::{BodyExt as _, Collected, Full};
use instant_acme::{
    Account, AuthorizationStatus, BodyWrapper, BytesResponse, ChallengeType, Error, ExternalAccountKey, HttpClient,
    Identifier, NewAccount, NewOrder, Order, OrderStatus, RetryPolicy,
};

use super::challenges::Claim;
use super::failure::{Kind, LONGEST, NoAnswer, OrderFailure, RetryAfter};
use super::folder::{Folder, SKEW, covered, identity};
use crate::base::clock;
use crate::base::http::retry_after;
use crate::config::{Acme, Challenge, document_url};
use crate::net::fetch::{self, FetchError, Url};

/// How often the authority is asked whether it has finished a step.
const POLLS: RetryPolicy =
    RetryPolicy::new().initial_delay(Duration::from_millis(500)).backoff(1.5).timeout(Duration::from_secs(120));

/// Orders a certificate and writes it into the folder.
pub(super) async fn order(acme: &Acme, folder: &Folder, mut claim: Claim) -> Result<(), OrderFailure> {
    let told = RetryAfter::default();
    let mut ordered = ordered(acme, folder, &claim, &told).await;
    if ordered.as_ref().is_err_and(|failure| failure.is_without_account) {
        folder.forget_account();
        ordered = self::ordered(acme, folder, &claim, &told).await;
    }
    claim.end().await;
    ordered
}

async fn ordered(acme: &Acme, folder: &Folder, claim: &Claim, told: &RetryAfter) -> Result<(), OrderFailure> {
    let failed = |error: Error| OrderFailure::of(&error, told);
    let account = account(acme, folder, told).await?;
    let identifiers: Vec<_> = acme.names.iter().cloned().map(Identifier::Dns).collect();
    let mut order = account.new_order(&NewOrder::new(&identifiers)).await.map_err(failed)?;
    if order.state().status == OrderStatus::Pending {
        prove(acme, &mut order, claim, told).await?;
        let ready = order.poll_ready(&POLLS).await;
        if !matches!(ready, Ok(OrderStatus::Ready)) {
            let retry_after = told.lock().take();
            let why = refusal(&mut order).await;
            let failure = match (why, ready) {
                (Some(why), _) => OrderFailure::new(Kind::Refused, why),
                (None, Err(error)) => OrderFailure::of(&error, told),
                (None, Ok(_)) => OrderFailure::new(Kind::Refused, "the authority says only that the order is invalid"),
            };
            return Err(OrderFailure { retry_after, ..failure });
        }
    }
    let key = order.finalize().await.map_err(failed)?;
    let chain = order.poll_certificate(&POLLS).await.map_err(failed)?;
    let pem = format!("{}\n{key}", chain.trim_end());
    check(acme, &pem)?;
    folder.keep_certificate(acme, pem.as_bytes()).map_err(|error| folder.failed(&error))
}

/// The account of the folder, or a new one.
async fn account(acme: &Acme, folder: &Folder, told: &RetryAfter) -> Result<Account, OrderFailure> {
    let builder = Account::builder_with_http(Box::new(AcmeClient {
        acme: acme.clone(),
        folder: folder.clone(),
        told: told.clone(),
    }));
    if let Some(known) = folder.account().map_err(|error| folder.failed(&error))? {
        return builder.from_credentials(known).await.map_err(|error| OrderFailure::of(&error, told));
    }
    let email = acme.email.as_ref().map(|email| format!("mailto:{email}"));
    let contact: Vec<_> = email.iter().map(String::as_str).collect();
    let new = NewAccount { contact: &contact, terms_of_service_agreed: true, only_return_existing: false };
    let bound_to = acme.external_account.as_ref().map(|known| ExternalAccountKey::new(known.id.clone(), &known.key.0));
    let (account, credentials) = builder
        .create(&new, acme.directory.whole(), bound_to.as_ref())
        .await
        .map_err(|error| OrderFailure::of(&error, told))?;
    folder.keep_account(&credentials).map_err(|error| folder.failed(&error))?;
    Ok(account)
}

/// Proves every name that is not yet proven, and lets the authority check.
async fn prove(acme: &Acme, order: &mut Order, claim: &Claim, told: &RetryAfter) -> Result<(), OrderFailure> {
    let failed = |error: Error| OrderFailure::of(&error, told);
    let (kind, kind_name) = match acme.challenge {
        Challenge::TlsAlpn01 => (ChallengeType::TlsAlpn01, "tls-alpn-01"),
        Challenge::Http01 => (ChallengeType::Http01, "http-01"),
    };
    // All answers are ready before the authority checks the first one.
    for is_announced in [false, true] {
        let mut authorizations = order.authorizations();
        while let Some(authorization) = authorizations.next().await {
            let mut authorization = authorization.map_err(failed)?;
            if authorization.status == AuthorizationStatus::Valid {
                continue;
            }
            let name = authorization.identifier().to_string();
            let challenge = authorization.challenge(kind.clone());
            let why = || format!("the authority does not offer {kind_name} for {name}");
            let mut challenge = challenge.ok_or_else(|| OrderFailure::new(Kind::Refused, why()))?;
            if is_announced {
                challenge.set_ready().await.map_err(failed)?;
            } else {
                claim.answer(&name, challenge.key_authorization().as_str()).await;
            }
        }
        if !is_announced {
            claim.spread().await;
        }
    }
    Ok(())
}

/// Why the authority rejects a name, if it says so.
async fn refusal(order: &mut Order) -> Option<String> {
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization.ok()?;
        let name = authorization.identifier().to_string();
        let state = authorization.refresh().await.ok()?;
        if let Some(problem) = state.challenges.iter().find_map(|challenge| challenge.error.as_ref()) {
            return Some(format!("{name}: {}", problem.detail.as_deref().unwrap_or("no reason is given")));
        }
    }
    None
}

/// Checks that the certificate can replace the previous one.
fn check(acme: &Acme, pem: &str) -> Result<(), OrderFailure> {
    let unusable =
        |why: String| OrderFailure::new(Kind::Unusable, format!("the authority has sent a certificate that {why}"));
    let issued = identity(String::new(), pem.as_bytes());
    let issued = issued.map_err(|error| unusable(format!("cannot be used: {error}")))?;
    if covered(&issued, &acme.names) < acme.names.len() {
        return Err(unusable(format!("is for other names: {}", issued.names.join(", "))));
    }
    let now = clock::now();
    if issued.not_after <= now {
        return Err(unusable("has expired".to_owned()));
    }
    if issued.not_before > now.after(SKEW) {
        return Err(unusable("is not valid yet: check the clock of this machine".to_owned()));
    }
    Ok(())
}

/// The largest answer in bytes, many times the size of a certificate chain.
const MOST: usize = 256 << 10;
/// Of one request.
const LIMIT: Duration = Duration::from_secs(15);

#[derive(Clone)]
struct AcmeClient {
    acme: Acme,
    folder: Folder,
    told: RetryAfter,
}

impl AcmeClient {
    /// Keeps the pause for which an answer asks also for a restart: the gateway may end before the order does.
    fn keep(&self, pause: Option<Duration>) {
        *self.told.lock() = pause;
        if let Some(pause) = pause
            && let Err(error) = self.folder.pause_until(&self.acme, clock::now().after(pause))
        {
            tracing::warn!(%error, "a restart will not know how long the authority asks to wait");
        }
    }
}

/// A URL that the directory names. A remote authority must not make the gateway ask servers on its own machine without TLS.
fn named_url(directory: &Url, text: &str) -> Result<Url, NoAnswer> {
    let url = document_url(text).map_err(NoAnswer::Url)?;
    if url.scheme() != directory.scheme() {
        return Err(NoAnswer::Url(format!("it begins with {}://", url.scheme())));
    }
    Ok(url)
}

impl HttpClient for AcmeClient {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let client = self.clone();
        Box::pin(async move {
            *client.told.lock() = None;
            let url = named_url(&client.acme.directory, &request.uri().to_string())?;
            let (head, body) = request.into_parts();
            let body = body.collect().await.map_or(Bytes::new(), Collected::to_bytes);
            let request = Request::from_parts(head, Full::new(body));
            let fetched = fetch::exchange(&url, client.acme.tls.as_ref(), request, MOST, LIMIT).await;
            let fetched = fetched.map_err(NoAnswer::Fetch)?;
            if !fetched.body().is_empty() && !fetch::has_end(&fetched) {
                return Err(NoAnswer::Fetch(FetchError::NoEnd).into());
            }
            let (mut parts, body) = fetched.into_parts();
            let asked = retry_after(&parts.headers, clock::now()).map(|pause| pause.min(LONGEST));
            client.keep(asked);
            // The library adds it to the time of day, and panics if the sum is too large.
            match asked {
                Some(pause) => parts.headers.insert(RETRY_AFTER, HeaderValue::from(pause.as_secs())),
                None => parts.headers.remove(RETRY_AFTER),
            };
            let is_error = parts.status.is_client_error() || parts.status.is_server_error();
            // The library reads every directory, whatever its status.
            let is_directory = url.whole() == client.acme.directory.whole();
            if is_directory && parts.status != StatusCode::OK
                || is_error && serde_json::from_slice::<serde_json::Map<_, _>>(&body).is_err()
            {
                return Err(NoAnswer::Status(parts.status).into());
            }
            Ok(BytesResponse { parts, body: Box::new(body) })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_names_no_servers_that_are_asked_in_another_way() {
        let named = |directory, text| named_url(&document_url(directory).unwrap(), text).is_ok();
        let public = "https://acme.test/directory";
        assert!(named(public, "https://other.test/order"));
        for text in ["http://127.0.0.1:9901/api/drain", "http://acme.test/", "ftp://acme.test/", "/order", ""] {
            assert!(!named(public, text), "{text}");
        }
        assert!(named("http://127.0.0.1:1/", "http://127.0.0.1:1/order"));
    }
}
