//! One request through the steps, in order. Start reading here.

use std::borrow::Cow;
use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use arc_swap::ArcSwap;
use http::uri::{PathAndQuery, Uri};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version, header};
use hyper::body::Incoming;

use crate::accept::Ambiguous;
use crate::account::{Account, Content, Line, Outcome, Settled};
use crate::clock::{self, Time};
use crate::config::OnError;
use crate::decide::{self, Decision};
use crate::forward::{Origin, Outbound, Pools, Upstream};
use crate::gateway::{Action, Gateway, Served};
use crate::identify::client::{Client, client};
use crate::identify::{Facts, Memo};
use crate::respond::{self, Answer};
use crate::route::path;
use crate::store::{Store, Verdicts};

/// What a worker serves requests with.
pub struct Worker {
    /// Which one it is, from 0.
    pub index: usize,
    /// The snapshot in force.
    pub gateway: Arc<ArcSwap<Gateway>>,
    /// Where counters live.
    pub store: Arc<Store>,
    /// Its connections to upstreams.
    pub pools: Rc<Pools>,
}

/// Who opened a connection, and the worker that serves it.
pub struct Caller {
    worker: Rc<Worker>,
    peer: IpAddr,
    /// The peer's address as text, for every request to hand on.
    address: String,
    memo: RefCell<Memo>,
}

impl Caller {
    /// The caller at this address.
    pub fn new(worker: Rc<Worker>, peer: IpAddr) -> Self {
        let peer = peer.to_canonical();
        Self { worker, peer, address: peer.to_string(), memo: RefCell::default() }
    }
}

/// Serves one request: route, identify, decide, forward, account.
pub async fn serve(caller: Rc<Caller>, request: Request<Incoming>) -> Response<Settled> {
    let worker = &*caller.worker;
    let now = clock::now();
    let gateway = worker.gateway.load_full();
    let client = client(caller.peer, request.headers(), &gateway.trusted_proxies);

    let target = match target(&request) {
        Ok(target) => target,
        Err(why) => {
            let account = open(&gateway, None, worker, now, client, &request, "");
            let mut answer = respond::problem(StatusCode::BAD_REQUEST, why);
            // What comes after it on the connection may be part of what was not understood.
            answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            return own(account, Outcome::Refused, answer);
        }
    };
    let found = gateway.routes.find(&target.host, &target.path, request.method(), request.headers());
    let route = found.and_then(|index| gateway.served.get(index));
    let account = open(&gateway, route, worker, now, client, &request, &target.host);
    let Some(route) = route else {
        let answer = respond::problem(StatusCode::NOT_FOUND, "No route is for this host, path and method.");
        return own(account, Outcome::Unrouted, answer);
    };

    let facts = Facts {
        method: request.method(),
        host: &target.host,
        path: &target.path,
        query: request.uri().query(),
        headers: request.headers(),
        client: client.address,
        route: &route.tally.name,
    };
    let decision =
        decide::decide(&route.guards, &facts, &caller.memo, &worker.store, gateway.store_timeout, now, worker.index)
            .await;
    let judged = match decision {
        Decision::Admitted(judged) => judged,
        Decision::Rejected(judged) => return own(account, Outcome::Limited, route.report.reject(&judged, now)),
        Decision::NoKey(guard) => return own(account, Outcome::Refused, no_key(route, guard)),
        Decision::Unknown if gateway.on_error == OnError::Reject => {
            let answer =
                respond::problem(StatusCode::SERVICE_UNAVAILABLE, "The store of the rate limits does not answer.");
            return own(account, Outcome::Unavailable, answer);
        }
        Decision::Unknown => Verdicts::new(),
    };
    drop(target);

    match &route.action {
        Action::Respond { status, body } => {
            let mut answer = respond::fixed(*status, body.clone());
            tell(route, &judged, answer.headers_mut(), now);
            own(account, Outcome::Responded, answer)
        }
        Action::Forward { upstream, strip, preserve_host } => {
            let hop = Hop { upstream, strip: *strip, preserve_host: *preserve_host, caller: &caller, client };
            let (outcome, mut response) = hop.take(request).await;
            tell(route, &judged, response.headers_mut(), now);
            let status = response.status();
            response.map(|content| account.settle(outcome, status, content))
        }
    }
}

/// What a request asks for.
struct Target<'a> {
    /// Lower case, without the port; empty if HTTP/1.0 named none.
    host: Cow<'a, str>,
    /// In the spelling of the routes.
    path: Cow<'a, str>,
}

/// Reads the target, or says why it cannot be read in one way only.
fn target(request: &Request<Incoming>) -> Result<Target<'_>, &'static str> {
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let named = match (hosts.next(), hosts.next()) {
        (Some(_), Some(_)) => return Err("The request has more than one Host header."),
        (Some(host), None) => host.to_str().map_err(|_| "The Host header is not valid.")?,
        (None, _) if request.version() > Version::HTTP_10 => return Err("The request has no Host header."),
        (None, _) => "",
    };
    if request.extensions().get::<Ambiguous>().is_some() {
        return Err("The request can be read in two ways: lines end in CR LF, and a body has one framing.");
    }
    if !is_plain(request.headers()) {
        return Err("The request has a transfer coding other than chunked.");
    }
    if *request.method() == Method::CONNECT {
        return Err("This is a reverse proxy: CONNECT is not served.");
    }
    // A target in absolute form names the host as well (RFC 9112, section 3.2.2).
    let authority = request.uri().authority().map_or(named, |authority| authority.as_str());
    if !named.is_empty() && !named.eq_ignore_ascii_case(authority) {
        return Err("The target and the Host header name different hosts.");
    }
    let host = bare(authority).ok_or("The Host header is not valid.")?;
    let host = if host.bytes().any(|byte| byte.is_ascii_uppercase()) {
        Cow::Owned(host.to_ascii_lowercase())
    } else {
        Cow::Borrowed(host)
    };
    let path = path::normal(request.uri().path()).map_err(|error| match error {
        path::BadPath::DotSegment => "The path has dot segments.",
        path::BadPath::BadEscape => "The path has a percent sign that two hexadecimal digits do not follow.",
    })?;
    Ok(Target { host, path })
}

/// Whether the body has no other coding than chunks: forwarded in chunks of our own, it would lose any other.
fn is_plain(headers: &HeaderMap) -> bool {
    let Some(coding) = headers.get(header::TRANSFER_ENCODING) else { return true };
    let codings = headers.get_all(header::TRANSFER_ENCODING).iter().count();
    codings == 1 && coding.as_bytes().eq_ignore_ascii_case(b"chunked")
}

/// The name in `name:port`; `None` if it cannot be one (RFC 3986, section 3.2.2).
fn bare(authority: &str) -> Option<&str> {
    let (name, port) = match authority.rfind([':', ']']) {
        Some(at) if authority.as_bytes()[at] == b':' => (&authority[..at], &authority[at + 1..]),
        _ => (authority, ""),
    };
    let inner = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    let valid = match inner {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => name.bytes().all(|byte| {
            matches!(byte,
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'%' | b'!' | b'$'
            | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b',' | b';' | b'=')
        }),
    };
    let empty_name_with_port = name.is_empty() && !authority.is_empty();
    let valid = valid && !empty_name_with_port && port.bytes().all(|byte| byte.is_ascii_digit());
    // `example.com.` is the same name, written to its end.
    valid.then(|| name.strip_suffix('.').unwrap_or(name))
}

fn open(
    gateway: &Gateway,
    route: Option<&Served>,
    worker: &Worker,
    now: Time,
    client: Client,
    request: &Request<Incoming>,
    host: &str,
) -> Account {
    let line = gateway.access_log.then(|| {
        Box::new(Line {
            client: client.address,
            method: request.method().clone(),
            host: host.to_owned(),
            path: request.uri().path().to_owned(),
        })
    });
    let tally = route.map_or(&gateway.unrouted, |route| &route.tally);
    Account::open(tally.clone(), worker.index, now, request.method(), line)
}

fn own(account: Account, outcome: Outcome, answer: Answer) -> Response<Settled> {
    let status = answer.status();
    answer.map(|body| account.settle(outcome, status, Content::Own(body)))
}

fn no_key(route: &Served, guard: usize) -> Answer {
    let limit = route.guards.get(guard).map_or("", |guard| guard.limit.name());
    respond::problem(StatusCode::BAD_REQUEST, &format!("The request lacks what the limit \"{limit}\" counts by."))
}

fn tell(route: &Served, judged: &Verdicts, headers: &mut HeaderMap, now: Time) {
    if !judged.is_empty() {
        route.report.tell(headers, judged, now);
    }
}

/// The way of one request to its upstream.
struct Hop<'a> {
    upstream: &'a Upstream,
    strip: usize,
    preserve_host: bool,
    caller: &'a Caller,
    client: Client,
}

impl Hop<'_> {
    /// Sends the request on; what goes wrong becomes an answer and a log line.
    async fn take(&self, request: Request<Incoming>) -> (Outcome, Response<Content>) {
        let Some(server) = self.upstream.choose() else {
            let answer = respond::problem(StatusCode::BAD_GATEWAY, "The upstream has no servers.");
            return (Outcome::Failed, answer.map(Content::Own));
        };
        let (parts, body) = request.into_parts();
        let target = match (self.strip, parts.uri.path_and_query().map_or("/", PathAndQuery::as_str)) {
            (0, whole) if whole.starts_with('/') => Cow::Borrowed(whole),
            // In absolute form there may be a query without a path.
            (count, _) => Cow::Owned(stripped(&parts.uri, count)),
        };
        // HTTP/1.0 need not name a host, but what is sent on is HTTP/1.1 and has to.
        let preserve_host = self.preserve_host && parts.headers.contains_key(header::HOST);
        let outbound = Outbound {
            method: &parts.method,
            target: &target,
            headers: &parts.headers,
            origin: Origin {
                peer: &self.caller.address,
                trusted: self.client.via_trusted,
                authority: (!preserve_host).then_some(&server.authority),
            },
        };
        match self.upstream.send(server, &self.caller.worker.pools, &outbound, body).await {
            Ok(response) => (Outcome::Forwarded, response.map(Content::Upstream)),
            Err(failure) => {
                let outcome = if failure.is_clients() {
                    tracing::debug!(upstream = self.upstream.name, error = %failure, "request broke off");
                    Outcome::Refused
                } else {
                    tracing::warn!(upstream = self.upstream.name, %server, error = %failure, "upstream failed");
                    Outcome::Failed
                };
                (outcome, respond::problem(failure.status(), failure.detail()).map(Content::Own))
            }
        }
    }
}

/// The target in origin form, without its first `count` segments.
fn stripped(uri: &Uri, count: usize) -> String {
    let rest = path::without(uri.path(), count);
    let slash = if rest.starts_with('/') { "" } else { "/" };
    let query = uri.query().map_or(String::new(), |query| format!("?{query}"));
    format!("{slash}{rest}{query}")
}
