//! Reads the body of a request if limits of its route need it: for costs in tokens, and for keys from JSON. Pure.

mod declared;

use std::fmt;

use crate::base::reason::Reason;
use crate::config::{Action, Balance, Config, Cost, Limit, Route, SentPath, Source};
use crate::request::identify::RequestAttributes;
use crate::tokens::pointer::Pointer;
use crate::tokens::request::{BodyPointers, Form, Inspected, Inspection, Patch, PointedTo, has_other_encoding};
use crate::tokens::response as usage;
use declared::{charsets_are_known, is_compressed, is_json};

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
    /// Whether to refuse a body that is not JSON but declared as JSON.
    needs_json: bool,
    /// The most tokens that a limit estimates for a part that is not text.
    part: u64,
    /// Whether the path that the upstream gets is that of completions, whatever the client's is.
    sends_completions: bool,
    pointers: Vec<Pointer>,
    compiled: BodyPointers,
    model: Option<usize>,
}

#[derive(Debug)]
pub struct InspectedBody<'a> {
    inspector: &'a BodyInspector,
    said: Inspected,
}

/// Why a body cannot be used: servers could read it in another way, so that a client could choose its key; or the response
/// would not state the cost of the request.
#[derive(Debug, PartialEq, Eq)]
pub enum BodyProblem {
    /// It is compressed.
    Encoded,
    /// It is in UTF-16 or UTF-32, which some servers read, or its head declares another charset than UTF-8.
    NotUtf8,
    /// Its head declares JSON, but it is not JSON.
    NotJson,
    /// It has the value at this place more than once.
    Ambiguous(Pointer),
    /// It asks for a stream, and has something after its JSON, which some servers ignore.
    Trailing,
    /// Its response would come later.
    Background,
    /// Its query or a header selects the fields of the response, and the usage is not one of them.
    Fields,
}

impl fmt::Display for BodyProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Encoded => f.write_str("The body of the request must not be compressed."),
            Self::NotUtf8 => f.write_str("The body of the request must be in UTF-8."),
            Self::NotJson => f.write_str("The body of the request is not JSON, but its Content-Type says so."),
            Self::Ambiguous(pointer) => write!(f, "The body of the request has {pointer} more than once."),
            Self::Trailing => f.write_str("The body of the request has something after its JSON."),
            Self::Background => {
                f.write_str("The tokens of a response in the background cannot be counted. Leave out `background`.")
            }
            Self::Fields => f.write_str(
                "The response must report how many tokens it has used. Leave out `fields`, or add `usageMetadata` to \
                 it.",
            ),
        }
    }
}

const MODEL: &str = "/model";

impl BodyInspector {
    /// `None` if the limits and the upstream of a route need nothing from bodies.
    pub fn new(config: &Config, route: &Route) -> Option<Self> {
        let limits = || route.limits.iter().filter_map(|index| config.limits.get(*index));
        let (balanced, path) = match &route.action {
            Action::Forward { upstream, path, .. } => {
                (config.upstreams.get(*upstream).map(|upstream| &upstream.balance), Some(path))
            }
            Action::Respond { .. } | Action::Redirect(_) => (None, None),
        };
        let balanced = balanced.into_iter().flat_map(|balance| match balance {
            Balance::Hash(key) => key.parts.iter().flatten(),
            Balance::RoundRobin | Balance::LeastRequests => [].iter().flatten(),
        });
        let pointer = |source: &Source| match source {
            Source::Json(pointer) => Some(pointer.clone()),
            _ => None,
        };
        let mut pointers: Vec<_> = config.limits_of(route).flat_map(Limit::sources).filter_map(pointer).collect();
        let costs = || {
            limits().filter_map(|limit| match &limit.cost {
                Cost::Tokens(cost) => Some(cost),
                _ => None,
            })
        };
        let model = MODEL.parse::<Pointer>().ok().filter(|_| costs().next().is_some());
        pointers.extend(model.clone());
        let needs_json = !pointers.is_empty();
        pointers.extend(balanced.filter_map(pointer));
        if pointers.is_empty() {
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
        let sends_completions = matches!(path, Some(SentPath::Rewritten(path)) if is_completion(&path.text));
        Some(Self {
            most,
            bound,
            usage,
            asks_for_usage: costs().all(|cost| cost.ask_usage),
            needs_json,
            part: costs().map(|cost| cost.part).max().unwrap_or(0),
            sends_completions,
            compiled: BodyPointers::new(&pointers),
            pointers,
            model,
        })
    }

    /// Begins to read a body, with what the head of its request declares about it.
    ///
    /// # Errors
    /// If it cannot be used.
    pub fn begin(&self, head: &RequestAttributes<'_>, body: &[u8]) -> Result<Inspection<'_>, BodyProblem> {
        let is_there = !body.is_empty();
        if is_there && is_compressed(head.headers) {
            return Err(BodyProblem::Encoded);
        }
        if has_other_encoding(body) || is_there && !charsets_are_known(head.headers) {
            return Err(BodyProblem::NotUtf8);
        }
        if is_there && self.counts_usage() && declared::hides_usage(head) {
            return Err(BodyProblem::Fields);
        }
        Ok(Inspection::new(&self.compiled))
    }

    /// Finishes reading a body. The patches make a stream state its usage if the body does not ask for that.
    ///
    /// # Errors
    /// If it cannot be used.
    pub fn finish(
        &self,
        head: &RequestAttributes<'_>,
        body: &[u8],
        read: Inspection<'_>,
    ) -> Result<(InspectedBody<'_>, Vec<Patch>), BodyProblem> {
        let mut said = read.finish(body.len() as u64);
        let is_blank = || body.trim_ascii().is_empty();
        if self.needs_json && said.form != Form::Json && is_json(head.headers) && !is_blank() {
            return Err(BodyProblem::NotJson);
        }
        let ambiguous = self.pointers.iter().zip(&said.found).find(|(_, value)| **value == PointedTo::Ambiguous);
        let repeated = said.repeated.take().filter(|_| self.model.is_some());
        if let Some(pointer) = ambiguous.map(|(pointer, _)| pointer.clone()).or(repeated) {
            return Err(BodyProblem::Ambiguous(pointer));
        }
        if said.is_background && self.counts_usage() {
            return Err(BodyProblem::Background);
        }
        let is_asked = self.counts_usage() && self.asks_for_usage && said.streams;
        let patches = said.usage_patches.take();
        if !is_asked || !self.sends_completions && !is_completion(head.path) {
            return Ok((InspectedBody { inspector: self, said }, Vec::new()));
        }
        let patches = patches.ok_or(BodyProblem::Trailing)?;
        Ok((InspectedBody { inspector: self, said }, patches))
    }

    fn counts_usage(&self) -> bool {
        matches!(self.usage, Some(usage::UsageSource::Auto))
    }
}

/// Whether this is the path of chats or of completions, of OpenAI and of others with the same API.
fn is_completion(path: &str) -> bool {
    let path = path.trim_end_matches('/').as_bytes();
    let end = path.len().checked_sub(COMPLETIONS.len()).and_then(|at| path.get(at..));
    end.is_some_and(|end| end.eq_ignore_ascii_case(COMPLETIONS))
}

const COMPLETIONS: &[u8] = b"/completions";

impl InspectedBody<'_> {
    pub fn value(&self, pointer: &Pointer) -> Option<&[u8]> {
        self.found(self.inspector.pointers.iter().position(|one| one == pointer)?)
    }

    /// The model that the request names, on routes whose limits count tokens.
    pub fn model(&self) -> Option<&[u8]> {
        self.found(self.inspector.model?)
    }

    fn found(&self, place: usize) -> Option<&[u8]> {
        match self.said.found.get(place)? {
            PointedTo::Value(value) => Some(value.as_bytes()),
            PointedTo::Missing | PointedTo::Ambiguous => None,
        }
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
