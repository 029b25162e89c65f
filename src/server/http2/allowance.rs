//! What connections may keep in memory for clients or upstreams that do not read: each may keep a little, and more as long as
//! all connections of the process together do not keep too much.

use std::sync::atomic::{AtomicUsize, Ordering};

/// What all connections together may keep beyond the little that each may, in bytes.
#[derive(Debug)]
pub(super) struct Pool(AtomicUsize);

impl Pool {
    pub(super) const fn new(bytes: usize) -> Self {
        Self(AtomicUsize::new(bytes))
    }
}

/// One connection's share of a pool. Dropping it gives the share back.
#[derive(Debug)]
pub(super) struct Allowance {
    pool: &'static Pool,
    bytes: usize,
}

impl Allowance {
    pub(super) const fn new(pool: &'static Pool) -> Self {
        Self { pool, bytes: 0 }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Sets the share to `wanted`, or as much as the pool allows, and returns it.
    pub(super) fn set(&mut self, wanted: usize) -> usize {
        let left = &self.pool.0;
        if wanted <= self.bytes {
            left.fetch_add(self.bytes - wanted, Ordering::Relaxed);
            self.bytes = wanted;
        } else {
            let take = |left: usize| Some(left - left.min(wanted - self.bytes));
            let (Ok(before) | Err(before)) = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
            self.bytes += before.min(wanted - self.bytes);
        }
        self.bytes
    }
}

impl Drop for Allowance {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_together_have_no_more_than_the_pool() {
        static POOL: Pool = Pool::new(100);
        let (mut one, mut other) = (Allowance::new(&POOL), Allowance::new(&POOL));
        assert_eq!([one.set(60), other.set(60), one.set(70)], [60, 40, 60]);
        assert_eq!([one.set(30), other.set(60), other.set(90)], [30, 60, 70]);
        drop(one);
        assert_eq!((other.set(usize::MAX), other.bytes()), (100, 100));
        drop(other);
        assert_eq!(Allowance::new(&POOL).set(100), 100);
    }
}
