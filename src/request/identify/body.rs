//! What the body of a request says, on routes whose limits need it: for costs in tokens, and for keys from JSON. Pure: the
//! proxy has read the body before.

use std::fmt;

use http::{HeaderMap, header};

use crate::base::reason::Reason;
use crate::config::{Action, Balance, Config, Cost, Limit, Route, Source};
use crate::limit::tokens::pointer::{Pointer, Pointers};
use crate::limit::tokens::request::{Form, Found, Inspected, Patch, inspect};
use crate::limit::tokens::response as usage;

/// What is read of the bodies of one route's requests.
#[derive(Debug)]
pub struct BodyInspector {
    /// The most bytes that a body may have.
    pub most: u64,
    /// What a larger one exceeds: the bound on what is read, or that on all bodies of the route.
    pub bound: Reason,
    /// Where responses say how many tokens were used; `None` if no limit counts them.
    pub usage: Option<usage::Source>,
    /// Whether streams are asked to say how many tokens they have used.
    asks_for_usage: bool,
    pointers: Vec<Pointer>,
    compiled: Pointers,
    /// Which of `pointers` points to the model.
    model: Option<usize>,
}

/// What one body says.
#[derive(Debug)]
pub struct InspectedBody<'a> {
    inspector: &'a BodyInspector,
    said: Inspected,
}

/// Why a body cannot be used: servers could read it in another way, so that a client could choose by which key it is counted.
#[derive(Debug, PartialEq, Eq)]
pub enum BodyProblem {
    /// It is compressed.
    Encoded,
    /// It is in UTF-16 or UTF-32, which some servers read.
    NotUtf8,
    /// It has the value at this place more than once.
    Ambiguous(Pointer),
}

impl fmt::Display for BodyProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Encoded => f.write_str("The body of the request must not be compressed."),
            Self::NotUtf8 => f.write_str("The body of the request must be in UTF-8."),
            Self::Ambiguous(pointer) => write!(f, "The body of the request has {pointer} more than once."),
        }
    }
}

/// How the paths end to which messages are sent that are no chat completions, of Anthropic and of others with its models. A
/// client cannot choose them: another path is another API.
const NOT_CHAT: [&str; 3] = ["/messages", ":rawPredict", ":streamRawPredict"];

/// Where requests name their model.
const MODEL: &str = "/model";

impl BodyInspector {
    /// What the limits and the upstream of a route need of bodies; `None` if they need nothing.
    pub fn new(config: &Config, route: &Route) -> Option<Self> {
        let limits = || route.limits.iter().filter_map(|index| config.limits.get(*index));
        let balanced = match &route.action {
            Action::Forward { upstream, .. } => config.upstreams.get(*upstream).map(|upstream| &upstream.balance),
            Action::Respond { .. } | Action::Redirect(_) => None,
        };
        let balanced = balanced.into_iter().flat_map(|balance| match balance {
            Balance::Hash(key) => key.parts.iter().flatten(),
            Balance::RoundRobin | Balance::LeastRequests => [].iter().flatten(),
        });
        let sources = config.limits_of(route).flat_map(Limit::sources).chain(balanced);
        let mut pointers: Vec<_> = sources
            .filter_map(|source| match source {
                Source::Json(pointer) => Some(pointer.clone()),
                _ => None,
            })
            .collect();
        let costs = || {
            limits().filter_map(|limit| match &limit.cost {
                Cost::Tokens(cost) => Some(cost),
                _ => None,
            })
        };
        let model = MODEL.parse::<Pointer>().ok().filter(|_| costs().next().is_some());
        pointers.extend(model.clone());
        if pointers.is_empty() {
            return None;
        }
        pointers.dedup();
        let model = pointers.iter().position(|pointer| Some(pointer) == model.as_ref());
        // The limits of a route read it in the same place.
        let usage = costs().next().map(|cost| cost.pointers.as_ref().map_or(usage::Source::Auto, usage::Source::from));
        let asks_for_usage = matches!(usage, Some(usage::Source::Auto));
        let (inspected, all) = (route.inspect_body as u64, route.max_body_size);
        let (most, bound) = if inspected < all { (inspected, Reason::InspectBody) } else { (all, Reason::MaxBodySize) };
        Some(Self { most, bound, usage, asks_for_usage, compiled: Pointers::new(&pointers), pointers, model })
    }

    /// Reads a body. The patch makes it ask for what the gateway has to know, if it does not.
    ///
    /// # Errors
    /// If it cannot be used.
    pub fn inspect(
        &self,
        (headers, path): (&HeaderMap, &str),
        body: &[u8],
    ) -> Result<(InspectedBody<'_>, Option<Patch>), BodyProblem> {
        let is_encoded = headers.get_all(header::CONTENT_ENCODING).iter().any(|coding| coding != "identity");
        if is_encoded && !body.is_empty() {
            return Err(BodyProblem::Encoded);
        }
        let mut said = inspect(body, &self.compiled);
        if said.form == Form::OtherEncoding {
            return Err(BodyProblem::NotUtf8);
        }
        let ambiguous = self.pointers.iter().zip(&said.found).find(|(_, value)| **value == Found::Ambiguous);
        if let Some((pointer, _)) = ambiguous {
            return Err(BodyProblem::Ambiguous(pointer.clone()));
        }
        let is_chat = said.streams && said.has_messages && !NOT_CHAT.iter().any(|end| path.ends_with(end));
        let change = said.include_usage.take().filter(|_| self.asks_for_usage && is_chat);
        Ok((InspectedBody { inspector: self, said }, change))
    }
}

impl InspectedBody<'_> {
    /// The text or the number at this place.
    pub fn value(&self, pointer: &Pointer) -> Option<&[u8]> {
        self.found(self.inspector.pointers.iter().position(|one| one == pointer)?)
    }

    /// The model that the request names, on routes whose limits count tokens.
    pub fn model(&self) -> Option<&[u8]> {
        self.found(self.inspector.model?)
    }

    fn found(&self, place: usize) -> Option<&[u8]> {
        match self.said.found.get(place)? {
            Found::Value(value) => Some(value.as_bytes()),
            Found::Missing | Found::Ambiguous => None,
        }
    }

    /// How many bytes of text it has.
    pub fn text(&self) -> u64 {
        self.said.text
    }

    /// The most tokens of output that it asks for.
    pub fn max_output(&self) -> Option<u64> {
        self.said.max_output
    }
}
