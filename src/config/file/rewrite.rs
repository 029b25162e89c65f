//! `rewrite` of a route: the path that the upstream gets.

use super::paths;
use super::templates::{self, Placeholders};
use crate::config::read::Wrong;
use crate::config::report::quoted;
use crate::config::{PathPattern, Template};

const PLACEHOLDERS: Placeholders = Placeholders { built_in: &["rest"], braces: "%7B or %7D" };

/// `path` is that of the route.
pub(super) fn read(text: &str, path: &PathPattern) -> Result<Template, Wrong> {
    templates::check_characters(text, "a path")?;
    let placed = PLACEHOLDERS.split(text, path)?;
    if !text.starts_with('/') {
        let help = "a path begins with a slash, like \"/internal/{rest}\"";
        return Err(Wrong::new(format!("{} is not a path", quoted(text)), help));
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
        if !matches!(part, crate::config::TemplatePart::Text(_)) {
            sample.replace_range(place.clone(), &"x".repeat(place.len()));
        }
        sample
    });
    paths::pattern(&sample)?;
    Ok(Template { text: text.to_owned(), parts: placed.into_iter().map(|(part, _)| part).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rewrite_is_a_path() {
        let path = paths::pattern("/v1/{tenant}/*").unwrap();
        for text in ["/", "/a", "/a/", "/internal/{tenant}/{rest}", "/{rest}", "/a{rest}.x", "/%7Btenant%7D/a;b=c"] {
            assert_eq!(read(text, &path).map(|template| template.text), Ok(text.to_owned()));
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
            assert!(read(text, &path).is_err(), "{text}");
        }
    }
}
