//! Why an order of a certificate has failed, who is responsible, and when it is repeated; and when a certificate is renewed.
//! Nothing here reads a clock.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use instant_acme::Error;
use parking_lot::Mutex;

use crate::base::back_off::BackOff;
use crate::base::clock::Time;
use crate::base::named::named;
use crate::base::printable::printable;
use crate::net::fetch::FetchError;

named! {
    /// The cause of a failed order, which decides when the order is repeated.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum Kind {
        /// The authority does not answer, or has an internal error and may have lost its state.
        Away = "away",
        /// The authority asks to wait, because it was asked too often.
        Limited = "limited",
        /// The authority refuses, mostly because its check of a name has failed.
        Refused = "refused",
        Unusable = "unusable",
        /// The files in the state folder cannot be used.
        Files = "files",
    }
}

/// The pause that the authority has asked for in its last answer: it has refused something, or is not done yet.
pub(super) type RetryAfter = Arc<Mutex<Option<Duration>>>;

/// Why there is no answer that the protocol defines.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoAnswer {
    #[error("{0}")]
    Fetch(FetchError),
    /// An answer with this status and without a problem document.
    #[error("the server answers {}", .0.as_u16())]
    Status(StatusCode),
    #[error("the directory of the authority has a URL that cannot be used: {0}")]
    Url(String),
}

impl From<NoAnswer> for Error {
    fn from(why: NoAnswer) -> Self {
        Self::Other(Box::new(why))
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{why}")]
pub(super) struct OrderFailure {
    pub(super) kind: Kind,
    pub(super) why: String,
    /// The pause that the authority asks for.
    pub(super) retry_after: Option<Duration>,
    /// Whether the authority knows no account with this key.
    pub(super) is_without_account: bool,
}

impl OrderFailure {
    /// `why` may come from somebody else, so unprintable characters are replaced.
    pub(super) fn new(kind: Kind, why: impl fmt::Display) -> Self {
        Self { kind, why: printable(&why.to_string()), retry_after: None, is_without_account: false }
    }

    /// A failed request to the authority, which may have asked for a pause.
    pub(super) fn of(error: &Error, told: &RetryAfter) -> Self {
        let problem = if let Error::Api(problem) = error { problem.r#type.as_deref() } else { None };
        let problem = problem.and_then(|name| name.strip_prefix("urn:ietf:params:acme:error:"));
        let is_without_account = problem == Some("accountDoesNotExist");
        let kind = match error {
            Error::Api(answer) => match (problem, answer.status) {
                (Some("rateLimited"), _) | (_, Some(429)) => Kind::Limited,
                // An unknown nonce says nothing about the order (RFC 8555, section 6.5).
                (Some("serverInternal" | "badNonce"), _) | (_, Some(500..)) => Kind::Away,
                _ => Kind::Refused,
            },
            Error::Timeout(_) => Kind::Away,
            Error::Other(error) => match error.downcast_ref::<NoAnswer>() {
                Some(NoAnswer::Status(StatusCode::TOO_MANY_REQUESTS)) => Kind::Limited,
                Some(NoAnswer::Status(status)) if !status.is_server_error() => Kind::Refused,
                Some(NoAnswer::Url(_) | NoAnswer::Fetch(FetchError::TooLarge(_))) | None => Kind::Unusable,
                Some(NoAnswer::Status(_) | NoAnswer::Fetch(_)) => Kind::Away,
            },
            _ => Kind::Unusable,
        };
        Self { retry_after: told.lock().take(), is_without_account, ..Self::new(kind, error) }
    }
}

/// Renewals are earlier by up to this share of a certificate's life, so that many gateways do not renew at once.
const EARLIER: f64 = 0.05;

/// Pauses if the authority does not answer. Asking it again costs it little.
const AWAY: BackOff = BackOff { first: Duration::from_secs(5), longest: Duration::from_secs(600) };
/// Pauses after refusals. Authorities allow only a few refused orders an hour.
const REFUSED: BackOff = BackOff { first: Duration::from_secs(300), longest: Duration::from_secs(6 * 3600) };
/// The longest pause that the authority can ask for: the longest window of its limits.
pub(super) const LONGEST: Duration = Duration::from_secs(7 * 86_400);

/// Two thirds of the certificate's life, or earlier by up to 5 % of it; `jitter`, from 0 to 1, chooses.
pub(super) fn renewal(not_before: Time, not_after: Time, jitter: f64) -> Time {
    let life = Duration::from_micros(not_after.micros_since(not_before));
    not_before.after((life / 3 * 2).saturating_sub(life.mul_f64(EARLIER * jitter.clamp(0.0, 1.0))))
}

/// The pause after this many failures in a row, the last of this kind. `jitter`, from 0 to 1, shortens it by up to a fifth,
/// but never below what the authority asks for (RFC 8555, section 6.6).
pub(super) fn pause(kind: Kind, failures: u32, retry_after: Option<Duration>, jitter: f64) -> Duration {
    let back_off = if kind == Kind::Away { AWAY } else { REFUSED };
    let pause = back_off.pause(failures).mul_f64(1.0 - 0.2 * jitter.clamp(0.0, 1.0));
    pause.max(retry_after.unwrap_or_default().min(LONGEST))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DAY: u64 = 86_400_000_000;

    #[test]
    fn each_kind_has_its_place() {
        assert!(Kind::ALL.iter().enumerate().all(|(place, kind)| *kind as usize == place));
    }

    proptest! {
        #[test]
        fn renewals_come_after_half_of_the_life_and_leave_a_third(begins: u32, life in 1_000_000..1000 * DAY, jitter in 0.0..=1.0) {
            let (from, to) = (u64::from(begins), u64::from(begins) + life);
            let at = renewal(Time::from_micros(from), Time::from_micros(to), jitter).micros();
            prop_assert!(at >= from + life / 2 && to - at >= life / 3, "{from} {at} {to}");
        }

        #[test]
        fn pauses_are_bounded_and_keep_to_what_is_asked_for(failures in 1..u32::MAX, asked: u64, jitter in 0.0..=1.0) {
            for kind in Kind::ALL {
                let alone = pause(kind, failures, None, jitter);
                prop_assert!((Duration::from_secs(4)..=Duration::from_secs(6 * 3600)).contains(&alone));
                let told = pause(kind, failures, Some(Duration::from_secs(asked)), jitter);
                prop_assert!(told >= alone && told >= Duration::from_secs(asked).min(LONGEST) && told <= LONGEST);
            }
        }
    }

    #[test]
    fn ninety_days_are_renewed_after_sixty_at_the_latest() {
        let (begin, end) = (Time::from_micros(0), Time::from_micros(90 * DAY));
        let days = [0.0, 0.5, 1.0].map(|jitter| renewal(begin, end, jitter).micros() / (DAY / 100));
        assert_eq!(days, [6000, 5775, 5550]);
        // A certificate that ends before it begins is renewed at once.
        assert_eq!(renewal(Time::from_micros(9), Time::from_micros(3), 1.0), Time::from_micros(9));
    }

    #[test]
    fn an_answer_that_is_too_large_is_as_large_when_it_is_asked_for_again() {
        let kind = |error| OrderFailure::of(&NoAnswer::Fetch(error).into(), &RetryAfter::default()).kind;
        assert_eq!(kind(FetchError::TooLarge(1 << 18)), Kind::Unusable);
        assert_eq!(kind(FetchError::TimedOut(Duration::from_secs(1))), Kind::Away);
    }

    #[test]
    fn refused_orders_are_repeated_less_often_than_others() {
        let seconds = |kind| [1, 2, 3, 99].map(|failures| pause(kind, failures, None, 0.0).as_secs());
        assert_eq!(seconds(Kind::Away), [5, 10, 20, 600]);
        assert_eq!(seconds(Kind::Refused), [300, 600, 1200, 6 * 3600]);
    }
}
