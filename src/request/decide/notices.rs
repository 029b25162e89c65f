//! Hands to the receivers of notices what the store says about watched limits, where the text of the key is known.

use super::heavy_hitters::kept_text;
use super::{DecisionInput, DecisionState, RouteLimit};
use crate::base::fingerprint::Fingerprint;
use crate::request::identify::key_text::written_text;
use crate::sources::notices::KeyText;
use crate::store::{Ask, ReachedRates, Watch};

impl DecisionState<'_> {
    /// Notes what other requests have reserved of a limit whose costs settle, if it is watched, before the store is asked: they
    /// may settle it meanwhile.
    pub(super) fn note_reserved(&mut self, input: &DecisionInput<'_, '_>, ask: &Ask<'_>) {
        if let Some(notices) = &input.limits[ask.place].notices {
            let reserved = notices.reserved(ask.key);
            if reserved > 0 {
                self.reserved_before.push((ask.place, reserved));
            }
        }
    }

    /// Tells what the reply says about watched limits. What other requests have reserved is not used.
    #[cold]
    pub(super) fn tell_reached(&self, input: &DecisionInput<'_, '_>, reached: &ReachedRates) {
        for rate in reached.iter() {
            let ask = self.asks[self.decided..].iter().find(|ask| ask.place == rate.place);
            let Some((ask, route_limit)) = ask.zip(input.limits.get(rate.place)) else { continue };
            if let Some(notices) = &route_limit.notices {
                let unused = if ask.settles { self.reserved(rate.place, notices.reserved(ask.key)) } else { 0 };
                notices.tell(ask.key, || route_limit.kept_key(input), &rate.limit, &rate.reached.without(unused));
            }
        }
    }

    /// What others had reserved of the limit at this place before the store was asked, or `now` if that is more.
    fn reserved(&self, place: usize, now: u64) -> u64 {
        let before = self.reserved_before.iter().find(|(of, _)| *of == place);
        before.map_or(now, |(_, before)| now.max(*before))
    }
}

impl RouteLimit {
    /// Lets the receivers be told of a charge when it is settled.
    pub(super) fn watch(&self, input: &DecisionInput<'_, '_>, key: Fingerprint) -> Watch {
        self.notices.as_ref().map_or_else(Watch::default, |notices| notices.watch(key, self.kept_key(input)))
    }

    /// The text of the key, shortened like that of a frequent key.
    fn kept_key(&self, input: &DecisionInput<'_, '_>) -> KeyText {
        kept(&written_text(&self.key.parts(input.attributes)))
    }
}

/// Bytes that are no text were replaced when the key was written.
fn kept(written: &str) -> KeyText {
    let text = kept_text(written);
    let is_whole = text == written && !written.contains(char::REPLACEMENT_CHARACTER);
    KeyText { text, is_whole }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_is_cut_or_replaced_is_not_the_whole_key() {
        for (written, is_whole) in [
            ("partner-7", true),
            ("\u{fc}|\u{2026}", true),
            ("", true),
            (&*"k".repeat(64), true),
            (&*"k".repeat(65), false),
            (&*String::from_utf8_lossy(b"k\xff"), false),
        ] {
            assert_eq!(kept(written).is_whole, is_whole, "{written}");
        }
    }
}
