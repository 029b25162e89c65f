//! Properties that must hold for any bytes from outside. The targets of `fuzz/` run them, and tests run them with the seeds of
//! `fuzz/seeds`. Not a part of the gateway.

mod models;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use http::header::{COOKIE, FORWARDED};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use ipnet::IpNet;

use crate::base::clock::Time;
use crate::base::http::{host, path};
use crate::base::jwt::{ALGORITHMS, KeyOrigin, KeySet, Verifier};
use crate::config::{
    Config, Document, EscapedSlashes, Limit, Login, PathMatching, PathPattern, PathRules, Problems, parse,
};
use crate::request::identify::ambiguity::SingleSources;
use crate::request::identify::client::{Client, client, parse_address, scheme};
use crate::request::identify::{KeyCache, KeyExtractor, RequestAttributes};
use crate::request::route::Routes;
use crate::store::shared::memcached::Memcached;
use crate::store::shared::protocol::{Echo, Initial, Lifetime, Protocol, Reader};
use crate::store::shared::valkey::Valkey;
use crate::{net, server};

/// Panics if the property does not hold.
type Check = fn(&[u8]);

/// By the names of the targets and of the folders of seeds.
const CHECKS: [(&str, Check); 12] = [
    ("preamble", net::check_preamble),
    ("framing", server::check_framing),
    ("frames", server::check_frames),
    ("hosts", hosts),
    ("paths", paths),
    ("forwarded", forwarded),
    ("keys", keys),
    ("tokens", tokens),
    ("configuration", configuration),
    ("answers", answers),
    ("json", models::json),
    ("responses", models::responses),
];

/// # Panics
/// When it does not hold, or nothing has this name.
pub fn check(name: &str, bytes: &[u8]) {
    let found = CHECKS.iter().find(|(known, _)| *known == name);
    let (_, check) = found.unwrap_or_else(|| panic!("no check is called {name}"));
    check(bytes);
}

/// The host of a request: normalization is idempotent, and a port does not change the host.
fn hosts(bytes: &[u8]) {
    let Some(normal) = std::str::from_utf8(bytes).ok().and_then(host::normal) else { return };
    assert_eq!(host::normal(&normal).as_ref(), Some(&normal));
    assert!(normal.bytes().all(|byte| byte.is_ascii_graphic() && !byte.is_ascii_uppercase()));
    let with_port = host::normal(&format!("{normal}:80")).map(String::from);
    assert_eq!(with_port.as_deref(), Some(&*normal).filter(|name| !name.is_empty()));
}

/// The target of a request: normalization is idempotent, and the upstream gets a path with the same normal form.
fn paths(bytes: &[u8]) {
    let Ok(target) = PathAndQuery::try_from(bytes) else { return };
    let written = target.path();
    for matching in [PathMatching::Forgiving, PathMatching::Exact] {
        for escaped_slashes in [EscapedSlashes::Reject, EscapedSlashes::Keep, EscapedSlashes::Decode] {
            let rules = PathRules { matching, escaped_slashes };
            let Ok(normal) = path::normal(written, rules) else { continue };
            assert_eq!(path::normal(&normal, rules).as_deref(), Ok(&*normal), "{rules:?}");
            assert!(!normal.contains("//") && normal.split('/').all(|segment| !matches!(segment, "." | "..")));
            assert!(normal.bytes().all(|byte| byte.is_ascii_graphic()));
            let onward = path::onward(written, 0, rules);
            assert_eq!(path::normal(&onward, rules).as_deref(), Ok(&*normal), "{rules:?} {onward}");
            // A path that is already normal is recognized by other code than the rest.
            if normal == written && !written.contains([';', '%']) {
                assert_eq!(path::normal(&format!("{written}%41"), rules), Ok(format!("{written}A").into()));
            }
            for index in 0..4 {
                assert!(!path::segment(written, index, rules).contains('/'));
                assert!(path::normal(&path::onward(written, index, rules), rules).is_ok(), "{rules:?} {index}");
            }
            for ignore_case in [false, true] {
                let key = path::key(&normal, rules, ignore_case);
                assert_eq!(path::key(&key, rules, ignore_case), key);
            }
        }
    }
}

/// The header lines of a text, without invalid lines.
fn headers(text: &[u8]) -> Vec<(HeaderName, HeaderValue)> {
    let lines = text.split(|byte| *byte == b'\n').filter_map(|line| {
        let (name, value) = line.split_at_checked(line.iter().position(|byte| *byte == b':')?)?;
        Some((HeaderName::from_bytes(name).ok()?, HeaderValue::from_bytes(value[1..].trim_ascii()).ok()?))
    });
    lines.take(1000).collect()
}

/// What a client may write in front of what proxies append.
const FORGED: [&str; 4] = ["192.0.2.66", "for=192.0.2.66", "for=\"192.0.2.66", "for=192.0.2.66;x=\"\\"];

/// Header lines: only trusted proxies are trusted, and a client cannot choose another address than they name.
fn forwarded(bytes: &[u8]) {
    let trusted: Vec<IpNet> = ["10.0.0.0/8", "fd00::/8"].iter().flat_map(|net| net.parse()).collect();
    let find = |peer: IpAddr, headers: &HeaderMap| -> Client {
        let client = client(peer, headers, &trusted);
        let schemes = [false, true].map(|uses_tls| scheme(uses_tls, client, headers));
        assert!(client.via_trusted || client.address == peer && schemes[0] != schemes[1]);
        assert_eq!(parse_address(client.address.to_string().as_bytes()), Some(client.address));
        client
    };
    let lines = headers(bytes);
    find(IpAddr::from([192, 0, 2, 1]), &lines.iter().cloned().collect());
    let peer = IpAddr::from([10, 0, 0, 1]);
    let found = find(peer, &lines.iter().cloned().collect());
    assert!(found.via_trusted);
    for forged in FORGED {
        let mut longer = lines.clone();
        for name in [HeaderName::from_static("x-forwarded-for"), FORWARDED] {
            if let Some((_, value)) = longer.iter_mut().find(|(written, _)| *written == name) {
                let line = [forged.as_bytes(), b", ", value.as_bytes()].concat();
                *value = HeaderValue::from_bytes(&line).unwrap_or(value.clone());
            }
        }
        let Client { address, contradictory, .. } = find(peer, &longer.into_iter().collect());
        let may_be_forged = found.contradictory.is_some() || trusted.iter().any(|net| net.contains(&found.address));
        let is_known = contradictory.is_none() && address != peer;
        assert!(may_be_forged || address == found.address || !is_known, "{address} by {forged}");
    }
}

static LIMITS: LazyLock<Vec<Limit>> = LazyLock::new(|| {
    let sources = [("a", "header:x-api-key"), ("b", "cookie:sid"), ("c", "query:key"), ("d", "bearer")];
    let limit = |(name, source)| format!("[limits.{name}]\nkey = \"{source}\"\nrates = [\"1/s\"]\n");
    let limits = sources.map(limit).concat();
    let text = limits + "[[routes]]\npath = \"/*\"\nrespond = { status = 200 }\n";
    parse(text.as_bytes(), "keys", Path::new("")).map_or_else(|problems| panic!("{problems}"), |config| config.limits)
});

/// A query in the first line, then header lines: a key that is not refused is the same for a reader that starts at the end, and a
/// refused key stays refused when more is added.
fn keys(bytes: &[u8]) {
    let (query, text) = bytes.split_at(bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len()));
    let target = [b"/?", query].concat();
    let Ok(target) = PathAndQuery::try_from(&target[..]) else { return };
    let query = target.query().unwrap_or_default();
    let lines = headers(text);
    let joined_in_reverse = |value: &str, separator: &str| value.rsplit(separator).collect::<Vec<_>>().join(separator);
    let reversed = |(name, value): &(HeaderName, HeaderValue)| {
        let cookies = value.to_str().ok().filter(|_| *name == COOKIE).map(|value| joined_in_reverse(value, ";"));
        (name.clone(), cookies.and_then(|cookies| cookies.parse().ok()).unwrap_or(value.clone()))
    };
    let backward: HeaderMap = lines.iter().rev().map(reversed).collect();
    let forward: HeaderMap = lines.into_iter().collect();
    let mut more = forward.clone();
    more.append("x-other", HeaderValue::from_static("x-api-key: k"));
    more.append(COOKIE, HeaderValue::from_static("other=sid"));
    let mut cache = KeyCache::default();
    for (place, limit) in LIMITS.iter().enumerate() {
        let sources = SingleSources::new([limit], []);
        if sources.ambiguity(&forward, Some(query)).is_some() {
            assert!(sources.ambiguity(&more, Some(&format!("{query}&other=key"))).is_some(), "{}", limit.name);
            continue;
        }
        let anywhere = PathPattern { text: "/*".to_owned(), segments: Vec::new(), rest: true };
        let extractor = KeyExtractor::new(&limit.name, &limit.key, &anywhere, None);
        let key = |headers: &HeaderMap, query: &str, cache: &mut KeyCache| {
            let attributes = RequestAttributes {
                method: &Method::GET,
                host: "h",
                path: "/",
                query: Some(query),
                headers,
                client: IpAddr::from([192, 0, 2, 1]),
                contradictory: &[],
                client_cert: None,
                tokens: &[],
                route: "r",
                body: None,
                descriptors: &[],
            };
            extractor.extract(&attributes, place, cache)
        };
        let found = key(&forward, query, &mut cache);
        assert_eq!(key(&forward, query, &mut cache), found, "{}", limit.name);
        let from_the_end = key(&backward, &joined_in_reverse(query, "&"), &mut KeyCache::default());
        assert_eq!(from_the_end, found, "{}", limit.name);
    }
}

/// A token, or a set of keys: without a key, no token is valid.
fn tokens(bytes: &[u8]) {
    let algorithms = ALGORITHMS.map(|(_, algorithm)| algorithm);
    let verifier = Verifier::new("me", &["api".to_owned()], &algorithms, vec!["sub".to_owned()]);
    let now = Time::from_micros(1_000_000_000_000);
    assert!(verifier.verify(bytes, &KeySet::empty(), now).is_err());
    let [file, server] = [KeyOrigin::File, KeyOrigin::Server].map(|origin| KeySet::parse(bytes, origin));
    if let Ok(server) = &server {
        assert!(server.count() > 0 && file.as_ref().is_ok_and(|file| file.count() >= server.count()));
    }
    if let Ok(keys) = file {
        assert!(ALGORITHMS.iter().any(|(_, algorithm)| keys.has_key_for(*algorithm)));
    }
}

/// A configuration in one file, or in files separated by zero bytes: it is valid, or its problems have places in it.
fn configuration(bytes: &[u8]) {
    let one = || Document::one("f", bytes.to_vec(), None);
    let config = one().config();
    assert_eq!(one().config(), config);
    let _ = one().admin();
    let text = String::from_utf8_lossy(bytes);
    match &config {
        Ok(Config { routes, server, warnings, .. }) => {
            let _ = Routes::build(routes, server.paths.matching);
            placed(warnings, &text);
        }
        Err(problems) => {
            assert!(!problems.is_empty());
            placed(problems, &text);
        }
    }
    let file = |(at, bytes): (usize, &[u8])| (PathBuf::from(format!("{at}.toml")), Ok(bytes.to_vec()));
    let files = bytes.split(|byte| *byte == 0).enumerate().map(file).collect();
    match Document::of_folder(Path::new("folder"), files).config() {
        Ok(config) => drop(config.warnings.to_string()),
        Err(problems) => assert!(!problems.to_string().is_empty()),
    }
}

fn placed(problems: &Problems, text: &str) {
    assert_eq!(problems.to_string().is_empty(), problems.is_empty());
    for (place, problem) in problems.located() {
        assert!(text.get(problem.span.clone()).is_some(), "{problem:?}");
        let line = text[..problem.span.start].matches('\n').count() + 1;
        assert!(place.starts_with(&format!("f:{line}:")), "{place} {problem:?}");
        assert!(!problem.message.is_empty() && !problem.message.contains('\n'), "{problem:?}");
    }
}

/// Answers of Memcached, or of Valkey, to a few commands of each kind: they are never read past their end, and the pieces in
/// which they come do not matter.
fn answers(bytes: &[u8]) {
    let protocols: [&dyn Protocol; 2] = [&Memcached, &Valkey::new(Login::default(), "gw")];
    protocols.into_iter().for_each(|protocol| answers_of(protocol, bytes));
}

fn answers_of(protocol: &dyn Protocol, bytes: &[u8]) {
    let reader = || -> Box<dyn Reader> {
        let mut commands = protocol.commands();
        let name = |name: &'static str| move |out: &mut Vec<u8>| out.extend_from_slice(name.as_bytes());
        let lifetime = Lifetime { seconds: 60, from: 0 };
        commands.add(&name("a"), 1, Some(Initial { count: 1, lifetime }), Echo::Quiet);
        commands.add(&name("b"), 1, None, Echo::Count);
        commands.append(&name("c"), b"more", lifetime);
        ["a", "b", "c", "d"].into_iter().for_each(|read| commands.read(&name(read)));
        commands.finish(&mut Vec::new())
    };
    let whole = reader().read(bytes);
    for step in [1, 7, 64] {
        let mut in_pieces = reader();
        let ends = (0..bytes.len()).step_by(step).chain([bytes.len()]);
        let last = ends.map(|end| in_pieces.read(&bytes[..end])).find(|read| *read != Ok(None)).unwrap_or(Ok(None));
        assert_eq!(last, whole, "by {step}");
        if let Ok(Some(outcome)) = &whole {
            assert!(outcome.length <= bytes.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;
    use proptest::sample::Index;

    use super::*;

    fn seeds(name: &str) -> Vec<(PathBuf, Vec<u8>)> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds").join(name);
        let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        paths.map(|path| (path.clone(), fs::read(path).unwrap())).collect()
    }

    #[test]
    fn seeds_pass() {
        let targets = include_str!("../fuzz/Cargo.toml");
        for (name, check) in CHECKS {
            assert!(targets.contains(&format!("targets/{name}.rs")), "{name}");
            let seeds = seeds(name);
            assert!(seeds.len() >= 10, "{name}");
            for (path, bytes) in seeds {
                println!("{}", path.display());
                check(&bytes);
            }
        }
    }

    proptest! {
        #[test]
        fn changed_seeds_pass(
            check: Index, seed: Index, edits in prop::collection::vec((any::<Index>(), 0_usize..9, any::<Vec<u8>>()), 1..4),
        ) {
            let (name, check) = check.get(&CHECKS);
            let mut seeds = seeds(name);
            seeds.sort();
            let mut bytes = seed.get(&seeds).1.clone();
            for (at, gone, new) in edits {
                let start = at.index(bytes.len() + 1);
                let end = bytes.len().min(start + gone);
                bytes.splice(start..end, new);
            }
            check(&bytes);
        }
    }
}
