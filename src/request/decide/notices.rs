//! Hands to the receivers of notices what the store says about watched limits, where the text of the key is known.

use super::heavy_hitters::kept_text;
use super::{DecisionInput, DecisionState, RouteLimit};
use crate::base::fingerprint::Fingerprint;
use crate::request::identify::key_text::written_text;
use crate::store::{ReachedRates, Watch};

impl DecisionState<'_> {
    #[cold]
    pub(super) fn tell_reached(&self, input: &DecisionInput<'_, '_>, reached: &ReachedRates) {
        for rate in reached.iter() {
            let ask = self.asks[self.decided..].iter().find(|ask| ask.place == rate.place);
            let Some((ask, route_limit)) = ask.zip(input.limits.get(rate.place)) else { continue };
            if let Some(notices) = &route_limit.notices {
                notices.tell(ask.key, || route_limit.kept_key(input), &rate.limit, &rate.reached);
            }
        }
    }
}

impl RouteLimit {
    /// Lets the receivers be told of a charge when it is settled.
    pub(super) fn watch(&self, input: &DecisionInput<'_, '_>, key: Fingerprint) -> Watch {
        self.notices.as_ref().map_or_else(Watch::default, |notices| notices.watch(key, self.kept_key(input)))
    }

    /// The text of the key, shortened like that of a frequent key.
    fn kept_key(&self, input: &DecisionInput<'_, '_>) -> String {
        kept_text(&written_text(&self.key.parts(input.attributes)))
    }
}
