//! What the configuration in force needs in the background, such as sources of keys and of quotas. One thread runs a
//! task for each. A reload that does not change a source does not interrupt its task.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::base::threads::local_runtime;

/// The pause before a task begins again that has ended unexpectedly, or that the system has refused.
const PAUSE: Duration = Duration::from_secs(1);

pub trait BackgroundTask: Send + Sync + 'static {
    /// The thread that runs all tasks.
    const THREAD: &'static str;
    /// For the log: what does not work while the system refuses the thread, or after a panic.
    const REFUSED: &'static str;

    fn has_task(&self) -> bool {
        true
    }

    /// The task is dropped when it is no longer in force. A task that ends by itself begins again.
    fn run(self: Arc<Self>) -> impl Future<Output = ()>;
}

/// Those in force, and the thread that runs their tasks.
pub struct InForce<T> {
    all: Mutex<Vec<Arc<T>>>,
    changed: Notify,
    is_running: AtomicBool,
}

impl<T> Default for InForce<T> {
    fn default() -> Self {
        Self { all: Mutex::default(), changed: Notify::new(), is_running: AtomicBool::new(false) }
    }
}

impl<T: BackgroundTask> InForce<T> {
    pub fn all(&self) -> Vec<Arc<T>> {
        self.all.lock().clone()
    }

    pub fn find(&self, is_wanted: impl Fn(&T) -> bool) -> Option<Arc<T>> {
        self.all.lock().iter().find(|one| is_wanted(one)).cloned()
    }

    /// Puts these in force instead of the previous ones, and returns those that are removed. The first ones with a task start
    /// the thread.
    pub fn replace(self: &Arc<Self>, all: Vec<Arc<T>>) -> Vec<Arc<T>> {
        let is_needed = all.iter().any(|one| one.has_task());
        let mut in_force = self.all.lock();
        let mut removed = mem::replace(&mut *in_force, all);
        removed.retain(|one| !in_force.iter().any(|kept| Arc::ptr_eq(kept, one)));
        drop(in_force);
        self.changed.notify_one();
        if is_needed && !self.is_running.swap(true, Ordering::Relaxed) {
            let this = self.clone();
            let run = move || loop {
                match local_runtime() {
                    Ok(runtime) => return runtime.block_on(this.run_all()),
                    Err(error) => tracing::error!(%error, again_after = ?PAUSE, "{}", T::REFUSED),
                }
                thread::sleep(PAUSE);
            };
            if let Err(error) = thread::Builder::new().name(T::THREAD.to_owned()).spawn(run) {
                let help = "the next reload tries again: send SIGHUP";
                tracing::error!(%error, help, "{}", T::REFUSED);
                self.is_running.store(false, Ordering::Relaxed);
            }
        }
        removed
    }

    /// Never ends.
    async fn run_all(&self) {
        let mut running: Vec<(Arc<T>, JoinSet<()>)> = Vec::new();
        loop {
            let all = self.all();
            // Dropping a task ends it.
            running.retain(|(one, _)| all.iter().any(|kept| Arc::ptr_eq(kept, one)));
            for one in all.into_iter().filter(|one| one.has_task()) {
                if !running.iter().any(|(known, _)| Arc::ptr_eq(known, &one)) {
                    let mut task = JoinSet::new();
                    task.spawn_local(run_again(one.clone()));
                    running.push((one, task));
                }
            }
            self.changed.notified().await;
        }
    }
}

async fn run_again<T: BackgroundTask>(one: Arc<T>) {
    loop {
        let mut task = JoinSet::new();
        task.spawn_local(one.clone().run());
        task.join_next().await;
        tracing::error!(again_after = ?PAUSE, "{}", T::REFUSED);
        sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// Reports when its task begins and ends.
    struct Told {
        name: &'static str,
        events: Sender<(&'static str, bool)>,
    }

    struct End(Arc<Told>);

    impl Drop for End {
        fn drop(&mut self) {
            self.0.events.send((self.0.name, false)).unwrap();
        }
    }

    impl BackgroundTask for Told {
        const THREAD: &'static str = "told";
        const REFUSED: &'static str = "cannot tell";

        fn has_task(&self) -> bool {
            !self.name.is_empty()
        }

        async fn run(self: Arc<Self>) {
            self.events.send((self.name, true)).unwrap();
            let _end = End(self);
            std::future::pending::<()>().await;
        }
    }

    /// Its first task panics.
    struct Fragile {
        is_broken: AtomicBool,
        begun: Sender<()>,
    }

    impl BackgroundTask for Fragile {
        const THREAD: &'static str = "fragile";
        const REFUSED: &'static str = "cannot begin";

        async fn run(self: Arc<Self>) {
            self.begun.send(()).unwrap();
            assert!(!self.is_broken.swap(false, Ordering::Relaxed), "as this test wants it");
            std::future::pending::<()>().await;
        }
    }

    #[test]
    fn a_task_that_panics_begins_again() {
        let (begun, told) = channel();
        let in_force = Arc::new(InForce::default());
        in_force.replace(vec![Arc::new(Fragile { is_broken: AtomicBool::new(true), begun })]);
        for _ in 0..2 {
            told.recv_timeout(Duration::from_secs(30)).unwrap();
        }
    }

    fn next(events: &Receiver<(&'static str, bool)>) -> (&'static str, bool) {
        events.recv_timeout(Duration::from_secs(30)).unwrap()
    }

    #[test]
    fn a_task_runs_as_long_as_it_is_in_force() {
        let (events, told) = channel();
        let new = |name| Arc::new(Told { name, events: events.clone() });
        let (first, second, third) = (new("first"), new("second"), new("third"));
        let in_force = Arc::new(InForce::default());
        in_force.replace(vec![new("")]);
        assert!(!in_force.is_running.load(Ordering::Relaxed), "nothing needs a thread");
        in_force.replace(vec![first.clone(), new(""), second.clone()]);
        assert_eq!([next(&told), next(&told)], [("first", true), ("second", true)]);
        // What stays in force goes on, and does not begin again.
        in_force.replace(vec![second, third]);
        assert_eq!([next(&told), next(&told)], [("first", false), ("third", true)]);
        in_force.replace(vec![first]);
        let mut ended = [next(&told), next(&told)];
        ended.sort_unstable();
        assert_eq!((ended, next(&told)), ([("second", false), ("third", false)], ("first", true)));
        assert!(in_force.find(|one| one.name == "first").is_some());
        assert!(in_force.find(|one| one.name == "second").is_none());
    }
}
