//! Random numbers that need not be secret, without a system call for each: every worker has its own generator, which the
//! system seeds.
//!
//! Identifiers come from here. A choice, such as that of a server or of a pause, repeats without harm, so it takes `fastrand`'s
//! own generator. What must not be guessed takes the system's numbers.

use std::cell::RefCell;
use std::io;

use fastrand::Rng;

/// The generator of one worker. Who knows some of its numbers may be able to compute others.
///
/// It joins two that have 64 bits each: with one, identifiers of 128 bits would repeat among many workers.
#[derive(Debug)]
pub struct Random(RefCell<[Rng; 2]>);

impl Random {
    /// A generator with a seed of the system.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub fn seeded() -> io::Result<Self> {
        let seeded = || getrandom::u64().map(Rng::with_seed).map_err(io::Error::other);
        Ok(Self(RefCell::new([seeded()?, seeded()?])))
    }

    /// Another generator, for something that needs numbers of its own.
    #[must_use]
    pub fn fork(&self) -> Self {
        Self(RefCell::new(self.0.borrow_mut().each_mut().map(Rng::fork)))
    }

    /// The next 64 bits.
    pub fn bits(&self) -> u64 {
        let [one, other] = &mut *self.0.borrow_mut();
        one.u64(..) ^ other.u64(..)
    }
}
