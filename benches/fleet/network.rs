//! Round-trip times, and what they are taken from.

use std::time::Duration;

use fastrand::Rng;

/// A distribution of round-trip times: lognormal, which has the long tail that networks have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Network {
    pub(crate) name: &'static str,
    /// In microseconds.
    pub(crate) median: f64,
    pub(crate) p99: f64,
}

/// Between processes of one machine: what `cargo bench --bench fleet -- measure` prints.
pub(crate) const LOOPBACK: Network = Network { name: "one machine", median: 59.0, p99: 270.0 };

/// Inside one availability zone of EC2, by ping 0.26 ms on average and 0.35 ms at most in two of three zones:
/// <https://orensol.com/2009/05/24/network-latency-inside-and-across-amazon-ec2-availability-zones/>. The tail is an
/// assumption: four times the median.
pub(crate) const ZONE: Network = Network { name: "one zone", median: 260.0, p99: 1_000.0 };

/// Between availability zones of EC2: 0.94 to 1.13 ms on average in the same measurement; 0.82 ms on average and up to 12.3 ms
/// within five minutes in another one:
/// <https://lukasliesis.medium.com/what-is-aws-ec2-cross-availability-zones-network-lag-vs-inside-same-zone-827a4e06b6d7>.
pub(crate) const REGION: Network = Network { name: "one region", median: 1_000.0, p99: 4_000.0 };

/// Between neighbouring regions: within Europe 3 to 28 ms as Azure measured in October 2019,
/// <https://docs.microsoft.com/en-us/azure/networking/azure-network-latency>. The tail is an assumption.
pub(crate) const NEAR: Network = Network { name: "30 ms away", median: 30_000.0, p99: 36_000.0 };

/// Across a continent: within North America 5 to 72 ms in the same table. The tail is an assumption.
pub(crate) const FAR: Network = Network { name: "80 ms away", median: 80_000.0, p99: 92_000.0 };

impl Network {
    /// The `timeout` of gateways in this network: the default, or more where round trips need more.
    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_secs_f64(self.p99 * 4.0 / 1e6).max(Duration::from_millis(25))
    }

    /// A time in one direction: half a round trip.
    pub(crate) fn one_way(&self, random: &mut Rng) -> Duration {
        // 2.326 is the 99th percentile of the standard normal distribution.
        let sigma = (self.p99 / self.median).ln() / 2.326;
        let micros = self.median * (sigma * normal(random)).exp() / 2.0;
        Duration::from_secs_f64(micros / 1e6)
    }
}

/// A number of the standard normal distribution, by Box and Muller.
fn normal(random: &mut Rng) -> f64 {
    let (first, second) = (1.0 - random.f64(), random.f64());
    (-2.0 * first.ln()).sqrt() * (std::f64::consts::TAU * second).cos()
}
