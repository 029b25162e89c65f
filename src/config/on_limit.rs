//! `on_limit`: what happens to a request over a limit. Only this file distinguishes the values.

use std::ops::RangeInclusive;
use std::time::Duration;

use http::StatusCode;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLimit {
    Reject,
    /// Passes; a header and a metric show that the limit would have refused the request.
    Shadow,
    /// Answered without any hint of the limit, and not forwarded.
    Silent,
    /// Held until the request fits.
    Delay {
        max_delay: Duration,
        /// The maximum number of held requests per key in this process, at least 1.
        max_delayed: usize,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Requests over the limit are refused, and then charged to no limit.
    Refuses,
    /// Requests over the limit are only reported. Requests within it are charged as usual.
    Reports,
}

impl OnLimit {
    /// The delay has keys of its own, so it is zero here.
    pub(super) const WORDS: [(&str, Self); 4] = [
        ("reject", Self::Reject),
        ("shadow", Self::Shadow),
        ("silent", Self::Silent),
        ("delay", Self::Delay { max_delay: Duration::ZERO, max_delayed: 0 }),
    ];

    /// As the file spells it.
    pub fn word(self) -> &'static str {
        let kind = std::mem::discriminant(&self);
        Self::WORDS.iter().find(|(_, one)| std::mem::discriminant(one) == kind).map_or("", |(word, _)| word)
    }

    pub fn role(self) -> Role {
        match self {
            Self::Reject | Self::Silent | Self::Delay { .. } => Role::Refuses,
            Self::Shadow => Role::Reports,
        }
    }

    /// Whether clients learn of the limit: by headers, and by a refusal. Not if the limit only reports, or answers as if
    /// nothing were wrong.
    pub fn is_told(self) -> bool {
        match self {
            Self::Reject | Self::Delay { .. } => true,
            Self::Shadow | Self::Silent => false,
        }
    }

    /// The longest delay, and the maximum number of held requests per key; `None` if no requests are held.
    pub fn delay(self) -> Option<(Duration, usize)> {
        match self {
            Self::Delay { max_delay, max_delayed } => Some((max_delay, max_delayed)),
            Self::Reject | Self::Shadow | Self::Silent => None,
        }
    }

    /// The default status for requests over the limit, if it differs from that of other limits, and the statuses that the
    /// file may set.
    pub(super) fn statuses(self) -> (Option<StatusCode>, RangeInclusive<u64>) {
        match self {
            // Looks like an answer of an upstream.
            Self::Silent => (Some(StatusCode::OK), 200..=599),
            Self::Reject | Self::Shadow | Self::Delay { .. } => (None, 400..=599),
        }
    }

    /// What happens to a request over the limit, whose answers have this `status`.
    pub fn in_words(self, status: StatusCode) -> String {
        let answered = format!("answered {}", status.as_u16());
        match self {
            Self::Reject => answered,
            Self::Shadow => REPORTED.to_owned(),
            Self::Silent => format!("{answered} with no hint of the limit"),
            Self::Delay { max_delay, max_delayed } => {
                format!("held for up to {max_delay:?}, at most {max_delayed} per key at the same time, or {answered}")
            }
        }
    }

    pub fn blocked_in_words(self) -> &'static str {
        match self.role() {
            Role::Refuses => "answered 403",
            Role::Reports => REPORTED,
        }
    }
}

const REPORTED: &str = "forwarded and only reported";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_action_has_its_answers() {
        let (refuses, reports) = (Role::Refuses, Role::Reports);
        let forwarded = "forwarded and only reported";
        let ok = Some(StatusCode::OK);
        let held = "held for up to 0ns, at most 0 per key at the same time, or answered 200";
        let expected = [
            ("reject", refuses, true, None, None, "answered 200", "answered 403"),
            ("shadow", reports, false, None, None, forwarded, forwarded),
            ("silent", refuses, false, None, ok, "answered 200 with no hint of the limit", "answered 403"),
            ("delay", refuses, true, Some((Duration::ZERO, 0)), None, held, "answered 403"),
        ];
        for ((_, on_limit), (word, role, is_told, delay, status, over, blocked)) in
            OnLimit::WORDS.into_iter().zip(expected)
        {
            assert_eq!((on_limit.word(), on_limit.role(), on_limit.is_told()), (word, role, is_told));
            assert_eq!((on_limit.delay(), on_limit.statuses().0), (delay, status), "{word}");
            let words = on_limit.in_words(StatusCode::OK);
            assert_eq!((&*words, on_limit.blocked_in_words()), (over, blocked), "{word}");
        }
    }
}
