//! What a path means that was written for another program: as a regular expression, or with its captures.

use crate::config::values;

/// Whether a part of a path is a capture or an expression elsewhere. Here it would match only itself.
pub(in crate::config) fn is_of_others(part: &str) -> bool {
    part.strip_prefix(':').is_some_and(|name| values::capture(name).is_ok())
        || part.contains(['<', '[', '\\', '^', '|'])
}

/// Whether a text is probably no path, but an expression or has a modifier of nginx.
pub(super) fn is_expression(text: &str) -> bool {
    text.starts_with(['^', '~', '='])
        || text.split('/').any(|part| is_of_others(part) || part.contains(".*") || part.contains(".+"))
        || (text.contains('(') && text.contains(')'))
}

/// A path that might match the same. It may still be wrong.
pub(in crate::config) fn guess(text: &str) -> Option<String> {
    let path = text.trim_start_matches(['~', '^', '=', '*', ' ']);
    let begins = text.starts_with(['^', '~']) && !text.ends_with('$');
    let path = path.trim_end_matches('$').replace("(/|$)(.*)", "/*").replace("(/.*)?", "/*").replace("[^/]", "\\w");
    let parts: Vec<&str> = path.strip_prefix('/')?.split('/').collect();
    let mut guess = String::new();
    for (at, part) in parts.iter().enumerate() {
        let is_last = at + 1 == parts.len();
        let literal = part.trim_end_matches(".*");
        if is_last && ["", ".*", "(.*)", ".+", "(.+)", "*", "**"].contains(part) {
            guess.push_str("/*");
        } else if is_of_others(literal) || literal.contains(['(', '*', '+', '{']) {
            guess.extend(["/{", capture(literal), "}"]);
        } else {
            guess.extend(["/", literal]);
            guess.push_str(if is_last && (begins || literal != *part) { "/*" } else { "" });
        }
    }
    Some(guess)
}

/// The name of a capture: `id` in `:id`, `<id>`, `<int:id>`, `[id]`, `{id:[0-9]+}` and `(?P<id>[0-9]+)`.
fn capture(part: &str) -> &str {
    let inner = part.split_once("(?P<").or(part.split_once("(?<")).map_or(part, |(_, rest)| rest);
    let inner = inner.split('>').next().unwrap_or_default().trim_matches([':', '<', '[', ']', '{', '}']);
    let ends = [inner.split(':').next(), inner.split(':').next_back()];
    let is_type = |name: &str| ["int", "str", "string", "path", "uuid", "slug"].contains(&name);
    ends.into_iter().flatten().find(|name| values::capture(name).is_ok() && !is_type(name)).unwrap_or("name")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_other_programs_are_guessed() {
        for (written, path) in [
            ("^/api/.*", "/api/*"),
            ("^/api/", "/api/*"),
            ("^/api", "/api/*"),
            ("^/api$", "/api"),
            ("~ /api", "/api/*"),
            ("^~ /api/", "/api/*"),
            ("= /api", "/api"),
            ("/api/(.*)", "/api/*"),
            ("/api(/|$)(.*)", "/api/*"),
            ("/api(/.*)?", "/api/*"),
            ("/api.*", "/api/*"),
            ("^/users/([^/]+)/posts$", "/users/{name}/posts"),
            ("/users/(?P<id>[0-9]+)", "/users/{id}"),
            ("/users/{id:[0-9]+}", "/users/{id}"),
            ("/users/:id/posts", "/users/{id}/posts"),
            ("/users/<id>", "/users/{id}"),
            ("/users/<int:id>", "/users/{id}"),
            ("/users/[id]", "/users/{id}"),
        ] {
            assert_eq!(guess(written).as_deref(), Some(path), "{written}");
            assert!(is_expression(written), "{written}");
        }
        for path in ["/", "/api/*", "/v1/items:batch", "/Products(1", "/$metadata", "/a{b}", "/%3Aid", "/a b"] {
            assert!(!is_expression(path), "{path}");
        }
        assert_eq!(guess("\\.php$"), None);
    }
}
