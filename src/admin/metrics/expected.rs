//! Which series of requests exist before their first event: those that the configuration makes likely.
//!
//! Outcome, class of status and class of method have 216 combinations, and a route sees about a tenth of them. An unlikely
//! combination, such as an unknown method, begins with its first event.

use std::collections::HashMap;

use http::StatusCode;

use crate::base::reason::Reason;
use crate::config::{Action, Config, OnError, OnLimit, Route};
use crate::proxy::snapshot::NO_ROUTE;
use crate::proxy::telemetry::{CLASSES, MethodClass, Outcome};
use crate::request::route;

/// What is likely for one route, or for several with the same name.
#[derive(Debug, Default)]
pub(super) struct Expected {
    pub(super) methods: [bool; MethodClass::ALL.len()],
    /// By outcome and class of status.
    pub(super) endings: [[bool; CLASSES.len()]; Outcome::ALL.len()],
    pub(super) reasons: [bool; Reason::ALL.len()],
}

/// By the names of routes.
pub(super) fn by_route(config: &Config) -> HashMap<String, Expected> {
    let mut all = HashMap::from([(NO_ROUTE.to_owned(), Expected::unrouted(config))]);
    let descriptors = config.descriptors().iter().map(|rule| &rule.route);
    for route in config.routes.iter().chain(descriptors) {
        all.entry(route::label(route)).or_default().add(config, route);
    }
    all
}

impl Expected {
    fn unrouted(config: &Config) -> Self {
        let mut none = Self { methods: [true; MethodClass::ALL.len()], ..Self::default() };
        none.ends(Outcome::Unrouted, StatusCode::NOT_FOUND);
        none.ends(Outcome::Refused, StatusCode::BAD_REQUEST);
        none.fails_for(|reason| match reason {
            Reason::BadHead | Reason::MaxHeaderSize | Reason::HeaderTimeout | Reason::PlainHttp => true,
            Reason::AskedRequest => config.decisions.is_some(),
            _ => false,
        });
        none
    }

    fn add(&mut self, config: &Config, route: &Route) {
        if route.methods.is_empty() {
            [MethodClass::Read, MethodClass::Write].iter().for_each(|class| self.methods[*class as usize] = true);
        }
        route.methods.iter().for_each(|method| self.methods[MethodClass::of(method) as usize] = true);
        self.endings[Outcome::Abandoned as usize][0] = true;
        self.ends(Outcome::Refused, StatusCode::BAD_REQUEST);
        self.answers(config, &route.action);
        self.limits(config, route);
        if let Some(shed) = &config.server.shed {
            self.ends(Outcome::Shed, shed.status);
        }
    }

    /// The outcomes of requests that are not refused.
    fn answers(&mut self, config: &Config, action: &Action) {
        match action {
            Action::Forward { .. } => {
                self.endings[Outcome::Forwarded as usize][2..].fill(true);
                self.ends(Outcome::Failed, StatusCode::BAD_GATEWAY);
                self.fails_for(|reason| {
                    let of_body = [Reason::BodyTimeout, Reason::MaxBodySize, Reason::BadBody];
                    reason.is_upstreams() || of_body.contains(&reason)
                });
            }
            Action::Respond { status, .. } => self.ends(Outcome::Responded, *status),
            Action::Redirect(redirect) => self.ends(Outcome::Responded, redirect.status),
        }
        if config.decisions.is_some() {
            self.ends(Outcome::Responded, StatusCode::OK);
        }
    }

    fn limits(&mut self, config: &Config, route: &Route) {
        for limit in config.limits_of(route) {
            match limit.on_limit {
                OnLimit::Reject | OnLimit::Delay { .. } => self.ends(Outcome::Limited, limit.status),
                OnLimit::Silent => self.ends(Outcome::Silenced, limit.status),
                OnLimit::Shadow => {}
            }
            // The admin API may block a key of any limit.
            self.ends(Outcome::Blocked, StatusCode::FORBIDDEN);
            if config.store.on_error() == OnError::Reject {
                self.ends(Outcome::Unavailable, StatusCode::SERVICE_UNAVAILABLE);
            }
            let (bans, needs_body) = (limit.ban.is_some(), limit.needs_body());
            self.fails_for(|reason| match reason {
                Reason::AmbiguousKey => true,
                Reason::Banned => bans,
                Reason::InspectBody | Reason::InspectMemory | Reason::BadBody => needs_body,
                _ => false,
            });
        }
        if config.jwts.iter().any(|jwt| jwt.required && config.uses_token(route, &jwt.name)) {
            self.fails_for(|reason| reason == Reason::InvalidToken);
        }
    }

    fn ends(&mut self, outcome: Outcome, status: StatusCode) {
        self.endings[outcome as usize][usize::from(status.as_u16() / 100).min(CLASSES.len() - 1)] = true;
    }

    fn fails_for(&mut self, is_likely: impl Fn(Reason) -> bool) {
        for reason in Reason::ALL {
            self.reasons[reason as usize] |= is_likely(reason);
        }
    }
}
