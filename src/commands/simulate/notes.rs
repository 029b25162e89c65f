//! What the numbers of a simulation do not say: what this log lacks, and what no log can tell.

use std::time::Duration;

use super::fields::{Attribute, Field};
use super::input::Input;
use super::needs::{Needs, Seen, Unknown, field_hint};
use super::replay::Replay;
use super::report::percent;
use crate::config::{Config, Cost, Limit, Role, Store};
use crate::limit::Rate;
use crate::tokens::Usage;

/// In seconds: for rates with windows up to this, whole seconds in a log make a difference.
const SHORT_WINDOW: u64 = 10;

pub(super) struct Notes<'a> {
    pub(super) config: &'a Config,
    pub(super) needs: &'a Needs,
    pub(super) input: &'a Input,
    pub(super) replay: &'a Replay<'a>,
    pub(super) fields: &'a [Field],
    pub(super) default_host: Option<&'a str>,
}

impl Notes<'_> {
    /// About the log, then the configuration, then each limit.
    pub(super) fn all(&self) -> Vec<String> {
        let mut notes = self.about_log();
        notes.extend(self.about_configuration());
        notes.extend(self.config.limits.iter().flat_map(|limit| about_limit(limit, &self.input.seen)));
        notes
    }

    fn about_log(&self) -> Vec<String> {
        let (seen, totals, default_host) = (&self.input.seen, &self.replay.totals, self.default_host);
        let mut notes = Vec::new();
        if totals.unrouted > 0 {
            let share = percent(totals.unrouted, totals.requests);
            let mut note = format!("{} requests ({share}) match no route, so no limit counts them", totals.unrouted);
            if !seen.host && default_host.is_none() {
                note += ": the log names no host (--host NAME says which one it is)";
            }
            notes.push(note);
        }
        if let (false, Some(host)) = (seen.host, default_host) {
            notes.push(format!("no line names a host: all requests are taken to be for {host}"));
        }
        if totals.refused > 0 {
            notes.push(format!("{} requests are answered 400, 413 or 501 before any limit is asked", totals.refused));
        }
        if totals.limited_then > 0 {
            let mut note = format!(
                "{} requests were answered 429 when they were logged: they count like all others, since clients sent them",
                totals.limited_then
            );
            let by_response = self.config.limits.iter().filter(|limit| limit.cost.is_known_from_response());
            let names: Vec<_> = by_response.map(|limit| limit.name.as_str()).collect();
            if !names.is_empty() {
                note += "; but the log does not say what they would have cost, so too few are rejected by ";
                note += &names.join(", ");
                note += ", whose suggested rates take the mean cost of other requests of the key";
            }
            notes.push(note);
        }
        if seen.left_out > 0 {
            notes.push(format!(
                "the log was sampled (log.access = \"sampled\"): it leaves out {} refused requests, which are not counted",
                seen.left_out
            ));
        }
        if !seen.fractions && totals.requests > 0 {
            let is_short = |rate: &Rate| rate.window() <= Duration::from_secs(SHORT_WINDOW);
            let short = self.config.limits.iter().filter(|limit| limit.rates.iter().any(is_short));
            let names: Vec<_> = short.map(|limit| limit.name.as_str()).collect();
            let mut note = "the log has whole seconds: requests of one second count as simultaneous".to_owned();
            if !names.is_empty() {
                note += ", which overstates the rejections by rates over a few seconds, such as those of ";
                note += &names.join(", ");
            }
            notes.push(note);
        }
        if !self.fields.is_empty() && !seen.json {
            notes.push("--field names fields of JSON lines, but no line is JSON".to_owned());
        }
        for field in self.fields {
            if let Attribute::Header(name) = &field.attribute
                && !self.needs.headers.contains(name)
            {
                notes.push(format!("--field header:{name} has no effect: no limit and no route uses this header"));
            }
        }
        notes
    }

    fn about_configuration(&self) -> Vec<String> {
        let Self { config, input, replay, .. } = self;
        let mut notes = Vec::new();
        for header in input.seen.unknown_conditions(config) {
            notes.push(format!("routes require the header {header}, which no line has: these routes take no request"));
        }
        if config.routes.iter().any(|route| route.scheme.is_some()) {
            notes.push(
                "a log does not say whether TLS was used: requests are taken to come as `listen` expects".to_owned(),
            );
        }
        if replay.evicted() > 0 {
            notes.push(format!(
                "{} keys were evicted from the store while they were in use: max_keys or max_memory is too small",
                replay.evicted()
            ));
        }
        if let Store::Shared(shared) = &config.store {
            let name = shared.software.name();
            notes.push(format!("the counters are in memory, as those of one gateway whose {name} always answers"));
        }
        if config.store.share().is_some() {
            notes.push(
                "gateways share the limits: the logs are taken to be those of all, which count together".to_owned(),
            );
        }
        if !config.jwts.is_empty() {
            notes.push("tokens are not in the log: none is checked".to_owned());
        }
        if config.server.shed.is_some() {
            notes.push("shedding under overload is not simulated".to_owned());
        }
        notes
    }
}

fn about_limit(limit: &Limit, seen: &Seen) -> Vec<String> {
    let name = &limit.name;
    let mut notes = Vec::new();
    if limit.quotas.is_some() {
        notes.push(format!(
            "{name}: the source of quotas is not asked, since it knows only what holds now: other rates hold"
        ));
    }
    if limit.max_in_flight.is_some() {
        notes.push(format!("{name}: max_in_flight is not simulated, since requests are taken to end at once"));
    }
    if limit.on_limit.role() == Role::Reports {
        notes.push(format!(
            "{name}: on_limit = \"shadow\": what it rejects is forwarded, unless another limit refuses it"
        ));
    }
    if limit.on_limit.delay().is_some() {
        notes.push(format!("{name}: requests that would be held are counted as rejected"));
    }
    match &limit.cost {
        Cost::ResponseHeader { .. } | Cost::Tokens(_) if seen.cost => {}
        Cost::ResponseHeader { name: header, reserve } => {
            notes.push(format!(
                "{name}: the log has no response header {header} (--field cost=NAME): each request costs {reserve}"
            ));
        }
        Cost::Tokens(_) if seen.tokens => notes.push(format!(
            "{name}: the log says neither models nor which tokens were cached: all have the weights of `cost`, as input and \
             output"
        )),
        Cost::Tokens(cost) => {
            let reserved = cost.weights.cost(Usage { output: cost.max_output, ..Usage::default() }).max(1);
            notes.push(format!(
                "{name}: no line says what a request has cost (--field cost=NAME): each costs what is reserved without \
                 its body, {reserved} or the most that the limit allows"
            ));
        }
        Cost::OnStatus(..) if seen.status => {
            notes.push(format!("{name}: responses are taken to come at once, with the status in the log"));
        }
        Cost::OnStatus(..) => notes.push(format!("{name}: no line has a status, so every request is charged")),
        Cost::Bytes(cost) => {
            if cost.counted.has_responses() && !seen.bytes {
                notes.push(format!(
                    "{name}: no line has the bytes of a response (--field bytes=NAME): responses cost nothing"
                ));
            }
            if cost.counted.has_requests() {
                notes.push(format!("{name}: bodies of requests cost what the header content-length says, if the log has it"));
            }
        }
        Cost::Elements => notes.push(format!("{name}: the log has no bodies, so each request counts as one item")),
        Cost::Fixed(_) | Cost::RequestHeader(_) => {}
    }
    notes
}

/// The consequence for a limit if the log lacks what the limit uses.
pub(super) fn about_unknown(unknown: &Unknown, is_json: bool) -> Option<String> {
    if unknown.sources.is_empty() {
        return None;
    }
    let hints: Vec<_> = unknown.sources.iter().filter(|_| is_json).filter_map(|source| field_hint(source)).collect();
    let hint = if hints.is_empty() { String::new() } else { format!(" ({})", hints.join(", ")) };
    let sources = unknown.sources.join(", ");
    Some(if unknown.is_found_later {
        format!("not simulated: only lines far from the beginning have {sources}, which was found too late")
    } else if unknown.is_keyless {
        format!("not simulated: its key cannot be read, since no line has {sources}{hint}")
    } else {
        format!("no line has {sources}{hint}: the limit counts as if clients did not send it")
    })
}
