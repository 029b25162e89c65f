//! `listen` and `max_connections` of `[server]`: the addresses of listeners, which of them speak TLS, and how many connections
//! they accept.

use std::net::SocketAddr;
use std::ops::Range;

use super::keys as server;
use crate::config::kinds::{flag, text};
use crate::config::read::{Field, Section, Shape, Wrong, tables};
use crate::config::values;
use crate::net::Traffic;

pub(in crate::config) const MOST_CONNECTIONS: u64 = 100_000_000;

pub(super) const LISTENER: Shape = Shape::Or(&[Shape::Text, Shape::Table(&listener::TABLE)]);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listener {
    /// With port 0, the system chooses a port.
    pub address: SocketAddr,
    /// Only if the section of the listener has `tls`.
    pub tls: bool,
    pub traffic: Traffic,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaxConnections {
    /// As many as the limit of file handles allows.
    Auto,
    /// At least 1.
    Number(usize),
}

tables! {
    /// A listener that says whether it speaks TLS.
    listener "a listener" {
        /// The address.
        address: () = text().required() => "0.0.0.0:8443";
        /// Speaks TLS. By default it does if there is a `[server.tls]`.
        tls: bool = flag() => true;
    }
}

/// The list may be empty if `has_others`. A listener without `tls` speaks TLS if there is a `[server.tls]`.
pub(super) fn read(section: &Section<'_>, tls: Option<&Field<'_>>, has_others: bool) -> Vec<Listener> {
    let given = section.field(&server::listen);
    let is_given = given.is_some();
    if let Some(field) = given.filter(|field| !has_others && field.value.is_array())
        && field.list(&server::listen).is_some_and(|list| list.is_empty())
    {
        let help = "add an address: [\"127.0.0.1:8080\"], or a [decisions] for a gateway that only decides";
        field.report("there is nothing to listen on", help);
    }
    let read = section.read_as(&server::listen, |field| Some(listeners(field, tls.is_some())));
    for (listener, span) in read.iter().filter(|_| is_given) {
        section.source.bind(listener.address, span.clone());
    }
    let listeners: Vec<_> = read.into_iter().map(|(listener, _)| listener).collect();
    if let Some(tls) = tls
        && !listeners.is_empty()
        && !listeners.iter().any(|listener| listener.tls)
    {
        tls.warn("no listener speaks TLS", "write `tls = true` at one of `listen`, or remove [server.tls]");
    }
    listeners
}

fn listeners(field: &Field<'_>, has_tls: bool) -> Vec<(Listener, Range<usize>)> {
    if field.value.is_array() {
        let list = field.list(&server::listen).unwrap_or_default();
        return list.iter().filter_map(|field| listener(field, has_tls)).collect();
    }
    if !field.value.is_str() && !field.value.is_table() {
        field.mistyped("an address or a list of addresses", "write the address and the port: \"127.0.0.1:8080\"");
        return Vec::new();
    }
    listener(field, has_tls).into_iter().collect()
}

/// An address, or a table with one. `has_tls` says whether there is a `[server.tls]`.
fn listener(field: &Field<'_>, has_tls: bool) -> Option<(Listener, Range<usize>)> {
    if !field.value.is_table() {
        let address = field.parse(values::socket)?;
        return Some((Listener { address, tls: has_tls, traffic: Traffic::Requests }, field.span.clone()));
    }
    let section = field.section(listener::TABLE.title, &listener::TABLE)?;
    let address = section.needed(&listener::address);
    let tls = section.field(&listener::tls);
    let speaks_tls = tls.as_ref().and_then(Field::boolean).unwrap_or(has_tls);
    if let Some(tls) = tls.filter(|_| speaks_tls && !has_tls) {
        tls.report("this listener has no certificate", "add [server.tls] with its certificates, or write tls = false");
    }
    let address = address?;
    let (tls, traffic) = (speaks_tls, Traffic::Requests);
    Some((Listener { address: address.parse(values::socket)?, tls, traffic }, address.span))
}

pub(super) fn max_connections(field: &Field<'_>) -> Option<MaxConnections> {
    if field.value.is_str() {
        return field.parse(|text| match text {
            "auto" => Ok(MaxConnections::Auto),
            _ => {
                let help = format!("allowed: \"auto\", or 1 to {MOST_CONNECTIONS} without quotes");
                Err(Wrong::not(text, "a number of connections", help))
            }
        });
    }
    let most = field.integer(1..=MOST_CONNECTIONS).and_then(|most| usize::try_from(most).ok());
    most.map(MaxConnections::Number)
}
