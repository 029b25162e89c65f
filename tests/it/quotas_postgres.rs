//! Rates of keys from PostgreSQL: the gateway with a real database, which changes, fails and comes back.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::harness::plans::burst;
use crate::harness::{Authority, Client, Gateway, Issued, Postgres, run, until};

const PATIENCE: Duration = Duration::from_secs(30);

const QUERY: &str = "select rates, tier, exempt, block from plans where key = $1";

/// Runs the SQL of the documentation.
fn database() -> Postgres {
    database_with(None)
}

/// With TLS if there is a certificate.
fn database_with(certificate: Option<&Issued>) -> Postgres {
    let docs = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/quotas.md")).unwrap();
    let section = docs.split("## PostgreSQL").nth(1).expect("docs/quotas.md has a section about PostgreSQL");
    let start = section.find("    create table plans").expect("it creates a table");
    let is_code = |line: &&str| line.is_empty() || line.starts_with("    ");
    let sql: Vec<_> = section[start..].lines().take_while(is_code).collect();
    let sql = sql.join("\n");
    assert!(sql.contains("grant select"), "{sql}");
    let server = Postgres::start_with(&[], certificate);
    server.sql(&sql);
    server
}

/// A limit of one request a day with this source. The cache is renewed only if the database announces a change.
fn limit(server: &Postgres, quotas: &str) -> String {
    let query = if quotas.contains("query") { String::new() } else { format!("query = {QUERY:?}\n") };
    let timeout = if quotas.contains("timeout") { "" } else { "timeout = \"5s\"\n" };
    format!(
        "[limits.l]\nkey = \"header:x-api-key\"\nrates = [\"1/d\"]\n\
         tiers = {{ gold = {{ rates = [\"7/d\"] }} }}\ntier = \"header:x-plan\"\n\
         [limits.l.quotas]\nsource = \"{}\"\nchannel = \"gateway_plans\"\ncache_for = \"1h\"\n{query}{timeout}{quotas}\n\
         [[routes]]\npath = \"/*\"\nlimits = [\"l\"]\nrespond = {{ status = 200 }}\n",
        server.url("gateway")
    )
}

fn quota(client: &mut Client, key: &str) -> Result<u64, u16> {
    let response = client.get_with("/", format!("x-api-key: {key}\r\n"));
    let policy = response.headers.get("ratelimit-policy").ok_or(response.status)?;
    Ok(policy.strip_prefix("\"l\";q=").unwrap().split(';').next().unwrap().parse().unwrap())
}

fn until_quota(gateway: &Gateway, key: &str, expected: Result<u64, u16>) {
    let mut client = gateway.client();
    until(&format!("{key} has {expected:?}"), PATIENCE, || quota(&mut client, key) == expected);
}

#[test]
#[ignore = "needs PostgreSQL"]
fn a_row_holds_and_its_change_is_announced_by_the_trigger_of_the_documentation() {
    let server = database();
    server.sql(
        "insert into plans (key, rates, tier, exempt, block) values ('a', '{3/d}', null, false, false), \
         ('b', null, 'gold', false, false), ('c', null, null, true, false), ('d', null, null, false, true), \
         ('e', null, null, false, false), ('iron', null, 'iron', false, false)",
    );
    let gateway = Gateway::start(&limit(&server, ""));
    let client = &mut gateway.client();
    let all = |client: &mut Client| ["a", "b", "c", "d", "e", "f", "iron"].map(|key| quota(client, key));
    assert_eq!(all(client), [Ok(3), Ok(7), Err(200), Err(403), Ok(1), Ok(1), Ok(1)]);
    for (sql, key, expected) in [
        ("update plans set rates = '{4/d}' where key = 'a'", "a", Ok(4)),
        ("update plans set exempt = false where key = 'c'", "c", Ok(1)),
        ("update plans set block = false, rates = '{9/d}' where key = 'd'", "d", Ok(9)),
        ("insert into plans (key, rates) values ('f', '{5/d}')", "f", Ok(5)),
        ("delete from plans where key = 'b'", "b", Ok(1)),
        ("update plans set key = 'g' where key = 'f'", "f", Ok(1)),
        ("truncate plans", "a", Ok(1)),
    ] {
        let begun = Instant::now();
        server.sql(sql);
        until_quota(&gateway, key, expected);
        println!("{sql}: holds after {:?}, with psql", begun.elapsed());
    }
    let text = gateway.log().concat();
    assert!(text.contains("connected to PostgreSQL for quotas"), "{text}");
}

#[test]
#[ignore = "needs PostgreSQL"]
fn no_request_of_an_idle_key_passes_by_the_row_before_an_announced_change() {
    let server = database();
    server.sql("insert into plans (key, exempt) values ('a', true)");
    let gateway = Gateway::start(&limit(&server, ""));
    assert_eq!(quota(&mut gateway.client(), "a"), Err(200));
    server.sql("update plans set exempt = false, block = true where key = 'a'");
    let is_due = || gateway.admin("/api/limits/l/keys/a").json()["quota"]["due"] == true;
    until("the change is announced", PATIENCE, is_due);
    assert_eq!(burst(&gateway, "x-api-key: a\r\n"), [403; 20]);
}

#[test]
#[ignore = "needs PostgreSQL"]
fn a_key_with_a_large_row_or_a_slow_query_fails_alone() {
    let server = database();
    server.sql("insert into plans (key, rates) select unnest('{large,slow,a,b,c}'::text[]), '{5/d}'");
    let query = "select rates, case key when 'large' then repeat('x', 2000000) end as note, \
                 case key when 'slow' then pg_sleep(60) is null end as slow from plans where key = $1";
    let gateway = Gateway::start(&limit(&server, &format!("query = {query:?}")));
    until_quota(&gateway, "a", Ok(5));
    let session = || server.sql("select pid from pg_stat_activity where usename = 'gateway'");
    let (client, before) = (&mut gateway.client(), session());
    for (alone, other) in [("large", "b"), ("slow", "c")] {
        assert_eq!(quota(client, alone), Ok(1), "{alone}");
        assert_eq!(quota(client, other), Ok(5), "{other}, after {alone}");
    }
    assert_eq!(session(), before, "the connection stays");
    assert_eq!(gateway.metric("gateway_quota_source_up"), Some(1.0));
}

#[test]
#[ignore = "needs PostgreSQL"]
fn keys_are_asked_about_by_their_digests() {
    let server = database();
    server.sql("insert into plans (key, rates) values ('a', '{3/d}')");
    let query = "send = \"sha256\"\n\
                 query = \"select rates from plans where encode(sha256(convert_to(key, 'UTF8')), 'hex') = $1\"";
    let gateway = Gateway::start(&limit(&server, query));
    assert_eq!(quota(&mut gateway.client(), "a"), Ok(3));
    server.sql(
        "update plans set rates = '{4/d}'; \
         select pg_notify('gateway_plans', encode(sha256(convert_to('a', 'UTF8')), 'hex'))",
    );
    until_quota(&gateway, "a", Ok(4));
}

#[test]
#[ignore = "needs PostgreSQL"]
fn each_of_a_million_keys_has_its_rates_and_changes_hold_within_a_second() {
    let server = database();
    server.sql(
        "alter table plans disable trigger user; \
         insert into plans (key, rates) select 'key-' || n, array[2 + n % 97 || '/d'] from generate_series(1, 1000000) n; \
         insert into plans (key, rates) select 'k' || n, '{2/d}' from generate_series(0, 9) n; \
         alter table plans enable trigger user; analyze plans",
    );
    let gateway = Gateway::start(&limit(&server, "max_cached = 1000"));
    let (done, asked) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        let end = End(&done);
        for _ in 0..3 {
            scope.spawn(|| {
                let mut client = gateway.client();
                while !done.load(Ordering::Relaxed) || asked.load(Ordering::Relaxed) < 3000 {
                    let n = fastrand::u64(1..=1_100_000);
                    let expected = if n <= 1_000_000 { 2 + n % 97 } else { 1 };
                    assert_eq!(quota(&mut client, &format!("key-{n}")), Ok(expected), "key-{n}");
                    let known = quota(&mut client, &format!("k{}", n % 10));
                    assert!(known.is_ok_and(|quota| quota >= 2), "what is known goes on holding: {known:?}");
                    asked.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let mut times: Vec<_> = (3..30_u64)
            .map(|round| {
                // Two of these also change more other keys than are remembered one by one.
                let others = if round % 10 == 0 {
                    "or key in (select 'key-' || n from generate_series(1, 70000) n)"
                } else {
                    ""
                };
                let rates = format!("case when key like 'k_' then array['{round}/d'] else rates end");
                server.sql(&format!("update plans set rates = {rates} where key like 'k_' {others}"));
                let begun = Instant::now();
                until_quota(&gateway, &format!("k{}", round % 10), Ok(round));
                begun.elapsed()
            })
            .collect();
        drop(end);
        times.sort();
        println!("changes hold after {:?} at the median, {:?} at most", times[times.len() / 2], times[times.len() - 1]);
        // Far below the minute for which they are cached.
        assert!(times[times.len() / 2] < Duration::from_secs(5), "{times:?}");
    });
    assert!(gateway.metric("gateway_quota_cached_keys").unwrap() <= 1000.0);
}

/// Ends the load of a test even if the test fails, which would wait for ever otherwise.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Sends requests of known and new keys until `done`; returns how many. Each is answered, and known rates hold.
fn load(gateway: &Gateway, done: &AtomicBool, who: usize) -> usize {
    let mut client = gateway.client();
    let mut sent = 0;
    while !done.load(Ordering::Relaxed) {
        sent += 1;
        assert_eq!(quota(&mut client, "known"), Ok(1_000_000), "what is known goes on holding");
        let new = quota(&mut client, &format!("new-{who}-{sent}"));
        assert!([Ok(1), Ok(5)].contains(&new), "{new:?}");
    }
    sent
}

#[test]
#[ignore = "needs PostgreSQL"]
fn no_request_fails_while_the_database_is_killed_restarted_and_frozen() {
    let mut server = database();
    server.sql("insert into plans (key, rates) values ('known', '{1000000/d}')");
    server.sql("insert into plans (key, rates) select 'new-' || w || '-' || n, '{5/d}' from generate_series(0, 2) w, generate_series(1, 20000) n");
    let gateway = Gateway::start(&limit(&server, "timeout = \"20ms\""));
    until_quota(&gateway, "known", Ok(1_000_000));
    let (done, sent) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        let end = End(&done);
        for who in 0..3 {
            let (gateway, done, sent) = (&gateway, &done, &sent);
            scope.spawn(move || sent.fetch_add(load(gateway, done, who), Ordering::Relaxed));
        }
        let up = |is_up: f64| {
            until("it is noticed", PATIENCE, || gateway.metric("gateway_quota_source_up") == Some(is_up));
        };
        for is_killed in [true, false] {
            if is_killed {
                server.kill();
            } else {
                server.stop();
            }
            up(0.0);
            server.restart();
            up(1.0);
        }
        server.freeze();
        up(0.0);
        server.thaw();
        up(1.0);
        drop(end);
    });
    assert!(sent.load(Ordering::Relaxed) > 100);
    // A change without a listener is read when the database is back.
    server.sql("update plans set rates = '{2/d}' where key = 'known'");
    until_quota(&gateway, "known", Ok(2));
    server.stop();
    server.restart();
    server.sql("alter table plans disable trigger user; update plans set rates = '{3/d}' where key = 'known'");
    server.stop();
    server.restart();
    until_quota(&gateway, "known", Ok(3));
}

#[test]
#[ignore = "needs PostgreSQL"]
fn a_reload_that_does_not_change_the_section_keeps_the_session_and_the_cache() {
    let server = database();
    server.sql("insert into plans (key, rates) values ('a', '{3/d}')");
    let gateway = Gateway::start(&limit(&server, ""));
    assert_eq!(quota(&mut gateway.client(), "a"), Ok(3));
    let session = || server.sql("select pid from pg_stat_activity where usename = 'gateway'");
    let before = session();
    gateway.reload_and_wait("", &limit(&server, "").replace("1/d", "2/d"));
    assert_eq!((quota(&mut gateway.client(), "a"), quota(&mut gateway.client(), "b")), (Ok(3), Ok(2)));
    assert_eq!(session(), before);
    server.sql("update plans set rates = '{4/d}' where key = 'a'");
    until_quota(&gateway, "a", Ok(4));
    gateway.reload_and_wait("", &limit(&server, "max_cached = 7"));
    until("the session of before has ended", PATIENCE, || {
        let now = session();
        now != before && now.lines().count() == 1
    });
    until_quota(&gateway, "a", Ok(4));
    // Without a source there is no session.
    let text = limit(&server, "");
    let (limit, rest) = text.split_once("[limits.l.quotas]").unwrap();
    gateway.reload_and_wait("", &(limit.to_owned() + &rest[rest.find("[[routes]]").unwrap()..]));
    until("the session has ended", PATIENCE, || session().is_empty());
}

#[test]
#[ignore = "needs PostgreSQL"]
fn a_session_with_tls_trusts_the_authorities_of_the_url() {
    let (known, unknown) = (Authority::new(), Authority::new());
    let server = database_with(Some(&known.issue("db", "db", &["localhost"])));
    server.sql("insert into plans (key, rates) values ('a', '{3/d}')");
    let gateway = |authority: &Authority| {
        let url = format!("postgres://gateway@localhost:{}/postgres?sslmode=require", server.address.port());
        let url = format!("{url}&sslrootcert={}", authority.ca().display());
        Gateway::start(&limit(&server, "").replace(&server.url("gateway"), &url))
    };
    assert_eq!(quota(&mut gateway(&known).client(), "a"), Ok(3));
    let refused = gateway(&unknown);
    assert_eq!(quota(&mut refused.client(), "a"), Ok(1));
    let logged = refused.wait_message("PostgreSQL cannot be asked for quotas");
    assert!(logged.to_string().contains("UnknownIssuer"), "{logged}");
}

#[test]
#[ignore = "needs PostgreSQL"]
fn explain_says_what_the_database_says_and_nothing_shows_the_password() {
    let mut server = database();
    server.sql("insert into plans (key, rates) values ('a', '{3/d}')");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gateway.toml");
    let text = limit(&server, "").replace("postgres://gateway@", "postgres://gateway:very-secret@");
    fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap();
    let explain = |key: &str| {
        let output = run(&["explain", "--config", file, "-H", &format!("x-api-key: {key}"), "http://a/"]);
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    let (known, unknown) = (explain("a"), explain("b"));
    assert!(known.contains("3/d (from the source of quotas)"), "{known}");
    assert!(unknown.contains("does not know the key"), "{unknown}");
    server.sql("alter table plans rename rates to rate");
    let refused = explain("a");
    assert!(refused.contains("column \"rates\" does not exist (SQLSTATE 42703)"), "{refused}");
    server.kill();
    let away = explain("a");
    assert!(away.contains("Connection refused"), "{away}");
    let check = run(&["check", "--json", "--config", file]);
    assert!(check.status.success());
    let shown = [known, unknown, refused, away, String::from_utf8(check.stdout).unwrap()].concat();
    assert!(shown.contains("postgres://") && !shown.contains("very-secret"), "{shown}");
}

#[test]
#[ignore = "needs PostgreSQL"]
fn a_gateway_without_a_database_starts_and_asks_it_later() {
    let mut server = database();
    server.sql("insert into plans (key, rates) values ('a', '{3/d}')");
    server.stop();
    let gateway = Gateway::start(&limit(&server, "timeout = \"20ms\""));
    assert_eq!(quota(&mut gateway.client(), "a"), Ok(1));
    let refused = gateway.wait_message("PostgreSQL cannot be asked for quotas");
    assert!(
        refused["fields"]["error"].as_str().or(refused["error"].as_str()).unwrap().contains("refused"),
        "{refused}"
    );
    server.restart();
    until_quota(&gateway, "a", Ok(3));
}
