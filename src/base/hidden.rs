//! Secrets in what is printed for debugging.

use std::fmt;

/// A secret, which `Debug` does not show.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Hidden<T>(pub T);

impl<T> fmt::Debug for Hidden<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}
