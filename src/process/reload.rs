//! Reloads: a new configuration is read and built in a thread of its own, one at a time and with a time limit.

use std::future::pending;
use std::time::Duration;

use crate::admin::{ReloadAnswer, ReloadResult};
use crate::base::threads::Background;
use crate::config::overrides::Changes;
use crate::config::{Recounted, ReloadError};

/// A million overrides are read and built within some seconds, so a reload that takes longer than this waits for a disk or a
/// server that does not answer.
pub(super) const LIMIT: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// Somebody wants it, or its files have changed.
    Asked,
    Poll,
}

/// Reloads, of which at most one runs. Its result is a `T`, or the reason why it is refused.
pub(super) struct Reloads<T> {
    limit: Duration,
    current: Option<Background<Result<T, ReloadError>>>,
    /// The last one that took too long. Its thread may still hang.
    given_up: Option<Background<Result<T, ReloadError>>>,
    /// Whether another was requested meanwhile. The files may have changed since they were read.
    is_due: bool,
}

pub(super) struct Ended<T> {
    pub(super) result: Result<T, ReloadError>,
    /// Whether the caller has to begin another one.
    pub(super) is_due: bool,
}

impl<T: Send + 'static> Reloads<T> {
    pub(super) fn new(limit: Duration) -> Self {
        Self { limit, current: None, given_up: None, is_due: false }
    }

    /// Begins a reload, or remembers to begin one after the current one. `load` can call its argument to learn whether its
    /// result is still wanted. The error says why it cannot begin.
    pub(super) fn begin(
        &mut self,
        load: impl FnOnce(&dyn Fn() -> bool) -> Result<T, ReloadError> + Send + 'static,
    ) -> Result<(), ReloadError> {
        if self.current.is_some() {
            self.is_due = true;
            return Ok(());
        }
        if self.given_up.as_ref().is_some_and(Background::is_running) {
            // That thread hangs, and another one would hang, too. The number of threads must not grow.
            return Err("the files are still being read for an earlier reload".to_owned().into());
        }
        let begun = Background::start("reload", self.limit, load).map_err(|error| error.to_string())?;
        self.current = Some(begun);
        Ok(())
    }

    pub(super) fn is_running(&self) -> bool {
        self.current.is_some()
    }

    /// Waits for the end of the current reload; for ever if there is none.
    pub(super) async fn ended(&mut self) -> Ended<T> {
        let result = match &mut self.current {
            Some(current) => current.result().await,
            None => pending().await,
        };
        let ended = self.current.take();
        let result = result.unwrap_or_else(|missing| {
            self.given_up = ended;
            Err(format!("cannot read the files: {missing}").into())
        });
        Ended { result, is_due: std::mem::take(&mut self.is_due) }
    }
}

#[derive(Default)]
pub(super) struct Waiters {
    current: Vec<ReloadAnswer>,
    /// The file may have changed after the current reload has read it.
    next: Vec<ReloadAnswer>,
}

impl Waiters {
    /// While a reload `is_running`, the caller waits for the next one.
    pub(super) fn add(&mut self, answer: ReloadAnswer, is_running: bool) {
        if is_running { &mut self.next } else { &mut self.current }.push(answer);
    }

    pub(super) fn answer(&mut self, result: &ReloadResult) {
        for waiter in self.current.drain(..) {
            // The caller may have gone.
            let _ = waiter.send(result.clone());
        }
    }

    pub(super) fn advance(&mut self) {
        self.current = std::mem::take(&mut self.next);
    }
}

/// Logs which limits count in another way now, whether their counters are carried over, and how their overrides have
/// changed.
pub(super) fn tell(recounted: &[Recounted<'_>], overrides: &[(String, Changes)]) {
    for Recounted { limit, tier, changed, carried, anew } in recounted {
        if !carried.is_empty() {
            let rates = carried.join(", ");
            tracing::info!(limit, tier, changed, rates, "the counters of a limit are carried over");
        }
        if !anew.is_empty() {
            let rates = anew.join(", ");
            tracing::warn!(limit, tier, changed, rates, "the counters of a limit start anew");
        }
    }
    for (limit, Changes { added, removed, changed }) in overrides {
        tracing::info!(limit, added, removed, changed, "the overrides of a limit changed");
    }
}

pub(super) struct Polls {
    pub(super) cause: Cause,
    pub(super) last_refusal: Option<ReloadError>,
}

impl Polls {
    pub(super) fn new(last_refusal: Option<ReloadError>) -> Self {
        Self { cause: Cause::Asked, last_refusal }
    }

    /// Whether to report a refusal: a poll does not repeat what was already reported.
    pub(super) fn is_new(&mut self, cause: Cause, why: &ReloadError) -> bool {
        let is_known = cause == Cause::Poll && self.last_refusal.as_ref() == Some(why);
        self.last_refusal = Some(why.clone());
        !is_known
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Instant;

    use super::*;

    fn run<F: Future>(future: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
    }

    /// Begins a load that waits until the sender is dropped. Its result is whether it is still wanted then.
    fn begin_held(reloads: &mut Reloads<bool>) -> Sender<()> {
        let (go, told): (_, Receiver<()>) = channel();
        let load = move |is_wanted: &dyn Fn() -> bool| {
            let _ = told.recv();
            Ok(is_wanted())
        };
        reloads.begin(load).unwrap();
        go
    }

    #[test]
    fn a_reload_that_hangs_is_refused_and_no_other_thread_is_started() {
        run(async {
            let mut reloads = Reloads::new(Duration::from_millis(20));
            let go = begin_held(&mut reloads);
            let why = reloads.ended().await.result.unwrap_err().to_string();
            assert!(why.contains("within 20ms"), "{why}");
            for _ in 0..10 {
                let why = reloads.begin(|_| unreachable!("a second thread")).unwrap_err().to_string();
                assert!(why.contains("earlier reload"), "{why}");
            }
            drop(go);
            reloads.limit = Duration::from_secs(60);
            let end = Instant::now() + Duration::from_secs(20);
            while reloads.begin(|_| Ok(true)).is_err() {
                assert!(Instant::now() < end, "the thread does not end");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            assert_eq!(reloads.ended().await.result, Ok(true));
        });
    }

    #[test]
    fn a_reload_that_is_requested_during_another_follows_it() {
        run(async {
            let mut reloads = Reloads::new(Duration::from_secs(60));
            let go = begin_held(&mut reloads);
            for _ in 0..3 {
                reloads.begin(|_| unreachable!("it is only remembered")).unwrap();
            }
            // Cancelling the wait loses nothing.
            assert!(tokio::time::timeout(Duration::from_millis(1), reloads.ended()).await.is_err());
            drop(go);
            let ended = reloads.ended().await;
            assert_eq!((ended.result, ended.is_due), (Ok(true), true));
            reloads.begin(|_| Ok(false)).unwrap();
            let ended = reloads.ended().await;
            assert_eq!((ended.result, ended.is_due), (Ok(false), false));
        });
    }

    #[test]
    fn a_reload_that_takes_too_long_is_not_wanted() {
        run(async {
            let mut reloads = Reloads::new(Duration::from_millis(1));
            let ((go, held), (tell, told)) = (channel::<()>(), channel());
            let load = move |is_wanted: &dyn Fn() -> bool| {
                let _ = held.recv();
                tell.send(is_wanted()).unwrap();
                Ok(())
            };
            reloads.begin(load).unwrap();
            assert!(reloads.ended().await.result.is_err());
            drop(go);
            assert!(!told.recv().unwrap());
        });
    }

    #[test]
    fn a_reload_that_panics_is_refused() {
        run(async {
            let mut reloads = Reloads::<()>::new(Duration::from_secs(60));
            reloads.begin(|_| panic!("as this test wants it")).unwrap();
            assert!(reloads.ended().await.result.unwrap_err().to_string().contains("unexpectedly"));
        });
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_poll_says_once_that_something_is_refused() {
        let mut polls = Polls::new(None);
        let refusals = ["a", "b"].map(|why| ReloadError::from(why.to_owned()));
        let mut told = |cause, index: usize| polls.is_new(cause, &refusals[index]);
        let poll = [
            (Cause::Poll, 0),
            (Cause::Poll, 0),
            (Cause::Asked, 0),
            (Cause::Poll, 0),
            (Cause::Poll, 1),
            (Cause::Poll, 0),
        ];
        assert_eq!(poll.map(|(cause, index)| told(cause, index)), [true, false, true, false, true, true]);
    }
}
