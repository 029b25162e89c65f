//! Keys about routes: `[[routes]]` and its tables.

use std::time::Duration;

use http::StatusCode;

use super::clients::LARGEST_INSPECTED;
use crate::config::kinds::{WAIT, body_size, flag, number, shaped, size, status_code, text, wait, wait_or_none, words};
use crate::config::read::{Setting, Shape, Table, name, tables};
use crate::config::{HIGHEST_PRIORITY, Scheme, values};

const NAMED_TEXTS: Shape = Shape::Named(&Shape::Text);

tables! {
    /// Which requests are answered, and how. The most specific route is used, in whatever order they are listed
    /// (docs/routes.md).
    route {
        /// The host: a name, or `"*.example.com"`; without it any.
        host: () = text() => "api.example.com";
        /// `"/exact"`, `"/v1/{tenant}"` for one segment, `"/v1/*"` for `/v1` and all paths below it.
        path: () = text().required() => "/v1/{tenant}/*";
        /// Whether the case of the path is ignored; then its limits count by `path` and `path:NAME` in lower case.
        ignore_case: bool = flag(), false;
        /// The methods; without it any, as with `["*"]`. GET matches HEAD too, unless another route for the same host and path
        /// names HEAD.
        methods: () = shaped(Shape::List(&Shape::Text, 1, 64)) => ["GET", "POST"];
        /// Headers that a request must have; `"*"` is any value; also `"file:PATH"` or `"env:NAME"`.
        headers: () = shaped(NAMED_TEXTS) => { x-beta = "1" };
        /// How the client has sent the request, without it in any way; a trusted proxy says it with `X-Forwarded-Proto` or
        /// `Forwarded`.
        scheme: Scheme = words(&[("http", Scheme::Http), ("https", Scheme::Https)]) => "https";
        /// The name of the upstream that gets the requests; or there is `respond` or `redirect`.
        upstream: () = text() => "api";
        /// Leading segments that are removed from the path that the upstream gets.
        strip_prefix: () = text() => "/v1";
        /// The path that the upstream gets instead; `{rest}` is what the final `*` has taken.
        rewrite: () = text() => "/internal/{tenant}/{rest}";
        /// Whether the upstream gets the client's Host.
        preserve_host: bool = flag(), false;
        /// As of the upstream, instead of that.
        rewrite_location: bool = flag() => false;
        /// The response of the gateway itself.
        respond: () = shaped(Shape::Table(&respond::TABLE)) => { status = 200, body = "hello\n" };
        /// Where clients are sent.
        redirect: () = shaped(Shape::Table(&redirect::TABLE)) => { to = "https://{host}{path}", status = 308 };
        /// Names of limits; all of them are decided together.
        limits: () = shaped(Shape::List(&Shape::Text, 0, values::MOST)), [] => ["per-client"];
        /// The largest request body of this route, instead of the server's.
        max_body_size: u64 = body_size() => "1MiB";
        /// The most of a request body that is read before the decision, where costs or keys need it, instead of the server's.
        inspect_body: usize = size(1..=LARGEST_INSPECTED) => "4MiB";
        /// The longest time in which a client sends no more of a request body or reads nothing of a response, instead of the
        /// server's; `"0"` is no limit.
        body_timeout: Option<Duration> = wait_or_none() => "0";
        /// The longest time until the head of the response arrives, instead of the upstream's; then 504.
        timeout: Duration = wait(WAIT) => "5s";
        /// Changes of what the upstream gets, applied in the order remove, set, add.
        request_headers: () = shaped(Shape::Table(&header_changes::TABLE))
            => { set = { x-tenant = "{tenant}" }, remove = ["x-debug"] };
        /// Changes of what the client gets, of every response.
        response_headers: () = shaped(Shape::Table(&header_changes::TABLE)) => { set = { x-frame-options = "DENY" } };
        /// 0 to 9; with `[server.shed]`, lower ones are shed first. Without it 5.
        priority: u8 = number(0, HIGHEST_PRIORITY as u64) => 7;
        /// Pages of other origins that may use the route; the gateway answers their preflights, which are charged to no limit.
        cors: () = shaped(Shape::Table(&cors::TABLE)) => { origins = ["https://app.example.com"] };
    }

    /// The response of the gateway itself.
    respond "`respond`" {
        /// Its status.
        status: StatusCode = status_code(200, 599), 200;
        /// Its body.
        body: () = text(), "" => "hello\n";
        /// The type of `body`; without it `application/json` if that is a JSON object or array, otherwise plain text.
        content_type: () = text() => "text/html";
    }

    /// Where clients are sent.
    redirect "`redirect`" {
        /// A URL or a path, with placeholders.
        to: () = text().required() => "https://{host}{path}";
        /// 301, 302, 303, 307 or 308.
        status: StatusCode = status_code(300, 399), 308;
    }

    /// Changes of headers. Values may have placeholders, or be `"file:PATH"` or `"env:NAME"`.
    header_changes {
        /// Headers that replace those of the same name.
        set: () = shaped(NAMED_TEXTS), {} => { x-tenant = "{tenant}" };
        /// Headers beside those of the same name.
        add: () = shaped(NAMED_TEXTS), {} => { x-team = "a" };
        /// Headers that are removed.
        remove: () = shaped(Shape::List(&Shape::Text, 0, 64)), [] => ["server"];
    }

    /// Pages of other origins that may use a route (docs/routes.md).
    cors "`cors`" {
        /// The origins of the pages; `"https://*.example.com"` for all below a name, `"*"` for all.
        origins: () = shaped(Shape::List(&Shape::Text, 1, 64)).required() => ["https://app.example.com"];
        /// What they may use; without it the methods of the route, or GET, HEAD and POST.
        methods: () = shaped(Shape::List(&Shape::Text, 1, 64)) => ["GET", "POST"];
        /// The headers that they may send; without it all.
        headers: () = shaped(Shape::List(&Shape::Text, 0, 64)) => ["content-type"];
        /// The headers that they may read.
        expose: () = shaped(Shape::List(&Shape::Text, 0, 64)), [] => ["x-request-id"];
        /// Whether they may send cookies and the like.
        credentials: bool = flag(), false;
        /// How long browsers keep the answer to a preflight.
        max_age: Duration = wait(Duration::from_secs(1)..=Duration::from_secs(86_400)) => "10m";
    }
}
