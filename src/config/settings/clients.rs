//! Keys about clients: `[server]` and `[decisions]`, and their tables.

use std::time::Duration;

use http::StatusCode;

use crate::config::kinds::{
    WAIT, WAIT_OR_ZERO, body_size, flag, number, shaped, share, size, status_code, text, wait, wait_or_none, words,
};
use crate::config::read::{Setting, Shape, Table, name, tables};
use crate::config::{Challenge, EscapedSlashes, PathMatching, values};
use crate::net::tls::MinVersion;

pub(in crate::config) const MOST_CONNECTIONS: u64 = 100_000_000;

/// In bytes.
pub(in crate::config) const LARGEST_INSPECTED: u64 = 64 << 20;

const LISTENER: Shape = Shape::Or(&[Shape::Text, Shape::Table(&listener::TABLE)]);

tables! {
    /// How clients connect, and what they may do.
    server {
        /// Where clients connect: an address, or a list of them. With port 0 the system chooses a port, which is logged;
        /// `"[::]:8080"` accepts IPv4 too, unless an IPv4 address with the same port is listed. The list may be empty if there is
        /// a `[decisions]`.
        listen: () = shaped(Shape::Or(&[LISTENER, Shape::List(&LISTENER, 0, 64)])), "127.0.0.1:8080"
            => ["127.0.0.1:8080"];
        /// Worker threads; 0 is one per core.
        workers: usize = number(0, 1024).at_start(), 0;
        /// Networks whose X-Forwarded-For or Forwarded is trusted; the right-most address outside of them is the client
        /// (docs/clients.md).
        trusted_proxies: () = shaped(Shape::List(&Shape::Text, 0, usize::MAX)), [] => ["10.0.0.0/8"];
        /// Whether every connection begins with the PROXY protocol (1 or 2), which names the client. Only the proxy may
        /// reach the listeners then (docs/clients.md).
        proxy_protocol: bool = flag(), false;
        /// Whether upstreams get the client, the host and the scheme in `Forwarded` (RFC 7239), too (docs/clients.md).
        forwarded: bool = flag(), false;
        /// The longest time for a client to send a request head; then 408.
        header_timeout: Duration = wait(WAIT), "10s";
        /// The longest time that a connection stays open between requests.
        idle_timeout: Duration = wait(WAIT), "75s";
        /// The longest time in which a client sends no more of a request body, while its upstream sends nothing either; then
        /// 408. Also the longest time in which it reads nothing of a response; then the connection is closed. `"0"` is no limit;
        /// a route may have its own.
        body_timeout: Option<Duration> = wait_or_none(), "60s";
        /// Open client connections of all workers together. `"auto"`: as many as the limit of file handles (raised at the
        /// start) allows, with one upstream connection for each. At the maximum, idle connections are closed, the longest
        /// idle first; if none is idle, new ones wait.
        max_connections: () = shaped(Shape::Or(&[Shape::Values("[\"auto\"]"), Shape::Number(1, MOST_CONNECTIONS)])),
            "auto";
        /// Open connections per address, IPv6 by its /64; further ones are closed at once. 0 is no limit; `trusted_proxies`
        /// are not counted.
        max_connections_per_ip: usize = number(0, MOST_CONNECTIONS), 0;
        /// Larger request heads are answered 431.
        max_header_size: usize = size(8 << 10..=1 << 20).at_start(), "64KiB";
        /// Larger request bodies are answered 413 and charged to no limit; `"0"` is no limit. A route may have its own.
        max_body_size: u64 = body_size(), "0" => "1MiB";
        /// The most of a request body that is read before the decision, on routes whose limits need it: for costs in tokens and
        /// for keys from JSON. A larger body is answered 413 and charged to the limits that need no body. A route may have its
        /// own.
        inspect_body: usize = size(1..=LARGEST_INSPECTED), "1MiB";
        /// The memory of the bodies that are read before the decision and have not come in one piece, of all workers together;
        /// each has an equal part, at least four times `inspect_body`. Beyond it the client whose bodies take most of it is
        /// answered 503 to the largest of them.
        inspect_memory: usize = size(1..=1 << 40), "64MiB";
        /// How long `/readyz` answers 503 after SIGTERM before the listeners close, so that load balancers can choose other
        /// servers first.
        drain_delay: Duration = wait(WAIT_OR_ZERO), "0s";
        /// The longest time that SIGTERM waits for requests in flight.
        drain_timeout: Duration = wait(WAIT_OR_ZERO), "30s";
        /// `"forgiving"`: one final slash and `;parameters` are ignored; `"exact"`: they make a different path
        /// (docs/paths-and-headers.md).
        path_matching: PathMatching =
            words(&[("forgiving", PathMatching::Forgiving), ("exact", PathMatching::Exact)]), "forgiving";
        /// What `%2F` and `%5C` in a path are: refused (400), kept as a part of the segment, or a slash, also for the
        /// upstream (docs/paths-and-headers.md).
        escaped_slashes: EscapedSlashes = words(&[
            ("reject", EscapedSlashes::Reject), ("keep", EscapedSlashes::Keep), ("decode", EscapedSlashes::Decode),
        ]), "reject";
        /// TLS for clients; without it, listeners speak plain HTTP.
        tls: () = shaped(Shape::Table(&tls::TABLE));
        /// HTTP/2, which is always on: by ALPN in TLS, with prior knowledge without.
        http2: () = shaped(Shape::Table(&http2::TABLE));
        /// Under overload, requests of low priorities are answered at once (docs/overload.md); without it none is.
        shed: () = shaped(Shape::Table(&shed::TABLE));
    }

    /// A listener that says what it speaks.
    listener "a listener" {
        /// The address.
        address: () = text().required() => "0.0.0.0:8443";
        /// Whether it speaks TLS; without this key it does if there is a `[server.tls]`.
        tls: bool = flag() => true;
    }

    /// TLS for clients; its files are read again when they change (docs/protocols.md).
    tls {
        /// The certificates; several are chosen by SNI. Only with `acme` there need be none.
        certificates: () = shaped(Shape::List(&Shape::Table(&certificate::TABLE), 1, 10_000))
            => [{ cert = "tls/site.pem", key = "tls/site.key" }];
        /// A certificate that an authority issues and renews by itself; only in `[server.tls]`.
        acme: () = shaped(Shape::Table(&acme::TABLE));
        /// The authorities of clients' certificates; with it, clients are asked for one.
        client_ca: () = text() => "tls/clients-ca.pem";
        /// Whether a client must show a certificate; needs `client_ca`.
        client_auth: bool = words(&[("require", true), ("optional", false)]), "require";
        /// The oldest version of TLS that is spoken.
        min_version: MinVersion = words(&[("1.2", MinVersion::Tls12), ("1.3", MinVersion::Tls13)]), "1.2";
    }

    /// A certificate that an authority issues and renews by itself, with ACME (docs/protocols.md). Its key lies in `--state-dir`.
    acme {
        /// The names of the certificate, without wildcards.
        names: () = shaped(Shape::List(&Shape::Text, 1, 100)).required() => ["api.example.com", "www.example.com"];
        /// Where the authority can reach you. It is told when the account is made.
        email: () = text() => "ops@example.com";
        /// Whether you agree to the terms of the authority; has to be `true`.
        agree: bool = flag().required() => true;
        /// The directory of the authority: `https://`, or `http://` on this machine.
        directory: () = text(), "https://acme-v02.api.letsencrypt.org/directory";
        /// The authorities that have issued the certificate of the directory itself; without it those of the system.
        ca: () = text() => "tls/internal-ca.pem";
        /// How the gateway shows that it answers for its names: by a TLS handshake on port 443, or by a plain response on
        /// port 80. Both are answered before routes and limits.
        challenge: Challenge =
            words(&[("tls-alpn-01", Challenge::TlsAlpn01), ("http-01", Challenge::Http01)]), "tls-alpn-01";
        /// The account with the authority that the new one is bound to (external account binding), as some authorities want: its id.
        /// Only beside `external_account_key`.
        external_account_id: () = text() => "kid-1";
        /// Its key in base64url, as the authority shows it, also `"file:PATH"` or `"env:NAME"`.
        external_account_key: () = text() => "env:ACME_EAB_KEY";
        /// What gateways with a Memcached store sign the answers with that they leave there for each other, at least 16 characters,
        /// also `"file:PATH"` or `"env:NAME"`. Those with one `--state-dir` need none (docs/memcached.md).
        challenge_secret: () = text() => "env:CHALLENGE_SECRET";
    }

    /// A certificate.
    certificate "this certificate" {
        /// The file of its chain.
        cert: () = text().required() => "tls/site.pem";
        /// The file of its private key.
        key: () = text().required() => "tls/site.key";
        /// The file of a response of OCSP, which is stapled.
        ocsp: () = text() => "tls/site.ocsp";
    }

    /// HTTP/2, which is always on: by ALPN in TLS, with prior knowledge without.
    http2 {
        /// Requests at once on a connection.
        max_streams: u32 = number(1, 65_535), 250;
        /// Larger request heads are answered 431.
        max_header_list: u32 = size(8 << 10..=1 << 20), "64KiB";
    }

    /// Under overload, requests of low priorities are answered at once (docs/overload.md).
    shed {
        /// The wanted share of the processors in use, above 0.
        cpu: u32 = share() => 0.9;
        /// The wanted time until the head of an upstream's response.
        latency: Duration = wait(WAIT) => "500ms";
        /// The status of requests that are shed.
        status: StatusCode = status_code(400, 599), 503;
    }

    /// The limits of this gateway for traffic that passes through other proxies: nginx, Caddy, Traefik, or whatever can ask by
    /// HTTP (docs/decisions.md).
    decisions {
        /// Where other proxies ask, in HTTP/1.1 or HTTP/2. The keys of `[server]` about connections and sizes hold here, too.
        listen: () = text().required() => "127.0.0.1:9902";
        /// TLS for those that ask, as in `[server.tls]`; without it they speak plain HTTP.
        tls: () = shaped(Shape::TableWithout(&tls::TABLE, tls::acme.name));
        /// The status of the answer about a request that a limit refuses. `auth_request` of nginx knows 401 and 403 only.
        refused_status: StatusCode = status_code(400, 599), 429;
        /// What Envoy's descriptors mean, if it asks by gRPC (docs/decisions.md).
        descriptors: () = shaped(Shape::List(&Shape::Table(&descriptor::TABLE), 0, 1000));
    }

    /// Which descriptors it is about, and what limits them. The first that fits a descriptor counts; one that none fits is not
    /// limited.
    descriptor {
        /// The `domain` of Envoy's rate limit filter.
        domain: () = text().required() => "edge";
        /// Entries that the descriptor has, in any order and maybe among others: their keys, and their values, in which `*` stands
        /// for any text.
        entries: () = shaped(Shape::Named(&Shape::Text)).required() => { remote_address = "*", path = "/v1/*" };
        /// Names of limits, whose keys are `descriptor:NAME` or `global`. Each is charged `hits_addend`.
        limits: () = shaped(Shape::List(&Shape::Text, 0, values::MOST)).required() => ["per-client"];
        /// Whether calls tell what has been used, as AI gateways do after the response. Then `hits_addend` is charged in full, even
        /// past the rate, and the answer is `OK` unless the limit was used up before.
        reports: bool = flag(), false;
    }
}
