//! The head of a response in the form of HTTP/2 (RFC 9113, section 8.3.2).

use http::header;
use http::response::Parts;

use crate::base::clock;
use crate::base::http::header_rules::remove_hop_by_hop;
use crate::server::worker_state::WorkerState;

/// Completes the head of a response: it gets a Date, and the `length` of its content if that is known.
pub(super) fn complete(head: &mut Parts, length: Option<u64>, worker: &WorkerState) {
    remove_hop_by_hop(&mut head.headers);
    if let header::Entry::Vacant(vacant) = head.headers.entry(header::DATE) {
        vacant.insert(worker.date().at(clock::now()));
    }
    if let (Some(length), header::Entry::Vacant(vacant)) = (length, head.headers.entry(header::CONTENT_LENGTH)) {
        vacant.insert(length.into());
    }
}
