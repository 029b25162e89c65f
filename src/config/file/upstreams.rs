//! `[upstreams.NAME]`: servers that answer requests.

use std::time::Duration;

use crate::config::read::{Field, Name, report_repeated, set};
use crate::config::{Upstream, UpstreamServer, values};

/// Keys that are planned, but not in this version.
const LATER: [&str; 6] = ["retries", "max_in_flight", "http2", "health", "tls", "hash_key"];
const SERVERS: &str = "[\"http://10.0.1.1:9000\"]";

/// Reads one upstream; `None` if it has an error.
pub(super) fn read(name: &Name<'_>, field: &Field<'_>) -> Option<Upstream> {
    if let Err(wrong) = values::name(name.text) {
        field.source.report(name.span.clone(), wrong.message, wrong.help);
    }
    if !field.is_table() {
        field.source.report(
            name.span.clone(),
            format!("`{}` is not the table of an upstream", name.text),
            "an upstream needs a name: write [upstreams.NAME], and its keys below",
        );
        return None;
    }
    let section = field.section(format!("[upstreams.{}]", name.text))?;
    let servers = section.required("servers", &format!("add the addresses of its servers: servers = {SERVERS}"));
    let servers = servers.and_then(|field| field.some(SERVERS, 256)).map(|list| {
        let servers: Vec<_> = list.into_iter().filter_map(|field| Some((server(&field)?, field))).collect();
        let addresses: Vec<_> = servers.iter().map(|(server, field)| (&server.address, field.clone())).collect();
        report_repeated(&addresses, "this server", "list it once, with a weight: { url = \"...\", weight = 2 }");
        servers.into_iter().map(|(server, _)| server).collect()
    });
    let mut connect_timeout = Duration::from_secs(1);
    set(&mut connect_timeout, values::wait(&section, "connect_timeout", values::WAIT));
    let mut timeout = Duration::from_secs(30);
    set(&mut timeout, values::wait(&section, "timeout", values::WAIT));
    let read_timeout = values::wait_or_none(&section, "read_timeout", Duration::from_secs(60));
    let mut max_idle = Duration::from_secs(60);
    set(&mut max_idle, values::wait(&section, "max_idle", values::WAIT));
    let mut max_age = Duration::from_secs(600);
    set(&mut max_age, values::wait(&section, "max_age", values::WAIT));
    section.choice("balance", &[("round-robin", ())], &["least-requests", "hash"]);
    section.close(&LATER);
    Some(Upstream {
        name: name.text.to_owned(),
        servers: servers?,
        connect_timeout,
        timeout,
        read_timeout,
        max_idle,
        max_age,
    })
}

fn server(field: &Field<'_>) -> Option<UpstreamServer> {
    let weight = 1;
    if field.is_text() {
        return Some(UpstreamServer { address: field.parse(values::server)?, weight });
    }
    if !field.is_table() {
        field.mistyped("a URL or a table", "write \"http://host:port\" or { url = \"http://host:port\", weight = 2 }");
        return None;
    }
    let section = field.section("the server")?;
    let url = section.required("url", "add its URL: url = \"http://host:port\"");
    let address = url.and_then(|field| field.parse(values::server));
    let read = section.field("weight").and_then(|field| field.integer(1..=100));
    section.close(&[]);
    let weight = read.and_then(|weight| u32::try_from(weight).ok()).unwrap_or(weight);
    Some(UpstreamServer { address: address?, weight })
}
