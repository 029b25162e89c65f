//! `balance` and `hash_key`: how requests are shared among the servers of an upstream.

use crate::config::file::jwt::Names;
use crate::config::file::limits::key;
use crate::config::read::Section;
use crate::config::{Balance, Key, Source};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Word {
    RoundRobin,
    LeastRequests,
    Hash,
}

/// Reads both keys.
pub(super) fn read(section: &Section<'_>, jwts: &Names<'_>) -> Balance {
    let words = [("round-robin", Word::RoundRobin), ("least-requests", Word::LeastRequests), ("hash", Word::Hash)];
    let word = section.choice("balance", &words).unwrap_or(Word::LeastRequests);
    let hash_key = section.field("hash_key");
    if let Some(field) = hash_key.as_ref().filter(|_| word != Word::Hash) {
        field.report("`hash_key` has no effect without `balance = \"hash\"`", "add that, or remove `hash_key`");
    }
    match word {
        Word::RoundRobin => Balance::RoundRobin,
        Word::LeastRequests => Balance::LeastRequests,
        Word::Hash => {
            let read = hash_key.and_then(|field| key(&field, jwts));
            Balance::Hash(read.unwrap_or(Key { parts: vec![vec![Source::ClientIp { v6: 64 }]] }))
        }
    }
}
