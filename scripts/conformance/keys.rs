//! Behaviours: no more than N pass by another spelling of the key, by an odd one, or without one.

use std::io;
use std::time::Instant;

use super::behaviour::{Behaviour, Group, Outcome, Verdict, run};
use super::exchange::{Decision, Exchange, Request};
use super::judge;
use super::target::Target;

pub(crate) const ALL: &[Behaviour] = &[
    Behaviour {
        id: "name-case",
        group: Group::Keys,
        sentence: "The name of the key's header means the same in any case.",
        measure: "3 N requests of a new key, the name in small letters, in capital letters and mixed, in turn",
        source: "RFC 9110, section 5.1: field names are case-insensitive",
        why: "A client writes X-API-KEY, and is counted as somebody without a key, or not at all",
        needs: &[],
        run: run!(name_case),
    },
    Behaviour {
        id: "value-spaces",
        group: Group::Keys,
        sentence: "Spaces and tabs around the key are no part of it.",
        measure: "3 N requests of a new key, with more and more spaces and tabs before and after it",
        source: "RFC 9110, section 5.5: a field value does not include leading and trailing whitespace",
        why: "The server behind the limiter cuts them off, so each number of spaces is another quota of the same client",
        needs: &[],
        run: run!(value_spaces),
    },
    Behaviour {
        id: "key-twice",
        group: Group::Keys,
        sentence: "A request with two keys gets nothing that each of them alone would not get.",
        measure: "two new keys without room; then requests with both, as two fields in either order",
        source: "RFC 9110, section 5.3: a field that is no list must not be sent twice",
        why: "The limiter counts one key, the server behind it believes the other one",
        needs: &[],
        run: run!(key_twice),
    },
    Behaviour {
        id: "key-empty",
        group: Group::Keys,
        sentence: "Requests with an empty key are limited, too.",
        measure: "3 N requests whose key is nothing, a space or a tab",
        source: "nginx, documentation of limit_req_zone: requests with an empty key value are not accounted",
        why: "Whoever sends no key has no limit",
        needs: &[],
        run: run!(key_empty),
    },
    Behaviour {
        id: "key-missing",
        group: Group::Keys,
        sentence: "Requests without the key's header are limited, too.",
        measure: "3 N requests without the header",
        source: "Envoy, documentation of request_headers: a descriptor is not generated if the header is absent",
        why: "Whoever leaves out the header has no limit",
        needs: &[],
        run: run!(key_missing),
    },
    Behaviour {
        id: "key-long",
        group: Group::Keys,
        sentence: "A very long key is limited like any other.",
        measure: "3 N requests of a new key of 4000 bytes",
        source: "HAProxy, documentation of stick-table: longer strings are truncated",
        why: "A limiter that cannot store a key must refuse it, not forget to count it",
        needs: &[],
        run: run!(key_long),
    },
    Behaviour {
        id: "key-bytes",
        group: Group::Keys,
        sentence: "A key that is no UTF-8 is limited like any other.",
        measure: "3 N requests of a new key with the bytes FF, FE and C0",
        source: "RFC 9110, section 5.5: field values may have obs-text, bytes from 80 to FF",
        why: "A library that reads the header as text says that there is none",
        needs: &[],
        run: run!(key_bytes),
    },
    Behaviour {
        id: "long-keys-apart",
        group: Group::Keys,
        sentence: "Long keys that differ only at the end are two clients, or both are rejected.",
        measure: "a new key of 2000 bytes without room; then one request of a key that differs in the last byte",
        source: "HAProxy, documentation of stick-table: longer strings are truncated",
        why: "Tokens often begin alike: clients that have never met share a quota",
        needs: &[],
        run: run!(long_keys_apart),
    },
    Behaviour {
        id: "bytes-apart",
        group: Group::Keys,
        sentence: "Keys that differ only in bytes that are no UTF-8 are two clients, or both are rejected.",
        measure: "a new key with the byte FF without room; then one request of the same key with the byte FE",
        source: "Rust, documentation of String::from_utf8_lossy: each wrong sequence becomes U+FFFD",
        why: "Different clients share a counter after such a conversion",
        needs: &[],
        run: run!(bytes_apart),
    },
    Behaviour {
        id: "letters-apart",
        group: Group::Keys,
        sentence: "Keys that differ only in the case of letters are two clients.",
        measure: "a new key without room; then one request of the same key in capital letters",
        source: "RFC 6750, section 2.1: the letters of tokens are of both cases",
        why: "Random tokens use both cases: clients share a quota by chance",
        needs: &[],
        run: run!(letters_apart),
    },
    Behaviour {
        id: "escapes-apart",
        group: Group::Keys,
        sentence: "Escapes in a key are no spelling of it: a header's value is not decoded.",
        measure: "a new key without room; then one request of the same key with %2D instead of its first hyphen",
        source: "RFC 9110, section 5.5: only URIs have percent-encoding",
        why: "A client whose key has a per cent sign uses up the quota of another one",
        needs: &[],
        run: run!(escapes_apart),
    },
];

/// Three times the quota, each request made from its number.
async fn limited(target: &Target, make: impl Fn(usize) -> Request) -> io::Result<Outcome> {
    let requests: Vec<_> = (0..3 * target.rate.quota).map(make).collect();
    let exchanges = target.in_turn(&requests).await?;
    Ok(judge::never_more(&exchanges, target.rate, target.algorithm, false))
}

async fn name_case(target: &Target) -> io::Result<Outcome> {
    let key = target.key();
    let name = &target.key_header;
    let mixed = name.char_indices().map(|(at, letter)| match at % 2 {
        0 => letter.to_ascii_lowercase(),
        _ => letter.to_ascii_uppercase(),
    });
    let names = [name.to_lowercase(), name.to_uppercase(), mixed.collect()];
    limited(target, |number| target.without_key().with(&names[number % 3], key.as_str())).await
}

async fn value_spaces(target: &Target) -> io::Result<Outcome> {
    let key = target.key();
    limited(target, |number| {
        let (before, after) = (" ".repeat(number % 7), "\t ".repeat(number / 7 % 7));
        target.request(format!("{before}{key}{after}"))
    })
    .await
}

async fn key_twice(target: &Target) -> io::Result<Outcome> {
    let keys = [target.key(), target.key()];
    let mut client = target.client().await?;
    let begun = Instant::now();
    for key in &keys {
        target.exhaust(&mut client, &target.request(key.as_str())).await?;
    }
    let [one, other] = &keys;
    let mut answers = Vec::new();
    for (first, second) in [(one, other), (other, one)] {
        let both = target.request(first.as_str()).with(&target.key_header, second.as_str());
        answers.push(client.ask(&both).await?);
    }
    let statuses: Vec<_> = answers.iter().map(|answer| answer.response.status.to_string()).collect();
    let figure = format!("with both keys, the answers were {}", statuses.join(" and "));
    if !answers.iter().any(Exchange::is_admitted) {
        return Ok(Outcome::new(Verdict::Passed, figure));
    }
    Ok(target.too_early(begun.elapsed() < target.hold(), figure))
}

async fn key_empty(target: &Target) -> io::Result<Outcome> {
    limited(target, |number| target.request(["", " ", "\t"][number % 3])).await
}

async fn key_missing(target: &Target) -> io::Result<Outcome> {
    limited(target, |_| target.without_key()).await
}

async fn key_long(target: &Target) -> io::Result<Outcome> {
    let key = long(target, 4000);
    limited(target, |_| target.request(key.as_str())).await
}

async fn key_bytes(target: &Target) -> io::Result<Outcome> {
    let key = [target.key().as_bytes(), b"\xff\xfe\xc0"].concat();
    limited(target, |_| target.request(key.clone())).await
}

/// A new key of this length, whose own part comes first.
fn long(target: &Target, length: usize) -> String {
    format!("{:x<length$}", target.key() + "-")
}

/// Uses up the first key, and sends one request of the second.
async fn apart(target: &Target, one: Vec<u8>, other: Vec<u8>) -> io::Result<Outcome> {
    let mut client = target.client().await?;
    let first = target.request(one);
    let begun = Instant::now();
    let probe = client.ask(&first).await?;
    if probe.is(Decision::Rejected) {
        return Ok(Outcome::new(Verdict::Passed, format!("rejected with {}", probe.response.status)));
    }
    if !probe.is_refused() {
        target.exhaust(&mut client, &first).await?;
    }
    let second = client.ask(&target.request(other)).await?;
    let figure = format!("the second key was answered {}", second.response.status);
    if second.is_admitted() && begun.elapsed() >= target.hold() {
        return Ok(Outcome::undecided(format!("{figure}, but the first one may have had room again")));
    }
    Ok(Outcome::check(second.is_admitted(), figure))
}

async fn long_keys_apart(target: &Target) -> io::Result<Outcome> {
    let key = long(target, 2000);
    apart(target, format!("{key}a").into_bytes(), format!("{key}b").into_bytes()).await
}

async fn bytes_apart(target: &Target) -> io::Result<Outcome> {
    let key = target.key();
    apart(target, [key.as_bytes(), b"\xff"].concat(), [key.as_bytes(), b"\xfe"].concat()).await
}

async fn letters_apart(target: &Target) -> io::Result<Outcome> {
    let key = target.key();
    apart(target, key.clone().into_bytes(), key.to_uppercase().into_bytes()).await
}

async fn escapes_apart(target: &Target) -> io::Result<Outcome> {
    let key = target.key();
    apart(target, key.clone().into_bytes(), key.replacen('-', "%2D", 1).into_bytes()).await
}
