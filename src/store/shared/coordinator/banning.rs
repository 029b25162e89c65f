//! Decisions that look at whether a key is banned.
//!
//! That is a cell of its own, which hardly ever changes. It was mostly read less than a second ago, and then it is not read
//! again. Otherwise it is read by the exchange that the decision needs anyway: what is charged meanwhile is provisional, and
//! given back if the key turns out to be banned.

use super::Coordinator;
use crate::store::shared::cells::Place;
use crate::store::shared::provisional::Standing;

impl Coordinator {
    /// Tells a decision whether its key is banned, if it is charged already and waits for that: the cell was just read.
    pub(super) fn look_at_ban(&mut self, cell: Place, number: u64) {
        let Some(decision) = self.waiting.get_mut(number) else { return };
        let Some(index) = decision.places.iter().position(|place| *place == cell) else { return };
        let (cached, ask) = (self.cells.peek(cell), &decision.asks[index]);
        let is_admitted = ask.limit.admits(&cached.cell, cached.now, ask.need);
        if let Some(standing) = decision.standings.get_mut(index) {
            *standing = if is_admitted { Standing::Final(true) } else { Standing::Rejected };
        }
    }
}
