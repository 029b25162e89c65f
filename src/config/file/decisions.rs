//! `[decisions]`: where other proxies ask, and what they are answered.

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use super::tls;
use crate::config::read::Section;
use crate::config::settings::decisions;
use crate::config::{Decisions, values};

/// Reads the section. Its address and the place of that go to `bound`.
pub(super) fn read(section: Section<'_>, bound: &mut Vec<(SocketAddr, Range<usize>)>) -> Option<Decisions> {
    let field = section.required(&decisions::listen, "add its address: listen = \"127.0.0.1:9902\"");
    let listen = field.as_ref().and_then(|field| field.parse(values::socket));
    let tls = section.table(&decisions::tls).and_then(tls::read);
    let refused_status = section.read(&decisions::refused_status);
    section.close();
    let (listen, field) = (listen?, field?);
    let client_ca = tls.as_ref().and_then(|tls| tls.client_ca.as_ref());
    if !is_private(listen.ip()) && !client_ca.is_some_and(|client_ca| client_ca.is_required) {
        let help = "listen on a private address, or require certificates of those that ask: \
                    tls = { certificates = ..., client_ca = \"tls/proxies-ca.pem\" }";
        field.warn(format!("whoever can reach {listen} can use up the limits of others"), help);
    }
    bound.push((listen, field.span));
    Some(Decisions { listen, tls, refused_status })
}

/// Whether only this machine or a private network reaches the address (RFC 1918, RFC 3927, RFC 4193, RFC 4291).
fn is_private(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => address.is_loopback() || address.is_private() || address.is_link_local(),
        IpAddr::V6(address) => address.is_loopback() || address.is_unique_local() || address.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_that_only_their_owner_reaches_are_private() {
        for text in ["127.9.9.9", "10.0.0.1", "172.31.0.1", "192.168.1.1", "169.254.1.1", "::1", "fd00::1", "fe80::1"] {
            assert!(is_private(text.parse().unwrap()), "{text}");
        }
        for text in ["0.0.0.0", "172.32.0.1", "100.64.0.1", "192.0.2.1", "::", "2001:db8::1", "::ffff:192.0.2.1"] {
            assert!(!is_private(text.parse().unwrap()), "{text}");
        }
        assert!(is_private("::ffff:10.0.0.1".parse().unwrap()));
    }
}
