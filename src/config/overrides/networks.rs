//! Finds the network of an address among many, with one binary search for each prefix length that occurs.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use super::Grant;

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Networks {
    groups: Vec<Group>,
}

/// The networks of one family with the same prefix length.
#[derive(Clone, Debug, PartialEq)]
struct Group {
    v6: bool,
    /// The bits of an address that are compared.
    mask: u128,
    /// Sorted by the bits of the network.
    networks: Box<[(u128, Grant)]>,
}

impl Networks {
    pub(super) fn new<S>(networks: HashMap<IpNet, Grant, S>) -> Self {
        let mut groups: BTreeMap<(bool, u8), Vec<(u128, Grant)>> = BTreeMap::new();
        for (network, grant) in networks {
            let (v6, bits) = bits(network.addr());
            groups.entry((v6, network.prefix_len())).or_default().push((bits, grant));
        }
        let group = |((v6, length), mut networks): ((bool, u8), Vec<(u128, Grant)>)| {
            networks.sort_unstable_by_key(|(bits, _)| *bits);
            let width = if v6 { 128 } else { 32 };
            let mask = u128::MAX.checked_shl(width - u32::from(length)).unwrap_or(0);
            Group { v6, mask, networks: networks.into() }
        };
        Self { groups: groups.into_iter().map(group).collect() }
    }

    /// The first network in the list that contains the address.
    pub(super) fn find(&self, address: IpAddr) -> Option<Grant> {
        let (v6, bits) = bits(address.to_canonical());
        let groups = self.groups.iter().filter(|group| group.v6 == v6);
        let found = groups.filter_map(|group| {
            let wanted = bits & group.mask;
            let at = group.networks.binary_search_by_key(&wanted, |(network, _)| *network).ok()?;
            group.networks.get(at).map(|(_, grant)| *grant)
        });
        found.min()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (IpNet, Grant)> {
        self.groups
            .iter()
            .flat_map(|group| group.networks.iter().filter_map(|(bits, grant)| Some((group.network(*bits)?, *grant))))
    }

    pub(super) fn len(&self) -> usize {
        self.groups.iter().map(|group| group.networks.len()).sum()
    }
}

impl Group {
    fn network(&self, bits: u128) -> Option<IpNet> {
        let (address, width) = match u32::try_from(bits) {
            Ok(v4) if !self.v6 => (IpAddr::from(Ipv4Addr::from(v4)), u32::BITS),
            _ => (IpAddr::from(Ipv6Addr::from(bits)), u128::BITS),
        };
        let length = width.saturating_sub(self.mask.trailing_zeros());
        IpNet::new(address, u8::try_from(length).ok()?).ok()
    }
}

fn bits(address: IpAddr) -> (bool, u128) {
    match address {
        IpAddr::V4(address) => (false, u128::from(u32::from(address))),
        IpAddr::V6(address) => (true, u128::from(address)),
    }
}
