//! Keys about other proxies: `[decisions]` and its tables.

use http::StatusCode;

use super::tls;
use crate::config::kinds::{flag, shaped, status_code, text};
use crate::config::read::{Setting, Shape, Table, name, tables};
use crate::config::values;

tables! {
    /// The limits of this gateway for traffic that passes through other proxies: nginx, Caddy, Traefik, or whatever can ask by
    /// HTTP (docs/decisions.md).
    decisions {
        /// Where other proxies ask, in HTTP/1.1 or HTTP/2. The keys of `[server]` about connections and sizes hold here, too.
        listen: () = text().required() => "127.0.0.1:9902";
        /// TLS for those that ask, as in `[server.tls]`; without it they speak plain HTTP.
        tls: () = shaped(Shape::TableWithout(&tls::TABLE, tls::acme.name));
        /// The status of the answer about a request that a limit refuses. `auth_request` of nginx knows 401 and 403 only.
        refused_status: StatusCode = status_code(400, 599), 429;
        /// What Envoy's descriptors mean, if it asks by gRPC (docs/envoy.md).
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
