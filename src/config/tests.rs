//! Whole files: valid ones, and broken ones with their messages.

mod folders;
mod keys;
mod panics;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::*;
use crate::config::overrides::Allowance;
use crate::limit::{Calendar, Edge, Strategy as Counting, Unit};
use crate::net::Traffic;

const FULL: &str = r#"
[server]
listen = ["127.0.0.1:8080", "[::1]:8080"]
workers = 2
trusted_proxies = ["10.0.0.0/8", "192.0.2.7"]
header_timeout = "5s"
idle_timeout = "1m"
body_timeout = "20s"
max_connections = 5000
proxy_protocol = true
forwarded = true
max_connections_per_ip = 50
max_header_size = "16KiB"
max_body_size = "1GiB"
drain_timeout = "0s"
path_matching = "exact"
escaped_slashes = "keep"
[log]
level = "debug"
format = "json"
access = false
[admin]
listen = "127.0.0.1:9901"
[store]
type = "memcached"
servers = ["10.0.0.1:11211", "cache-2"]
prefix = "edge"
timeout = "50ms"
on_error = "reject"
strict = false
[upstreams.zeta]
servers = ["http://10.0.1.1:9000", { url = "http://[::1]", weight = 2 }]
connect_timeout = "250ms"
timeout = "1h"
read_timeout = "0"
tunnel_idle_timeout = "5m"
max_idle = "4s"
max_age = "1d"
balance = "round-robin"
[upstreams.echo]
servers = ["builtin:echo"]

[limits.per-tenant]
key = ["path:tenant", "header:x-api-key | client-ip:56"]
rates = ["10/s", "3000/10m"]
strategy = "sliding-window"
precision = 10
edge = "whole"
on_limit = "reject"
cost = 1
status = 503
body = "slow down"
headers = "both"
[limits.all]
key = "global"
rates = ["1000/s"]

[[routes]]
host = "API.example.com"
path = "/v1/{tenant}/*"
ignore_case = true
methods = ["GET", "POST"]
headers = { "X-Beta" = "1" }
upstream = "zeta"
limits = ["all", "per-tenant"]
strip_prefix = "/v1"
preserve_host = true

[[routes]]
host = "*.example.com"
path = "/"
respond = { status = 404, body = "none\n" }

[[routes]]
path = "/*"
upstream = "echo"
"#;

const SMALLEST: &str =
    "[upstreams.api]\nservers = [\"http://127.0.0.1:9000\"]\n\n[[routes]]\npath = \"/*\"\nupstream = \"api\"\n";

fn read(text: &str) -> Config {
    parse(text.as_bytes(), "gateway.toml", Path::new("")).unwrap_or_else(|problems| panic!("{problems}"))
}

const LIMITS: &str = r#"
[limits.search]
key = ["header:x-api-key | client-ip", "method"]
rates = ["10/s burst 50", "100/m", "1000000/month"]
strategy = "token-bucket"
timezone = "Europe/Berlin"
cost = { request_header = "x-cost" }
on_limit = "delay"
max_delay = "2s"
max_delayed = 5
tier = "header:x-plan"
[limits.search.tiers.gold]
rates = ["20/s"]
[limits.search.tiers."no plan"]
rates = ["1/s"]
[[limits.search.overrides]]
keys = ["partner-7", "gold-*", "10.0.0.0/8"]
rates = ["100/s"]
[[limits.search.overrides]]
keys = ["monitor"]
exempt = true
[[limits.search.overrides]]
keys = ["thief"]
block = true

[limits.login]
key = "client-ip"
rates = ["5/m"]
strategy = "fixed-window"
cost = 2
count = { status = ["401", 403, "5xx"] }
on_limit = "silent"
body = "well"

[limits.tokens]
key = "bearer"
missing = "skip"
rates = ["100/m"]
strategy = "moving-window"
cost = { response_header = "x-tokens", reserve = 20 }
on_limit = "shadow"

[limits.exports]
key = "global"
max_in_flight = 3

[[routes]]
path = "/*"
limits = ["search", "login", "tokens", "exports"]
respond = { status = 200 }
"#;

#[test]
fn every_kind_of_limit_becomes_what_it_says() {
    let config = read(LIMITS);
    let [search, login, tokens, exports] = &config.limits[..] else { panic!("{:?}", config.limits) };
    let shown: Vec<_> = search.rates.iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["10/s burst 50", "100/m", "1000000/month"]);
    assert_eq!(*search.rates[1].strategy(), Counting::TokenBucket { burst: 100 });
    let month = Calendar::utc(Unit::Month).in_zone("Europe/Berlin").unwrap();
    assert_eq!(*search.rates[2].strategy(), Counting::Calendar(month));
    assert_eq!(search.cost, Cost::RequestHeader("x-cost".parse().unwrap()));
    assert_eq!(search.on_limit, OnLimit::Delay { max_delay: Duration::from_secs(2), max_delayed: 5 });
    let bucket = |text: &str| text.parse::<crate::limit::Rate>().unwrap();
    let tiers = search.tiers.as_ref().unwrap();
    assert_eq!(tiers.source.to_string(), "header:x-plan");
    let tiers: Vec<_> = tiers.rates.iter().map(|(name, rates)| (name.as_str(), rates.as_slice())).collect();
    assert_eq!(tiers, [("gold", &[bucket("20/s burst 20")][..]), ("no plan", &[bucket("1/s burst 1")])]);
    let granted = |text: Option<&str>, address: Option<&str>| {
        let found = search.overrides.find(text.map(str::as_bytes), address.map(|address| address.parse().unwrap()));
        found.map(|index| search.overrides.allowances()[index].clone())
    };
    let hundred = Some(Allowance::Rates(vec![bucket("100/s burst 100")].into()));
    assert_eq!(granted(Some("partner-7"), None), hundred);
    assert_eq!(granted(Some("gold-1"), None), hundred);
    assert_eq!(granted(None, Some("10.1.2.3")), hundred);
    assert_eq!(granted(Some("10.1.2.3"), None), None);
    assert_eq!(granted(Some("monitor"), None), Some(Allowance::Exempt));
    assert_eq!(granted(Some("thief"), None), Some(Allowance::Block));

    assert_eq!(login.cost, Cost::OnStatus(2, vec![401..=401, 403..=403, 500..=599]));
    assert_eq!((login.on_limit, login.status.as_u16(), &*login.body), (OnLimit::Silent, 200, "well"));
    assert_eq!(*login.rates[0].strategy(), Counting::FixedWindow);
    assert_eq!(tokens.cost, Cost::ResponseHeader { name: "x-tokens".parse().unwrap(), reserve: 20 });
    assert_eq!((tokens.on_limit, tokens.rates[0].strategy()), (OnLimit::Shadow, &Counting::SlidingLog));
    assert_eq!((exports.max_in_flight, exports.rates.len()), (Some(3), 0));
}

#[test]
fn defaults_are_put_in() {
    let config = read(SMALLEST);
    let server = Server {
        listen: vec![Listener { address: "127.0.0.1:8080".parse().unwrap(), tls: false, traffic: Traffic::Requests }],
        tls: None,
        http2: Http2 { max_streams: 250, max_header_list: 64 << 10 },
        workers: 0,
        trusted_proxies: vec![],
        proxy_protocol: false,
        forwarded: false,
        header_timeout: Duration::from_secs(10),
        idle_timeout: Duration::from_secs(75),
        body_timeout: Some(Duration::from_secs(60)),
        max_connections: MaxConnections::Auto,
        max_connections_per_ip: 0,
        max_header_size: 65_536,
        max_body_size: UNLIMITED,
        inspect_body: 1 << 20,
        inspect_memory: 64 << 20,
        drain_delay: Duration::ZERO,
        drain_timeout: Duration::from_secs(30),
        partition_secret: None,
        shed: None,
        paths: PathRules::default(),
    };
    assert_eq!(config.server, server);
    let (level, format, access) = (::tracing::Level::INFO, LogFormat::Auto, AccessLog::On);
    assert_eq!(config.log, Log { level, format, access, access_file: None, access_format: None });
    assert_eq!(config.admin, None);
    assert_eq!(config.store, Store::Memory { max_keys: 1_000_000, max_memory: 256 << 20, snapshot: None, share: None });
    assert_eq!(
        (config.upstreams[0].connect_timeout, config.upstreams[0].timeout),
        (Duration::from_secs(1), Duration::from_secs(30))
    );
    let Upstream { read_timeout, max_idle, max_age, .. } = config.upstreams[0];
    assert_eq!((read_timeout, max_idle, max_age.as_secs()), (Some(max_idle), Duration::from_secs(60), 600));
    let forward =
        Action::Forward { upstream: 0, path: SentPath::Stripped(0), preserve_host: false, rewrite_location: true };
    assert_eq!((&config.routes[0].action, &config.routes[0].host), (&forward, &Host::Any));
}

#[test]
fn a_default_may_be_written_beside_what_replaces_it() {
    let host = "preserve_host = false\nrequest_headers = { set = { host = \"api.internal\" } }\n";
    let config = read(&format!(
        "[[routes]]\npath = \"/*\"\nupstream = \"echo\"\n{host}[upstreams.echo]\nservers = [\"builtin:echo\"]\n"
    ));
    assert!(matches!(config.routes[0].action, Action::Forward { preserve_host: false, .. }));
}

#[test]
fn everything_is_read() {
    let config = read(FULL);
    assert_eq!(config.server.trusted_proxies[1].to_string(), "192.0.2.7/32");
    assert_eq!(config.server.body_timeout, Some(Duration::from_secs(20)));
    assert_eq!(config.server.max_connections, MaxConnections::Number(5000));
    assert_eq!((config.server.max_connections_per_ip, config.server.proxy_protocol), (50, true));
    assert!(config.server.forwarded);
    assert_eq!(config.server.drain_timeout, Duration::ZERO);
    let paths = PathRules { matching: PathMatching::Exact, escaped_slashes: EscapedSlashes::Keep };
    assert_eq!(config.server.paths, paths);
    assert_eq!(config.log.level, ::tracing::Level::DEBUG);
    assert_eq!(config.admin.unwrap().listen.to_string(), "127.0.0.1:9901");
    let Store::Shared(store) = config.store else { panic!("not memcached") };
    assert_eq!(store.servers, ["10.0.0.1:11211", "cache-2:11211"]);
    assert_eq!(store.on_error, OnError::Reject);
    assert_eq!(config.upstreams.iter().map(|upstream| upstream.name.as_str()).collect::<Vec<_>>(), ["zeta", "echo"]);
    assert_eq!(config.upstreams[0].servers[1].weight, 2);
    let Upstream { read_timeout, tunnel_idle_timeout, max_idle, max_age, .. } = config.upstreams[0];
    assert_eq!((read_timeout, tunnel_idle_timeout.unwrap().as_secs()), (None, 300));
    assert_eq!((max_idle.as_secs(), max_age.as_secs()), (4, 86_400));
    let limit = &config.limits[0];
    assert_eq!((limit.name.as_str(), limit.status.as_u16()), ("per-tenant", 503));
    assert_eq!(limit.rates[1].quota(), 3000);
    assert_eq!(*limit.rates[1].strategy(), Counting::SlidingWindow { precision: 10, edge: Edge::Whole });
    assert_eq!(limit.key.parts.len(), 2);
    let route = &config.routes[0];
    assert!(route.ignore_case && !config.routes[1].ignore_case);
    assert_eq!((&*route.limits, &route.host), (&[1, 0][..], &Host::Exact("api.example.com".to_owned())));
    assert_eq!(
        route.action,
        Action::Forward { upstream: 0, path: SentPath::Stripped(1), preserve_host: true, rewrite_location: true }
    );
    assert_eq!(config.routes[1].host, Host::Under("example.com".to_owned()));
    let forward =
        Action::Forward { upstream: 1, path: SentPath::Stripped(0), preserve_host: false, rewrite_location: true };
    assert_eq!(config.routes[2].action, forward);
}

#[test]
fn limits_of_memory_use_their_defaults() {
    let config = read(&format!("{SMALLEST}[limits.a]\nkey = \"client-ip\"\nrates = [\"1/s\"]\n"));
    let limit = &config.limits[0];
    assert_eq!((limit.status.as_u16(), limit.headers, limit.missing), (429, HeaderStyle::Draft, Missing::Shared));
    assert_eq!(limit.rates, ["1/s".parse().unwrap()]);
    assert_eq!(limit.key.parts, [[Source::ClientIp { v6: 64 }]]);
}

/// The errors of each broken file are compared with the text beside it; `UPDATE=1` writes these texts.
#[test]
fn broken_files_are_explained() {
    assert!(compare_fixtures("tests/broken", |parsed, file| parsed.expect_err(file)) >= 40);
}

/// The warnings about each valid but doubtful file are compared with the text beside it.
#[test]
fn doubtful_files_are_warned_about() {
    let warnings = |parsed: Result<Config, Problems>, file: &str| match parsed {
        Ok(config) => config.warnings,
        Err(problems) => panic!("{file}: {problems}"),
    };
    assert!(compare_fixtures("tests/warned", warnings) >= 2);
}

/// Compares the problems of each file in a folder with the text beside it; returns the number of files.
fn compare_fixtures(folder: &str, said: impl Fn(Result<Config, Problems>, &str) -> Problems) -> usize {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let files = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let files: Vec<PathBuf> = files.filter(|path| path.extension().is_some_and(|end| end == "toml")).collect();
    for file in &files {
        let parsed = parse(&fs::read(file).unwrap(), "gateway.toml", file.parent().unwrap());
        let said = said(parsed, &file.display().to_string());
        assert!(!said.is_empty(), "nothing is said of {}", file.display());
        // Messages may name a file by its absolute path, which depends on the machine.
        let said = format!("{said}\n").replace(&format!("{}/", folder.display()), "");
        let beside = file.with_extension("stderr");
        if std::env::var_os("UPDATE").is_some() {
            fs::write(&beside, &said).unwrap();
        }
        assert_eq!(said, fs::read_to_string(&beside).unwrap_or_default(), "{}", file.display());
    }
    files.len()
}

#[test]
fn the_other_override_is_found_in_the_file_of_its_name() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/broken");
    let text = fs::read(folder.join("overrides-file-csv.toml")).unwrap();
    let said = parse(&text, "edge.toml", &folder).unwrap_err().to_string();
    assert!(said.contains("this key has an override already, in edge.toml"), "{said}");
}

#[test]
fn good_files_are_not_warned_about() {
    for text in [FULL, LIMITS, SMALLEST] {
        assert_eq!(read(text).warnings.to_string(), "");
    }
}

#[test]
fn all_problems_are_found_at_once() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/broken/ten-at-once.toml");
    let read = parse(&fs::read(&file).unwrap(), "gateway.toml", Path::new(""));
    assert_eq!(read.unwrap_err().to_string().matches("error: ").count(), 10);
}

#[test]
fn a_file_of_overrides_without_permission_is_not_missing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("secret.csv");
    fs::write(&path, "key,rates\n").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
    let limit = "[limits.l]\nkey = \"bearer\"\nrates = [\"1/s\"]\noverrides_file = \"secret.csv\"\n";
    let read = parse(format!("{limit}{SMALLEST}").as_bytes(), "gateway.toml", folder.path());
    // The superuser may read every file.
    match fs::File::open(&path) {
        Ok(_) => assert!(read.is_ok()),
        Err(_) => {
            let said = read.unwrap_err().to_string();
            assert!(said.contains("Permission denied") && said.contains("let the user that runs gateway"), "{said}");
        }
    }
}
