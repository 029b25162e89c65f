//! Futures that most requests do not need, behind a pointer.

use std::pin::Pin;

/// Boxes a future, so that it adds neither size nor code to the function that awaits it.
pub(super) fn cold<'a, T>(future: impl Future<Output = T> + 'a) -> Pin<Box<dyn Future<Output = T> + 'a>> {
    Box::pin(future)
}
