//! What is known of a metered request, what one limit has reserved for it, and what it costs by that limit.

use std::mem;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::config::{Role, TokenCost, WithoutUsage};
use crate::request::decide::LimitMetrics;
use crate::store::{Ask, Reserved};
use crate::tokens::{Usage, Weights};

/// The tokens of output that a stream asks for at once: enough that few events have to wait for it.
const STEP: u64 = 256;

/// What is known of the request whose response is metered.
pub struct MeteredRequest {
    /// The tokens of its text.
    pub input: u64,
    /// The model that it names.
    pub model: Option<Box<[u8]>>,
    /// Whether the gateway has made it ask for its usage, which its client has not.
    pub hides_usage: bool,
    /// Whether the response is an error, which costs nothing unless it says a usage.
    pub is_error: bool,
}

/// What one limit has reserved for a request.
pub struct MeteredLimit {
    /// The costs for which it was reserved: a pool may stand in for several limits.
    pub costs: SmallVec<[Arc<TokenCost>; 1]>,
    /// What tokens cost, by the model of the request and by that of the response: the most of these.
    pub weights: SmallVec<[Weights; 1]>,
    /// What the request costs at least.
    pub least: u64,
    /// Whether a stream for which there is no room is cut.
    pub cuts: bool,
    /// Counts the tokens.
    pub metrics: Arc<LimitMetrics>,
    /// What the decision has reserved, and what the stream has asked for since.
    pub reserved: SmallVec<[Reserved; 1]>,
}

/// How much is asked for besides what is needed at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extra {
    /// So that the next events need not ask.
    Step,
    /// Nothing, since there was no room for a step.
    None,
}

impl MeteredLimit {
    /// What a request costs that has used so much.
    pub(super) fn cost(&self, used: Usage) -> u64 {
        self.weights.iter().map(|weights| weights.cost(used)).max().unwrap_or(0).max(self.least)
    }

    /// Counts the weights of a model, too.
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

    /// What a success costs at least that does not say its usage.
    pub(super) fn kept(&self) -> u64 {
        let keeps = self.costs.iter().any(|cost| cost.without_usage == WithoutUsage::Reserved);
        self.reserved.first().filter(|_| keeps).map_or(0, Reserved::cost)
    }

    /// Settles what is reserved, so that it costs so much. What was asked for last is given back first.
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

    /// The place on the route.
    pub(super) fn place(&self) -> Option<usize> {
        self.reserved.first().map(Reserved::place)
    }

    /// What it is asked when so much was used; `None` if that is reserved, or needs not be.
    pub(super) fn ask(&self, used: Usage, extra: Extra) -> Option<Ask<'_>> {
        let reserved = self.reserved();
        let missing = self.cost(used).saturating_sub(reserved);
        let step = self.cost(Usage { output: STEP, ..Usage::default() });
        let more = if extra == Extra::Step { missing.max(step) } else { missing };
        self.reserved.first().filter(|_| missing > 0 && self.cuts).map(|first| first.ask_for(more, Role::Refuses))
    }
}
