//! How much of what a request took from a token bucket has not drained yet, for requests that may give it back.
//!
//! Let U be what is used of the bucket, and V what would be used if a request of so many units had not come at moment a.
//! Both drain at the same rate, so their difference D begins as these units, never rises, and falls only while V is 0.
//! D is never more than U. When V was 0 last, D was all of U, and it has stayed the same since; if V never was 0, D is
//! still all of the units. So at any later moment
//!
//! ```text
//! D = min(units, the least U since a)
//! ```
//!
//! If D is given back, exactly V remains: a bucket to which the request was never charged. If all of the units were given
//! back instead, that would create a token where some of them had drained before another request came.
//!
//! For another request that came at b and may give back as well, the least use since b is from then on that of V. Before
//! a that is U. After it, it is the least U less D: while V was above 0, D was what it is now, and when V was 0 last, U was
//! just D.

/// The most moments of a bucket that are followed one by one. If there are more, neighbours are followed together from then on,
/// by the least use since the first of them: their requests give back a little less, and never too much.
const MOST: usize = 4096;

/// For each open request of a bucket the least use since it came, in the order in which they came. It never falls from
/// one to the next: what is the least since a moment is no more than the least since a later one.
///
/// An open request of the bucket that is not in it has drained.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LowWater(Vec<Mark>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Mark {
    /// When the requests came, in microseconds since 1970; of several moments the first.
    moment: u64,
    /// How many of them are open.
    open: u32,
    /// Whether they came at several moments, all of them before the next mark.
    is_merged: bool,
    /// The least use since then, in units.
    least: u128,
}

impl LowWater {
    /// The size of its allocation, in bytes.
    pub(super) fn allocation(&self) -> usize {
        self.0.capacity() * size_of::<Mark>()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Notes that the bucket has drained to `used`, before something is added to it or taken from it at `moment`. Nothing has
    /// drained of the requests that came at that very moment.
    pub(super) fn note(&mut self, moment: u64, used: u128) {
        let before = self.0.iter_mut().rev().skip_while(|mark| mark.moment == moment);
        before.take_while(|mark| mark.least > used).for_each(|mark| mark.least = used);
        // Nothing can be given back of what was in the bucket before it was empty.
        let drained = self.0.partition_point(|mark| mark.least == 0);
        self.0.drain(..drained);
    }

    /// Begins to follow a request that came at `moment`, the latest so far, and whose units are in the bucket.
    pub(super) fn open(&mut self, moment: u64) {
        match self.0.last_mut() {
            Some(last) if last.moment == moment => last.open += 1,
            _ => {
                if self.0.len() >= MOST {
                    self.merge();
                }
                self.0.push(Mark { moment, open: 1, is_merged: false, least: u128::MAX });
            }
        }
    }

    /// Follows neighbours together, each time so many that half of the marks are free again at least.
    fn merge(&mut self) {
        let all: u64 = self.0.iter().map(|mark| u64::from(mark.open)).sum();
        let together = (4 * all).div_ceil(MOST as u64);
        self.0.dedup_by(|mark, before| {
            let is_near = u64::from(before.open) + u64::from(mark.open) <= together;
            if is_near {
                (before.open, before.is_merged) = (before.open + mark.open, true);
            }
            is_near
        });
    }

    /// Ends to follow a request that came at `opened`, when the bucket has drained to `used` at `moment`. Returns how many of
    /// its `units` are left to be given back. If it may have been charged to another bucket, so many are `certain` to be in
    /// this one if it is not followed here.
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

    /// Notes that so many units are taken from the bucket of which it is not known when they came.
    pub(super) fn lower(&mut self, given: u128) {
        self.0.iter_mut().for_each(|mark| mark.least = mark.least.saturating_sub(given));
    }
}
