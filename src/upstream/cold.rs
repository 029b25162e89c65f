//! Futures that most requests do not need, behind a pointer.

use std::pin::Pin;

/// The same future, of whose room and code the function that awaits it has none.
pub(super) fn cold<'a, T>(future: impl Future<Output = T> + 'a) -> Pin<Box<dyn Future<Output = T> + 'a>> {
    Box::pin(future)
}
