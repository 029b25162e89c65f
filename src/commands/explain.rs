//! Describes what would happen to a request, for `gateway explain`: its route and why the others do not match, the key
//! and rates of each limit, and the response with empty counters. It does not read the store.

mod quotas;

use std::cell::RefCell;
use std::fmt::Write as _;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use http::{HeaderMap, Request, header};

use crate::admin::describe::shown_value;
use crate::base::clock;
use crate::config::{self, Config, Cost, Missing, Source};
use crate::proxy;
use crate::proxy::respond;
use crate::proxy::respond::rate_limit_headers::RefusalCache;
use crate::proxy::snapshot::{Action, CompiledRoute, Forwarding, SharedState, Snapshot};
use crate::request::decide::{
    self, Decision, DecisionInput, DecisionState, Part, RateSet, ResolvedQuotas, RouteLimit, SelectedRates,
};
use crate::request::identify::client::{client, scheme};
use crate::request::identify::key_text::value_text;
use crate::request::identify::tokens::{TokenCache, TokenProblem, ValidTokens, verify_tokens};
use crate::request::identify::{KeyCache, RequestAttributes};
use crate::request::route::{self, RouteConditions, TemplateInput, host, mismatch, path, rewrite};
use crate::sources::jwks;
use crate::store::Store;
use crate::store::memory::Memory;

use quotas::AskedQuota;

/// What is shown instead of a key.
const MASK: &str = "***";

/// The arguments of `gateway explain`.
pub struct Question {
    /// The request; its target has a host or not.
    pub request: Request<()>,
    /// The address of the connection.
    pub peer: IpAddr,
    /// Whether keys are printed as they are.
    pub show_keys: bool,
}

/// The explanation as a text.
///
/// # Errors
/// A message, when the host or the path of the request is not valid.
pub fn explain(config: &Config, question: &Question) -> Result<String, String> {
    let request = &question.request;
    let named = request.headers().get(header::HOST).map(|host| host.to_str().unwrap_or("?"));
    let authority = request.uri().authority().map(http::uri::Authority::as_str).or(named).unwrap_or("");
    let host = host::normal(authority).ok_or(format!("{authority:?} is not a host"))?;
    let method = request.method();
    if proxy::is_method_in_other_case(method.as_str()) {
        return Err(format!("{method:?} would be answered 400: {}", proxy::METHOD_IN_OTHER_CASE));
    }
    let rules = config.server.paths;
    let path = path::normal(request.uri().path(), rules)
        .map_err(|why| format!("{:?} would be answered 400: {}", request.uri().path(), why.detail()))?;

    let store = Arc::new(Store::Memory(Memory::new(config.limits.len().max(1), usize::MAX)));
    let gateway = Snapshot::build(config, &SharedState::new(1, 1), store);
    let client = client(question.peer, request.headers(), &gateway.trusted_proxies);
    let mut text = String::new();
    // The scheme of the URL is that of the connection, behind a trusted proxy or not.
    let uses_tls = request.uri().scheme_str() == Some("https");
    let scheme = scheme(uses_tls, client, request.headers());
    let conditions = RouteConditions { method, headers: request.headers(), scheme };
    let preflight = gateway.preflight_route(&host, &path, conditions);
    let found = preflight.or_else(|| gateway.routes.find(&host, &path, conditions));
    let from = if client.via_trusted { " (as trusted proxies report)" } else { "" };
    line(&mut text, &format!("{} {host}{path} from {}{from}", request.method(), client.address));
    let Some((index, served)) = found.and_then(|index| Some((index, gateway.served.get(index)?))) else {
        let answer = respond::unrouted(&gateway.routes.allowed(&host, &path, conditions));
        line(&mut text, &format!("\nno route matches: answered {}", answer.status().as_u16()));
        headers_of(&mut text, answer.headers());
        others(&mut text, config, None, conditions, &host, &path);
        return Ok(text);
    };
    line(&mut text, &format!("\nroute {}\n  {}", served.metrics.name, action(config, index)));
    if let Some(answer) = preflight.and_then(|_| Some(served.cors.as_ref()?.preflight(request.headers()))) {
        line(&mut text, &format!("\nanswered {} by `cors`, and counted by no limit", answer.status().as_u16()));
        headers_of(&mut text, answer.headers());
        return Ok(text);
    }
    let input = TemplateInput { client_ip: client.address, host: &host, path: &path, request_id: b"REQUEST-ID" };
    sent(&mut text, config, served, request, &input);

    let tokens = tokens(&mut text, &gateway, served, request.headers());
    let key = path::key(&path, rules, served.ignore_case);
    let attributes = RequestAttributes {
        method: request.method(),
        host: &host,
        path: &key,
        query: request.uri().query(),
        headers: request.headers(),
        client: client.address,
        client_cert: None,
        tokens: &tokens,
        route: &served.metrics.name,
    };
    if let Some(ambiguity) = served.single.ambiguity(&attributes) {
        line(&mut text, &format!("\nanswered 400 and counted by no limit: {ambiguity}"));
        others(&mut text, config, Some(index), conditions, &host, &path);
        return Ok(text);
    }
    let problem = verify_tokens(&served.tokens, request.headers(), clock::now(), 0, &mut TokenCache::default()).err();
    let part = if problem.is_some() { Part::First } else { Part::All };
    if let Some(why) = problem
        && !served.limits.iter().any(|limit| part.has(limit))
    {
        line(&mut text, &format!("\nanswered 401 and counted by no limit: {why}"));
        others(&mut text, config, Some(index), conditions, &host, &path);
        return Ok(text);
    }
    if let (Some(shedding), None) = (&served.shedding, problem) {
        let priority = shedding.priority(&served.limits, &attributes, &mut KeyCache::default());
        let status = config.server.shed.as_ref().map_or(0, |shed| shed.status.as_u16());
        line(&mut text, &format!("\npriority {priority}: under overload, lower ones are answered {status} first"));
    }
    let asked = quotas::ask(&served.limits, &attributes);
    let heading = match part {
        Part::First => "\nlimits that come before tokens, checked together",
        _ if served.limits.is_empty() => "\nno limits",
        _ => "\nlimits, checked together",
    };
    line(&mut text, heading);
    let limits = served.limits.iter().zip(&config.routes[index].limits).zip(&asked);
    for ((route_limit, limit), asked) in limits.filter(|((limit, _), _)| part.has(limit)) {
        let limit = &config.limits[*limit];
        line(&mut text, &format!("  {}", limit.name));
        let show_keys = question.show_keys;
        Described { route_limit, limit, attributes: &attributes, asked, show_keys }.write(&mut text);
    }
    let quotas = quotas::resolved(&served.limits, &attributes, asked);
    fresh(&mut text, &gateway, served, &attributes, &quotas, problem).map_err(|error| error.to_string())?;
    others(&mut text, config, Some(index), conditions, &host, &path);
    Ok(text)
}

/// Says of each token that limits of the route use whether it is valid. Returns the valid ones.
fn tokens<'a>(
    text: &mut String,
    gateway: &Snapshot,
    served: &'a CompiledRoute,
    headers: &HeaderMap,
) -> ValidTokens<'a> {
    let mut valid = ValidTokens::new();
    if served.tokens.is_empty() {
        return valid;
    }
    line(text, "\ntokens");
    let fetched = jwks::fetch_first(&gateway.key_sources).map_err(|error| error.to_string());
    let failures = gateway.key_sources.iter().filter_map(|source| Some((source.name(), source.last_error()?)));
    for (name, error) in failures.chain(fetched.err().map(|error| ("all", error))) {
        line(text, &format!("  {name}  has no keys: {error}"));
    }
    for reader in &served.tokens {
        let (name, from) = (reader.name(), reader.from());
        match reader.read(headers, clock::now(), 0, &mut TokenCache::default()) {
            Ok(token) => {
                line(text, &format!("  {name}  valid, from {from}"));
                valid.push(token);
            }
            Err(TokenProblem::Missing) => line(text, &format!("  {name}  none in {from}")),
            Err(why) => line(text, &format!("  {name}  not valid, from {from}: {why}")),
        }
    }
    valid
}

fn line(text: &mut String, line: &str) {
    text.push_str(line);
    text.push('\n');
}

fn action(config: &Config, index: usize) -> String {
    match &config.routes[index].action {
        config::Action::Forward { upstream, .. } => format!("forwards to {}", config.upstreams[*upstream].name),
        config::Action::Respond { status, .. } => format!("answers {status}"),
        config::Action::Redirect(redirect) => {
            format!("redirects to {} with status {}", redirect.to.text, redirect.status)
        }
    }
}

/// Adds what the upstream gets, if the request is forwarded.
fn sent(text: &mut String, config: &Config, served: &CompiledRoute, request: &Request<()>, input: &TemplateInput<'_>) {
    let Action::Forward(Forwarding { path, .. }) = &served.action else { return };
    let uri = request.uri();
    match rewrite::sent(path, uri.path(), config.server.paths) {
        Ok(path) => {
            let query = uri.query().map_or(String::new(), |query| format!("?{query}"));
            line(text, &format!("  sends {} {path}{query}", request.method()));
        }
        Err(why) => line(text, &format!("  answers 400 instead of sending the rewritten path: {}", why.detail())),
    }
    if let Some(limit) = served.timeout {
        line(text, &format!("  waits at most {limit:?} for the head of the response"));
    }
    let Some(changes) = &served.request_headers else { return };
    let changes = changes.of(input);
    changes.remove.iter().for_each(|name| line(text, &format!("  removes the request header {name}")));
    for (verb, headers) in [("sets", &changes.set), ("adds", &changes.add)] {
        for (name, value) in headers {
            line(text, &format!("  {verb} the request header {name}: {}", shown_value(name, value)));
        }
    }
}

/// One limit and the request.
struct Described<'a> {
    route_limit: &'a RouteLimit,
    limit: &'a config::Limit,
    attributes: &'a RequestAttributes<'a>,
    asked: &'a AskedQuota,
    show_keys: bool,
}

impl Described<'_> {
    fn write(&self, text: &mut String) {
        let key_cache = &mut KeyCache::default();
        let key = self.route_limit.key.extract(self.attributes, 0, key_cache);
        line(text, &format!("    key      {}", self.key()));
        for source in self.route_limit.key.unknown(self.attributes) {
            line(text, &format!("    unknown  the value of {source} is not in known_keys, so it counts as missing"));
        }
        let counted = match (key, self.route_limit.missing) {
            (Some(key), _) => Some(key),
            (None, Missing::Shared) => Some(self.route_limit.key.shared()),
            (None, Missing::Skip | Missing::Reject) => None,
        };
        let Some(counted) = counted else { return };
        line(text, &format!("    counted  {}:{counted}", self.limit.name));
        let quota = self.asked.as_ref().and_then(|asked| asked.as_ref().ok()?.as_deref());
        let RouteLimit { rates, key: extractor, .. } = self.route_limit;
        let selected = rates.select(extractor, (counted, key.is_some()), self.attributes, key_cache, quota);
        line(text, &format!("    rates    {}", self.rates(selected)));
        if let Some(section) = &self.limit.quotas {
            line(text, &format!("    quotas   {}: {}", section.server, quotas::answer(self.asked)));
        }
        if let (SelectedRates::Rates(RateSet::Listed(0), _), Some(tiers)) = (selected, &self.limit.tiers) {
            line(text, &format!("    tier     none: {} names no tier of the limit", tiers.source));
        }
        if let Some(most) = self.route_limit.max_in_flight {
            line(text, &format!("    at once  {most} in flight"));
        }
        let cost = match &self.route_limit.cost {
            Cost::Fixed(cost) => cost.to_string(),
            Cost::RequestHeader(name) => format!("the number in the request header {name}, otherwise 1"),
            Cost::ResponseHeader { name, reserve } => {
                format!("{reserve} until the response arrives, then the number in its header {name}")
            }
            Cost::OnStatus(cost, _) => format!("{cost}, given back unless the response has a status in `count`"),
        };
        line(text, &format!("    cost     {cost}"));
        line(text, &format!("    over it  {}", self.limit.on_limit.in_words(self.limit.status)));
    }

    fn key(&self) -> String {
        let parts = self.route_limit.key.parts(self.attributes);
        if parts.iter().all(Option::is_none) {
            return match self.route_limit.missing {
                Missing::Shared => "none: all requests without a key share one counter".to_owned(),
                Missing::Skip => "none: the limit does not apply".to_owned(),
                Missing::Reject => "none: answered 400".to_owned(),
            };
        }
        let shown = |(source, value): (&Source, Vec<u8>)| match source {
            Source::Global => source.to_string(),
            Source::ClientIp { .. } if self.show_keys => format!("{} from {source}", value_text(source, &value)),
            // These are in the request line, so they are not secret.
            _ if self.show_keys || matches!(source, Source::Method | Source::Host | Source::Route | Source::Path) => {
                format!("{:?} from {source}", String::from_utf8_lossy(&value))
            }
            _ => format!("{MASK} from {source}"),
        };
        let absent = |sources: &[Source]| {
            let names: Vec<_> = sources.iter().map(ToString::to_string).collect();
            format!("no {}", names.join(" or "))
        };
        let parts = parts.into_iter().zip(&self.limit.key.parts);
        let parts = parts.map(|(part, sources)| part.map_or_else(|| absent(sources), shown));
        parts.collect::<Vec<_>>().join(", ")
    }

    fn rates(&self, selected: SelectedRates<'_>) -> String {
        let is_of_source = matches!(self.asked, Some(Ok(Some(_))));
        let (profile, limit) = match selected {
            SelectedRates::Exempt if is_of_source => return "none: the source of quotas exempts the key".to_owned(),
            SelectedRates::Exempt => return "none: an override exempts the key".to_owned(),
            SelectedRates::Block => {
                let by = if is_of_source { "the source of quotas" } else { "an override" };
                return format!("none: {by} blocks the key, {}", self.limit.on_limit.blocked_in_words());
            }
            SelectedRates::Rates(profile, limit) => (profile, limit),
        };
        let rates = limit.rates().iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ");
        let tiers = self.limit.tiers.as_ref().map_or(&[][..], |tiers| &tiers.rates);
        let RateSet::Listed(number) = profile else { return format!("{rates} (from the source of quotas)") };
        match number.checked_sub(1).map(|tier| tiers.get(tier)) {
            _ if rates.is_empty() => "none".to_owned(),
            None => rates,
            Some(Some((tier, _))) => format!("{rates} (tier {tier})"),
            Some(None) => format!("{rates} (an override for the key)"),
        }
    }
}

/// Adds the outcome for the first request: the store is empty.
fn fresh(
    text: &mut String,
    gateway: &Snapshot,
    served: &CompiledRoute,
    attributes: &RequestAttributes<'_>,
    quotas: &ResolvedQuotas,
    problem: Option<TokenProblem>,
) -> io::Result<()> {
    let now = clock::now();
    let input = DecisionInput {
        limits: &served.limits,
        part: if problem.is_some() { Part::First } else { Part::All },
        attributes,
        quotas,
        key_cache: &RefCell::default(),
        store: &gateway.store,
        concurrency: &gateway.concurrency,
        wait_queues: &gateway.wait_queues,
        now,
        worker: 0,
        traced_since: None,
        fail_open: true,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let mut state = DecisionState::new(&gateway.store, 0);
    let decision = runtime.block_on(decide::decide(&input, &mut state));
    let mut headers = HeaderMap::new();
    let outcome = if decision == Decision::Admitted {
        served.rate_limit_headers.add_headers(&mut headers, &state.outcomes, &state.shadowed, now);
        match (&served.action, problem) {
            (_, Some(why)) => format!("answered 401: {why}"),
            (Action::Forward(_), None) => "forwarded".to_owned(),
            (Action::Respond { status, .. } | Action::Redirect(config::Redirect { status, .. }), None) => {
                format!("answered {}", status.as_u16())
            }
        }
    } else {
        let answer = proxy::refuse(served, decision, &mut state, attributes.headers, now, &mut RefusalCache::default());
        headers = answer.headers().clone();
        format!("answered {}", answer.status().as_u16())
    };
    if let Some(cors) = &served.cors {
        cors.headers(attributes.method, attributes.headers).apply(&mut headers);
    }
    line(text, &format!("\nwith empty counters: {outcome}"));
    headers_of(text, &headers);
    Ok(())
}

fn headers_of(text: &mut String, headers: &HeaderMap) {
    for (name, value) in headers {
        line(text, &format!("  {name}: {}", shown_value(name, value)));
    }
}

/// Adds the routes that are not used, in the order in which they are compared.
fn others(
    text: &mut String,
    config: &Config,
    taken: Option<usize>,
    conditions: RouteConditions<'_>,
    host: &str,
    path: &str,
) {
    let ordered = route::order(&config.routes);
    let at = ordered.iter().position(|(index, _)| Some(*index) == taken);
    let mut list = String::new();
    for (_, (_, route)) in ordered.iter().enumerate().filter(|(place, _)| Some(*place) != at) {
        let why = mismatch(route, config.server.paths.matching, host, path, conditions);
        let why = why.map_or("matches too, but is less specific".to_owned(), |why| why.to_string());
        // Writing to a string cannot fail.
        let _ = writeln!(list, "  {}  {why}", route::label(route));
    }
    if !list.is_empty() {
        line(text, "\nother routes, the most specific first");
        text.push_str(&list);
    }
}
