//! Computes several times a second, on one thread, what is shed from the measurements of the workers.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};

use super::cpu::CpuUse;
use super::{Counts, Meter, Shedding};
use crate::base::clock::{self, Monotonic};
use crate::upstream::UpstreamLoad;
use crate::upstream::overload::{Admission, Level, RANKS, Window};

const WINDOW: Duration = Duration::from_millis(250);

/// Computes the levels of all upstreams that shed requests. It has to run on a thread's local runtime.
#[derive(Debug)]
pub struct ShedWatch {
    cpu: CpuUse,
    /// The decisions about the processors, and their smoothed use.
    own: (Admission, f64),
    upstreams: Vec<Followed>,
    is_busy: bool,
}

#[derive(Debug)]
struct Followed {
    meter: Arc<Meter>,
    admission: Admission,
    before: Measured,
    /// How many requests had been shed when shedding began; `None` if nothing is shed.
    begun: Option<u64>,
}

#[derive(Debug)]
struct Measured {
    /// By rank.
    counts: Vec<Counts<u64>>,
    load: UpstreamLoad,
}

impl Measured {
    fn new(meter: &Meter, shedding: &Shedding) -> Self {
        let upstream = shedding.upstreams.iter().find(|upstream| upstream.config.name == meter.name);
        let load = upstream.map(|upstream| upstream.load()).unwrap_or_default();
        Self { counts: meter.counts(), load }
    }

    fn shed(&self) -> u64 {
        self.counts.iter().map(|counts| counts.shed).sum()
    }
}

impl ShedWatch {
    pub fn new(workers: usize) -> Self {
        Self { cpu: CpuUse::new(workers), own: (Admission::default(), 0.0), upstreams: Vec::new(), is_busy: false }
    }

    /// Follows the configuration in force. Never returns.
    pub async fn run(mut self, in_force: impl Fn() -> Option<Arc<Shedding>>) {
        let mut ticks = interval(WINDOW);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut before = Instant::now();
        loop {
            ticks.tick().await;
            let span = before.elapsed();
            before = Instant::now();
            match in_force() {
                Some(shedding) if !span.is_zero() => self.tick(&shedding, span),
                Some(_) => {}
                None => self.forget(),
            }
        }
    }

    /// Makes the next configuration with targets start afresh.
    fn forget(&mut self) {
        self.cpu.forget();
        (self.own, self.is_busy) = ((Admission::default(), 0.0), false);
        self.upstreams.clear();
    }

    fn tick(&mut self, shedding: &Shedding, span: Duration) {
        let meters = &shedding.meters;
        self.upstreams.retain(|followed| meters.iter().any(|meter| Arc::ptr_eq(meter, &followed.meter)));
        for meter in meters {
            if !self.upstreams.iter().any(|followed| Arc::ptr_eq(meter, &followed.meter)) {
                let (admission, before) = (Admission::default(), Measured::new(meter, shedding));
                self.upstreams.push(Followed { meter: meter.clone(), admission, before, begun: None });
            }
        }
        let (seconds, now) = (span.as_secs_f64(), clock::monotonic());
        let mut all = (Window { seconds, ..Window::default() }, vec![0.0; RANKS]);
        let mut levels = Vec::with_capacity(meters.len());
        let target = shedding.settings.latency.map(|latency| latency.as_secs_f64());
        for followed in &mut self.upstreams {
            let (window, arrived) = followed.window(shedding, seconds, now);
            all.0.arrived += window.arrived;
            all.0.admitted += window.admitted;
            all.1.iter_mut().zip(&arrived).for_each(|(sum, count)| *sum += count);
            let rate = followed.admission.observe_upstream(&window, target);
            levels.push(rate.map_or(Level::NONE, |rate| Level::for_share(&arrived, rate * seconds)));
            followed.tell(&window);
        }
        let own = self.own_level(shedding, &all, span);
        for (followed, level) in self.upstreams.iter().zip(levels) {
            followed.meter.set_level(level.max(own));
        }
    }

    /// The level of shedding because of the processors.
    fn own_level(&mut self, shedding: &Shedding, (window, arrived): &(Window, Vec<f64>), span: Duration) -> Level {
        let used = self.cpu.since(span);
        let (Some(target), Some(used)) = (shedding.settings.cpu, used) else {
            (self.own, self.is_busy) = ((Admission::default(), 0.0), false);
            return Level::NONE;
        };
        let (admission, smoothed) = &mut self.own;
        *smoothed = f64::midpoint(*smoothed, used);
        let rate = admission.observe_share(window, *smoothed / (f64::from(target) / 1000.0));
        let percent = |share: f64| format!("{:.0} %", share * 100.0);
        if self.is_busy != admission.is_limited() {
            self.is_busy = !self.is_busy;
            if self.is_busy {
                tracing::warn!(because = "cpu", used = percent(*smoothed), "shedding begins");
            } else {
                tracing::info!(because = "cpu", used = percent(*smoothed), "shedding ends");
            }
        }
        rate.map_or(Level::NONE, |rate| Level::for_share(arrived, rate * window.seconds))
    }
}

impl Followed {
    /// What happened in the last `seconds`, and the requests that arrived, by rank. What limits refuse does not count.
    fn window(&mut self, shedding: &Shedding, seconds: f64, now: Monotonic) -> (Window, Vec<f64>) {
        let is = Measured::new(&self.meter, shedding);
        let was = &self.before;
        let counts: Vec<_> = is.counts.iter().zip(&was.counts).map(|(is, was)| is.since(*was)).collect();
        let arrived: Vec<_> = counts.iter().map(|counts| counts.wanted()).collect();
        let admitted = counts.iter().map(|counts| counts.admitted).sum();
        let window = Window { arrived: arrived.iter().sum(), admitted, ..is.load.window(&was.load, seconds, now) };
        self.before = is;
        (window, arrived)
    }

    /// Logs when shedding begins and when it ends.
    fn tell(&mut self, window: &Window) {
        let shed = self.before.shed();
        let latency = Duration::from_secs_f64(self.admission.latency(window));
        match (self.admission.is_limited(), self.begun) {
            (true, None) => {
                let because = if window.full > 0.0 { "max_in_flight" } else { "latency" };
                let waiting = window.waiting.0;
                tracing::warn!(upstream = self.meter.name, because, ?latency, waiting, "shedding begins");
                self.begun = Some(shed);
            }
            (false, Some(begun)) => {
                let shed = shed - begun;
                tracing::info!(upstream = self.meter.name, shed, ?latency, "shedding ends");
                self.begun = None;
            }
            (true, Some(_)) | (false, None) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;
    use crate::config::Shed;

    #[test]
    fn a_configuration_without_targets_ends_all_that_was_measured() {
        let meter = Arc::new(Meter::new(String::new(), 1));
        let settings = Shed { cpu: Some(1), latency: None, status: StatusCode::SERVICE_UNAVAILABLE };
        let shedding = Shedding { settings, meters: vec![meter.clone()], upstreams: Vec::new() };
        let mut watch = ShedWatch::new(1);
        let level_after = |watch: &mut ShedWatch| {
            // Uses so much of a processor that the target is exceeded.
            let begun = std::time::Instant::now();
            while begun.elapsed() < Duration::from_millis(50) {
                meter.admits(0, 0).iter().for_each(|counts| counts.decided(true));
            }
            watch.tick(&shedding, begun.elapsed());
            meter.level()
        };
        assert_eq!(level_after(&mut watch), Level::NONE, "nothing is known yet");
        assert!(level_after(&mut watch) > Level::NONE);
        watch.forget();
        assert_eq!(level_after(&mut watch), Level::NONE, "this is the first measurement again");
        assert!(!watch.own.0.is_limited() && !watch.is_busy);
    }
}
