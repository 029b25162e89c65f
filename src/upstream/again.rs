//! Whether a request is sent again after an attempt, and where. No other file decides that.
//!
//! A server may get a request twice only if its method is idempotent (RFC 9110, section 9.2.2), or if the server has certainly
//! not processed it (RFC 9113, section 8.7).
//!
//! What decides is the reason for which the attempt has ended, the method, what is left of the body, and what the
//! client has got. It is pure, so a test goes through all combinations.

/// How an attempt to send a request has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// There is no connection to the server, so nothing was sent.
    NotConnected,
    /// The server has certainly not processed the request: it says so, or its connection had ended before.
    NotProcessed,
    /// A connection that had carried other requests ended before a byte of a response came. The server may have closed it
    /// before the request came.
    Stale,
    /// Nobody knows whether the server has processed the request.
    Unknown,
    /// There is a response, with a status after which the configuration wants another attempt.
    Listed,
    /// There is a response for the client, or the failure is not the server's.
    Final,
}

/// What is known of a request after an attempt.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "five independent properties of a request")]
pub(super) struct Situation {
    pub(super) is_idempotent: bool,
    /// Whether all of its body can be sent, although some of it may have been sent.
    pub(super) has_whole_body: bool,
    /// Whether a part of a response was passed to the client.
    pub(super) has_response: bool,
    /// Whether it was sent to the same server for the second time already, to this one or to an earlier one.
    pub(super) is_repeated: bool,
    /// Whether there is an endpoint that was not tried and has room.
    pub(super) has_other: bool,
    /// How often it may still be sent to another endpoint although one may have processed it.
    pub(super) retries: u32,
}

/// Where a request is sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Again {
    /// To the same endpoint, over another connection.
    Same,
    /// To another endpoint, because this one has certainly not processed it.
    Other,
    /// To another endpoint, although this one may have processed it.
    Retry,
}

impl Ending {
    /// Whether the request is sent again, and where. `budget` is asked last, and only for a [`Again::Retry`].
    pub(super) fn again(self, situation: Situation, budget: impl FnOnce() -> bool) -> Option<Again> {
        let Situation { is_idempotent, has_whole_body, has_response, is_repeated, has_other, retries } = situation;
        if self == Self::Final || !has_whole_body || has_response {
            return None;
        }
        match self {
            Self::NotProcessed if !is_repeated => Some(Again::Same),
            Self::Stale if !is_repeated && is_idempotent => Some(Again::Same),
            Self::NotConnected | Self::NotProcessed => has_other.then_some(Again::Other),
            _ => (is_idempotent && has_other && retries > 0 && budget()).then_some(Again::Retry),
        }
    }

    /// Whether the server has certainly not processed the request.
    pub(super) fn is_unprocessed(self) -> bool {
        matches!(self, Self::NotConnected | Self::NotProcessed)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use proptest::prelude::*;

    use super::*;

    const ALL: [Ending; 6] =
        [Ending::NotConnected, Ending::NotProcessed, Ending::Stale, Ending::Unknown, Ending::Listed, Ending::Final];

    /// A request for which everything speaks.
    const BEST: Situation = Situation {
        is_idempotent: true,
        has_whole_body: true,
        has_response: false,
        is_repeated: false,
        has_other: true,
        retries: 1,
    };

    #[test]
    fn each_ending_has_its_rule() {
        let (same, other, retry) = (Some(Again::Same), Some(Again::Other), Some(Again::Retry));
        let post = Situation { is_idempotent: false, ..BEST };
        let repeated = |situation| Situation { is_repeated: true, ..situation };
        let alone = |situation| Situation { has_other: false, ..situation };
        for (situation, expected) in [
            (BEST, [other, same, same, retry, retry, None]),
            (repeated(BEST), [other, other, retry, retry, retry, None]),
            (alone(BEST), [None, same, same, None, None, None]),
            (alone(repeated(BEST)), [None; 6]),
            (Situation { retries: 0, ..BEST }, [other, same, same, None, None, None]),
            (post, [other, same, None, None, None, None]),
            (repeated(post), [other, other, None, None, None, None]),
            (alone(post), [None, same, None, None, None, None]),
            (Situation { has_whole_body: false, ..BEST }, [None; 6]),
            (Situation { has_response: true, ..BEST }, [None; 6]),
        ] {
            assert_eq!(ALL.map(|ending| ending.again(situation, || true)), expected, "{situation:?}");
            let over_budget = expected.map(|again| again.filter(|again| *again != Again::Retry));
            assert_eq!(ALL.map(|ending| ending.again(situation, || false)), over_budget, "{situation:?}");
        }
    }

    proptest! {
        #[test]
        fn nothing_is_processed_twice_that_must_not_be(
            ending in prop::sample::select(&ALL[..]), facts in any::<[bool; 5]>(), retries in 0_u32..3, allows in any::<bool>(),
        ) {
            let [is_idempotent, has_whole_body, has_response, is_repeated, has_other] = facts;
            let situation =
                Situation { is_idempotent, has_whole_body, has_response, is_repeated, has_other, retries };
            let asked = Cell::new(false);
            let again = ending.again(situation, || {
                asked.set(true);
                allows
            });
            prop_assert!(again.is_none() || (has_whole_body && !has_response && ending != Ending::Final));
            prop_assert!(again.is_none() || is_idempotent || ending.is_unprocessed(), "RFC 9110, section 9.2.2");
            prop_assert!(again != Some(Again::Same) || !is_repeated, "one server at most gets it twice");
            prop_assert!(matches!(again, None | Some(Again::Same)) || has_other);
            prop_assert_eq!(again == Some(Again::Retry), asked.get() && allows, "each retry is one of the budget");
        }
    }
}
