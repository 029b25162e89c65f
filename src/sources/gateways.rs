//! How many gateways share the limits of a store in memory: a number of the configuration, or one for each address of a name. No
//! request waits for a lookup. While lookups fail or return no address, the last number is used.

use std::io;
use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval_at};

use crate::base::threads::local_runtime;
use crate::config::Share;
use crate::net::Names;

/// How often the name in force is looked up, and the longest wait for an answer. The rest of 5 s is for applying a change, so
/// that it takes effect within 5 s.
const LOOK_UP_EVERY: Duration = Duration::from_millis(4500);
/// How long a start or a reload waits for the first answer.
const FIRST_LIMIT: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub struct Gateways(Names);

impl Default for Gateways {
    fn default() -> Self {
        Self(Names::new("the gateways"))
    }
}

impl Gateways {
    /// At least 1; 1 if no lookup of the name has ever succeeded.
    pub fn number(&self, share: Option<&Share>) -> u64 {
        match share {
            Some(Share::Gateways(gateways)) => *gateways,
            Some(Share::Name(name)) => count(&self.0.known(name), is_own),
            None => 1,
        }
    }

    /// The name whose addresses are the gateways, if no address was ever found.
    pub fn unknown<'s>(&self, share: Option<&'s Share>) -> Option<&'s str> {
        match share {
            Some(Share::Name(name)) if self.0.known(name).is_empty() => Some(name),
            Some(Share::Name(_) | Share::Gateways(_)) | None => None,
        }
    }

    /// Looks up a name that was never found. Blocks until there is an answer, for at most 2 s. Fails when the system refuses a
    /// timer.
    pub fn look_up_first(&self, share: Option<&Share>) -> io::Result<()> {
        if let Some(name) = self.unknown(share) {
            local_runtime()?.block_on(self.0.look_up_within(name, FIRST_LIMIT));
        }
        Ok(())
    }

    /// Looks up the name in force again and again, and calls `looked_up` after each lookup. Never returns.
    pub async fn watch(&self, in_force: impl Fn() -> Option<Share>, looked_up: impl Fn()) {
        let mut ticks = interval_at(Instant::now() + LOOK_UP_EVERY, LOOK_UP_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if let Some(Share::Name(name)) = in_force() {
                self.0.look_up_within(&name, LOOK_UP_EVERY).await;
                looked_up();
            }
        }
    }

    /// The number of failed lookups.
    pub fn failures(&self) -> u64 {
        self.0.failures.get()
    }

    /// Forgets all other names.
    pub fn keep_only(&self, share: Option<&Share>) {
        self.0.retain(|name| matches!(share, Some(Share::Name(wanted)) if wanted == name));
    }
}

/// How many gateways have these addresses, which are unique. Only addresses of one family count, since a gateway may have one
/// of each. A gateway that has none of the addresses, because it is new or not ready, adds itself.
fn count(addresses: &[IpAddr], is_own: impl Fn(IpAddr) -> bool) -> u64 {
    let has_v4 = addresses.iter().any(IpAddr::is_ipv4);
    let counted = || addresses.iter().copied().filter(|address| address.is_ipv4() == has_v4);
    counted().count() as u64 + u64::from(!counted().any(is_own))
}

/// Whether an address belongs to this machine or container: no other address can be bound. No packet is sent.
fn is_own(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn addresses_of_one_family_are_counted() {
        let is_first =
            |address: IpAddr| address == addresses(&["10.0.0.1"])[0] || address == addresses(&["fd00::1"])[0];
        for (listed, expected) in [
            (&[][..], 1),
            (&["10.0.0.1"], 1),
            (&["10.0.0.2"], 2),
            (&["10.0.0.1", "10.0.0.2", "10.0.0.3"], 3),
            (&["10.0.0.2", "10.0.0.3"], 3),
            (&["fd00::1", "fd00::2"], 2),
            (&["fd00::2", "fd00::3"], 3),
            (&["10.0.0.1", "fd00::1"], 1),
            (&["10.0.0.1", "10.0.0.2", "fd00::1", "fd00::2", "fd00::3"], 2),
            (&["10.0.0.2", "fd00::1"], 2),
        ] {
            assert_eq!(count(&addresses(listed), is_first), expected, "{listed:?}");
        }
    }

    #[test]
    fn only_addresses_of_this_machine_are_its_own() {
        for (address, expected) in
            [("127.0.0.1", true), ("127.0.0.9", true), ("203.0.113.1", false), ("2001:db8::1", false), ("::1", true)]
        {
            // Some machines have no IPv6.
            if address != "::1" || UdpSocket::bind("[::1]:0").is_ok() {
                assert_eq!(is_own(address.parse().unwrap()), expected, "{address}");
            }
        }
    }

    #[test]
    fn a_number_of_the_configuration_needs_no_lookup() {
        let gateways = Gateways::default();
        assert_eq!(gateways.number(None), 1);
        assert_eq!(gateways.number(Some(&Share::Gateways(7))), 7);
        assert_eq!(gateways.unknown(Some(&Share::Gateways(7))), None);
    }

    #[test]
    fn a_name_that_is_not_found_is_one_gateway() {
        let (gateways, name) = (Gateways::default(), "no such name");
        let share = Share::Name(name.to_owned());
        gateways.look_up_first(Some(&share)).unwrap();
        assert_eq!((gateways.number(Some(&share)), gateways.unknown(Some(&share))), (1, Some(name)));
        assert_eq!(gateways.failures(), 1);
    }
}
