//! Shows the progress of a simulation on a terminal.

use std::io::{self, IsTerminal};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

const STEP: u64 = 4_096;

/// A bar on standard error, if that is a terminal.
pub(super) struct Progress {
    bar: Option<ProgressBar>,
    requests: u64,
}

impl Progress {
    /// `None` if the number of bytes is not known.
    pub(super) fn start(bytes: Option<u64>) -> Self {
        let bar = io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(bytes, ProgressDrawTarget::stderr());
            let template = match bytes {
                Some(_) => "{bar:40} {percent:>3} %  {binary_bytes_per_sec}  {eta} left",
                None => "{spinner} {binary_bytes} read  {binary_bytes_per_sec}",
            };
            // With an invalid template, the library uses its own bar.
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
            bar
        });
        Self { bar, requests: 0 }
    }

    /// After one more decided request. `bytes` says how many bytes were read for so many requests.
    pub(super) fn step(&mut self, bytes: impl FnOnce(u64) -> u64) {
        self.requests += 1;
        if let Some(bar) = self.bar.as_ref().filter(|_| self.requests.is_multiple_of(STEP)) {
            bar.set_position(bytes(self.requests));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
