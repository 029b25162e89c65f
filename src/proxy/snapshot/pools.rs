//! The pools of the limits of one route: which limit stands in for which, and what it does on that route.

use crate::config::{Config, Limit, OnLimit, Route};
use crate::request::decide::is_settled;

/// The limits of a route by their places: those that it names, then pools that it does not name.
pub(super) struct Pools<'c> {
    config: &'c Config,
    limits: Vec<&'c Limit>,
    /// How many of them the route names.
    named: usize,
}

impl<'c> Pools<'c> {
    pub(super) fn new(config: &'c Config, route: &'c Route) -> Self {
        Self { config, limits: config.limits_of(route).collect(), named: route.limits.len() }
    }

    /// Whether the route names the limit at this place.
    pub(super) fn is_of_route(&self, place: usize) -> bool {
        place < self.named
    }

    /// The place of the pool that stands in for the limit at this place.
    pub(super) fn of(&self, place: usize) -> Option<usize> {
        let name = self.limits[place].pool()?;
        self.limits.iter().position(|limit| limit.name == name)
    }

    /// The places of the limits for which the one at this place stands in.
    fn users(&self, place: usize) -> impl Iterator<Item = usize> {
        (0..self.named).filter(move |user| self.of(*user) == Some(place))
    }

    /// What happens to a request over the limit at this place. A limit that only stands in for others holds no request: those
    /// may.
    pub(super) fn on_limit(&self, place: usize) -> OnLimit {
        match self.limits[place].on_limit {
            OnLimit::Delay { .. } if !self.is_of_route(place) => OnLimit::Reject,
            on_limit => on_limit,
        }
    }

    /// Whether the cost of a request that the limit at this place charges may be known only from the response: on this route, or
    /// for a pool on any, because the same keys are charged there.
    pub(super) fn settles(&self, place: usize) -> bool {
        let limit = self.limits[place];
        let hands_over = |other: &&Limit| other.pool() == Some(&limit.name);
        is_settled(&limit.cost) || self.config.limits.iter().filter(hands_over).any(|other| is_settled(&other.cost))
    }

    /// Whether the limit at this place decides before a token is verified. A pool does only if all for which it stands in do, so
    /// that one question to the store is about it and them.
    pub(super) fn comes_first(&self, place: usize) -> bool {
        self.limits[place].comes_first() && self.users(place).all(|user| self.limits[user].comes_first())
    }
}
