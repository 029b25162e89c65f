//! Names of headers that arrive again and again, as [`HeaderName`]s. A server sends the same names in each response. To find one
//! here takes about half of the instructions that it takes to parse it, and names without a constant need no allocation.
//!
//! Each worker has a table with one place for each hash. A name takes the place of the one before it.

use std::cell::RefCell;

use http::HeaderName;
use http::header::InvalidHeaderName;
use smallvec::SmallVec;

/// A power of two, with which common names have places of their own.
const PLACES: usize = 128;
/// In bytes. Longer names are parsed each time.
const LONGEST: usize = 30;

/// The last name of each hash.
pub struct HeaderNames([Option<Known>; PLACES]);

struct Known {
    /// As it was written. The letters of a name may have either case.
    written: SmallVec<[u8; LONGEST]>,
    name: HeaderName,
}

thread_local! {
    static NAMES: RefCell<HeaderNames> = const { RefCell::new(HeaderNames([const { None }; PLACES])) };
}

impl HeaderNames {
    /// Calls `use_names` with the names of this worker.
    pub fn with<R>(use_names: impl FnOnce(&mut Self) -> R) -> R {
        NAMES.with_borrow_mut(use_names)
    }

    /// # Errors
    /// These bytes are not the name of a header.
    pub fn parse(&mut self, written: &[u8]) -> Result<HeaderName, InvalidHeaderName> {
        let ([first, .., last], length @ ..=LONGEST) = (written, written.len()) else {
            return HeaderName::from_bytes(written);
        };
        let hash = length << 2 ^ usize::from(*first) ^ usize::from(*last) << 4;
        let place = &mut self.0[hash % PLACES];
        if let Some(known) = place
            && *known.written == *written
        {
            return Ok(known.name.clone());
        }
        let name = HeaderName::from_bytes(written)?;
        *place = Some(Known { written: SmallVec::from_slice(written), name: name.clone() });
        Ok(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_same_as_without_the_table_whatever_came_before() {
        let long = "x".repeat(LONGEST + 1);
        let names = [
            "Date",
            "date",
            "DATE",
            "Server",
            "x-a",
            "X-A",
            "x-b",
            "c-d",
            "",
            "d",
            "é",
            "a b",
            "x:y",
            "content-type",
            &long[1..],
            &long,
        ];
        let mut table = HeaderNames([const { None }; PLACES]);
        for _ in 0..3 {
            for name in names {
                let expected = HeaderName::from_bytes(name.as_bytes());
                assert_eq!(table.parse(name.as_bytes()).ok(), expected.ok(), "{name:?}");
            }
        }
    }

    #[test]
    fn common_names_have_places_of_their_own() {
        let names = "Date Server Content-Type Content-Length Connection Cache-Control ETag Last-Modified Vary Expires Set-Cookie \
                     Location Content-Encoding Strict-Transport-Security X-Request-Id Transfer-Encoding Keep-Alive \
                     X-Content-Type-Options X-Frame-Options Accept-Ranges Age Access-Control-Allow-Origin";
        let mut table = HeaderNames([const { None }; PLACES]);
        names.split_whitespace().for_each(|name| drop(table.parse(name.as_bytes())));
        let kept = table.0.iter().flatten().count();
        assert_eq!(kept, names.split_whitespace().count());
    }
}
