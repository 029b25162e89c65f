//! Advice about the paths of routes that match less than their author may think.

use super::Advised;
use crate::config::route::{guess, is_of_others};
use crate::config::{Action, Config, PathPattern, Route, Segment, SentPath};

/// Parts of a path that are captures elsewhere.
pub(super) fn of_others(advised: &Advised<'_>) {
    for (index, route) in advised.config.routes.iter().enumerate() {
        let text = &route.path.text;
        let Some(part) = text.split('/').find(|part| is_of_others(part)) else { continue };
        if let (Some(guess), Some(sign)) = (guess(text), part.chars().find(|sign| ":<[\\^|".contains(*sign))) {
            let help = format!(
                "{{name}} captures one segment: write path = {guess:?}; if the path itself has a {sign:?}, write \
                 %{:02X}",
                u32::from(sign)
            );
            advised.warn(&[&"routes", &index, &"path"], format!("`{part}` in a path matches only itself"), help);
        }
    }
}

/// Redirects of requests over TLS to the same URL, in an endless loop.
pub(super) fn endless_redirects(advised: &Advised<'_>) {
    let Config { server, routes, .. } = advised.config;
    if !server.listen.iter().any(|listener| listener.tls) {
        return;
    }
    for (index, route) in routes.iter().enumerate().filter(|(_, route)| route.scheme.is_none()) {
        if matches!(&route.action, Action::Redirect(redirect) if redirect.is_same_url_over_tls()) {
            let message = "requests over TLS are redirected to the same URL, in an endless loop";
            advised.warn(&[&"routes", &index, &"path"], message, "add scheme = \"http\" to this route");
        }
    }
}

/// A last segment that is rarely a page of its own.
const PREFIXES: [&str; 8] = ["api", "app", "assets", "files", "images", "public", "rest", "static"];

/// Paths below which nothing is matched, although their routes look as if they were for everything below.
pub(super) fn without_rest(advised: &Advised<'_>) {
    let routes = &advised.config.routes;
    for (index, route) in routes.iter().enumerate() {
        let is_taken = |other: &Route| takes_below(&route.path, &other.path);
        if !looks_like_prefix(route) || routes.iter().any(is_taken) {
            continue;
        }
        let text = &route.path.text;
        let all = format!("{}/*", text.trim_end_matches('/'));
        let help = format!(
            "write path = {all:?} for this path and all below it; if they are meant to get 404, add a route with \
             path = {all:?} and respond = {{ status = 404 }}"
        );
        let message = format!("{text:?} matches only this path, and no route matches what is below it");
        advised.warn(&[&"routes", &index, &"path"], message, help);
    }
}

/// A route for one method is probably for one path as well.
fn looks_like_prefix(route: &Route) -> bool {
    let Action::Forward { path: sent, .. } = &route.action else { return false };
    let Some(Segment::Literal(last)) = route.path.segments.last() else { return false };
    let is_version = last.strip_prefix('v').is_some_and(|version| version.parse::<u16>().is_ok());
    let is_word = is_version || PREFIXES.contains(&last.as_str());
    // In nginx, a path with a final slash is one with all below it.
    let is_prefix = matches!(sent, SentPath::Stripped(1..)) || is_word || route.path.text.ends_with('/');
    !route.path.rest && route.methods.is_empty() && is_prefix
}

/// Whether a route of `other` matches something below `path`, whatever the hosts are. Below `/`, single pages do not count.
fn takes_below(path: &PathPattern, other: &PathPattern) -> bool {
    if path.text == "/" {
        return other.rest;
    }
    let own = match &path.segments[..] {
        [outer @ .., Segment::Literal(last)] if last.is_empty() => outer,
        all => all,
    };
    let fits = |(one, other): (&Segment, &Segment)| matches!(other, Segment::Capture(_)) || one == other;
    let is_longer = other.rest || other.segments.len() > own.len() && other.text != path.text;
    is_longer && own.iter().zip(&other.segments).all(fits)
}
