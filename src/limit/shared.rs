//! What only a store needs that several gateways share.
//!
//! A store that belongs to one gateway has the only copy of every cell. Of a shared one each gateway has a copy, and others
//! count the same keys at the same time. How a gateway learns what they have counted, and tells them what it has counted
//! itself, depends on the kind of state:
//!
//! - Sliding windows and windows of the calendar are counters. Gateways add to the same ones, and need not know what the
//!   others add. [`Cell::counts_mut`], [`Cell::fill`] and [`Cell::correct`] are for them.
//! - The state of every other strategy is more than a sum, so it is read and replaced as a whole, in the form of
//!   [`Cell::save`] and [`Cell::restore`], or an [`Operation`] is appended to it. The functions with `whole` in their names
//!   change nothing but that.
//!
//! A charge may have to be counted again in a state that another gateway has written, or taken back from it, so a
//! [`Reservation`] tells where it was counted. Where several gateways migrate what they share after a reload,
//! [`Limit::raise`] adds only what was not migrated yet.
//!
//! Counters that are saved to a file have the same encoding.
//!
//! [`Cell::counts_mut`]: super::Cell::counts_mut
//! [`Cell::fill`]: super::Cell::fill
//! [`Cell::correct`]: super::Cell::correct
//! [`Cell::save`]: super::Cell::save
//! [`Cell::restore`]: super::Cell::restore
//! [`Reservation`]: super::Reservation
//! [`Limit::raise`]: super::Limit::raise

mod counters;
mod whole;
mod operations;
mod encoding;

pub use encoding::Restored;
pub use operations::{Attempt, Operation, OperationGroup, Writing, set_back};

#[cfg(test)]
pub(super) use {encoding::VERSION, operations::MOST_GIVEN_BACK};
