//! Keys about routes: `[[routes]]` and its tables.

use std::time::Duration;

use http::StatusCode;

use super::clients::LARGEST_INSPECTED;
use crate::config::kinds::{WAIT, body_size, flag, number, shaped, size, status_code, text, wait, wait_or_none, words};
use crate::config::read::{Setting, Shape, Table, name, tables};
use crate::config::{HIGHEST_PRIORITY, Scheme, values};

const NAMED_TEXTS: Shape = Shape::Named(&Shape::Text);

tables! {
    /// Which requests the gateway answers, and how. It uses the most specific route, not the first (docs/routes.md).
    route {
        /// The host: a name, or `"*.example.com"`. By default any.
        host: () = text() => "api.example.com";
        /// The path: `"/exact"`, `"/v1/{tenant}"` for one segment, `"/v1/*"` for `/v1` and all paths below it.
        path: () = text().required() => "/v1/{tenant}/*";
        /// Ignores the case of the path; then the route's limits count by `path` and `path:NAME` in lower case.
        ignore_case: bool = flag(), false;
        /// The methods. By default any, as with `["*"]`. GET also matches HEAD, unless another route for the same host and
        /// path names HEAD.
        methods: () = shaped(Shape::List(&Shape::Text, 1, 64)) => ["GET", "POST"];
        /// Headers that a request must have. A value is a text, `"*"` for any, `"file:PATH"` or `"env:NAME"`.
        headers: () = shaped(NAMED_TEXTS) => { x-beta = "1" };
        /// The scheme that the client used, by default any. A trusted proxy says it with `X-Forwarded-Proto` or `Forwarded`.
        scheme: Scheme = words(&[("http", Scheme::Http), ("https", Scheme::Https)]) => "https";
        /// The name of the upstream that gets the requests, unless there is `respond` or `redirect`.
        upstream: () = text() => "api";
        /// Leading segments that the gateway removes from the path for the upstream.
        strip_prefix: () = text() => "/v1";
        /// The path that the upstream gets instead; `{rest}` is what the final `*` matched.
        rewrite: () = text() => "/internal/{tenant}/{rest}";
        /// Sends the client's Host to the upstream.
        preserve_host: bool = flag(), false;
        /// `rewrite_location` of this route, instead of the upstream's.
        rewrite_location: bool = flag() => false;
        /// A response of the gateway itself.
        respond: () = shaped(Shape::Table(&respond::TABLE)) => { status = 200, body = "hello\n" };
        /// Where the gateway redirects clients.
        redirect: () = shaped(Shape::Table(&redirect::TABLE)) => { to = "https://{host}{path}", status = 308 };
        /// Names of limits, which decide together.
        limits: () = shaped(Shape::List(&Shape::Text, 0, values::MOST)), [] => ["per-client"];
        /// The largest request body of this route, instead of the server's.
        max_body_size: u64 = body_size() => "1MiB";
        /// The largest request body that the gateway reads before it decides, where costs or keys need it, instead of the
        /// server's.
        inspect_body: usize = size(1..=LARGEST_INSPECTED) => "4MiB";
        /// The longest pause of a client in a request body, or without reading a response, instead of the server's; `"0"`
        /// means no limit.
        body_timeout: Option<Duration> = wait_or_none() => "0";
        /// The longest time until the head of the response arrives, instead of the upstream's; then 504.
        timeout: Duration = wait(WAIT) => "5s";
        /// Changes to the headers that the upstream gets, applied in the order remove, set, add.
        request_headers: () = shaped(Shape::Table(&header_changes::TABLE))
            => { set = { x-tenant = "{tenant}" }, remove = ["x-debug"] };
        /// Changes to the headers that the client gets, in every response.
        response_headers: () = shaped(Shape::Table(&header_changes::TABLE)) => { set = { x-frame-options = "DENY" } };
        /// 0 to 9; `[server.shed]` sheds lower ones first. By default 5.
        priority: u8 = number(0, HIGHEST_PRIORITY as u64) => 7;
        /// Lets pages of other origins use the route; the gateway answers their preflights, and charges them to no limit.
        cors: () = shaped(Shape::Table(&cors::TABLE)) => { origins = ["https://app.example.com"] };
    }

    /// A response of the gateway itself.
    respond "`respond`" {
        /// The status.
        status: StatusCode = status_code(200, 599), 200;
        /// The body.
        body: () = text(), "" => "hello\n";
        /// The type of `body`. By default `application/json` if that is a JSON object or array, otherwise plain text.
        content_type: () = text() => "text/html";
    }

    /// Where the gateway redirects clients.
    redirect "`redirect`" {
        /// A URL or a path, with placeholders.
        to: () = text().required() => "https://{host}{path}";
        /// 301, 302, 303, 307 or 308.
        status: StatusCode = status_code(300, 399), 308;
    }

    /// Changes to headers. Values may have placeholders, or be `"file:PATH"` or `"env:NAME"`.
    header_changes {
        /// Headers that replace those of the same name.
        set: () = shaped(NAMED_TEXTS), {} => { x-tenant = "{tenant}" };
        /// Headers to add beside those of the same name.
        add: () = shaped(NAMED_TEXTS), {} => { x-team = "a" };
        /// Headers to remove.
        remove: () = shaped(Shape::List(&Shape::Text, 0, 64)), [] => ["server"];
    }

    /// Lets pages of other origins use a route (docs/routes.md).
    cors "`cors`" {
        /// The origins of the pages; `"https://*.example.com"` for all names below `example.com`, `"*"` for all.
        origins: () = shaped(Shape::List(&Shape::Text, 1, 64)).required() => ["https://app.example.com"];
        /// The methods that pages may use. By default those of the route, or GET, HEAD and POST.
        methods: () = shaped(Shape::List(&Shape::Text, 1, 64)) => ["GET", "POST"];
        /// The headers that pages may send. By default all.
        headers: () = shaped(Shape::List(&Shape::Text, 0, 64)) => ["content-type"];
        /// The headers that pages may read.
        expose: () = shaped(Shape::List(&Shape::Text, 0, 64)), [] => ["x-request-id"];
        /// Lets pages send cookies and the like.
        credentials: bool = flag(), false;
        /// How long browsers keep the answer to a preflight.
        max_age: Duration = wait(Duration::from_secs(1)..=Duration::from_secs(86_400)) => "10m";
    }
}
