//! The upstream connections of one worker that rest between requests.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use super::link::Link;

/// How often resting connections are looked at.
const TICK: Duration = Duration::from_secs(1);
/// After how many ticks of rest a connection is closed.
const LONGEST_REST: u64 = 60;
/// The most that rest for one server: beyond any use of one worker, and a bound after a burst.
const MOST_RESTING: usize = 512;

/// Resting connections by the id of their server, the one used last on top.
#[derive(Debug, Default)]
pub struct Pools {
    #[expect(clippy::vec_box, reason = "a link moves with every request: better its address than its buffers")]
    resting: RefCell<Vec<Vec<Box<Link>>>>,
    tick: Cell<u64>,
}

impl Pools {
    /// A connection to this server that is still open.
    pub(super) fn take(&self, server: usize) -> Option<Box<Link>> {
        let mut resting = self.resting.borrow_mut();
        let links = resting.get_mut(server)?;
        std::iter::from_fn(|| links.pop()).find(|link| link.is_quiet())
    }

    /// Gives a connection back after a whole response.
    pub(super) fn put(&self, server: usize, mut link: Box<Link>) {
        link.rested_at = self.tick.get();
        let mut resting = self.resting.borrow_mut();
        if resting.len() <= server {
            resting.resize_with(server + 1, Vec::new);
        }
        if resting[server].len() < MOST_RESTING {
            resting[server].push(link);
        }
    }

    /// Closes connections that have rested too long or that the server has closed, for ever.
    pub async fn watch(&self) {
        loop {
            tokio::time::sleep(TICK).await;
            self.tick.set(self.tick.get() + 1);
            for links in &mut *self.resting.borrow_mut() {
                links.retain(|link| self.tick.get() - link.rested_at < LONGEST_REST && link.is_quiet());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn closed_connections_are_not_handed_out_however_many() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let pools = Pools::default();
        for _ in 0..300 {
            let link = Link::connect("127.0.0.1", port).await.unwrap();
            drop(listener.accept().await.unwrap());
            pools.put(0, link);
        }
        // Time for the system to tell.
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(pools.take(0).is_none());
    }
}
