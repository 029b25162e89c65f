//! What a request to a language model costs: `cost = { tokens = ... }`, with the weights of its models.

use crate::base::wildcard::Wildcard;
use crate::tokens::Weights;
use crate::tokens::response::UsagePointers;

/// The cost is computed from the tokens that the response reports as used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenCost {
    /// Where a response reports its usage; `None` if it does so like OpenAI, Anthropic and Gemini.
    pub pointers: Option<UsagePointers>,
    pub weights: Weights,
    /// The output tokens that are reserved if a request names no maximum, 1 to 2^32.
    pub max_output: u64,
    pub without_usage: WithoutUsage,
    /// The input tokens that are reserved for each part that is no text, 1 to 2^32.
    pub part: u64,
    /// Whether the gateway asks for the usage of streams.
    pub ask_usage: bool,
    pub on_exhausted: OnExhausted,
    /// Models with other weights; the first match counts.
    pub models: Vec<ModelWeights>,
}

/// What a successful response costs if it never reports its usage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WithoutUsage {
    /// What was reserved, or what has passed if that is more.
    #[default]
    Reserved,
    /// What has passed.
    Size,
}

/// What happens to a stream that needs more than was reserved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnExhausted {
    /// Continues, and is charged past the quota.
    #[default]
    Finish,
    /// Ends when there is no room for more.
    Cut,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelWeights {
    /// For the names of the models.
    pub pattern: Wildcard,
    pub weights: Weights,
}

impl TokenCost {
    pub fn weights(&self, model: Option<&[u8]>) -> Weights {
        self.model(model).map_or(self.weights, |one| one.weights)
    }

    /// The model with its own weights; `None` for all other names. Case is ignored, because some providers ignore it, and a
    /// client must not get other weights by changing the case.
    pub fn model(&self, name: Option<&[u8]>) -> Option<&ModelWeights> {
        name.and_then(|name| self.models.iter().find(|one| one.pattern.matches_ignoring_case(name)))
    }
}
