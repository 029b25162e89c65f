//! Paths below `/api/limits/{limit}`, and the limits that they name.

use std::borrow::Cow;

use http::StatusCode;
use percent_encoding::percent_decode_str;

use crate::config::{Config, Limit};
use crate::proxy::respond::{self, LocalResponse};

/// The name of a limit in a path: percent-encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LimitPath<'a>(&'a str);

impl<'a> LimitPath<'a> {
    /// Reads `{limit}/{list}`.
    pub(super) fn with_list(path: &'a str, list: &str) -> Option<Self> {
        let (limit, named) = path.split_once('/')?;
        (named == list).then_some(Self(limit))
    }

    /// Reads `{limit}/keys/{key}`, where the key may be any text.
    pub(super) fn with_key(path: &'a str) -> Option<(Self, &'a str)> {
        let (limit, key) = path.split_once("/keys/")?;
        Some((Self(limit), key))
    }

    pub(super) fn find(self, config: &Config) -> Option<&Limit> {
        let name = self.name();
        config.limits.iter().find(|limit| limit.name == name)
    }

    pub(super) fn unknown(self) -> LocalResponse {
        respond::problem(StatusCode::NOT_FOUND, &format!("There is no limit {:?}.", self.name()))
    }

    fn name(self) -> Cow<'a, str> {
        percent_decode_str(self.0).decode_utf8_lossy()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_a_limit_and_what_is_asked_of_it() {
        let list = |path| LimitPath::with_list(path, "bans").map(|LimitPath(limit)| limit);
        assert_eq!(
            ["l/bans", "a%2Fb/bans", "l/ban", "l/bans/", "l/x/bans", "bans"].map(list),
            [Some("l"), Some("a%2Fb"), None, None, None, None]
        );
        assert_eq!(LimitPath::with_key("l/keys/a/keys/bans"), Some((LimitPath("l"), "a/keys/bans")));
        assert_eq!(LimitPath::with_key("l/bans"), None);
    }
}
