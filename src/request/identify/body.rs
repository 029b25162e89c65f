//! Reads the body of a request if limits of its route need it: for costs in tokens, and for keys from JSON. The head of the
//! request declares what the body is, and which response it wants. Pure.

use http::{HeaderMap, HeaderName, HeaderValue, header};

use super::RequestAttributes;
use super::pieces::parameters;
use crate::base::http::header_rules::is_same_variable;
use crate::base::percent::decode_form;
use crate::base::reason::Reason;
use crate::config::{Action, Config, Cost, Limit, Route, SentPath, Source};
use crate::tokens::pointer::Pointer;
use crate::tokens::request::{
    Api, BodyPointers, Form, Inspected, Inspection, MAX_ELEMENTS, Patch, PointedTo, has_other_encoding,
};
use crate::tokens::response as usage;

/// The charsets that all servers read as the gateway does.
const CHARSETS: [&[u8]; 4] = [b"utf-8", b"utf8", b"us-ascii", b"ascii"];

/// What to read of the bodies of one route's requests.
#[derive(Debug)]
pub struct BodyInspector {
    pub most: u64,
    /// The bound that a larger body exceeds: that on inspection, or that on all bodies of the route.
    pub bound: Reason,
    /// Where responses state their use of tokens; `None` if no limit counts them.
    pub usage: Option<usage::UsageSource>,
    /// Whether to make streams state their use of tokens.
    asks_for_usage: bool,
    /// Whether to refuse a body that is not JSON but declared as JSON, or that is nested too deeply.
    needs_json: bool,
    /// The most tokens that a limit estimates for a part that is not text.
    part: u64,
    /// The API of the path that the upstream gets if that is another one than the client's.
    rewritten: Api,
    /// Whether keys of limits are in the body.
    tells_elements_apart: bool,
    pointers: Vec<Pointer>,
    compiled: BodyPointers,
    model: Option<usize>,
}

#[derive(Debug)]
pub struct InspectedBody<'a> {
    inspector: &'a BodyInspector,
    pub said: Inspected,
}

/// Why a body cannot be used: servers could read it in another way, so that a client could choose its key; or the response
/// would not state the cost of the request.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyProblem {
    #[error("The body of the request must not be compressed.")]
    Encoded,
    /// It is in UTF-16 or UTF-32, which some servers read, or its head declares another charset than UTF-8.
    #[error("The body of the request must be in UTF-8.")]
    NotUtf8,
    #[error("The body of the request is not JSON, but its Content-Type says so.")]
    NotJson,
    #[error("The JSON in the body of the request is nested too deeply.")]
    TooDeep,
    #[error("The body of the request has {0} more than once, or a value there that is too long.")]
    Ambiguous(Pointer),
    #[error(
        "The body of the request is an array of more than {MAX_ELEMENTS} items, or of items with more than {MAX_KEYS} \
             different keys."
    )]
    TooManyElements,
    /// It asks for a stream, and has something after its JSON, which some servers ignore.
    #[error("The body of the request has something after its JSON.")]
    Trailing,
    #[error("The tokens of a response in the background cannot be counted. Leave out `background` or `batch`.")]
    Background,
    /// Its query or a header selects the fields or the form of the response, and these do not have the usage.
    #[error(
        "The response must report how many tokens it has used. Leave out `alt` and `callback`, and leave out `fields` or add \
             `usageMetadata` to it."
    )]
    Fields,
}

/// The most different keys of one limit in the documents of one body.
pub const MAX_KEYS: usize = 64;

const MODEL: &str = "/model";

impl BodyInspector {
    /// `None` if the limits and the upstream of a route need nothing from bodies.
    pub fn new(config: &Config, route: &Route) -> Option<Self> {
        let limits = || route.limits.iter().filter_map(|index| config.limits.get(*index));
        let path = if let Action::Forward { path, .. } = &route.action { Some(path) } else { None };
        let balanced = config.upstream_of(route).and_then(|upstream| upstream.balance.key());
        let balanced = balanced.into_iter().flat_map(|key| key.parts.iter().flatten());
        let pointer = |source: &Source| match source {
            Source::Json(pointer) => Some(pointer.clone()),
            _ => None,
        };
        let mut pointers: Vec<_> = config.limits_of(route).flat_map(Limit::sources).filter_map(pointer).collect();
        let tells_elements_apart = !pointers.is_empty();
        let counts_elements = config.limits_of(route).any(|limit| limit.cost == Cost::Elements);
        let costs = || {
            limits().filter_map(|limit| match &limit.cost {
                Cost::Tokens(cost) => Some(cost),
                _ => None,
            })
        };
        let model = MODEL.parse::<Pointer>().ok().filter(|_| costs().next().is_some());
        pointers.extend(model.clone());
        let needs_json = !pointers.is_empty() || counts_elements;
        pointers.extend(balanced.filter_map(pointer));
        if pointers.is_empty() && !counts_elements {
            return None;
        }
        pointers.dedup();
        let model = pointers.iter().position(|pointer| Some(pointer) == model.as_ref());
        // All limits of a route read the usage in the same place.
        let usage = costs()
            .next()
            .map(|cost| cost.pointers.as_ref().map_or(usage::UsageSource::Auto, usage::UsageSource::from));
        let (inspected, all) = (route.inspect_body as u64, route.max_body_size);
        let (most, bound) = if inspected < all { (inspected, Reason::InspectBody) } else { (all, Reason::MaxBodySize) };
        let rewritten = match path {
            Some(SentPath::Rewritten(path)) => Api::of(&path.text),
            _ => Api::Other,
        };
        Some(Self {
            most,
            bound,
            usage,
            asks_for_usage: costs().all(|cost| cost.ask_usage),
            needs_json,
            part: costs().map(|cost| cost.part).max().unwrap_or(0),
            rewritten,
            compiled: match tells_elements_apart || counts_elements {
                true => BodyPointers::new(&pointers).dividing(),
                false => BodyPointers::new(&pointers),
            },
            tells_elements_apart,
            pointers,
            model,
        })
    }

    /// Begins to read a body, with what the head of its request declares about it. Fails if it cannot be used.
    pub fn begin(&self, head: &RequestAttributes<'_>, body: &[u8]) -> Result<Inspection<'_>, BodyProblem> {
        let is_there = !body.is_empty();
        if is_there && is_compressed(head.headers) {
            return Err(BodyProblem::Encoded);
        }
        if has_other_encoding(body) || is_there && !charsets_are_known(head.headers) {
            return Err(BodyProblem::NotUtf8);
        }
        if is_there && self.counts_usage() && self.has_api(head, &[Api::GenerateContent]) && hides_usage(head) {
            return Err(BodyProblem::Fields);
        }
        let [rewritten, asked] = self.apis(head);
        Ok(Inspection::new(&self.compiled, if rewritten == Api::Other { asked } else { rewritten }))
    }

    /// Finishes reading a body. The patches make a stream state its usage if the body does not ask for that. Fails if it cannot
    /// be used.
    pub fn finish(
        &self,
        head: &RequestAttributes<'_>,
        body: &[u8],
        read: Inspection<'_>,
    ) -> Result<(InspectedBody<'_>, Vec<Patch>), BodyProblem> {
        let mut said = read.finish(body.len() as u64);
        if self.needs_json && said.form == Form::TooDeep {
            return Err(BodyProblem::TooDeep);
        }
        let is_blank = || body.trim_ascii().is_empty();
        if self.needs_json && said.form != Form::Json && is_json(head.headers) && !is_blank() {
            return Err(BodyProblem::NotJson);
        }
        if self.tells_elements_apart && said.elements.is_some_and(|count| count > MAX_ELEMENTS) {
            return Err(BodyProblem::TooManyElements);
        }
        let is_ambiguous = |(_, value): &(&Pointer, &PointedTo)| **value == PointedTo::Ambiguous;
        let ambiguous = said.documents.iter().find_map(|found| self.pointers.iter().zip(found).find(is_ambiguous));
        let repeated = said.repeated.take().filter(|_| self.model.is_some());
        if let Some(pointer) = ambiguous.map(|(pointer, _)| pointer.clone()).or(repeated) {
            return Err(BodyProblem::Ambiguous(pointer));
        }
        if said.is_background && self.counts_usage() {
            return Err(BodyProblem::Background);
        }
        let is_asked = self.counts_usage() && self.asks_for_usage && said.streams;
        let patches = said.usage_patches.take();
        if !is_asked || !self.has_api(head, &[Api::Chat, Api::Completions]) {
            return Ok((InspectedBody { inspector: self, said }, Vec::new()));
        }
        let patches = patches.ok_or(BodyProblem::Trailing)?;
        Ok((InspectedBody { inspector: self, said }, patches))
    }

    fn counts_usage(&self) -> bool {
        matches!(self.usage, Some(usage::UsageSource::Auto))
    }

    /// The API of the rewritten path, and that of the client's.
    fn apis(&self, head: &RequestAttributes<'_>) -> [Api; 2] {
        [self.rewritten, Api::of(head.path)]
    }

    fn has_api(&self, head: &RequestAttributes<'_>, known: &[Api]) -> bool {
        self.apis(head).iter().any(|api| known.contains(api))
    }
}

impl InspectedBody<'_> {
    /// The target of a pointer. If the body is an array, that in the document with this index.
    pub fn value(&self, pointer: &Pointer, element: usize) -> Option<&[u8]> {
        let place = self.inspector.pointers.iter().position(|one| one == pointer)?;
        text(self.said.documents.get(element)?.get(place)?)
    }

    /// The model that the request names, on routes whose limits count tokens.
    pub fn model(&self) -> Option<&[u8]> {
        let document = self.said.documents.first().filter(|_| self.said.elements.is_none());
        text(document?.get(self.inspector.model?)?)
    }

    /// How many documents the body has: more than one only if it is an array, and never 0.
    pub fn elements(&self) -> usize {
        self.said.elements.unwrap_or(1).max(1)
    }

    /// Estimates the tokens of the input. Each part that is not text counts as `part` tokens.
    pub fn input(&self, part: u64) -> u64 {
        self.said.input.tokens(part)
    }

    /// Like [`Self::input`], with the largest estimate for a part among the limits of the route.
    pub fn most_input(&self) -> u64 {
        self.input(self.inspector.part)
    }

    /// The most tokens of output that the request allows, or `without_maximum` for each answer if it sets no maximum.
    pub fn output(&self, without_maximum: u64) -> u64 {
        self.said.output.tokens(without_maximum)
    }
}

fn text(value: &PointedTo) -> Option<&[u8]> {
    match value {
        PointedTo::Value(value) => Some(value.as_bytes()),
        PointedTo::Missing | PointedTo::Ambiguous => None,
    }
}

fn is_compressed(headers: &HeaderMap) -> bool {
    of_variable(headers, &header::CONTENT_ENCODING).any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"identity"))
}

/// The values of a header, also under names that some servers read as its name: `content_type`.
fn of_variable<'h>(headers: &'h HeaderMap, name: &'h HeaderName) -> impl Iterator<Item = &'h HeaderValue> {
    headers.iter().filter(|(written, _)| is_same_variable(written.as_str(), name.as_str())).map(|(_, value)| value)
}

/// In the types of bodies with several values.
const LINES_OF_JSON: [&[u8]; 3] = [b"ndjson", b"jsonl", b"json-seq"];

fn is_json(headers: &HeaderMap) -> bool {
    let is_json = |kind: &[u8]| {
        let essence = kind.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii().to_ascii_lowercase();
        let has = |part: &[u8]| memchr::memmem::find(&essence, part).is_some();
        // Servers read more types as JSON than are registered: text/x-json, application/jsonrequest.
        has(b"json") && !LINES_OF_JSON.iter().any(|lines| has(lines))
    };
    types(headers).flat_map(|kind| kind.as_bytes().split(|byte| *byte == b',')).any(is_json)
}

/// Whether all servers read all named charsets alike. Whatever looks like a parameter counts, since servers differ.
fn charsets_are_known(headers: &HeaderMap) -> bool {
    types(headers).all(|kind| {
        let kind = kind.as_bytes().to_ascii_lowercase();
        memchr::memmem::find_iter(&kind, b"charset").all(|at| is_known(&kind[at + b"charset".len()..]))
    })
}

/// Whether a known charset follows the name of the parameter.
fn is_known(rest: &[u8]) -> bool {
    let end = rest.iter().position(|byte| matches!(byte, b';' | b',')).unwrap_or(rest.len());
    let Some(value) = rest[..end].trim_ascii_start().strip_prefix(b"=") else { return false };
    let value = value.trim_ascii();
    let value = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value);
    CHARSETS.contains(&value)
}

fn types(headers: &HeaderMap) -> impl Iterator<Item = &HeaderValue> {
    of_variable(headers, &header::CONTENT_TYPE)
}

/// Whether a request for a model at Google selects fields of the response, and the usage is not one of them, or a form of it
/// that is not JSON.
fn hides_usage(head: &RequestAttributes<'_>) -> bool {
    let in_query = parameters(head.query.unwrap_or_default()).any(|(name, value)| {
        let value = decode_form(value);
        let name = name.strip_prefix(b"$").unwrap_or(&name).to_ascii_lowercase();
        match &name[..] {
            b"fields" => !has_usage(&value),
            // `json;enum-encoding=int` is JSON, too.
            b"alt" => ![&b"json"[..], b"sse"].contains(&value.split(|byte| *byte == b';').next().unwrap_or_default()),
            b"callback" => true,
            _ => false,
        }
    });
    let in_headers = head.headers.get_all("x-goog-fieldmask").iter();
    in_query || in_headers.into_iter().any(|fields| !has_usage(fields.as_bytes()))
}

/// Whether these fields include the whole usage, as in `candidates(content,index),usageMetadata`.
fn has_usage(fields: &[u8]) -> bool {
    let mut deep = 0_usize;
    let mut outermost = fields.split(|byte| {
        match byte {
            b'(' => deep += 1,
            b')' => deep = deep.saturating_sub(1),
            _ => {}
        }
        *byte == b',' && deep == 0
    });
    outermost.any(|field| matches!(field.trim_ascii(), b"*" | b"usageMetadata" | b"usage_metadata"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_type(kinds: &[&str]) -> HeaderMap {
        kinds.iter().map(|kind| (header::CONTENT_TYPE, kind.parse().unwrap())).collect()
    }

    #[test]
    fn only_charsets_that_all_servers_read_alike_are_known() {
        for kinds in [
            &[][..],
            &["application/json"],
            &["application/json; charset=utf-8"],
            &["application/json;CHARSET = \"UTF-8\" ; a=b"],
            &["text/plain; charset=us-ascii", "application/json; charset=utf8"],
        ] {
            assert!(charsets_are_known(&of_type(kinds)), "{kinds:?}");
        }
        for kinds in [
            &["application/json; charset=utf-7"][..],
            &["application/json; charset=\"utf-7\""],
            &["application/json;charset=UTF-16LE"],
            &["application/json; charset=iso-8859-1"],
            &["application/json; charset=utf-8; charset=utf-7"],
            &["application/json; charset=utf-8", "application/json; charset=utf-7"],
            &["application/json; charset=utf-8, application/json; charset=utf-7"],
            &["application/json; charset*=utf-8''utf-7"],
            &["application/json; charset*0=utf-; charset*1=7"],
            &["application/json; charset=\"utf\\-7\""],
            &["application/json; charset='utf-7'"],
            &["application/json; charset=utf-8 utf-7"],
            &["application/json; charset="],
            &["application/json; charset"],
            &["application/json charset=utf-7"],
        ] {
            assert!(!charsets_are_known(&of_type(kinds)), "{kinds:?}");
        }
    }

    #[test]
    fn json_is_said_in_several_ways() {
        for kind in [
            "application/json",
            "Application/JSON ; charset=utf-8",
            "text/json",
            "text/x-json",
            "application/jsonrequest",
            "application/json\u{a0}",
            "application/vnd.api+json",
            "a/b, application/json",
        ] {
            assert!(is_json(&of_type(&[kind])), "{kind}");
        }
        for kind in ["text/plain", "application/jsonl", "application/x-ndjson", "text/plain; a=application/json", ""] {
            assert!(!is_json(&of_type(&[kind])), "{kind}");
        }
    }

    #[test]
    fn a_mask_of_fields_has_the_usage_as_a_whole_or_not() {
        for fields in ["*", "usageMetadata", "candidates(content,index), usageMetadata", "a/b,usage_metadata"] {
            assert!(has_usage(fields.as_bytes()), "{fields}");
        }
        for fields in [
            "",
            "candidates",
            "usageMetadata/promptTokenCount",
            "usageMetadata(x)",
            "candidates(a,usageMetadata,b)",
            "(,usageMetadata",
        ] {
            assert!(!has_usage(fields.as_bytes()), "{fields}");
        }
    }
}
