//! Broken files and what is said of them, whole files and what they become, and that no bytes make it panic.

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::*;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Each `tests/broken/NAME.toml` has what is said of it beside it, in `NAME.txt`. UPDATE=1 writes that anew.
#[test]
fn broken_files_are_explained() {
    let folder = root().join("tests/broken");
    let mut files: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    assert!(files.len() >= 40, "only {} broken files", files.len());
    for file in files {
        let problems = match parse("gateway.toml", fs::read(&file).unwrap()) {
            Ok(_) => panic!("{} is not broken", file.display()),
            Err(problems) => format!("{problems}\n"),
        };
        let expected = file.with_extension("txt");
        if std::env::var_os("UPDATE").is_some() {
            fs::write(&expected, &problems).unwrap();
        }
        assert_eq!(problems, fs::read_to_string(&expected).unwrap(), "{}", file.display());
    }
}

#[test]
fn files_that_cannot_be_read_are_explained() {
    let missing = load(Path::new("/nonexistent/gateway.toml")).unwrap_err().to_string();
    assert!(missing.contains("cannot read /nonexistent/gateway.toml: No such file"), "{missing}");
    let folder = load(&root()).unwrap_err().to_string();
    assert!(folder.contains("Is a directory"), "{folder}");
}

#[test]
fn the_example_is_valid_and_says_the_defaults() {
    let example = load(&root().join("gateway.toml")).unwrap();
    let smallest = "[upstreams.echo]\nservers = [\"builtin:echo\"]\n[[routes]]\npath = \"/*\"\nupstream = \"echo\"\n";
    let smallest = parse("smallest", smallest.into()).unwrap();
    assert_eq!(example.server, smallest.server);
    assert_eq!(example.log, smallest.log);
    assert_eq!(example.store, smallest.store);
    assert_eq!(example.upstreams, smallest.upstreams);
    let limit = &example.limits[0];
    assert_eq!((limit.missing, limit.headers, limit.status.as_u16()), (Missing::Shared, HeaderStyle::Draft, 429));
}

#[test]
fn everything_that_can_be_written_is_understood() {
    let text = r#"
        routes = [{ path = "/v1/{tenant}/*", host = "*.Example.com", methods = ["GET", "POST"], headers = { x-beta = "1" },
                    upstream = "api", limits = ["z", "a"], strip_prefix = "/v1", preserve_host = true }]
        [server]
        listen = ["127.0.0.1:0", "[::1]:0"]
        trusted_proxies = ["10.1.2.3/8", "::1"]
        [store]
        type = "memcached"
        servers = ["cache", "10.0.0.1:1"]
        on_error = "reject"
        strict = false
        [upstreams.api]
        servers = ["http://[::1]:9000", { url = "http://api.internal", weight = 2 }]
        [limits.z]
        key = ["header:X-Api-Key | client-ip:56", "path:tenant", "global"]
        rates = ["10/s", "3000/10m"]
        precision = 6
        edge = "whole"
        strategy = "sliding-window"
        on_limit = "reject"
        cost = 1
        [limits.a]
        key = "bearer | cookie:sid | query:q | path | host | method | route"
        rates = ["1/31d"]
    "#;
    let config = parse("test", text.into()).unwrap();
    assert_eq!(config.server.trusted_proxies, ["10.0.0.0/8".parse().unwrap(), "::1/128".parse().unwrap()]);
    let Store::Memcached(store) = &config.store else { panic!("not memcached") };
    assert_eq!(store.servers, ["cache:11211", "10.0.0.1:1"]);
    assert_eq!(store.on_error, OnError::Reject);
    let servers = &config.upstreams[0].servers;
    let ipv6 = Address::Http { host: "::1".into(), port: 9000, authority: "[::1]:9000".into() };
    assert_eq!((&servers[0].address, servers[0].weight, servers[1].weight), (&ipv6, 1, 2));
    assert_eq!(config.limits.iter().map(|limit| limit.name.as_str()).collect::<Vec<_>>(), ["z", "a"]);
    assert_eq!(config.limits[0].key.parts[0][1], Source::ClientIp { v6: 56 });
    assert_eq!(config.limits[0].rates[1].precision(), 6);
    let route = &config.routes[0];
    assert_eq!(route.host, Host::Under("example.com".into()));
    assert_eq!(route.path.segments, [Segment::Literal("v1".into()), Segment::Capture("tenant".into())]);
    assert!(route.path.rest);
    assert_eq!(route.limits, [0, 1]);
    assert_eq!(route.action, Action::Forward { upstream: 0, strip: 1, preserve_host: true });
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        if let Err(problems) = parse("any", bytes) {
            prop_assert!(!problems.to_string().is_empty());
        }
    }

    #[test]
    fn no_change_of_a_valid_file_makes_it_panic(at in any::<prop::sample::Index>(), cut in 0..30usize, put in ".{0,6}") {
        let text = include_str!("../../gateway.toml");
        let mut bytes = text.as_bytes().to_vec();
        let at = at.index(bytes.len());
        bytes.splice(at..(at + cut).min(bytes.len()), put.bytes());
        if let Err(problems) = parse("any", bytes) {
            prop_assert!(!problems.to_string().is_empty());
        }
    }
}
