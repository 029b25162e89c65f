//! `listen` of `[server]`: where clients connect, and where TLS is spoken.

use std::net::SocketAddr;
use std::ops::Range;

use crate::config::read::Field;
use crate::config::{Listener, values};

/// The most listeners.
const MOST: usize = 64;
const DEFAULT: Listener =
    Listener { address: SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 8080), tls: false };

/// Reads the value, or gives the default without one. A listener that does not say what it speaks speaks TLS if there
/// is a `[server.tls]`. All addresses and their places go to `bound`.
pub(super) fn read(
    listen: Option<&Field<'_>>,
    tls: Option<&Field<'_>>,
    bound: &mut Vec<(SocketAddr, Range<usize>)>,
) -> Vec<Listener> {
    let Some(field) = listen else { return vec![Listener { tls: tls.is_some(), ..DEFAULT }] };
    if !field.is_text() && !field.is_table() && !field.is_list() {
        field.mistyped("an address or a list of addresses", "write the address and the port: \"127.0.0.1:8080\"");
        return Vec::new();
    }
    let list = if field.is_list() { field.some("[\"127.0.0.1:8080\"]", MOST) } else { Some(vec![field.clone()]) };
    let listeners: Vec<_> = list
        .unwrap_or_default()
        .iter()
        .filter_map(|field| {
            let (listener, span) = listener(field, tls.is_some())?;
            bound.push((listener.address, span));
            Some(listener)
        })
        .collect();
    if let Some(tls) = tls
        && !listeners.is_empty()
        && !listeners.iter().any(|listener| listener.tls)
    {
        tls.warn("no listener speaks TLS", "say `tls = true` at one of `listen`, or remove [server.tls]");
    }
    listeners
}

/// Reads one listener: an address, or a table with one. `has_tls` is whether there is a `[server.tls]`.
fn listener(field: &Field<'_>, has_tls: bool) -> Option<(Listener, Range<usize>)> {
    if !field.is_table() {
        let address = field.parse(values::socket)?;
        return Some((Listener { address, tls: has_tls }, field.span.clone()));
    }
    let section = field.section("a listener")?;
    let address = section.required("address", "add its address: address = \"0.0.0.0:8443\"");
    let tls = section.field("tls");
    let speaks_tls = tls.as_ref().and_then(Field::boolean).unwrap_or(has_tls);
    section.close();
    if let Some(tls) = tls.filter(|_| speaks_tls && !has_tls) {
        tls.report("this listener has no certificate", "add [server.tls] with its certificates, or write tls = false");
    }
    let address = address?;
    Some((Listener { address: address.parse(values::socket)?, tls: speaks_tls }, address.span))
}
