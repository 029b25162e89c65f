//! What one limit has reserved for a metered request, and what the request costs by that limit.

use std::mem;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::config::{Role, TokenCost, WithoutUsage};
use crate::request::decide::LimitMetrics;
use crate::store::{Ask, Reserved};
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
    /// Whether a stream is cut if there is no room.
    pub cuts: bool,
    pub metrics: Arc<LimitMetrics>,
    /// The reservation of the decision, and what the stream has asked for since.
    pub reserved: SmallVec<[Reserved; 1]>,
}

/// How much is asked for beyond the need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extra {
    /// A step, so that the next events need not ask.
    Step,
    /// Nothing, since there was no room for a step.
    None,
}

impl MeteredLimit {
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

    pub(super) fn reserved(&self) -> u64 {
        self.reserved.iter().map(Reserved::cost).sum()
    }

    /// The least cost of a success that does not state its usage: what the dearest of its models would have reserved.
    pub(super) fn kept(&self) -> u64 {
        let keeps = self.costs.iter().any(|cost| cost.without_usage == WithoutUsage::Reserved);
        let Some(reserved) = self.reserved.first().filter(|_| keeps).map(Reserved::cost) else { return 0 };
        let most = |weights: &[Weights]| weights.iter().map(|weights| weights.cost(self.tokens)).max().unwrap_or(0);
        let asked = self.weights.get(..self.costs.len()).map_or(0, most);
        // If less was reserved than the request asks for, that is all that a rate allows at once.
        if asked > reserved { reserved } else { reserved.max(most(&self.weights)) }
    }

    /// Settles the reservations at a total of `cost`. The latest ones are given back first.
    pub(super) fn settle(&mut self, cost: u64, settle: impl Fn(Reserved, u64)) {
        let reserved = self.reserved();
        let (mut given, mut more) = (reserved.saturating_sub(cost), cost.saturating_sub(reserved));
        for ticket in mem::take(&mut self.reserved).into_iter().rev() {
            let back = given.min(ticket.cost());
            let cost = ticket.cost() - back + mem::take(&mut more);
            given -= back;
            settle(ticket, cost);
        }
    }

    pub(super) fn place(&self) -> Option<usize> {
        self.reserved.first().map(Reserved::place)
    }

    /// The ask of this limit after this use; `None` if enough is reserved, or the limit does not cut.
    pub(super) fn ask(&self, used: Usage, extra: Extra) -> Option<Ask<'_>> {
        let reserved = self.reserved();
        let missing = self.cost(used).saturating_sub(reserved);
        let step = self.cost(Usage { output: STEP, ..Usage::default() });
        let more = if extra == Extra::Step { missing.max(step) } else { missing };
        self.reserved.first().filter(|_| missing > 0 && self.cuts).map(|first| first.ask_for(more, Role::Refuses))
    }
}
