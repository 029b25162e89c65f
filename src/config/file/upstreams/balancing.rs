//! `balance` and `hash_key`: how requests are shared among the servers of an upstream.

use crate::config::Balance;
use crate::config::file::jwt::Names;
use crate::config::file::limits::key;
use crate::config::read::Section;
use crate::config::settings::{Balancing, upstream};

/// Reads both keys.
pub(super) fn read(section: &Section<'_>, jwts: &Names<'_>) -> Balance {
    let balancing = section.read(&upstream::balance);
    if let Some(field) = section.field(&upstream::hash_key).filter(|_| balancing != Balancing::Hash) {
        field.report("`hash_key` has no effect without `balance = \"hash\"`", "add that, or remove `hash_key`");
    }
    match balancing {
        Balancing::RoundRobin => Balance::RoundRobin,
        Balancing::LeastRequests => Balance::LeastRequests,
        Balancing::Hash => {
            Balance::Hash(section.read_as(&upstream::hash_key, |field| key(field, &upstream::hash_key, jwts)))
        }
    }
}
