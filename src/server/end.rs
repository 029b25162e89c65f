//! When and why the gateway ends a connection: one rule for both protocols.

/// When a connection has to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// After the requests in flight, and those that have come and are not read yet.
    AfterRequest,
    /// At once, for this reason.
    Now(CloseReason),
}

/// Why a connection ends at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CloseReason {
    /// The head of a request was not complete in time.
    SlowHead,
    /// No request came for too long.
    Idle,
    /// The client does not read what is sent to it.
    NotReading,
    /// The client has closed the connection.
    Gone,
}

/// What is left to do on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Work {
    /// Whether a request has begun to come or is in flight, or a response is not sent completely.
    pub(super) is_busy: bool,
    /// Whether bytes have come that nobody has looked at. They may be a request.
    pub(super) is_unread: bool,
    /// Whether the client may still send a request that it could not know to be unwanted, and is waited for.
    pub(super) is_expected: bool,
}

/// What becomes of a connection next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// It goes on.
    GoOn,
    /// It goes on until what has come is done. The client is told to send no more requests here.
    Finish,
    /// It ends, for this reason.
    Close(CloseReason),
}

/// What becomes of a connection that has to end as `end` says, with so much left to do, which is only asked for where it
/// matters. A connection that ends after its requests never ends before them.
pub(super) fn step(end: Option<End>, work: impl FnOnce() -> Work) -> Step {
    match end {
        None => Step::GoOn,
        Some(End::Now(reason)) => Step::Close(reason),
        Some(End::AfterRequest) => match work() {
            Work { is_busy: true, .. } => Step::Finish,
            Work { is_unread: true, .. } | Work { is_expected: true, .. } => Step::GoOn,
            Work { is_busy: false, is_unread: false, is_expected: false } => Step::Close(CloseReason::Idle),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REASONS: [CloseReason; 4] =
        [CloseReason::SlowHead, CloseReason::Idle, CloseReason::NotReading, CloseReason::Gone];

    #[test]
    fn a_connection_ends_after_its_work_or_at_once() {
        for bits in 0..8 {
            let work = Work { is_busy: bits & 1 > 0, is_unread: bits & 2 > 0, is_expected: bits & 4 > 0 };
            let step_of = |end| step(end, || work);
            assert_eq!(step_of(None), Step::GoOn, "{work:?}");
            for reason in REASONS {
                assert_eq!(step_of(Some(End::Now(reason))), Step::Close(reason), "{work:?}");
            }
            let after = step_of(Some(End::AfterRequest));
            assert_eq!(after == Step::Finish, work.is_busy, "{work:?}");
            assert_eq!(matches!(after, Step::Close(_)), bits == 0, "{work:?}");
        }
    }

    #[test]
    fn what_is_left_to_do_is_asked_for_only_where_it_matters() {
        for end in [None].into_iter().chain(REASONS.map(|reason| Some(End::Now(reason)))) {
            step(end, || panic!("to look for bytes takes a system call"));
        }
    }
}
