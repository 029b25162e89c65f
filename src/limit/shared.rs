//! What only a store needs that several gateways share.
//!
//! A store of one gateway has the only copy of every cell. Of a shared store each gateway has a copy, and other gateways
//! count the same keys at the same time. How gateways exchange counts depends on the kind of state:
//!
//! - Sliding windows and windows of the calendar are counters. Gateways add to the same ones, and need not know what others
//!   add: [`Cell::counts_mut`], [`Cell::fill`] and [`Cell::correct`].
//! - Every other state is more than a sum, so it is read and replaced as a whole ([`Cell::save`], [`Cell::restore`]), or
//!   an [`Operation`] is appended to it. The functions with `whole` in their names change nothing else.
//!
//! A charge may have to be counted again in a state that another gateway has written, or taken back from it, so a
//! [`Reservation`] tells where it was counted. After a reload several gateways may migrate the same counts, so
//! [`Limit::raise`] adds only what is missing.
//!
//! Counters in a file have the same encoding.
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
