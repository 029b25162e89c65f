//! The part of a cell that few cells need. Its allocation is separate, so that the others do not pay for it.

use super::log::AdmissionLog;
use super::low_water::LowWater;

/// Only cells with logs or open reservations have one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Extension {
    /// Shared by all sliding logs of the cell.
    pub(super) log: AdmissionLog,
    /// For each token bucket with open reservations: the index of its rate, and the least use since each reservation.
    pub(super) low_water: Vec<(usize, LowWater)>,
}

impl Extension {
    pub(super) fn low_water(&mut self, place: usize) -> Option<&mut LowWater> {
        self.low_water.iter_mut().find(|(of, _)| *of == place).map(|(_, low_water)| low_water)
    }

    pub(super) fn low_water_or_new(&mut self, place: usize) -> &mut LowWater {
        let at = self.low_water.iter().position(|(of, _)| *of == place).unwrap_or_else(|| {
            self.low_water.push((place, LowWater::default()));
            self.low_water.len() - 1
        });
        &mut self.low_water[at].1
    }

    pub(super) fn is_empty(&self) -> bool {
        self.log.newest().is_none() && self.low_water.is_empty()
    }

    pub(super) fn allocations(&self) -> impl Iterator<Item = usize> {
        let lists = self.low_water.iter().map(|(_, low_water)| low_water.allocation());
        let low_water = self.low_water.capacity() * size_of::<(usize, LowWater)>();
        [size_of::<Self>(), self.log.allocation(), low_water].into_iter().chain(lists)
    }
}
