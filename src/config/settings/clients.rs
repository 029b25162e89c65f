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
        /// Where clients connect: an address or a list of them. With port 0 the system chooses a port, which the log shows;
        /// `"[::]:8080"` also accepts IPv4, unless an IPv4 address with the same port is listed. The list may be empty if
        /// there is a `[decisions]`.
        listen: () = shaped(Shape::Or(&[LISTENER, Shape::List(&LISTENER, 0, 64)])), "127.0.0.1:8080"
            => ["127.0.0.1:8080"];
        /// Worker threads; 0 means one per core.
        workers: usize = number(0, 1024).at_start(), 0;
        /// Networks whose X-Forwarded-For or Forwarded the gateway trusts; the right-most address outside them is the client
        /// (docs/clients.md).
        trusted_proxies: () = shaped(Shape::List(&Shape::Text, 0, usize::MAX)), [] => ["10.0.0.0/8"];
        /// Expects every connection to begin with the PROXY protocol (1 or 2), which names the client. Let only the proxy
        /// reach the listeners (docs/clients.md).
        proxy_protocol: bool = flag(), false;
        /// Also sends upstreams the client, the host and the scheme in `Forwarded` of RFC 7239 (docs/clients.md).
        forwarded: bool = flag(), false;
        /// How long a client may take to send a request head; then 408.
        header_timeout: Duration = wait(WAIT), "10s";
        /// The longest time that a connection stays open between requests.
        idle_timeout: Duration = wait(WAIT), "75s";
        /// The longest pause of a client in a request body while its upstream sends nothing either; then 408. Also the
        /// longest time that the client may read nothing of a response; then the gateway closes the connection. `"0"` means
        /// no limit. A route may have its own.
        body_timeout: Option<Duration> = wait_or_none(), "60s";
        /// The maximum number of open client connections, over all workers. `"auto"`: as many as the limit of file handles
        /// (raised at the start) allows, with one upstream connection for each. At the maximum, the gateway closes idle
        /// connections, the longest idle first; if none is idle, new ones wait.
        max_connections: () = shaped(Shape::Or(&[Shape::Values("[\"auto\"]"), Shape::Number(1, MOST_CONNECTIONS)])),
            "auto";
        /// The maximum number of open connections per address (IPv6: per /64); the gateway closes further ones at once. 0
        /// means no limit; `trusted_proxies` do not count.
        max_connections_per_ip: usize = number(0, MOST_CONNECTIONS), 0;
        /// Larger request heads get 431.
        max_header_size: usize = size(8 << 10..=1 << 20).at_start(), "64KiB";
        /// Larger request bodies get 413, and are charged to no limit if `Content-Length` says their size. `"0"` means no
        /// limit. A route may have its own.
        max_body_size: u64 = body_size(), "0" => "1MiB";
        /// The largest request body that the gateway reads before it decides, on routes whose limits need it: for costs in
        /// tokens and keys from JSON. A larger one gets 413, and is charged to the limits that need no body. A route may
        /// have its own.
        inspect_body: usize = size(1..=LARGEST_INSPECTED), "1MiB";
        /// The maximum memory, over all workers, for bodies that the gateway reads before it decides and that do not come in
        /// one piece. Each worker has an equal part, at least four times `inspect_body`. If that is full, the client whose
        /// bodies take most of it gets 503 for the largest of them.
        inspect_memory: usize = size(1..=1 << 40), "64MiB";
        /// How long the listeners stay open after SIGTERM while `/readyz` answers 503, so that load balancers can choose
        /// other servers first.
        drain_delay: Duration = wait(WAIT_OR_ZERO), "0s";
        /// How long the gateway waits for requests in flight after SIGTERM.
        drain_timeout: Duration = wait(WAIT_OR_ZERO), "30s";
        /// `"forgiving"` ignores one final slash and `;parameters`; with `"exact"` they make a different path
        /// (docs/routes.md).
        path_matching: PathMatching =
            words(&[("forgiving", PathMatching::Forgiving), ("exact", PathMatching::Exact)]), "forgiving";
        /// How `%2F` and `%5C` in a path count: `"reject"` answers 400, `"keep"` takes them as part of a segment, `"decode"`
        /// as slashes, also for the upstream (docs/routes.md).
        escaped_slashes: EscapedSlashes = words(&[
            ("reject", EscapedSlashes::Reject), ("keep", EscapedSlashes::Keep), ("decode", EscapedSlashes::Decode),
        ]), "reject";
        /// TLS for clients; without this table, listeners speak plain HTTP.
        tls: () = shaped(Shape::Table(&tls::TABLE));
        /// HTTP/2, which is always on: with TLS by ALPN, without TLS by prior knowledge.
        http2: () = shaped(Shape::Table(&http2::TABLE));
        /// Refuses requests of low priority at once under overload (docs/overload.md); without this table, none.
        shed: () = shaped(Shape::Table(&shed::TABLE));
    }

    /// A listener that says whether it speaks TLS.
    listener "a listener" {
        /// The address.
        address: () = text().required() => "0.0.0.0:8443";
        /// Speaks TLS. By default it does if there is a `[server.tls]`.
        tls: bool = flag() => true;
    }

    /// TLS for clients; the gateway reads its files again when they change (docs/protocols.md).
    tls {
        /// The certificates; SNI chooses among several. Required without `acme`.
        certificates: () = shaped(Shape::List(&Shape::Table(&certificate::TABLE), 1, 10_000))
            => [{ cert = "tls/site.pem", key = "tls/site.key" }];
        /// A certificate that the gateway orders and renews automatically; only in `[server.tls]`.
        acme: () = shaped(Shape::Table(&acme::TABLE));
        /// The authorities of clients' certificates; with this file, the gateway asks clients for one.
        client_ca: () = text() => "tls/clients-ca.pem";
        /// Whether a client must show a certificate; needs `client_ca`.
        client_auth: bool = words(&[("require", true), ("optional", false)]), "require";
        /// The oldest version of TLS that the gateway speaks.
        min_version: MinVersion = words(&[("1.2", MinVersion::Tls12), ("1.3", MinVersion::Tls13)]), "1.2";
    }

    /// A certificate that the gateway orders and renews automatically, with ACME (docs/protocols.md). Its key is in
    /// `--state-dir`.
    acme {
        /// The names for the certificate, without wildcards.
        names: () = shaped(Shape::List(&Shape::Text, 1, 100)).required() => ["api.example.com", "www.example.com"];
        /// Your email address for the authority, sent when the account is made.
        email: () = text() => "ops@example.com";
        /// Agrees to the authority's terms; must be `true`.
        agree: bool = flag().required() => true;
        /// The URL of the authority's directory: `https://`, or `http://` on this machine.
        directory: () = text(), "https://acme-v02.api.letsencrypt.org/directory";
        /// The authorities that issued the certificate of the directory itself. By default those of the system.
        ca: () = text() => "tls/internal-ca.pem";
        /// How the gateway proves that it answers for its names: by a TLS handshake on port 443, or by a plain response on
        /// port 80. It answers both before routes and limits.
        challenge: Challenge =
            words(&[("tls-alpn-01", Challenge::TlsAlpn01), ("http-01", Challenge::Http01)]), "tls-alpn-01";
        /// The id of your account with the authority, for authorities that bind the new account to it (external account
        /// binding). Needs `external_account_key`.
        external_account_id: () = text() => "kid-1";
        /// The key of `external_account_id` in base64url, as the authority shows it; also `"file:PATH"` or `"env:NAME"`.
        external_account_key: () = text() => "env:ACME_EAB_KEY";
        /// The secret with which gateways sign the answers that they leave for each other on the servers of the store: at least 16
        /// characters, also `"file:PATH"` or `"env:NAME"`. Gateways that share a `--state-dir` need none
        /// (docs/memcached.md).
        challenge_secret: () = text() => "env:CHALLENGE_SECRET";
    }

    /// A certificate.
    certificate "this certificate" {
        /// The file of the certificate chain.
        cert: () = text().required() => "tls/site.pem";
        /// The file of the certificate's private key.
        key: () = text().required() => "tls/site.key";
        /// The file of an OCSP response, which the gateway staples.
        ocsp: () = text() => "tls/site.ocsp";
    }

    /// HTTP/2, which is always on: with TLS by ALPN, without TLS by prior knowledge.
    http2 {
        /// The maximum number of requests at once on a connection.
        max_streams: u32 = number(1, 65_535), 250;
        /// Larger request heads get 431.
        max_header_list: u32 = size(8 << 10..=1 << 20), "64KiB";
    }

    /// Refuses requests of low priority at once under overload (docs/overload.md).
    shed {
        /// The target share of processors in use, above 0.
        cpu: u32 = share() => 0.9;
        /// The target mean time until the head of an upstream's response.
        latency: Duration = wait(WAIT) => "500ms";
        /// The status that shed requests get.
        status: StatusCode = status_code(400, 599), 503;
    }

    /// Lets other proxies ask this gateway whether its limits admit a request: nginx, Caddy, Traefik, or whatever can ask by
    /// HTTP (docs/decisions.md).
    decisions {
        /// Where other proxies ask, over HTTP/1.1 or HTTP/2. The `[server]` keys about connections and sizes also apply
        /// here.
        listen: () = text().required() => "127.0.0.1:9902";
        /// TLS for proxies that ask, as in `[server.tls]`; without this table they use plain HTTP.
        tls: () = shaped(Shape::TableWithout(&tls::TABLE, tls::acme.name));
        /// The status of the answer if a limit refuses the request. nginx's `auth_request` only knows 401 and 403.
        refused_status: StatusCode = status_code(400, 599), 429;
        /// Which limits apply to Envoy's descriptors, if Envoy asks by gRPC (docs/decisions.md).
        descriptors: () = shaped(Shape::List(&Shape::Table(&descriptor::TABLE), 0, 1000));
    }

    /// The descriptors that a rule matches, and their limits. The first rule that matches a descriptor counts; a descriptor
    /// without one is not limited.
    descriptor {
        /// The `domain` of Envoy's rate limit filter.
        domain: () = text().required() => "edge";
        /// Entries that the descriptor must have, in any order and perhaps among others: keys with their values, in which
        /// `*` stands for any text.
        entries: () = shaped(Shape::Named(&Shape::Text)).required() => { remote_address = "*", path = "/v1/*" };
        /// The names of limits whose keys are `descriptor:NAME` or `global`. Each is charged `hits_addend`.
        limits: () = shaped(Shape::List(&Shape::Text, 0, values::MOST)).required() => ["per-client"];
        /// Treats calls as reports of what was used, as AI gateways send them after the response: charges `hits_addend` in
        /// full, even past the rate, and answers `OK` unless the limit was used up before.
        reports: bool = flag(), false;
    }
}
