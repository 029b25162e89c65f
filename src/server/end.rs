//! When and why the gateway ends a connection.

/// When a connection has to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// After the request in flight, or after one that has come and is not read yet.
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
