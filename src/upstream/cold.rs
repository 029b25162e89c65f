//! Futures that most requests do not need, behind a pointer.

use std::pin::Pin;

/// A future whose room and code the function that awaits it need not have.
pub(super) type Cold<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// The same future behind a pointer.
pub(super) fn cold<'a, T>(future: impl Future<Output = T> + 'a) -> Cold<'a, T> {
    Box::pin(future)
}
