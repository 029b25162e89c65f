//! Reuses a map of headers, because a new map takes two allocations for its first header. Each worker keeps the map of the last
//! finished request for the next response.

use std::cell::RefCell;

use http::HeaderMap;

/// The most room of a map that is kept. Few messages have more headers.
const MOST_ROOM: usize = 64;

thread_local! {
    static SPARE: RefCell<Option<HeaderMap>> = const { RefCell::new(None) };
}

/// Empty, with the room of a map that this thread gave back.
pub fn take() -> HeaderMap {
    SPARE.take().unwrap_or_default()
}

/// Keeps the map if this thread keeps no other.
pub fn give_back(mut headers: HeaderMap) {
    SPARE.with_borrow_mut(|spare| {
        if spare.is_none() && (1..=MOST_ROOM).contains(&headers.capacity()) {
            headers.clear();
            *spare = Some(headers);
        }
    });
}

#[cfg(test)]
mod tests {
    use http::{HeaderValue, header};

    use super::*;

    #[test]
    fn what_is_taken_is_empty_and_not_too_large() {
        let mut headers = HeaderMap::with_capacity(MOST_ROOM / 2);
        for value in ["a", "b"] {
            headers.append(header::COOKIE, HeaderValue::from_static(value));
        }
        let room = headers.capacity();
        give_back(headers);
        give_back(HeaderMap::new());
        give_back(HeaderMap::with_capacity(2 * MOST_ROOM));
        let spare = take();
        assert_eq!((spare.len(), spare.get(header::COOKIE), spare.capacity()), (0, None, room));
        assert_eq!(take().capacity(), 0);
    }
}
