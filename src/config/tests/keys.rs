//! Tests the tables of keys against the readers: each key is read, and each default is the one that its table shows.

use std::collections::BTreeSet;
use std::fs;

use rcgen::{CertificateParams, KeyPair};
use tempfile::TempDir;
use toml::{Table, Value};

use super::super::file::root;
use super::super::read::Shape;
use super::super::{Config, parse, schema};
use super::{FULL, LIMITS};

/// Keys that no other text here has.
const OTHERS: &str = r#"
[server]
listen = [{ address = "127.0.0.1:8443", tls = true }]
drain_delay = "1s"
inspect_body = "2MiB"
inspect_memory = "128MiB"
tls = { certificates = [{ cert = "a.pem", key = "a.key", ocsp = "a.ocsp" }], client_ca = "a.pem", client_auth = "optional", min_version = "1.3", acme = { names = ["a.test"], email = "a@a.test", agree = true, directory = "https://a.test/", ca = "a.pem", challenge = "tls-alpn-01", challenge_secret = "sixteen-letters!", external_account_id = "a", external_account_key = "AAAA" } }
http2 = { max_streams = 10, max_header_list = "16KiB" }
partition_secret = "sixteen-letters!"
shed = { cpu = 0.9, latency = "500ms", status = 529 }
[decisions]
listen = "127.0.0.1:9902"
refused_status = 403
tls = { certificates = [{ cert = "a.pem", key = "a.key" }] }
[[decisions.descriptors]]
domain = "edge"
entries = { remote_address = "*" }
limits = []
reports = true
quota_mode = true
[log]
access_file = "access.log"
access_format = "combined"
[admin]
listen = "127.0.0.1:9901"
token = "secret"
read_token = "other"
tls = { certificates = [{ cert = "a.pem", key = "a.key" }] }
hosts = ["gateway.internal"]
show_keys = true
[tracing]
endpoint = "http://127.0.0.1:4318"
sample = 0.5
headers = { authorization = "secret" }
service_name = "edge"
timeout = "1s"
[[notices]]
url = "https://hooks.a.test/limits"
limits = ["a", "bytes"]
at = [0.5, 1]
secret = "sixteen-letters!"
full_keys = true
[store]
type = "memory"
max_keys = 1000
max_memory = "8MiB"
snapshot = "counters"
share = 2
[upstreams.a]
servers = ["https://10.0.0.1"]
resolve_every = "1m"
http2 = true
balance = "hash"
hash_key = "client-ip"
retries = 2
retry = { budget = 0.1, status = [502, "503"], max_body = "0" }
adaptive = { min = 2, max = 20 }
max_waiting = 10
max_wait = "2s"
health = { path = "/", interval = "1s", timeout = "2s", status = ["2xx"], healthy_after = 1, unhealthy_after = 1 }
eject = { failures = 1, status = ["503"], for = "1s", max_for = "2s" }
tls = { ca = "a.pem", server_name = "a.test", cert = "a.pem", key = "a.key" }
[upstreams.b]
servers = ["http://10.0.0.1"]
proxy_protocol = "v2"
rewrite_location = false
max_in_flight = 10
[jwt.site]
issuer = "https://login.example.com/"
audience = ["api"]
jwks = "jwks.json"
algorithms = ["ES256"]
from = "cookie:session"
required = true
[limits.a]
key = ["header:x-api-key | jwt:sub"]
rates = ["10/s"]
share = false
known_keys = "keys.txt"
overflow = "b"
overrides_file = "overrides.toml"
ban = { after = 20, within = "1m", for = "10m", max_for = "1d", respond = "forbid" }
status = 430
body = "{}"
content_type = "text/plain"
retry_jitter = "10%"
tier = "header:x-plan"
tiers = { gold = { rates = ["20/s"], priority = 9 } }
[limits.b]
key = "bearer"
rates = ["10/s"]
slow = { from = 0.8, up_to = "2s" }
max_delayed = 5
quotas = { source = "http://127.0.0.1/{key}", cache_for = "1s", max_cached = 10, timeout = "1ms", send = "sha256" }
[limits.d]
key = "json:/user"
rates = ["10000/m"]
cost = { tokens = "auto", input = 1, cached = 0.1, output = 4, max_output = 2000, part = 10, ask_usage = false, without_usage = "size", on_exhausted = "cut" }
models = [{ match = "gpt-4o*", input = 2.5, cached = 1.25, output = 10 }]
headers = "openai"
[limits.bytes]
key = "client-ip"
rates = ["10GiB/d", "1.5MiB/s"]
cost = { bytes = "both", reserve = "64KiB", on_exhausted = "cut" }
[limits.elements]
key = "client-ip"
rates = ["10/s"]
cost = { elements = true }

[limits.e]
key = "json:/a/b~1c"
rates = ["10000/m"]
cost = { tokens = { input = "/usage/in", output = "/usage/out", cached = "/usage/cached", total = "/usage/all" } }
[[routes]]
path = "/a/{b}/*"
scheme = "https"
upstream = "a"
limits = ["a", "b"]
rewrite = "/{rest}"
rewrite_location = true
max_body_size = "1KiB"
body_timeout = "0"
timeout = "1s"
request_headers = { set = { x-a = "{b}" }, add = { x-b = "c" }, remove = ["x-c"] }
response_headers = { remove = ["server"] }
priority = 1
cors = { origins = ["https://a.test"], methods = ["GET"], headers = ["x-a"], expose = ["x-b"], credentials = true, max_age = "1m" }
[[routes]]
path = "/b"
upstream = "b"
limits = ["d"]
inspect_body = "4MiB"
[[routes]]
path = "/c"
redirect = { to = "/d", status = 302 }
[[routes]]
path = "/d"
limits = ["e"]
respond = { status = 200, body = "<p>", content_type = "text/html" }
[limits.c]
key = "bearer"
rates = ["10/s"]
quotas = { source = "postgres://a@127.0.0.1/a?sslmode=disable", query = "select $1", channel = "a" }
[[routes]]
path = "/e"
respond = {}
limits = ["c"]
"#;

/// A folder with the files that these texts name.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["a.test".to_owned()]).unwrap().self_signed(&key).unwrap();
    for (name, text) in [
        ("a.pem", certificate.pem()),
        ("a.key", key.serialize_pem()),
        ("keys.txt", "one\n".to_owned()),
        ("overrides.toml", "[[overrides]]\nkeys = [\"a\"]\nexempt = true\n".to_owned()),
        ("jwks.json", include_str!("../../../tests/broken/jwt/p256.json").to_owned()),
    ] {
        fs::write(folder.path().join(name), text).unwrap();
    }
    fs::write(folder.path().join("a.ocsp"), b"\x30\x0d\x0a\x01\x00\xa0\x08\x30\x06\x06\x01\x2b\x04\x01x").unwrap();
    folder
}

const SHARED: &str = r#"
[store]
type = "redis"
servers = ["10.0.0.1"]
username = "limiter"
password = "secret"
database = 1
tls = { ca = "a.pem" }
[[routes]]
path = "/*"
respond = {}
"#;

const SENTINELS: &str = r#"
[store]
type = "valkey"
sentinels = ["10.0.0.2"]
master = "mymaster"
[[routes]]
path = "/*"
respond = {}
"#;

const CLUSTER: &str = r#"
[store]
type = "valkey"
servers = ["10.0.0.1"]
cluster = true
[[routes]]
path = "/*"
respond = {}
"#;

fn texts() -> Vec<String> {
    [FULL, LIMITS, SHARED, SENTINELS, CLUSTER, OTHERS].map(str::to_owned).to_vec()
}

fn configs() -> Vec<Config> {
    let folder = folder();
    let read = |text: &String| parse(text.as_bytes(), "gateway.toml", folder.path());
    texts().iter().map(read).collect::<Result<_, _>>().unwrap_or_else(|problems| panic!("{problems}"))
}

/// The keys in a value of this shape, each with the help of its table. Without a value: all possible keys.
fn collect(shape: &'static Shape, value: Option<&Value>, found: &mut BTreeSet<(&'static str, &'static str)>) {
    match (shape, value) {
        (Shape::Table(keys) | Shape::TableWithout(keys, _), None) => {
            for key in (keys.keys)() {
                found.insert((keys.help, key.name));
                collect(key.shape, None, found);
            }
        }
        (Shape::Table(keys) | Shape::TableWithout(keys, _), Some(Value::Table(table))) => {
            for key in (keys.keys)() {
                if let Some(value) = table.get(key.name) {
                    found.insert((keys.help, key.name));
                    collect(key.shape, Some(value), found);
                }
            }
        }
        (Shape::List(shape, ..) | Shape::Named(shape), None) => collect(shape, None, found),
        (Shape::List(shape, ..), Some(Value::Array(list))) => {
            list.iter().for_each(|value| collect(shape, Some(value), found));
        }
        (Shape::Named(shape), Some(Value::Table(table))) => {
            table.values().for_each(|value| collect(shape, Some(value), found));
        }
        (Shape::Or(shapes), value) => shapes.iter().for_each(|shape| collect(shape, value, found)),
        _ => {}
    }
}

static FILE: Shape = Shape::Table(&root::TABLE);

#[test]
fn every_key_of_the_table_is_read() {
    configs();
    let (mut all, mut read) = (BTreeSet::new(), BTreeSet::new());
    collect(&FILE, None, &mut all);
    for text in texts() {
        collect(&FILE, Some(&Value::Table(text.parse().unwrap())), &mut read);
    }
    let unread: Vec<_> = all.difference(&read).collect();
    assert!(all.len() > 150 && unread.is_empty(), "of {}: {unread:?}", all.len());
}

#[test]
fn what_needs_a_restart_is_recorded() {
    let mut marked = BTreeSet::new();
    for key in (root::TABLE.keys)() {
        if let Shape::Table(keys) = key.shape {
            let own = (keys.keys)().into_iter().filter(|own| own.at_start);
            marked.extend(own.map(|own| format!("{}.{}", key.name, own.name)));
        }
    }
    let recorded = configs().into_iter().flat_map(|config| config.at_start).map(|one| one.key);
    assert_eq!(recorded.collect::<BTreeSet<_>>(), marked);
}

#[test]
fn the_schema_accepts_what_is_read() {
    let validator = jsonschema::draft7::new(&schema()).unwrap();
    for text in texts() {
        let json = serde_json::to_value(text.parse::<Table>().unwrap()).unwrap();
        let errors: Vec<_> =
            validator.iter_errors(&json).map(|error| format!("{}: {error}", error.instance_path())).collect();
        assert!(errors.is_empty(), "{errors:#?}");
    }
}
