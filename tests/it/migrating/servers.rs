//! The compared servers: nginx and HAProxy with a block of the page, and the gateway with the block of the same name. Each also
//! gets what a running server needs: its own port, the test's upstream, and the PROXY protocol, with which the test names the
//! client.

use super::page::{block, replaced};
use crate::harness::{Gateway, Peer, Upstream, nginx_config};

/// nginx with one process and this block of the page.
#[track_caller]
pub(super) fn nginx(name: &str, upstream: &Upstream) -> Peer {
    let fragment = block("nginx", name);
    Peer::start(|folder, address| {
        let server = replaced(&fragment, "listen 80;", &format!("listen {address} proxy_protocol;"));
        let http = format!(
            "set_real_ip_from 127.0.0.1; real_ip_header proxy_protocol; upstream app {{ server {}; }}\n{server}",
            upstream.address()
        );
        (nginx_config(folder, &http), vec!["nginx", "-e", "stderr", "-c"])
    })
}

/// HAProxy with one thread and this block of the page.
#[track_caller]
pub(super) fn haproxy(name: &str, upstream: &Upstream) -> Peer {
    let fragment = block("haproxy", name);
    Peer::start(|_, address| {
        let frontend = replaced(&fragment, "bind :80\n", &format!("bind {address} accept-proxy\n"));
        let config = format!(
            "global\n nbthread 1\ndefaults\n mode http\n timeout connect 5s\n timeout client 30s\n timeout server 30s\n
            {frontend}\nbackend app\n server a {}\n",
            upstream.address()
        );
        (config, vec!["haproxy", "-db", "-q", "-f"])
    })
}

/// A gateway with one worker and this block of the page.
#[track_caller]
pub(super) fn gateway(name: &str, upstream: &Upstream) -> Gateway {
    let keys = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(keys.path(), "a\nb\n").unwrap();
    let text = block("toml", name).replace("\"keys.txt\"", &format!("\"{}\"", keys.path().display()));
    let text = format!("{text}\n[upstreams.app]\nservers = [\"http://{}\"]\n", upstream.address());
    Gateway::with_server("proxy_protocol = true\nworkers = 1", &text)
}
