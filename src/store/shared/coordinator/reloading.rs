//! Reloads of the configuration and changes of overrides, as the coordinator applies them. Nobody waits for them: each cell
//! continues from the counts before when it is used next.
//!
//! What is leased was charged to the counters of before, and nobody was admitted for it. So it is given back there at once,
//! and that is written before the cell which continues from these counters reads them: by the same exchange or an earlier
//! one. A lease that is being asked for by an exchange is given back as soon as it is granted. If its server does not answer,
//! or has more to do than one exchange takes, that may be too late; then a lease stays counted.

use super::Coordinator;
use crate::store::shared::message::Reload;
use crate::store::shared::sweep::Sweep;

impl Coordinator {
    /// Applies a reload or a change of overrides.
    pub(super) fn reload(&mut self, Reload { changes, now, asked }: &Reload) {
        let leased: Vec<_> = self.leases.iter().map(|(_, cell)| *cell).collect();
        for cell in leased {
            let cached = self.cells.at(cell);
            if changes.replace(cached.names.limit.name(), cached.key) {
                cached.withdraw_lease();
                self.queue(cell, true);
            }
        }
        if self.cells.reload(changes, *now) {
            self.sweep = Some(Sweep::new(*asked));
            self.on_timer(*asked, *now);
        }
    }
}
