//! The pools of the limits of one route: which limit is whose pool, and how a pool behaves on that route.

use crate::config::{Config, Limit, OnLimit, Route};
use crate::request::decide::{Stage, is_settled};

/// The limits of a route by their places: those that it names, then pools that it does not name.
pub(super) struct Pools<'c> {
    config: &'c Config,
    limits: Vec<&'c Limit>,
    named: usize,
}

impl<'c> Pools<'c> {
    pub(super) fn new(config: &'c Config, route: &'c Route) -> Self {
        Self { config, limits: config.limits_of(route).collect(), named: route.limits.len() }
    }

    pub(super) fn is_of_route(&self, place: usize) -> bool {
        place < self.named
    }

    /// The place of the pool of the limit at this place.
    pub(super) fn of(&self, place: usize) -> Option<usize> {
        let name = self.limits[place].pool()?;
        self.limits.iter().position(|limit| limit.name == name)
    }

    /// The places of the limits whose pool is the one at this place.
    fn users(&self, place: usize) -> impl Iterator<Item = usize> {
        (0..self.named).filter(move |user| self.of(*user) == Some(place))
    }

    /// What happens to a request over the limit at this place. A limit that is only a pool on this route holds no request.
    pub(super) fn on_limit(&self, place: usize) -> OnLimit {
        match self.limits[place].on_limit {
            OnLimit::Delay { .. } if !self.is_of_route(place) => OnLimit::Reject,
            on_limit => on_limit,
        }
    }

    /// Whether the response may settle a charge of the limit at this place: on this route, or for a pool on any route,
    /// because the same keys are charged there.
    pub(super) fn settles(&self, place: usize) -> bool {
        let limit = self.limits[place];
        let hands_over = |other: &&Limit| other.pool() == Some(&limit.name);
        is_settled(&limit.cost) || self.config.limits.iter().filter(hands_over).any(|other| is_settled(&other.cost))
    }

    /// What the limit at this place has to know of a request to decide. A pool and its users are asked in one exchange with
    /// the store, so if one of them waits for the body, they all do. A pool decides before a token is verified only if all
    /// its users do. If all clients share the places of requests in flight, a body that never comes must not take one, so
    /// that limit waits for the body too.
    pub(super) fn stage(&self, place: usize) -> Stage {
        let pool = self.of(place).unwrap_or(place);
        let needs_body = |place: usize| self.limits[place].needs_body();
        let waits_for_body = |place: usize| {
            let limit = self.limits[place];
            needs_body(place) || limit.max_in_flight.is_some() && !limit.tells_clients_apart()
        };
        if needs_body(place) {
            Stage::Body
        } else if waits_for_body(place) || waits_for_body(pool) || self.users(pool).any(waits_for_body) {
            Stage::BodyOfOthers
        } else if self.limits[place].comes_first() && self.users(place).all(|user| self.limits[user].comes_first()) {
            Stage::Head
        } else {
            Stage::Tokens
        }
    }
}
