//! Round-trip times, with the sources of their measurements.

use std::time::Duration;

use fastrand::Rng;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Network {
    pub(crate) name: &'static str,
    /// The share of round trips that take at most so many microseconds, in ascending order from 0 to 1. Between two points the
    /// logarithm of the time rises evenly.
    points: &'static [(f64, f64)],
}

/// Between processes of one overloaded machine, as `cargo bench --bench fleet -- measure` prints it, less the 14 us that
/// Memcached takes.
pub(crate) const LOOPBACK: Network = Network {
    name: "one machine",
    points: &[(0.0, 14.0), (0.5, 37.0), (0.9, 58.0), (0.99, 393.0), (0.999, 6_989.0), (1.0, 9_000.0)],
};

/// Inside one availability zone of EC2, by ten pings in two of three zones: 0.20 ms at least, 0.26 ms on average, and 0.35 ms at
/// most (<https://orensol.com/2009/05/24/network-latency-inside-and-across-amazon-ec2-availability-zones/>). Ten pings say
/// nothing about the slowest, so the last twentieth is an assumption.
pub(crate) const ZONE: Network =
    Network { name: "one zone", points: &[(0.0, 200.0), (0.5, 260.0), (0.95, 350.0), (0.99, 450.0), (1.0, 2_000.0)] };

/// Between availability zones of EC2: 0.9 ms at least, 1.03 ms on average and 1.25 ms at most of ten in the same measurement; up
/// to 12.3 ms within five minutes in another one
/// (<https://lukasliesis.medium.com/what-is-aws-ec2-cross-availability-zones-network-lag-vs-inside-same-zone-827a4e06b6d7>).
pub(crate) const REGION: Network = Network {
    name: "between zones",
    points: &[(0.0, 890.0), (0.5, 1_030.0), (0.95, 1_250.0), (0.99, 2_000.0), (1.0, 12_300.0)],
};

/// Virtual machines of one Azure region in a bad night of 2015: 22 332 means of ten round trips each
/// (<https://hh360.user.srcf.net/blog/2015/09/azure-latency-pilot-study-part-2-aggregated-results/>).
pub(crate) const BAD: Network = Network {
    name: "a bad night",
    points: &[
        (0.0, 1_100.0),
        (0.25, 3_000.0),
        (0.5, 3_800.0),
        (0.75, 4_700.0),
        (0.9, 61_400.0),
        (0.95, 69_700.0),
        (0.99, 87_300.0),
        (1.0, 1_242_200.0),
    ],
};

/// Between neighbouring regions: within Europe 3 to 28 ms, measured by Azure in October 2019
/// (<https://docs.microsoft.com/en-us/azure/networking/azure-network-latency>). These are averages; the spread is that between
/// zones.
pub(crate) const NEAR: Network =
    Network { name: "28 ms away", points: &[(0.0, 27_800.0), (0.5, 28_000.0), (0.99, 29_000.0), (1.0, 39_300.0)] };

/// Across a continent: within North America 5 to 72 ms in the same table.
pub(crate) const FAR: Network =
    Network { name: "72 ms away", points: &[(0.0, 71_800.0), (0.5, 72_000.0), (0.99, 73_000.0), (1.0, 83_300.0)] };

impl Network {
    /// The `timeout` of gateways in this network: the default, or six round trips if these are longer. With `strict` a decision
    /// takes up to four: it waits for an exchange, reads, waits for another one, and is confirmed.
    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_secs_f64(self.round_trip(0.99) * 6.0 / 1e6).max(Duration::from_millis(25))
    }

    /// In seconds.
    pub(crate) fn mean(&self) -> f64 {
        (0..1_000).map(|part| self.round_trip((f64::from(part) + 0.5) / 1e3)).sum::<f64>() / 1e9
    }

    /// In milliseconds.
    pub(crate) fn median(&self) -> f64 {
        self.round_trip(0.5) / 1e3
    }

    pub(crate) fn one_way(&self, random: &mut Rng) -> Duration {
        Duration::from_secs_f64(self.round_trip(random.f64()) / 2e6)
    }

    /// The time in microseconds that this share of round trips does not exceed.
    fn round_trip(&self, share: f64) -> f64 {
        let above = self.points.partition_point(|(point, _)| *point <= share).clamp(1, self.points.len() - 1);
        let [(from, least), (until, most)] = [self.points[above - 1], self.points[above]];
        least * (most / least).powf((share - from) / (until - from))
    }
}
