//! How long a client is waited for that may not know yet that its connection ends.

use std::pin::Pin;
use std::task::Context;
use std::time::Duration;

use tokio::time::{Sleep, sleep};

/// A request that was sent before the client knew comes within this time, unless the client is very far away.
const LONGEST: Duration = Duration::from_secs(1);

/// It begins when it is first asked for, so that connections that do not end have no timer.
#[derive(Default)]
pub(super) struct Patience(Option<Pin<Box<Sleep>>>);

impl Patience {
    /// Whether the client is still waited for. If it is, the task is woken when that ends.
    pub(super) fn lasts(&mut self, cx: &mut Context<'_>) -> bool {
        self.0.get_or_insert_with(|| Box::pin(sleep(LONGEST))).as_mut().poll(cx).is_pending()
    }

    /// The next wait has the whole time.
    pub(super) fn begin_anew(&mut self) {
        self.0 = None;
    }
}
