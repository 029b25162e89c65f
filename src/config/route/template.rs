//! Texts with placeholders that each request fills in: locations of redirects, rewritten paths, and values of headers.
//!
//! `{name}` is a capture of the path or a built-in name. `{{` and `}}` are braces.

use std::ops::Range;

use super::path_pattern::{PathPattern, Segment};
use crate::config::read::Wrong;
use crate::config::report::{either, nearest, quoted};
use crate::config::values;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    pub text: String,
    pub parts: Vec<TemplatePart>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TemplatePart {
    Text(String),
    /// `{client_ip}`: the address of the client.
    ClientIp,
    /// `{host}`, without the port.
    Host,
    /// `{request_id}`
    RequestId,
    /// `{path}`
    Path,
    /// `{query}`, without the question mark.
    Query,
    /// The question mark and the query of the request, if there is a query. For locations without a query of their own.
    QueryIfAny,
    /// `{name}`: the segment of the path with this index.
    Segment(usize),
    /// `{rest}`: the path after this many segments, without the slash before it.
    Rest(usize),
}

impl Template {
    pub fn needs_host(&self) -> bool {
        self.parts.contains(&TemplatePart::Host)
    }
}

/// What a text may contain besides captures.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placeholders {
    pub(super) built_in: &'static [&'static str],
    /// How to write a brace, for messages.
    pub(super) braces: &'static str,
}

pub(super) type Placed = (TemplatePart, Range<usize>);

impl Placeholders {
    /// Splits a text at its placeholders. `path` is that of the route.
    pub(super) fn split(self, text: &str, path: &PathPattern) -> Result<Vec<Placed>, Wrong> {
        let (mut parts, mut at) = (Vec::new(), 0);
        while at < text.len() {
            let rest = &text[at..];
            if rest.starts_with("{{") || rest.starts_with("}}") {
                push_text(&mut parts, &rest[..1], at..at + 2);
                at += 2;
                continue;
            }
            let Some(inner) = rest.strip_prefix('{') else {
                let end = at + rest.find(['{', '}']).unwrap_or(rest.len());
                if end == at {
                    return Err(Wrong::new("a `}` without a `{`", self.help()).at(at..at + 1));
                }
                push_text(&mut parts, &text[at..end], at..end);
                at = end;
                continue;
            };
            let Some(length) = inner.find('}') else {
                return Err(Wrong::new("a `{` without a `}`", self.help()).at(at..text.len()));
            };
            let place = at..at + length + 2;
            at = place.end;
            let part = self.placeholder(&inner[..length], path).map_err(|wrong| wrong.at(place.clone()))?;
            parts.push((part, place));
        }
        Ok(parts)
    }

    fn help(self) -> String {
        let example = self.built_in.first().unwrap_or(&"name");
        format!("a placeholder is a name in braces, like {{{example}}}; write a brace itself as {}", self.braces)
    }

    fn placeholder(self, name: &str, path: &PathPattern) -> Result<TemplatePart, Wrong> {
        if values::capture(name).is_err() {
            return Err(Wrong::not(name, "the name of a placeholder", self.help()));
        }
        let captured = |segment: &Segment| matches!(segment, Segment::Capture(captured) if captured == name);
        let captured = path.segments.iter().position(captured);
        let built_in = if self.built_in.contains(&name) { built_in(name, path) } else { None };
        match (captured, built_in) {
            (None, Some(part)) => Ok(part),
            (Some(segment), None) => Ok(TemplatePart::Segment(segment)),
            (Some(_), Some(_)) => {
                let message = format!("{{{name}}} is ambiguous: a capture of the path, and a built-in placeholder");
                Err(Wrong::new(message, "give the capture of the path another name"))
            }
            (None, None) if name == "rest" => {
                let message = format!("{} has no final `*`, so there is no {{rest}}", quoted(&path.text));
                let is_there = self.built_in.contains(&"path");
                let help = if is_there {
                    "{path} is the whole path"
                } else {
                    "{rest} is what a final `*` of the path has taken: add one, or remove {rest}"
                };
                Err(Wrong::new(message, help))
            }
            (None, None) => Err(self.unknown(name, path)),
        }
    }

    fn unknown(self, name: &str, path: &PathPattern) -> Wrong {
        let known: Vec<_> = path.captures().chain(self.built_in.iter().copied()).collect();
        let help = match nearest(name, known.iter().copied()) {
            Some(near) => format!("did you mean {{{near}}}?"),
            None => format!("allowed in braces: {}", either(&known)),
        };
        Wrong::new(format!("{} captures no `{name}`", quoted(&path.text)), help)
    }
}

fn built_in(name: &str, path: &PathPattern) -> Option<TemplatePart> {
    match name {
        "client_ip" => Some(TemplatePart::ClientIp),
        "host" => Some(TemplatePart::Host),
        "request_id" => Some(TemplatePart::RequestId),
        "path" => Some(TemplatePart::Path),
        "query" => Some(TemplatePart::Query),
        "rest" => path.rest.then_some(TemplatePart::Rest(path.segments.len())),
        _ => None,
    }
}

/// Appends to the last part if that is a text too.
fn push_text(parts: &mut Vec<Placed>, text: &str, place: Range<usize>) {
    match parts.last_mut() {
        Some((TemplatePart::Text(before), at)) => {
            before.push_str(text);
            at.end = place.end;
        }
        _ => parts.push((TemplatePart::Text(text.to_owned()), place)),
    }
}

/// Checks that a text has only characters that a URI may contain (RFC 3986, section 2). `what` names the text in messages.
pub(super) fn check_characters(text: &str, what: &str) -> Result<(), Wrong> {
    let foreign = text.char_indices().find(|(_, c)| !c.is_ascii_graphic() || "\"<>\\^`|".contains(*c));
    if let Some((at, found)) = foreign {
        let help = "write it percent-encoded, like %20 for a space";
        return Err(Wrong::new(format!("{what} cannot contain {found:?}"), help).at(at..at + found.len_utf8()));
    }
    if let Some(at) = text.find("{{").or_else(|| text.find("}}")) {
        let message = format!("{what} cannot contain {}", quoted(&text[at..=at]));
        return Err(Wrong::new(message, "write it percent-encoded: %7B or %7D").at(at..at + 2));
    }
    Ok(())
}

/// Checks that the range `host` of a text has only `{host}` and names, and perhaps a port.
pub(super) fn check_host(text: &str, placed: &[Placed], host: &Range<usize>) -> Result<(), Wrong> {
    for (part, place) in placed.iter().filter(|(_, place)| place.start < host.end) {
        let wrong = |message: String| Wrong::new(message, "the host is {host} or a name, and perhaps a port");
        match part {
            TemplatePart::Host => {}
            TemplatePart::Text(_) => {
                let of_host = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte);
                let text = &text[place.start.max(host.start)..place.end.min(host.end)];
                if !text.bytes().all(of_host) {
                    return Err(wrong(format!("{} is not a part of a host", quoted(text))).at(place.clone()));
                }
            }
            _ => return Err(wrong(format!("{} cannot be a part of the host", &text[place.clone()])).at(place.clone())),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Placeholders = Placeholders { built_in: &["host", "rest"], braces: "{{ or }}" };

    fn parts(text: &str) -> Result<Vec<TemplatePart>, Wrong> {
        let segments = vec![Segment::Capture("tenant".to_owned())];
        let path = PathPattern { text: "/{tenant}/*".to_owned(), segments, rest: true };
        Ok(HERE.split(text, &path)?.into_iter().map(|(part, _)| part).collect())
    }

    #[test]
    fn placeholders_and_braces_are_told_apart() {
        use TemplatePart::{Host, Rest, Segment};
        let text = |text: &str| TemplatePart::Text(text.to_owned());
        for (written, expected) in [
            ("", vec![]),
            ("a b", vec![text("a b")]),
            ("{tenant}", vec![Segment(0)]),
            ("{{tenant}}", vec![text("{tenant}")]),
            ("{{{tenant}}}", vec![text("{"), Segment(0), text("}")]),
            ("a{{{{b}}", vec![text("a{{b}")]),
            ("{host}{rest}é{{", vec![Host, Rest(1), text("é{")]),
        ] {
            assert_eq!(parts(written), Ok(expected), "{written}");
        }
        for written in
            ["{", "}", "{tenant", "tenant}", "{}", "{ tenant }", "{tenan}", "{path}", "{query}", "{{}", "{a\"}"]
        {
            assert!(parts(written).is_err(), "{written}");
        }
    }
}
