//! Where the response of a route comes from: an upstream, which may get another path, or the gateway itself.

use http::{HeaderValue, StatusCode};

use super::keys as route;
use super::path_pattern::{self, PathPattern, check_sources};
use super::redirect::{self, Redirect};
use super::template::{Placeholders, Template, TemplatePart, check_characters};
use crate::config::kinds::{status_code, text};
use crate::config::named::Named;
use crate::config::read::{Section, Wrong, tables};
use crate::config::{Balance, Upstream, content};

const PLACEHOLDERS: Placeholders = Placeholders { built_in: &["rest"], braces: "%7B or %7D" };

/// Where the response comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    Forward {
        /// Index into [`Config::upstreams`](crate::config::Config::upstreams).
        upstream: usize,
        path: SentPath,
        preserve_host: bool,
        /// Whether URLs of the servers in Location are replaced by URLs for clients.
        rewrite_location: bool,
    },
    Respond {
        /// 200 to 599.
        status: StatusCode,
        body: String,
        content_type: HeaderValue,
    },
    Redirect(Redirect),
}

impl Action {
    /// The index of the upstream to which requests are forwarded.
    pub fn upstream(&self) -> Option<usize> {
        match self {
            Self::Forward { upstream, .. } => Some(*upstream),
            Self::Respond { .. } | Self::Redirect(_) => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SentPath {
    /// The client's path without this many leading segments (`strip_prefix`).
    Stripped(usize),
    /// Another path (`rewrite`).
    Rewritten(Template),
}

tables! {
    /// A response of the gateway itself.
    respond "`respond`" {
        /// The status.
        status: StatusCode = status_code(200, 599), 200;
        /// The body.
        body: () = text(), "" => "hello\n";
        /// The type of `body`. By default `application/json` if that is a JSON object or array, otherwise plain text.
        content_type: () = text() => "text/html";
    }
}

/// `path` is that of the route, if it has no error. `None` after a report.
pub(super) fn read(section: &Section<'_>, path: Option<&PathPattern>, named: &Named<'_>) -> Option<Action> {
    let strip = section.field(&route::strip_prefix);
    let rewrite = section.field(&route::rewrite);
    let preserve_host = section.read(&route::preserve_host);
    let rewrite_location = section.given(&route::rewrite_location);
    let help = "add upstream = \"NAME\", or respond = { status = 200, body = \"hello\\n\" }";
    let (answers, field) = section.one_of(&[&route::upstream, &route::respond, &route::redirect], help)?;
    if answers.name != route::upstream.name {
        let of_upstreams = [
            route::strip_prefix.name,
            route::rewrite.name,
            route::preserve_host.name,
            route::rewrite_location.name,
            route::timeout.name,
            route::request_headers.name,
        ];
        let why = format!("has no effect with `{}`", answers.name);
        section.refuse(&of_upstreams, &why, "remove it: nothing is forwarded");
        let table = section.table(answers)?;
        return match answers.name == route::respond.name {
            true => Some(answer_itself(&table)),
            false => redirect::read(&table, path).map(Action::Redirect),
        };
    }
    if strip.is_some() && rewrite.is_some() {
        let message = "the route has both `strip_prefix` and `rewrite`";
        let help = "keep one: with `rewrite`, write {rest} for what follows the prefix";
        section.source.report(section.key_span(route::rewrite.name), message, help);
    }
    let rewritten = rewrite.zip(path).and_then(|(field, path)| field.parse(|text| rewritten(text, path)));
    let stripped = strip.zip(path).and_then(|(field, path)| field.parse(|text| path_pattern::stripped(text, path)));
    let (index, upstream) = named.upstream(&field)?;
    if let (Some(Upstream { name, balance: Balance::Hash(key), .. }), Some(path)) = (upstream, path) {
        check_sources(&field, name, key.parts.iter().flatten(), path);
    }
    Some(Action::Forward {
        upstream: index,
        path: rewritten.map_or(SentPath::Stripped(stripped.unwrap_or(0)), SentPath::Rewritten),
        preserve_host,
        rewrite_location: rewrite_location.or(upstream.map(|upstream| upstream.rewrite_location)).unwrap_or(true),
    })
}

fn answer_itself(section: &Section<'_>) -> Action {
    let status = section.read(&respond::status);
    let (body, content_type) = content::read(section, &respond::body, &respond::content_type, status);
    Action::Respond { status, body, content_type }
}

/// `path` is that of the route.
fn rewritten(text: &str, path: &PathPattern) -> Result<Template, Wrong> {
    check_characters(text, "a path")?;
    let placed = PLACEHOLDERS.split(text, path)?;
    if !text.starts_with('/') {
        return Err(Wrong::not(text, "a path", "a path begins with a slash, like \"/internal/{rest}\""));
    }
    for (sign, help) in [
        ('?', "a rewrite is a path; the query of the request is kept"),
        ('#', "a fragment is never sent to a server"),
        ('*', "write {rest} for what the final `*` of the path has taken"),
    ] {
        if let Some(at) = text.find(sign) {
            return Err(Wrong::new(format!("a rewrite cannot contain {sign:?}"), help).at(at..at + 1));
        }
    }
    // Each placeholder is replaced by a text of the same length, so that errors keep their place.
    let sample = placed.iter().fold(text.to_owned(), |mut sample, (part, place)| {
        if !matches!(part, TemplatePart::Text(_)) {
            sample.replace_range(place.clone(), &"x".repeat(place.len()));
        }
        sample
    });
    path_pattern::pattern(&sample)?;
    Ok(Template { text: text.to_owned(), parts: placed.into_iter().map(|(part, _)| part).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rewrite_is_a_path() {
        let path = path_pattern::pattern("/v1/{tenant}/*").unwrap();
        for text in ["/", "/a", "/a/", "/internal/{tenant}/{rest}", "/{rest}", "/a{rest}.x", "/%7Btenant%7D/a;b=c"] {
            assert_eq!(rewritten(text, &path).map(|template| template.text), Ok(text.to_owned()));
        }
        for text in [
            "",
            "a",
            "{rest}",
            "{tenant}/a",
            "//a",
            "/a//b",
            "/a/../b",
            "/./a",
            "/%2e%2e/a",
            "/a?b",
            "/a#b",
            "/*",
            "/a/*",
            "/a b",
            "/é",
            "/a%",
            "/%4",
            "/%{tenant}",
            "/%2{tenant}",
            "/{{a}}",
            "/{tenan}",
            "/{host}",
            "/{path}",
            "/{",
            "/\\a",
            "/\r\nx",
            "/%0d",
            "/%00",
        ] {
            assert!(rewritten(text, &path).is_err(), "{text}");
        }
    }
}
