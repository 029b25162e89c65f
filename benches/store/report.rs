//! Prints medians over the rounds, and medians of the ratios to the plain way in the same round.

use super::latency::Latency;
use super::load::Measured;

#[derive(Default)]
pub(crate) struct Rounds {
    pub(crate) store: Vec<Measured>,
    pub(crate) plain: Vec<Measured>,
}

impl Rounds {
    fn ratio(&self, figure: impl Fn(&Measured) -> f64) -> f64 {
        median(self.store.iter().zip(&self.plain).map(|(store, plain)| figure(store) / figure(plain)))
    }

    /// CPU of a decision as a share of the plain way's.
    pub(crate) fn share(&self) -> f64 {
        self.ratio(|measured| measured.cpu)
    }

    pub(crate) fn print(&self, title: &str) {
        println!("\n{title}");
        println!(
            "{:8}{:>20}{:>20}{:>18}{:>14}{:>18}{:>10}",
            "", "decisions/s", "CPU us/decision", "min..max", "round trips", "memcached CPU us", "counted"
        );
        let speed = self.ratio(|measured| measured.speed);
        row("store", &self.store, speed, self.share(), None);
        row("plain", &self.plain, 1.0, 1.0, Some(3.0));
    }
}

/// The round trips are counted unless they are given.
fn row(name: &str, rounds: &[Measured], speed: f64, share: f64, round_trips: Option<f64>) {
    let of = |figure: fn(&Measured) -> f64| median(rounds.iter().map(figure));
    let cpus = || rounds.iter().map(|measured| measured.cpu);
    let (least, most) = (cpus().fold(f64::INFINITY, f64::min), cpus().fold(0.0, f64::max));
    println!(
        "{name:8}{:>20}{:>20}{:>18}{:>14.4}{:>18.2}{:>10}",
        format!("{:.0} ({speed:.2})", of(|measured| measured.speed)),
        format!("{:.2} ({share:.3})", of(|measured| measured.cpu)),
        format!("{least:.2}..{most:.2}"),
        round_trips.unwrap_or_else(|| of(|measured| measured.round_trips)),
        of(|measured| measured.memcached),
        format!("{:.1} %", of(|measured| measured.counted) * 100.0),
    );
}

pub(crate) fn latency(parts: &[(String, Vec<Latency>)]) {
    let parts = parts.iter().map(|(name, rounds)| {
        let middle = median(rounds.iter().map(|latency| latency.median));
        format!("{name} {middle:.0} ({:.0})", median(rounds.iter().map(|latency| latency.p99)))
    });
    println!("\none request at a time, median us (p99): {}", parts.collect::<Vec<_>>().join(", "));
}

pub(crate) fn bar(name: &str, most: u32, shares: &[f64]) -> String {
    let wanted = 1.0 / f64::from(most);
    let met = if shares.iter().all(|share| *share <= wanted) { "met" } else { "missed" };
    let shares: Vec<_> = shares.iter().map(|share| format!("{share:.3}")).collect();
    format!("{name} {} against 1/{most} = {wanted:.3}: {met}", shares.join(" and "))
}

fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_unstable_by(f64::total_cmp);
    let middle = figures.len() / 2;
    if figures.len() % 2 == 1 { figures[middle] } else { f64::midpoint(figures[middle - 1], figures[middle]) }
}
