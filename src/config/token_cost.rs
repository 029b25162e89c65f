//! What a request to a language model costs: `cost = { tokens = ... }`, with the weights of its models.

use crate::base::wildcard::Wildcard;
use crate::tokens::Weights;
use crate::tokens::response::UsagePointers;

/// What a request to a language model costs, by the tokens that the response says were used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenCost {
    /// Where a response says how many tokens were used; `None` if as OpenAI, Anthropic and Gemini say it.
    pub pointers: Option<UsagePointers>,
    /// What tokens cost.
    pub weights: Weights,
    /// The tokens of output that are reserved where a request names no maximum, 1 to 2^32.
    pub max_output: u64,
    /// What a success costs that never says its usage.
    pub without_usage: WithoutUsage,
    /// The tokens of input that are reserved for each part that is no text, 1 to 2^32.
    pub part: u64,
    /// Whether streams are asked for their usage.
    pub ask_usage: bool,
    /// What happens to a stream that needs more than was reserved.
    pub on_exhausted: OnExhausted,
    /// Models with other weights; the first that matches is used.
    pub models: Vec<ModelWeights>,
}

/// What a success costs that never says its usage.
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
    /// It goes on, and is charged past the quota.
    #[default]
    Finish,
    /// It ends where there is no room for more.
    Cut,
}

/// What the tokens of some models cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelWeights {
    /// The names of the models.
    pub pattern: Wildcard,
    /// What their tokens cost.
    pub weights: Weights,
}

impl TokenCost {
    /// What the tokens of a request for this model cost.
    pub fn weights(&self, model: Option<&[u8]>) -> Weights {
        self.model(model).map_or(self.weights, |one| one.weights)
    }

    /// Which of the models with other weights this is; `None` if it is none of them. Case does not matter: for some providers
    /// it does not either, and a client must not get other weights by it.
    pub fn model(&self, name: Option<&[u8]>) -> Option<&ModelWeights> {
        name.and_then(|name| self.models.iter().find(|one| one.pattern.matches_ignoring_case(name)))
    }
}
