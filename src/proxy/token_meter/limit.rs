//! What one limit has reserved for a metered request, and what the request costs by that limit.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::config::{TokenCost, WithoutUsage};
use crate::request::decide::{Beyond, LimitMetrics, Needed, OpenReservation};
use crate::store::Reserved;
use crate::tokens::request::{AskedOutput, InputSize};
use crate::tokens::{Usage, Weights};

/// The tokens of output that a stream asks for at once: enough that few events have to wait for a reply.
const STEP: u64 = 256;

pub struct MeteredRequest {
    /// The tokens of its text, and of its parts that are not text.
    pub input: u64,
    pub size: InputSize,
    pub output: AskedOutput,
    pub model: Option<Box<[u8]>>,
    /// Whether the gateway made the request ask for its usage, which the client did not.
    pub hides_usage: bool,
    /// Whether the response is an error, which costs nothing unless it states a usage.
    pub is_error: bool,
}

impl MeteredRequest {
    /// The tokens for which a limit with this cost reserves.
    pub fn reserves(&self, cost: &TokenCost) -> Usage {
        Usage { input: self.size.tokens(cost.part), cached: 0, output: self.output.tokens(cost.max_output) }
    }
}

pub struct MeteredLimit {
    /// The costs that are reserved: several if the limit is the pool of others.
    pub costs: SmallVec<[Arc<TokenCost>; 1]>,
    /// The tokens for which the decision has reserved.
    pub tokens: Usage,
    /// The weights of tokens for the model of the request by each cost, then those for the models of the response. The largest
    /// cost counts.
    pub weights: SmallVec<[Weights; 1]>,
    pub least: u64,
    pub metrics: Arc<LimitMetrics>,
    pub open: OpenReservation,
}

impl MeteredLimit {
    /// Whether a stream is cut if there is no room.
    pub(super) fn cuts(&self) -> bool {
        self.open.beyond == Beyond::Refused
    }

    pub(super) fn cost(&self, used: Usage) -> u64 {
        self.weights.iter().map(|weights| weights.cost(used)).max().unwrap_or(0).max(self.least)
    }

    /// Adds the weights of a model.
    pub(super) fn weigh(&mut self, model: &[u8]) {
        for weights in self.costs.iter().map(|cost| cost.weights(Some(model))) {
            if !self.weights.contains(&weights) {
                self.weights.push(weights);
            }
        }
    }

    /// The least cost of a success that does not state its usage: what the dearest of its models would have reserved.
    pub(super) fn kept(&self) -> u64 {
        let keeps = self.costs.iter().any(|cost| cost.without_usage == WithoutUsage::Reserved);
        let Some(reserved) = self.open.first().filter(|_| keeps).map(Reserved::cost) else { return 0 };
        let most = |weights: &[Weights]| weights.iter().map(|weights| weights.cost(self.tokens)).max().unwrap_or(0);
        let asked = self.weights.get(..self.costs.len()).map_or(0, most);
        // If less was reserved than the request asks for, that is all that a rate allows at once.
        if asked > reserved { reserved } else { reserved.max(most(&self.weights)) }
    }

    /// What this use needs, and the step in which more is asked for.
    pub(super) fn needed(&self, used: Usage) -> Needed {
        Needed { total: self.cost(used), step: self.cost(Usage { output: STEP, ..Usage::default() }) }
    }
}
