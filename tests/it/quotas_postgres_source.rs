//! PostgreSQL as a source of quotas, without the cache: answers, announcements and failures.

use std::cell::RefCell;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::rc::Rc;
use std::thread;
use std::time::Duration;

use gateway::config::{PostgresSettings, PostgresUrl};
use gateway::net::tls::{Authorities, ConnectorTls, certificates};
use gateway::sources::quotas::{LookupError, Postgres as Source, QuotaAnswer, QuotaChange};
use tokio::time::{Instant, sleep, timeout};

use crate::harness::{Authority, Postgres, closed_port, until};

/// For everything here, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

const QUERY: &str = "select rates, tier, exempt, block from plans where key = $1";
const PLANS: &str =
    "create table plans (key text primary key, rates text[], tier text, exempt boolean, block boolean);";

type Answer = Result<Option<QuotaAnswer>, LookupError>;

fn settings(url: &str, query: &str) -> PostgresSettings {
    let url = PostgresUrl::parse(url).unwrap();
    PostgresSettings { url, tls: None, query: query.to_owned(), channel: Some("gateway_plans".to_owned()) }
}

fn trusting(mut settings: PostgresSettings, ca: &Path) -> PostgresSettings {
    let authorities = Authorities::new(certificates(&std::fs::read(ca).unwrap()).unwrap()).unwrap();
    settings.tls = Some(ConnectorTls::new(authorities, None).unwrap());
    settings
}

struct Running {
    source: Rc<Source>,
    changes: Rc<RefCell<Vec<QuotaChange>>>,
}

impl Running {
    async fn ask(&self, key: &str) -> Answer {
        timeout(PATIENCE, self.source.look_up(key)).await.expect("a lookup hangs")
    }

    async fn answer(&self, key: &str) -> Option<QuotaAnswer> {
        let start = Instant::now();
        loop {
            match self.ask(key).await {
                Ok(answer) => return answer,
                Err(error) => assert!(start.elapsed() < PATIENCE, "{error:?}"),
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    async fn away(&self, key: &str) -> String {
        match self.ask(key).await {
            Err(LookupError::Away(why)) => why,
            other => panic!("{other:?}"),
        }
    }

    /// A lookup does not wait while the source is known to be away: a wait would take three seconds at least.
    async fn away_at_once(&self, key: &str) {
        // The machine may stand still, but not each time.
        for left in (0..4).rev() {
            let start = Instant::now();
            self.away(key).await;
            let took = start.elapsed();
            if took < Duration::from_secs(2) {
                return;
            }
            assert!(left > 0, "{took:?}");
        }
    }

    async fn unusable(&self, key: &str) -> String {
        match self.ask(key).await {
            Err(LookupError::Unusable(why)) => why,
            other => panic!("{other:?}"),
        }
    }

    /// Waits for this announcement, and forgets earlier ones.
    async fn announced(&self, change: &QuotaChange) {
        let start = Instant::now();
        while !self.changes.borrow().contains(change) {
            assert!(start.elapsed() < PATIENCE, "not announced: {change:?}, but {:?}", self.changes.borrow());
            sleep(Duration::from_millis(5)).await;
        }
        self.changes.borrow_mut().clear();
    }
}

/// Runs the test beside a source with these settings, in a thread like that of the gateway.
fn run(settings: &PostgresSettings, test: impl AsyncFnOnce(&Running)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let changes = Rc::new(RefCell::new(Vec::new()));
    let heard = changes.clone();
    let source = Rc::new(Source::new(settings, move |change| heard.borrow_mut().push(change)));
    let running = Running { source: source.clone(), changes };
    runtime.block_on(async {
        tokio::select! {
            () = source.run() => unreachable!("it never returns"),
            () = test(&running) => {}
        }
    });
    runtime.shutdown_background();
}

fn rates(rates: &[&str]) -> QuotaAnswer {
    QuotaAnswer { rates: rates.iter().map(|rate| (*rate).to_owned()).collect(), ..QuotaAnswer::default() }
}

#[test]
#[ignore = "needs PostgreSQL"]
fn a_row_says_what_its_columns_say() {
    let server = Postgres::start();
    server.sql(&format!("{PLANS} create role gw login; grant select on plans to gw; create sequence s;"));
    server.sql(
        "insert into plans values ('a', '{100/s,3000/m}', null, null, null), ('b', null, 'gold', false, false), \
         ('c', null, null, true, null), ('d', null, null, null, true), ('e', null, null, null, null), \
         ('f', '{}', null, false, false), ('it''s \u{e9} $1; --', '{1/s}', null, null, null), ('g', '{1/s,null}', null, null, null), \
         ('h', '{{1/s},{2/s}}', null, null, null)",
    );
    run(&settings(&server.url("gw"), QUERY), async |it| {
        assert_eq!(it.ask("a").await, Ok(Some(rates(&["100/s", "3000/m"]))));
        assert_eq!(it.ask("b").await, Ok(Some(QuotaAnswer { tier: Some("gold".to_owned()), ..rates(&[]) })));
        assert_eq!(it.ask("c").await, Ok(Some(QuotaAnswer { exempt: true, ..rates(&[]) })));
        assert_eq!(it.ask("d").await, Ok(Some(QuotaAnswer { block: true, ..rates(&[]) })));
        assert_eq!(it.ask("it's \u{e9} $1; --").await, Ok(Some(rates(&["1/s"]))));
        for key in ["e", "f", "nobody", "", "a\0", "'", &"k".repeat(60_000)] {
            assert_eq!(it.ask(key).await, Ok(None), "{key:?} says nothing");
        }
        assert!(it.unusable("g").await.contains("rates"), "a null among rates");
        assert!(it.unusable("h").await.contains("rates"), "rates in two dimensions");
        let session = "select application_name from pg_stat_activity where usename = 'gw'";
        assert_eq!(server.sql(session), "gateway", "there is one connection, which is easy to find");
    });
    let show = "select current_setting('default_transaction_read_only') || current_setting('statement_timeout') \
                || current_setting('application_name') as tier where $1 = ''";
    run(&settings(&format!("{}&application_name=edge", server.url("gw")), show), async |it| {
        assert_eq!(it.ask("").await.unwrap().unwrap().tier.as_deref(), Some("on2sedge"));
    });
    let writes = "select nextval('s')::text as tier where $1 = ''";
    run(&settings(&server.url("postgres"), writes), async |it| {
        assert!(it.unusable("").await.contains("read-only"), "it cannot write");
    });
    run(&settings(&server.unix_url("gw"), QUERY), async |it| assert!(it.ask("a").await.unwrap().is_some()));
}

#[test]
#[ignore = "needs PostgreSQL"]
fn what_cannot_be_used_says_why() {
    let server = Postgres::start();
    server.sql(&format!("{PLANS} create role gw login; insert into plans values ('a', '{{1/s}}'), ('b', '{{1/s}}')"));
    for (query, parts) in [
        ("select rates from plans where key >= $1", &["2 rows"][..]),
        ("select tier as rates from plans where key = $1", &["column rates", "text", "text[]"]),
        ("select rates as tier from plans where key = $1", &["column tier", "text[]"]),
        ("select 1 as exempt from plans where key = $1", &["column exempt", "int4", "boolean"]),
        ("select rates, rates from plans where key = $1", &["two columns rates"]),
        (
            "select key, rates as rate from plans where key = $1",
            &["no column rates, tier, exempt or block", "key, rate"],
        ),
        ("selekt rates from plans where key = $1", &["syntax error", "42601"]),
        ("select rates from plams where key = $1", &["plams", "42P01"]),
        ("select rates from plans where key = $1 and tier = $2", &["2 parameters"]),
        ("select rates from plans where 1 / length($1) > 0 and key = $1", &["fails with this key", "22012"]),
        ("select rates, repeat('x', 1100000) as note from plans where key = $1", &["1048576 are allowed"]),
        ("select rates, pg_sleep(60) from plans where key = $1", &["57014"]),
    ] {
        run(&settings(&server.url("postgres"), query), async |it| {
            let key = if query.contains("length") { "" } else { "a" };
            let why = it.unusable(key).await;
            assert!(parts.iter().all(|part| why.contains(part)), "{query}: {why}");
            assert_eq!(it.unusable(key).await, why, "the connection stays");
        });
    }
    run(&settings(&server.url("postgres"), "select rates from plans where $1::int = 1"), async |it| {
        let why = it.unusable("a-secret").await;
        assert!(why.contains("22P02") && !why.contains("a-secret"), "{why}");
        assert!(it.ask("0").await.is_ok(), "other keys are not affected");
    });
    // A permission is missing, until somebody grants it.
    run(&settings(&server.url("gw"), QUERY), async |it| {
        let why = it.unusable("a").await;
        assert!(why.contains("permission denied for table plans"), "{why}");
        server.sql("grant select on plans to gw");
        assert_eq!(it.answer("a").await, Some(rates(&["1/s"])));
    });
    // A table is missing, until somebody creates it.
    run(&settings(&server.url("postgres"), "select rates from later where key = $1"), async |it| {
        assert!(it.unusable("a").await.contains("later"));
        server.sql("alter table plans rename to later");
        it.announced(&QuotaChange::Any).await;
        assert_eq!(it.answer("a").await, Some(rates(&["1/s"])));
    });
}

#[test]
#[ignore = "needs PostgreSQL"]
fn a_query_is_prepared_again_when_its_columns_change() {
    let server = Postgres::start();
    server.sql(&format!("{PLANS} insert into plans values ('a', '{{1/s}}')"));
    run(&settings(&server.url("postgres"), "select * from plans where key = $1"), async |it| {
        for column in ["since date", "note text"] {
            assert_eq!(it.ask("a").await, Ok(Some(rates(&["1/s"]))));
            server.sql(&format!("alter table plans add column {column}"));
        }
        assert_eq!(it.ask("a").await, Ok(Some(rates(&["1/s"]))), "no lookup fails for that");
        server.sql(
            "deallocate all; alter table plans drop column rates, drop column tier; \
                    alter table plans drop column exempt, drop column block",
        );
        assert!(it.unusable("a").await.contains("no column rates"));
    });
}

#[test]
#[ignore = "needs PostgreSQL"]
fn lookups_are_pipelined_and_those_that_nobody_waits_for_are_bounded() {
    let server = Postgres::start();
    server.sql(&format!("{PLANS} create role gw login superuser;"));
    server.sql("insert into plans select n, array[n || '/s'] from generate_series(1, 1000) n");
    run(&settings(&server.url("postgres"), QUERY), async |it| {
        let all = (1..=1000).map(|n| async move { (n, it.ask(&n.to_string()).await) });
        for (n, answer) in futures_util::future::join_all(all).await {
            assert_eq!(answer, Ok(Some(rates(&[&format!("{n}/s")]))), "each has the answer of its key");
        }
    });
    // A locked table: nothing is answered, and lookups give up.
    server.sql("create table locked as select * from plans");
    let mut answered = 0;
    run(&settings(&server.url("gw"), "select rates from locked where key = $1"), async |it| {
        it.answer("1").await;
        let sql = server.later();
        let lock = thread::spawn(move || sql("begin; lock table locked; select pg_sleep(120); commit"));
        let why = loop {
            match it.ask("1").await {
                // It is not locked yet.
                Ok(_) => answered += 1,
                Err(LookupError::Away(why)) => break why,
                Err(error) => panic!("{error:?}"),
            }
        };
        assert!(why.contains("55P03"), "the server ends what waits for too long: {why}");
        for _ in 0..50 {
            let given_up = (0..100).map(|_| timeout(Duration::from_millis(10), it.source.look_up("2")));
            let answers = futures_util::future::join_all(given_up).await;
            assert!(answers.iter().all(Result::is_err), "nothing is answered");
        }
        server.sql("select pg_cancel_backend(pid) from pg_stat_activity where query like 'begin; lock table%'");
        assert!(lock.join().unwrap().is_err(), "the table was locked until now");
        assert_eq!(it.answer("3").await, Some(rates(&["3/s"])), "it is asked again");
    });
    // The count is known when the session has ended.
    until("the session has ended", PATIENCE, || {
        server.sql("select count(*) from pg_stat_activity where usename = 'gw'") == "0"
    });
    let scans: u32 = server.sql("select seq_scan from pg_stat_user_tables where relname = 'locked'").parse().unwrap();
    let asked = scans - answered;
    assert!((100..1000).contains(&asked), "of 5000 lookups {asked} came to the server");
}

#[test]
#[ignore = "needs PostgreSQL"]
fn changes_are_announced_and_after_a_reconnect_all_may_have_changed() {
    let mut server = Postgres::start();
    server.sql(PLANS);
    run(&settings(&server.url("postgres"), QUERY), async |it| {
        assert_eq!(it.ask("a").await, Ok(None));
        assert_eq!(*it.changes.borrow(), [], "nothing was known before");
        for (payload, change) in [("a b'", QuotaChange::Key("a b'".to_owned())), ("", QuotaChange::Any)] {
            server.sql(&format!("select pg_notify('gateway_plans', $p${payload}$p$); notify others, 'x'"));
            it.announced(&change).await;
        }
        // A flood: each announcement is passed on as it comes.
        server.sql("select pg_notify('gateway_plans', n::text) from generate_series(1, 100000) n");
        let start = Instant::now();
        while it.changes.borrow().len() < 100_000 {
            assert!(start.elapsed() < PATIENCE, "only {}", it.changes.borrow().len());
            assert_eq!(it.ask("a").await, Ok(None), "lookups go on");
        }
        it.changes.borrow_mut().clear();
        server.stop();
        let why = it.away("a").await;
        assert!(why.contains("57P01") || why.contains("closed") || why.contains("refused"), "{why}");
        server.restart();
        it.announced(&QuotaChange::Any).await;
        server.sql("notify gateway_plans, 'b'");
        it.announced(&QuotaChange::Key("b".to_owned())).await;
    });
}

/// Whether a client has closed a connection to this server, and the server has not.
fn abandoned(server: SocketAddr) -> bool {
    let sockets = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let local = format!("0100007F:{:04X}", server.port());
    // 08 is CLOSE_WAIT.
    sockets
        .lines()
        .any(|line| matches!(line.split_whitespace().collect::<Vec<_>>()[..], [_, at, _, "08", ..] if at == local))
}

#[test]
#[ignore = "needs PostgreSQL"]
fn a_server_that_is_killed_or_frozen_is_found_out_and_used_again() {
    let mut server = Postgres::start();
    server.sql(&format!("{PLANS} insert into plans values ('a', '{{1/s}}')"));
    run(&settings(&server.url("postgres"), QUERY), async |it| {
        let known = Some(rates(&["1/s"]));
        assert_eq!(it.answer("a").await, known);
        server.kill();
        it.away("a").await;
        it.away_at_once("a").await;
        server.restart();
        assert_eq!(it.answer("a").await, known);
        // Frozen during a lookup.
        server.freeze();
        let start = Instant::now();
        let why = it.away("a").await;
        assert!(why.contains("closed") && start.elapsed() < Duration::from_secs(20), "{why}");
        server.thaw();
        assert_eq!(it.answer("a").await, known);
        it.changes.borrow_mut().clear();
        // Frozen without a lookup.
        while abandoned(server.address) {
            assert!(start.elapsed() < PATIENCE, "it does not close the connection of before");
            sleep(Duration::from_millis(20)).await;
        }
        server.freeze();
        let start = Instant::now();
        while !abandoned(server.address) {
            assert!(start.elapsed() < PATIENCE / 2, "it is not found out");
            sleep(Duration::from_millis(20)).await;
        }
        it.away_at_once("a").await;
        server.thaw();
        it.announced(&QuotaChange::Any).await;
        assert_eq!(it.answer("a").await, known);
    });
}

/// Sends `says` on each connection, and then waits.
fn pretender(says: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let _ = stream.write_all(says);
                let _ = stream.read_to_end(&mut Vec::new());
            });
        }
    });
    address
}

#[test]
fn who_does_not_speak_the_protocol_is_away() {
    let (_held, nobody) = closed_port();
    for (address, mode, part) in [
        (nobody, "disable", "refused"),
        (pretender(b""), "disable", "does not answer within 5s"),
        (pretender(b""), "prefer", "does not answer within 5s"),
        (pretender(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "disable", "1414811695 bytes"),
        (pretender(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "prefer", "protocol"),
        (pretender(b"\0\0\0\0\0\0\0\0"), "disable", "protocol"),
        (pretender(b"R\0\0\0\x08\0\0\0\0"), "disable", "does not answer within 5s"),
        (pretender(b"R\0\0\0\x08\0\0\0\x09"), "disable", "authentication"),
        (pretender(b"N"), "require", "offers no TLS"),
        (pretender(b"Snot a handshake"), "require", "TLS fails"),
    ] {
        let url = format!("postgres://gw@{address}/plans?sslmode={mode}");
        let authority = Authority::new();
        run(&trusting(settings(&url, QUERY), &authority.ca()), async |it| {
            let start = Instant::now();
            let why = it.away("a").await;
            assert!(why.contains(part), "{mode}: {why}");
            assert!(start.elapsed() < Duration::from_secs(20), "{why}: {:?}", start.elapsed());
        });
    }
}

#[test]
#[ignore = "needs PostgreSQL"]
fn a_server_of_several_is_used_that_accepts_a_session() {
    let server = Postgres::start();
    server.sql(&format!("{PLANS} insert into plans values ('a', '{{1/s}}')"));
    let (_held, nobody) = closed_port();
    let url = format!("postgres://postgres@{nobody},{}/postgres?sslmode=disable", server.address);
    run(&settings(&url, QUERY), async |it| assert_eq!(it.ask("a").await, Ok(Some(rates(&["1/s"])))));
}

#[test]
#[ignore = "needs PostgreSQL"]
fn with_tls_only_a_certificate_that_is_trusted_is_accepted() {
    let (known, unknown) = (Authority::new(), Authority::new());
    let certificate = known.issue("db", "db", &["localhost"]);
    let server = Postgres::start_with(&["password_encryption=scram-sha-256"], Some(&certificate));
    server.sql(&format!("{PLANS} create role gw login password 'se@cret'; grant select on plans to gw;"));
    server.authenticate("hostssl all gw 127.0.0.1/32 scram-sha-256\nlocal all all trust\n");
    let port = server.address.port();
    let url = |host: &str, mode: &str| format!("postgres://gw:se%40cret@{host}:{port}/postgres?sslmode={mode}");
    for mode in ["prefer", "require", "verify-full"] {
        run(&trusting(settings(&url("localhost", mode), QUERY), &known.ca()), async |it| {
            assert_eq!(it.ask("a").await, Ok(None), "{mode}");
            let encrypted = "select ssl from pg_stat_ssl join pg_stat_activity using (pid) where usename = 'gw'";
            // The sessions of earlier sources may not have ended yet.
            until(mode, PATIENCE, || server.sql(encrypted) == "t");
        });
        run(&trusting(settings(&url("localhost", mode), QUERY), &unknown.ca()), async |it| {
            assert!(it.away("a").await.contains("UnknownIssuer"), "{mode}");
        });
        run(&trusting(settings(&url("127.0.0.1", mode), QUERY), &known.ca()), async |it| {
            assert!(it.away("a").await.contains("not valid for name"), "{mode}");
        });
    }
    run(&settings(&url("localhost", "disable"), QUERY), async |it| {
        assert!(it.away("a").await.contains("no pg_hba.conf entry"));
    });
    let wrong = url("localhost", "require").replace("se%40cret", "guess");
    run(&trusting(settings(&wrong, QUERY), &known.ca()), async |it| {
        let why = it.away("a").await;
        assert!(why.contains("password authentication failed") && !why.contains("guess"), "{why}");
    });
    let server = Postgres::start();
    server.sql(PLANS);
    let url = |mode: &str| server.url("postgres").replace("disable", mode);
    run(&trusting(settings(&url("prefer"), QUERY), &known.ca()), async |it| assert_eq!(it.ask("a").await, Ok(None)));
    run(&trusting(settings(&url("require"), QUERY), &known.ca()), async |it| {
        assert!(it.away("a").await.contains("offers no TLS"));
    });
}
