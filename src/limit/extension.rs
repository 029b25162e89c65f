//! The part of a cell that few cells need. It has an allocation of its own, so that the others do not pay for it.

use super::log::AdmissionLog;
use super::low_water::LowWater;

/// What only cells with logs or with open reservations have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Extension {
    /// The log of all rates that are counted by one.
    pub(super) log: AdmissionLog,
    /// For each token bucket with open reservations: the place of its rate, and the least use since each reservation.
    pub(super) low_water: Vec<(usize, LowWater)>,
}

impl Extension {
    /// What is kept for the bucket at this place among the rates.
    pub(super) fn low_water(&mut self, place: usize) -> Option<&mut LowWater> {
        self.low_water.iter_mut().find(|(of, _)| *of == place).map(|(_, low_water)| low_water)
    }

    /// The same, and if nothing is kept yet, something new.
    pub(super) fn low_water_or_new(&mut self, place: usize) -> &mut LowWater {
        let at = self.low_water.iter().position(|(of, _)| *of == place).unwrap_or_else(|| {
            self.low_water.push((place, LowWater::default()));
            self.low_water.len() - 1
        });
        &mut self.low_water[at].1
    }

    /// Whether nothing is in it.
    pub(super) fn is_empty(&self) -> bool {
        self.log.newest().is_none() && self.low_water.is_empty()
    }

    /// The sizes of its allocations, in bytes.
    pub(super) fn allocations(&self) -> impl Iterator<Item = usize> {
        let lists = self.low_water.iter().map(|(_, low_water)| low_water.allocation());
        let low_water = self.low_water.capacity() * size_of::<(usize, LowWater)>();
        [size_of::<Self>(), self.log.allocation(), low_water].into_iter().chain(lists)
    }
}
