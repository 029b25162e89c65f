//! The part of a cell that few cells need: the log of its sliding logs, and how much of open reservations has not drained from its
//! token buckets. Its allocation is separate, so that the others do not pay for it.

use super::log::AdmissionLog;

/// The most moments of a bucket that are tracked one by one. Beyond that, neighbours are tracked together, by the least use
/// since the first of them: their requests give back a little less, and never too much.
const MOST_MARKS: usize = 4096;

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

/// Tells how much of a request's charge has not drained from a token bucket yet, for requests that may give it back.
///
/// Let U be the use of the bucket, and V its use if a request of so many units had not come at moment a. Both drain at the
/// same rate, so their difference D begins as these units, never rises, and falls only while V is 0. D is never more than U.
/// When V was last 0, D was all of U, and it has stayed the same since; if V never was 0, D is still all of the units. So at
/// any later moment
///
/// ```text
/// D = min(units, the least U since a)
/// ```
///
/// If D is given back, exactly V remains, as if the request had never been charged. Giving back all of the units would create
/// tokens if some of the units had drained before another request came.
///
/// For another request that came at b and may give back as well, the least use since b must then be that of V. Before a, that
/// is U. After a, it is the least U less D: while V was above 0, D was what it is now, and when V was last 0, U was just D.
///
/// So this has the least use since each open request of a bucket came, in the order in which they came. It never falls from one
/// to the next, since the least since a moment is at most the least since a later one. An open request without a mark has
/// drained.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LowWater(Vec<Mark>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Mark {
    /// In microseconds since 1970; for merged moments the first.
    moment: u64,
    open: u32,
    /// Whether the requests came at several moments, all of them before the next mark.
    is_merged: bool,
    /// The least use since `moment`, in units.
    least: u128,
}

impl LowWater {
    pub(super) fn allocation(&self) -> usize {
        self.0.capacity() * size_of::<Mark>()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Notes that the bucket has drained to `used`, before it is charged or given back to at `moment`. Requests that came at
    /// that very moment have not drained.
    pub(super) fn note(&mut self, moment: u64, used: u128) {
        let before = self.0.iter_mut().rev().skip_while(|mark| mark.moment == moment);
        before.take_while(|mark| mark.least > used).for_each(|mark| mark.least = used);
        // Nothing that was in the bucket before it was empty can be given back.
        let drained = self.0.partition_point(|mark| mark.least == 0);
        self.0.drain(..drained);
    }

    /// Begins to track a request that came at `moment`, the latest so far, and whose units are in the bucket.
    pub(super) fn open(&mut self, moment: u64) {
        match self.0.last_mut() {
            Some(last) if last.moment == moment => last.open += 1,
            _ => {
                if self.0.len() >= MOST_MARKS {
                    self.merge();
                }
                self.0.push(Mark { moment, open: 1, is_merged: false, least: u128::MAX });
            }
        }
    }

    /// Tracks neighbours together, as many as are needed to free at least half of the marks.
    fn merge(&mut self) {
        let all: u64 = self.0.iter().map(|mark| u64::from(mark.open)).sum();
        let together = (4 * all).div_ceil(MOST_MARKS as u64);
        self.0.dedup_by(|mark, before| {
            let is_near = u64::from(before.open) + u64::from(mark.open) <= together;
            if is_near {
                (before.open, before.is_merged) = (before.open + mark.open, true);
            }
            is_near
        });
    }

    /// Ends tracking a request that came at `opened`, when the bucket has drained to `used` at `moment`. Returns how many of
    /// its `units` can be given back. If the request may have been charged to another bucket, `certain` are in this one if it
    /// is not tracked here.
    pub(super) fn close(&mut self, opened: u64, units: u128, certain: Option<u128>, moment: u64, used: u128) -> u128 {
        self.note(moment, used);
        let later = self.0.partition_point(|mark| mark.moment <= opened);
        let is_of = |mark: &Mark| if mark.is_merged { certain.is_none() } else { mark.moment == opened };
        let Some(at) = later.checked_sub(1).filter(|at| is_of(&self.0[*at])) else {
            let given = certain.unwrap_or(0).min(used);
            self.lower(given);
            return given;
        };
        let (earlier, later) = self.0.split_at_mut(at);
        let least = later[0].least;
        let given = units.min(least).min(used);
        earlier.iter_mut().for_each(|mark| mark.least = mark.least.min(least - given));
        later.iter_mut().for_each(|mark| mark.least -= given);
        later[0].open -= 1;
        if later[0].open == 0 {
            self.0.remove(at);
        }
        given
    }

    /// Notes that so many units, which came at an unknown time, are taken from the bucket.
    fn lower(&mut self, given: u128) {
        self.0.iter_mut().for_each(|mark| mark.least = mark.least.saturating_sub(given));
    }
}
