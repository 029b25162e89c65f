//! What few cells have besides their words, and is allocated apart.

use super::low_water::LowWater;
use super::moving::Log;

/// What few cells have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct More {
    /// Of the moving windows.
    pub(super) log: Log,
    /// Of the buckets with open reservations: the place of the rate, and the least use since each came.
    pub(super) low_water: Vec<(usize, LowWater)>,
}

impl More {
    /// Of the bucket at this place among the rates.
    pub(super) fn low_water(&mut self, place: usize) -> Option<&mut LowWater> {
        self.low_water.iter_mut().find(|(of, _)| *of == place).map(|(_, low_water)| low_water)
    }

    /// The sizes of its allocations, in bytes.
    pub(super) fn allocations(&self) -> impl Iterator<Item = usize> {
        let lists = self.low_water.iter().map(|(_, low_water)| low_water.allocation());
        let low_water = self.low_water.capacity() * size_of::<(usize, LowWater)>();
        [size_of::<Self>(), self.log.allocation(), low_water].into_iter().chain(lists)
    }
}
