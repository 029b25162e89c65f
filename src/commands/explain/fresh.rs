//! The answer to the first request, when all counters are empty.

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::rc::Rc;

use http::{Response, StatusCode};

use super::{headers_of, line};
use crate::base::clock;
use crate::base::threads::block_on;
use crate::proxy::respond::rate_limit_headers::RefusalCache;
use crate::proxy::respond::{self, LocalResponse};
use crate::proxy::snapshot::{Action, CompiledRoute, Forwarding, RouteLimits, Snapshot};
use crate::proxy::{self, ResponseChanges};
use crate::request::decide::{
    self, CostKnown, Decision, DecisionInput, DecisionState, ResolvedQuota, Stage, StageRange,
};
use crate::request::identify::RequestAttributes;
use crate::request::identify::tokens::TokenProblem;
use crate::request::resolve::{ArrivedRequest, Rejection, Target};
use crate::request::route::rewrite;

pub(super) struct Routed<'a> {
    pub(super) gateway: &'a Snapshot,
    pub(super) served: &'a CompiledRoute,
    pub(super) limits: &'a RouteLimits,
    pub(super) request: ArrivedRequest<'a>,
    pub(super) target: &'a Target<'a>,
    pub(super) problem: Option<Problem>,
}

/// Why a request is refused whatever its limits say.
pub(super) enum Problem {
    /// A required token cannot be used.
    Token(TokenProblem),
    Body(Rejection),
}

impl Problem {
    /// The limits that charge the request nevertheless.
    pub(super) fn charged(&self) -> StageRange {
        match self {
            Self::Token(_) => StageRange::FIRST,
            Self::Body(_) => StageRange { to: Stage::BodyOfOthers, ..StageRange::ALL },
        }
    }

    pub(super) fn answer(&self) -> LocalResponse {
        match self {
            Self::Token(why) => respond::unauthorized(*why),
            Self::Body(why) => respond::refused(why),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Token(why) => why.fmt(f),
            Self::Body(why) => f.write_str(&why.detail),
        }
    }
}

impl Routed<'_> {
    pub(super) fn write(
        &self,
        text: &mut String,
        attributes: &RequestAttributes<'_>,
        quotas: &[Option<ResolvedQuota>],
        changes: &ResponseChanges<'_>,
    ) -> io::Result<()> {
        let (gateway, limits, now) = (self.gateway, self.limits, clock::now());
        let input = DecisionInput {
            limits,
            part: self.problem.as_ref().map_or(StageRange::ALL, Problem::charged),
            attributes,
            quotas,
            key_cache: &RefCell::default(),
            store: &gateway.store,
            concurrency: &gateway.concurrency,
            wait_queues: &gateway.wait_queues,
            now,
            worker: 0,
            traced_since: None,
            fail_open: true,
            asker: None,
        };
        let mut state = DecisionState::new(&gateway.store, 0);
        // With empty counters, no refusal is known before the token or the body.
        let decision = match self.problem {
            None => block_on(decide::decide(&input, &mut state)),
            Some(_) => block_on(decide::decide_without_body(&input, &mut state)),
        }?;
        let answer = if decision == Decision::Admitted {
            self.answer()
        } else {
            let last = &mut RefusalCache::default();
            Some(Rc::unwrap_or_clone(proxy::refuse(limits, decision, &mut state, attributes, now, last)))
        };
        let outcome = match (&answer, &self.problem) {
            (None, _) => "forwarded".to_owned(),
            (Some(answer), Some(why)) if decision == Decision::Admitted => {
                format!("answered {}: {why}", answer.status().as_u16())
            }
            (Some(answer), _) => format!("answered {}", answer.status().as_u16()),
        };
        // The response of an upstream is not known.
        let cost = if answer.is_some() { CostKnown::FromResponse } else { CostKnown::Never };
        let mut response = answer.map_or_else(Response::default, |answer| answer.map(drop));
        if decision == Decision::Admitted {
            proxy::settle(limits, cost, response.status(), response.headers_mut(), &mut state, || now);
        }
        changes.apply(&mut response);
        line(text, &format!("\nwith empty counters: {outcome}"));
        headers_of(text, response.headers());
        Ok(())
    }

    /// The gateway's own answer to an admitted request; `None` if the request is forwarded.
    fn answer(&self) -> Option<LocalResponse> {
        let (uri, paths) = (&self.request.head.uri, self.gateway.resolver.paths);
        match (&self.problem, &self.served.action) {
            (Some(problem), _) => Some(problem.answer()),
            (None, Action::Respond { status, body, content_type }) => {
                Some(respond::with_body(*status, content_type.clone(), body.clone()))
            }
            (None, Action::Redirect(redirect)) => Some(proxy::redirected(redirect, self.target, uri, paths).1),
            (None, Action::Forward(Forwarding { path, .. })) => {
                let why = rewrite::sent(path, uri.path(), paths).err()?;
                Some(respond::closing(respond::problem(StatusCode::BAD_REQUEST, why.detail())))
            }
        }
    }
}
