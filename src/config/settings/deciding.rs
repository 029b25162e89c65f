//! Keys about other proxies: `[decisions]`.

use http::StatusCode;

use super::tls;
use crate::config::kinds::{shaped, status_code, text};
use crate::config::read::{Setting, Shape, Table, name, tables};

tables! {
    /// The limits of this gateway for traffic that passes through other proxies: nginx, Caddy, Traefik, or whatever can ask by
    /// HTTP (docs/decisions.md).
    decisions {
        /// Where other proxies ask, in HTTP/1.1 or HTTP/2. The keys of `[server]` about connections and sizes hold here, too.
        listen: () = text().required() => "127.0.0.1:9902";
        /// TLS for those that ask, as in `[server.tls]`; without it they speak plain HTTP.
        tls: () = shaped(Shape::Table(&tls::TABLE));
        /// The status of the answer about a request that a limit refuses. `auth_request` of nginx knows 401 and 403 only.
        refused_status: StatusCode = status_code(400, 599), 429;
    }
}
