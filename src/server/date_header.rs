//! The `Date` header of responses (RFC 9110, section 6.6.1), which is formatted once in a second.

use std::cell::RefCell;
use std::time::{Duration, UNIX_EPOCH};

use http::HeaderValue;

use crate::base::clock::Time;

#[derive(Debug, Default)]
pub(super) struct DateHeader {
    last: RefCell<Option<(u64, HeaderValue)>>,
}

impl DateHeader {
    pub(super) fn at(&self, now: Time) -> HeaderValue {
        let mut last = self.last.borrow_mut();
        match &*last {
            Some((second, date)) if *second == now.seconds() => date.clone(),
            _ => {
                let text = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(now.seconds()));
                // A date is a valid value.
                let date = HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static(""));
                last.insert((now.seconds(), date)).1.clone()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_is_that_of_its_second() {
        let date = DateHeader::default();
        for (micros, expected) in [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (784_111_777_000_000, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (784_111_777_999_999, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (784_111_778_000_000, "Sun, 06 Nov 1994 08:49:38 GMT"),
        ] {
            assert_eq!(date.at(Time::from_micros(micros)), expected);
        }
    }
}
