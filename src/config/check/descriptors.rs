//! Rules about descriptors: their limits are looked up and become a route.

use http::{HeaderValue, StatusCode};

use super::find;
use crate::base::units::spelled_duration;
use crate::config::file::{DescriptorDraft, Draft};
use crate::config::read::{Name, Source};
use crate::config::{
    Action, Cost, DEFAULT_PRIORITY, DescriptorRule, HeaderChanges, Host, Limit, PathPattern, Route,
    Source as KeySource, UNLIMITED,
};

pub(super) fn resolve(draft: &Draft<'_>, source: &Source<'_>) -> Vec<DescriptorRule> {
    draft.descriptors.iter().filter_map(|rule| resolve_rule(rule, draft, source)).collect()
}

fn resolve_rule(rule: &DescriptorDraft<'_>, draft: &Draft<'_>, source: &Source<'_>) -> Option<DescriptorRule> {
    let mut limits = Vec::new();
    for name in &rule.limits {
        let Some(index) = find(name, &draft.limits, "limit", source) else { continue };
        limits.push(index);
        draft.limits[index].1.iter().for_each(|limit| check(limit, name, source));
        draft.limits[index].1.iter().filter(|_| !rule.reports).for_each(|limit| warn_of_holds(limit, name, source));
    }
    let (domain, entries) = (rule.domain.clone()?, rule.entries.clone()?);
    let route = route(format!("envoy:{domain}"), limits);
    Some(DescriptorRule { domain, entries, reports: rule.reports, route })
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
