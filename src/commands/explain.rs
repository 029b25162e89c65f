//! `gateway explain`: the route of a request and why other routes do not match, the key and rates of each limit, and
//! the response with empty counters. Does not read the store.

mod fresh;
mod limit;

use std::fmt::Write as _;
use std::sync::Arc;

use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::request::Parts;
use http::uri::Authority;
use http::{HeaderMap, Method, Request};

use super::cli::Explain;
use super::told_request;
use crate::admin::describe::{self, shown_value};
use crate::base::clock;
use crate::config::Config;
use crate::proxy::respond::{self, LocalResponse};
use crate::proxy::snapshot::{Action, CompiledRoute, Forwarding, RouteLimits, SharedState, Snapshot};
use crate::proxy::{self, ResponseChanges};
use crate::request::decide::{self, PlacedLimits, RouteLimit, StageRange};
use crate::request::identify::body::{BodyInspector, InspectedBody};
use crate::request::identify::tokens::{TokenCache, TokenProblem, ValidTokens, verify_tokens};
use crate::request::identify::{KeyCache, RequestAttributes};
use crate::request::resolve::{self, ArrivedRequest, NextStep, Rejection, Resolved, Target};
use crate::request::route::{self, RouteConditions, TemplateInput, mismatch, rewrite};
use crate::sources::jwks;
use crate::store::Store;
use crate::store::memory::Memory;

use fresh::{Problem, Routed};
use limit::DescribedLimit;

/// The explanation as a text. The error is a message, if the request would be refused before its route is known.
pub(super) fn explain(config: &Config, asked: &Explain) -> Result<String, String> {
    let Explain { data: body, from: peer, show_keys, .. } = asked;
    let mut head = head(asked);
    let store = Arc::new(Store::from(Memory::new(config.limits.len().max(1), usize::MAX)));
    let gateway = Snapshot::build(config, &SharedState::new(1, 1), store);
    gateway.resolver.remove_unforwarded(&mut head.headers, *peer);
    // The scheme of the URL is that of the connection, behind a trusted proxy or not.
    let request = told_request::arrived(&head, *peer, head.uri.scheme_str() == Some("https"));
    let request = body.as_ref().map_or(request, |body| ArrivedRequest { body: Some(body.len() as u64), ..request });
    let Resolved { client, scheme, target, route, next } = gateway.resolver.resolve(request);
    if let (None, NextStep::Refuse(why)) = (route, &next) {
        return Err(format!("{} {} would be answered {}: {}", head.method, head.uri, why.status.as_u16(), why.detail));
    }
    let mut text = String::new();
    let conditions = RouteConditions { method: &head.method, headers: &head.headers, scheme };
    let from = match (client.contradictory, client.via_trusted) {
        (Some([listed, named]), _) => format!(" (its headers name two clients: {listed} and {named})"),
        (None, true) => " (as trusted proxies report)".to_owned(),
        (None, false) => String::new(),
    };
    line(&mut text, &format!("{} {}{} from {}{from}", head.method, target.host, target.path, client.address));
    let Some((index, served)) = route.and_then(|index| Some((index, gateway.served.get(index)?))) else {
        let answer = respond::unrouted(&gateway.resolver.routes.allowed(&target.host, &target.path, conditions));
        line(&mut text, &format!("\nno route matches: answered {}", answer.status().as_u16()));
        headers_of(&mut text, answer.headers());
        return Ok(others(text, config, None, conditions, &target));
    };
    line(&mut text, &format!("\nroute {}\n  {}", served.metrics.name, describe::action(config, &config.routes[index])));
    let (host, path) = (&*target.host, &*target.path);
    let input = TemplateInput { client_ip: client.address, host, path, request_id: b"REQUEST-ID" };
    let mut changes = ResponseChanges::new(served, conditions, &input);
    match next {
        NextStep::Refuse(why) => {
            refused(&mut text, respond::refused(&why), &why.detail, &changes);
            return Ok(others(text, config, Some(index), conditions, &target));
        }
        NextStep::Preflight => {
            let Some(mut answer) = changes.preflight(&head.headers) else { return Ok(text) };
            line(&mut text, &format!("\nanswered {} by `cors`, and counted by no limit", answer.status().as_u16()));
            changes.apply(&mut answer);
            headers_of(&mut text, answer.headers());
            return Ok(text);
        }
        NextStep::Unrouted | NextStep::Decide => {}
    }
    sent(&mut text, config, served, &head, &input);

    let tokens = tokens(&mut text, &gateway, served, &head.headers);
    let attributes = request.attributes(&client, &target, &served.metrics.name);
    let mut attributes = RequestAttributes { tokens: &tokens, ..attributes };
    let verified = verify_tokens(&served.tokens, &head.headers, clock::now(), 0, &mut TokenCache::default());
    let mut problem = verified.err().map(Problem::Token);
    let inspected;
    let mut asked: PlacedLimits = served.limits.iter().cloned().enumerate().collect();
    if let (Some(inspector), None) = (&served.inspector, &problem) {
        match read(inspector, &served.limits, &attributes, body.as_deref().unwrap_or_default()) {
            Ok((read, of_elements)) => {
                (inspected, asked) = (read, of_elements.unwrap_or(asked));
                attributes.body = Some(&inspected);
            }
            Err(why) => problem = Some(Problem::Body(why)),
        }
    }
    let part = problem.as_ref().map_or(StageRange::ALL, Problem::charged);
    let counts = |limit: &RouteLimit| part.has(limit) && (problem.is_none() || !limit.is_of_strangers(&attributes));
    if let Some(problem) = &problem
        && !served.limits.iter().any(|limit| limit.is_of_route && counts(limit))
    {
        refused(&mut text, problem.answer(), &problem.to_string(), &changes);
        return Ok(others(text, config, Some(index), conditions, &target));
    }
    let places: Vec<_> = asked.iter().map(|(place, _)| *place).collect();
    let asked = asked.into_iter().map(|(place, limit)| (&served.limits, place, limit));
    let asked_limits = &RouteLimits::joined(asked);
    if let (Some(shedding), None) = (&served.shedding, &problem) {
        let priority = shedding.priority(&served.limits, &attributes, &mut KeyCache::default());
        let status = config.server.shed.as_ref().map_or(0, |shed| shed.status.as_u16());
        line(&mut text, &format!("\npriority {priority}: under overload, lower ones are answered {status} first"));
    }
    let asked = limit::ask_sources(asked_limits, &attributes);
    let heading = match &problem {
        Some(Problem::Token(_)) => "\nlimits that come before tokens, checked together",
        Some(Problem::Body(_)) => "\nlimits that need no body, checked together",
        None if served.limits.is_empty() => "\nno limits",
        None => "\nlimits, checked together",
    };
    line(&mut text, heading);
    let share = config.store.share();
    let limits = asked_limits.iter().zip(places).zip(&asked);
    for ((route_limit, place), asked) in limits.filter(|((limit, _), _)| counts(limit)) {
        let Some(limit) = config.limits_of(&config.routes[index]).nth(place) else { continue };
        let pool = if route_limit.is_of_route { "" } else { "  (a pool, charged only instead of others)" };
        line(&mut text, &format!("  {}{pool}", limit.name));
        DescribedLimit { route_limit, limit, share, attributes: &attributes, asked, show_keys: *show_keys }
            .write(&mut text);
    }
    let quotas = limit::resolved(asked_limits, &attributes, asked);
    let routed = Routed { gateway: &gateway, served, limits: asked_limits, request, target: &target, problem };
    routed.write(&mut text, &attributes, &quotas, &changes).map_err(|error| error.to_string())?;
    Ok(others(text, config, Some(index), conditions, &target))
}

fn head(asked: &Explain) -> Parts {
    let (mut head, ()) = Request::new(()).into_parts();
    let default = asked.data.as_ref().map_or(Method::GET, |_| Method::POST);
    (head.method, head.uri) = (asked.request.clone().unwrap_or(default), asked.url.clone());
    head.headers.extend(asked.header.iter().cloned());
    let tells_length = [CONTENT_LENGTH, TRANSFER_ENCODING].iter().any(|name| head.headers.contains_key(name));
    if let Some(body) = asked.data.as_ref().filter(|_| !tells_length) {
        head.headers.insert(CONTENT_LENGTH, body.len().into());
    }
    told_request::add_host(&mut head, asked.url.authority().map(Authority::as_str));
    resolve::name_host(&mut head);
    head
}

/// Reads the body, and finds the limits to ask, each with its place on the route, if it is an array.
fn read<'a>(
    inspector: &'a BodyInspector,
    limits: &[RouteLimit],
    attributes: &RequestAttributes<'_>,
    body: &[u8],
) -> Result<(InspectedBody<'a>, Option<PlacedLimits>), Rejection> {
    let read = proxy::read_body(inspector, attributes, body)?;
    let attributes = RequestAttributes { body: Some(&read), ..*attributes };
    let asked = decide::of_elements(limits, &attributes, &mut KeyCache::default())?;
    Ok((read, asked))
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
    let failures = gateway
        .key_sources
        .iter()
        .filter_map(|source| Some((&*source.name, source.server.as_ref()?.last_error.lock().clone()?)));
    for (name, error) in failures.chain(fetched.err().map(|error| ("all", error))) {
        line(text, &format!("  {name}  has no keys: {error}"));
    }
    for reader in &served.tokens {
        let (name, from) = (&reader.name, &reader.from);
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

/// Adds what the upstream gets, if the gateway forwards the request.
fn sent(text: &mut String, config: &Config, served: &CompiledRoute, head: &Parts, input: &TemplateInput<'_>) {
    let Action::Forward(Forwarding { path, .. }) = &served.action else { return };
    let uri = &head.uri;
    match rewrite::sent(path, uri.path(), config.server.paths) {
        Ok(path) => {
            let query = uri.query().map_or(String::new(), |query| format!("?{query}"));
            line(text, &format!("  sends {} {path}{query}", head.method));
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

/// Adds the answer to a request that no limit counts.
fn refused(text: &mut String, mut answer: LocalResponse, why: &str, changes: &ResponseChanges<'_>) {
    changes.apply(&mut answer);
    line(text, &format!("\nanswered {} and counted by no limit: {why}", answer.status().as_u16()));
    headers_of(text, answer.headers());
}

fn headers_of(text: &mut String, headers: &HeaderMap) {
    for (name, value) in headers {
        line(text, &format!("  {name}: {}", shown_value(name, value)));
    }
}

/// Adds the other routes, in the order in which the gateway compares them.
fn others(
    mut text: String,
    config: &Config,
    taken: Option<usize>,
    conditions: RouteConditions<'_>,
    target: &Target<'_>,
) -> String {
    let ordered = route::order(&config.routes);
    let at = ordered.iter().position(|(index, _)| Some(*index) == taken);
    let mut list = String::new();
    for (_, (_, route)) in ordered.iter().enumerate().filter(|(place, _)| Some(*place) != at) {
        let why = mismatch(route, config.server.paths.matching, &target.host, &target.path, conditions);
        let why = why.unwrap_or_else(|| "matches too, but is less specific".to_owned());
        // Writing to a string cannot fail.
        let _ = writeln!(list, "  {}  {why}", route::label(route));
    }
    if !list.is_empty() {
        line(&mut text, "\nother routes, the most specific first");
        text.push_str(&list);
    }
    text
}
