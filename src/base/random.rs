//! Random numbers that need not be secret, without a system call for each: every worker has its own generator, seeded by the
//! system.
//!
//! Identifiers come from here. Any other choice, such as a server or a pause, may repeat without harm, so it uses `fastrand`'s
//! own generator. Secrets use the system's numbers.

use std::cell::RefCell;
use std::io;

use fastrand::Rng;

/// The generator of one worker. Whoever knows some of its numbers may be able to compute others.
///
/// It joins two generators of 64 bits: with one, identifiers of 128 bits would repeat among many workers.
#[derive(Debug)]
pub struct Random(RefCell<[Rng; 2]>);

impl Random {
    /// Seeded by the system. Fails when the system has no random numbers.
    pub fn seeded() -> io::Result<Self> {
        let seeded = || getrandom::u64().map(Rng::with_seed).map_err(io::Error::other);
        Ok(Self(RefCell::new([seeded()?, seeded()?])))
    }

    /// For something that needs its own numbers.
    #[must_use]
    pub fn fork(&self) -> Self {
        Self(RefCell::new(self.0.borrow_mut().each_mut().map(Rng::fork)))
    }

    pub fn bits(&self) -> u64 {
        let [one, other] = &mut *self.0.borrow_mut();
        one.u64(..) ^ other.u64(..)
    }
}
