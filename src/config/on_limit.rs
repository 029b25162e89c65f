//! `on_limit`: what happens to a request over a limit. Only this file asks which of its values a limit has.

use std::ops::RangeInclusive;
use std::time::Duration;

use http::StatusCode;

/// What happens to a request over a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLimit {
    /// It is refused.
    Reject,
    /// It passes; a header and a metric show that the limit would have refused it.
    Shadow,
    /// The gateway answers it with no hint of the limit, and does not forward it.
    Silent,
    /// It is held until it fits.
    Delay {
        /// The longest time that it is held.
        max_delay: Duration,
        /// The maximum number of held requests per key in this process, at least 1.
        max_delayed: usize,
    },
}

/// What a limit does to a decision that it takes part in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It refuses requests over it, which are then charged to no limit.
    Refuses,
    /// It only reports requests over it. Those that it admits are charged to it as to the others.
    Reports,
}

impl OnLimit {
    /// The longest delay, and how many requests of a key are held, if the file does not say so.
    pub(super) const DEFAULT_DELAY: (Duration, usize) = (Duration::from_secs(1), 100);
    /// Each action.
    pub(super) const ALL: [Self; 4] = [
        Self::Reject,
        Self::Shadow,
        Self::Silent,
        Self::Delay { max_delay: Self::DEFAULT_DELAY.0, max_delayed: Self::DEFAULT_DELAY.1 },
    ];

    /// The word for it in the file.
    pub fn word(self) -> &'static str {
        match self {
            Self::Reject => "reject",
            Self::Shadow => "shadow",
            Self::Silent => "silent",
            Self::Delay { .. } => "delay",
        }
    }

    /// Whether the limit refuses requests in the end, or only reports them.
    pub fn role(self) -> Role {
        match self {
            Self::Reject | Self::Silent | Self::Delay { .. } => Role::Refuses,
            Self::Shadow => Role::Reports,
        }
    }

    /// Whether clients are told about the limit: by headers, and when it refuses a request. They are not if the limit only
    /// reports, or if it answers as if nothing were wrong.
    pub fn is_told(self) -> bool {
        match self {
            Self::Reject | Self::Delay { .. } => true,
            Self::Shadow | Self::Silent => false,
        }
    }

    /// How long the limit may hold a request, and how many of a key; `None` if it holds none.
    pub fn delay(self) -> Option<(Duration, usize)> {
        match self {
            Self::Delay { max_delay, max_delayed } => Some((max_delay, max_delayed)),
            Self::Reject | Self::Shadow | Self::Silent => None,
        }
    }

    /// The status of the answer to a request over the limit if the file has none, and those that it may have.
    pub(super) fn statuses(self) -> (StatusCode, RangeInclusive<u64>) {
        match self {
            // It looks like an answer from an upstream.
            Self::Silent => (StatusCode::OK, 200..=599),
            Self::Reject | Self::Shadow | Self::Delay { .. } => (StatusCode::TOO_MANY_REQUESTS, 400..=599),
        }
    }

    /// What happens to a request over the limit, in words, if `status` is that of the limit's answers.
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

    /// What happens to a request whose key the limit blocks, in words.
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
        let held = "held for up to 1s, at most 100 per key at the same time, or answered 200";
        let expected = [
            ("reject", refuses, true, None, 429, "answered 200", "answered 403"),
            ("shadow", reports, false, None, 429, forwarded, forwarded),
            ("silent", refuses, false, None, 200, "answered 200 with no hint of the limit", "answered 403"),
            ("delay", refuses, true, Some(OnLimit::DEFAULT_DELAY), 429, held, "answered 403"),
        ];
        for (on_limit, (word, role, is_told, delay, status, over, blocked)) in OnLimit::ALL.into_iter().zip(expected) {
            assert_eq!((on_limit.word(), on_limit.role(), on_limit.is_told()), (word, role, is_told));
            assert_eq!((on_limit.delay(), on_limit.statuses().0.as_u16()), (delay, status), "{word}");
            let words = on_limit.in_words(StatusCode::OK);
            assert_eq!((&*words, on_limit.blocked_in_words()), (over, blocked), "{word}");
        }
    }
}
