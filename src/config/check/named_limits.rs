//! Rules about limits that others name: pools, which are charged instead of limits that have no room and name them with
//! `overflow`; the limits of descriptors, which become a route; and those about which there are notices.

use http::{HeaderValue, StatusCode};

use super::find;
use crate::base::units::spelled_duration;
use crate::config::decisions::DescriptorDraft;
use crate::config::file::Draft;
use crate::config::limit::Overflow;
use crate::config::notices::NoticesDraft;
use crate::config::read::{Name, Source};
use crate::config::{
    Action, Cost, DEFAULT_PRIORITY, DescriptorRule, HeaderChanges, Host, Limit, Missing, NoticeReceiver, PathPattern,
    Role, Route, Source as KeySource, UNLIMITED,
};
use crate::limit::Rate;

/// Checks that every pool is a limit that can stand in for others.
pub(super) fn check_pools(draft: &Draft<'_>, source: &Source<'_>) {
    for Overflow { limit: owner, pool, .. } in &draft.overflows {
        let Some(named) = pool else { continue };
        if named.text == owner.text {
            let message = format!("the limit `{}` overflows into itself", owner.text);
            source.report(named.span.clone(), message, "name another limit");
            continue;
        }
        let Some(index) = find(named, &draft.limits, "limit", source) else { continue };
        let of_pool = &draft.overflows[index];
        let user = format!("`{}` overflows into it {}", owner.text, source.elsewhere(named.span.start));
        if let Some(further) = &of_pool.pool {
            let message = format!("the pool `{}` cannot overflow: {user}", named.text);
            source.report(further.span.clone(), message, "remove this `overflow`, or name another pool there");
        }
        let Some(pool) = &draft.limits[index].1 else { continue };
        if pool.on_limit.role() == Role::Reports {
            let message = format!("the pool `{}` cannot only report: {user}", named.text);
            source.report(of_pool.on_limit.clone(), message, "remove this `on_limit`, or name another pool there");
        }
        if pool.rates.is_empty() {
            let message = format!("the pool `{}` has no `rates`: {user}", named.text);
            source.report(of_pool.limit.span.clone(), message, "add rates = [\"100/s\"], or name another pool there");
        }
        let limit = draft.limits.iter().find(|(name, _)| name.text == owner.text).and_then(|(_, limit)| limit.as_ref());
        if limit.is_some_and(|limit| limit.counts_bytes() != pool.counts_bytes()) {
            let message = format!("only one of `{}` and its pool counts bytes", owner.text);
            source.report(named.span.clone(), message, "give both `cost = { bytes = ... }`, or name another pool");
        }
        limit.iter().for_each(|limit| warn_of_strangers(limit, named, source));
        if let Some((cost, most)) = limit.and_then(|limit| Some((initial(&limit.cost)?, most(limit)?.max(most(pool)?))))
            && cost > most
        {
            let message = format!("a request that costs {cost} can pass neither `{}` nor its pool", owner.text);
            source.report(named.span.clone(), message, format!("the larger of the two allows {most}"));
        }
    }
}

/// Warns of a limit whose pool the clients without a key of their own would use up if they got anything from it.
fn warn_of_strangers(limit: &Limit, pool: &Name<'_>, source: &Source<'_>) {
    let is_shared = limit.missing == Missing::Shared;
    let Some(lacked) = limit.key.of_strangers(limit.known_keys.is_some(), is_shared) else { return };
    let message =
        format!("clients without a key of their own in `{}` share counters, which do not overflow", limit.name);
    let own = lacked.iter().filter(|source| source.identifies_clients()).map(ToString::to_string);
    let own: Vec<_> = own.chain(["client-ip".to_owned()]).collect();
    let apart = format!("tell them apart: \"{}\"", own.join(" | "));
    let help = match is_shared && limit.key.of_strangers(limit.known_keys.is_some(), false).is_none() {
        true => format!("refuse them: missing = \"reject\"; or {apart}"),
        false => apart,
    };
    source.warn(pool.span.clone(), message, help);
}

/// The indices of the pools of these limits, without pools that are among these limits.
pub(super) fn pools(limits: &[usize], draft: &Draft<'_>) -> Vec<usize> {
    let mut pools = Vec::new();
    for index in limits {
        let name = draft.limits[*index].1.as_ref().and_then(Limit::pool);
        let pool = name.and_then(|name| draft.limits.iter().position(|(limit, _)| limit.text == name));
        pools.extend(pool.filter(|pool| !limits.contains(pool) && !pools.contains(pool)));
    }
    pools
}

/// The cost that is charged before a response, if it is fixed in the file.
fn initial(cost: &Cost) -> Option<u64> {
    match cost {
        Cost::Fixed(cost) | Cost::OnStatus(cost, _) | Cost::ResponseHeader { reserve: cost, .. } => Some(*cost),
        Cost::RequestHeader(_) | Cost::Tokens(_) | Cost::Bytes(_) | Cost::Elements => None,
    }
}

/// The most that one request may cost.
fn most(limit: &Limit) -> Option<u64> {
    limit.part(&limit.rates).iter().map(Rate::capacity).min()
}

pub(super) fn resolve_descriptors(draft: &Draft<'_>, source: &Source<'_>) -> Vec<DescriptorRule> {
    draft.descriptors.iter().filter_map(|rule| resolve_rule(rule, draft, source)).collect()
}

/// The receivers of notices, each with the names of its limits: by default all that have rates.
pub(super) fn resolve_notices(draft: &Draft<'_>, source: &Source<'_>) -> Vec<NoticeReceiver> {
    let limits = || draft.limits.iter().filter_map(|(_, limit)| limit.as_ref());
    let resolve = |one: &NoticesDraft<'_>| {
        let named = one.names.iter().flatten().filter_map(|name| {
            let limit = draft.limits[find(name, &draft.limits, "limit", source)?].1.as_ref()?;
            if limit.all_rates().next().is_none() && limit.quotas.is_none() {
                let message = format!("there are no notices about `{}`, since it has no `rates`", name.text);
                source.warn(name.span.clone(), message, "add `rates` to it, or remove its name here");
            }
            Some(limit.name.clone())
        });
        let named: Vec<_> = named.collect();
        let all = || limits().map(|limit| limit.name.clone()).collect();
        Some(NoticeReceiver { limits: if one.names.is_some() { named } else { all() }, ..one.notices.clone()? })
    };
    draft.notices.iter().filter_map(resolve).collect()
}

fn resolve_rule(rule: &DescriptorDraft<'_>, draft: &Draft<'_>, source: &Source<'_>) -> Option<DescriptorRule> {
    let mut limits = Vec::new();
    for name in &rule.limits {
        let Some(index) = find(name, &draft.limits, "limit", source) else { continue };
        limits.push(index);
        draft.limits[index].1.iter().for_each(|limit| check(limit, name, source));
        draft.limits[index]
            .1
            .iter()
            .filter(|_| !rule.reports && !rule.quota_mode)
            .for_each(|limit| warn_of_holds(limit, name, source));
    }
    let (domain, entries) = (rule.domain.clone()?, rule.entries.clone()?);
    let route = route(format!("envoy:{domain}"), limits);
    Some(DescriptorRule { domain, entries, reports: rule.reports, quota_mode: rule.quota_mode, route })
}

/// Checks that descriptors can have everything that a limit needs.
fn check(limit: &Limit, name: &Name<'_>, source: &Source<'_>) {
    let is_there = |part: &&KeySource| matches!(part, KeySource::Descriptor(_) | KeySource::Global);
    if let Some(missing) = limit.sources().find(|part| !is_there(part)) {
        let message = format!("`{}` needs `{missing}`, which descriptors do not have", name.text);
        source.report(name.span.clone(), message, "name a limit whose key is like \"descriptor:remote_address\"");
    }
    if limit.cost != Cost::Fixed(1) {
        let message = format!("`{}` has a cost, but here a call says what it costs: `hits_addend`", name.text);
        source.report(name.span.clone(), message, "name a limit without `cost`, `count` and `tokens`");
    }
    if limit.max_in_flight.is_some() {
        let message = format!("`{}` has `max_in_flight`, but a call does not say when a request ends", name.text);
        source.report(name.span.clone(), message, "name a limit with `rates` alone");
    }
    if limit.pool().is_some() {
        let message = format!("`{}` has an `overflow`, which limits of descriptors cannot have", name.text);
        source.report(name.span.clone(), message, "name a limit without `overflow`");
    }
}

/// Warns of a limit that holds calls for longer than Envoy waits by default.
fn warn_of_holds(limit: &Limit, name: &Name<'_>, source: &Source<'_>) {
    let delayed = limit.on_limit.delay().map(|(max_delay, _)| max_delay);
    let longest = delayed.max(limit.slows().map(|slow| slow.up_to));
    if let Some(longest) = longest {
        let message =
            format!("`{}` holds calls, and a request passes if Envoy does not wait for the answer", name.text);
        let help = format!(
            "a hold ends after three quarters of the `timeout` of Envoy's filter, 20 ms by default: to hold for all of \
             {}, set a third more",
            spelled_duration(longest)
        );
        source.warn(name.span.clone(), message, help);
    }
}

/// A route that has these limits and answers by itself.
fn route(name: String, limits: Vec<usize>) -> Route {
    Route {
        host: Host::Any,
        path: PathPattern { text: name, segments: Vec::new(), rest: false },
        ignore_case: false,
        methods: Vec::new(),
        headers: Vec::new(),
        scheme: None,
        action: Action::Respond {
            status: StatusCode::OK,
            body: String::new(),
            content_type: HeaderValue::from_static("application/grpc"),
        },
        limits,
        pools: Vec::new(),
        max_body_size: UNLIMITED,
        inspect_body: 0,
        body_timeout: None,
        timeout: None,
        request_headers: HeaderChanges::default(),
        response_headers: HeaderChanges::default(),
        priority: DEFAULT_PRIORITY,
        cors: None,
    }
}
