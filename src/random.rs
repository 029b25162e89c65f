//! Random numbers that need not be secret, without a system call for each: every worker has its own generator, which the
//! system seeds.

use std::cell::RefCell;
use std::io;

use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};

/// The generator of one worker. Who knows some of its numbers may be able to compute others.
#[derive(Debug)]
pub struct Random(RefCell<SmallRng>);

impl Random {
    /// A generator with a seed of the system.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub fn seeded() -> io::Result<Self> {
        let mut seed = [0; 32];
        getrandom::fill(&mut seed).map_err(io::Error::other)?;
        Ok(Self(RefCell::new(SmallRng::from_seed(seed))))
    }

    /// Another generator, for something that needs numbers of its own.
    #[must_use]
    pub fn fork(&self) -> Self {
        Self(RefCell::new(SmallRng::from_rng(&mut *self.0.borrow_mut())))
    }

    /// The next 64 bits.
    pub fn bits(&self) -> u64 {
        self.0.borrow_mut().next_u64()
    }
}
