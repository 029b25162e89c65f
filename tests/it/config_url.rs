//! `--config URL`: a configuration that the gateway fetches again and again, and the copy of the last good one.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{
    Authority, Client, Fault, Gateway, Headers, Mode, Response, TlsServer, Upstream, closed_port, read_request,
    reserved_port, run, until,
};

const PATIENCE: Duration = Duration::from_secs(30);

fn config(status: u16) -> String {
    format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n[admin]\nlisten = \"127.0.0.1:0\"\n[[routes]]\npath = \"/*\"\nrespond = {{ status = {status} }}\n"
    )
}

#[derive(Clone)]
enum Answer {
    /// A text with its version, or 304 for this version.
    Document(String, &'static str),
    Bytes(Vec<u8>),
    /// Each connection gets another text.
    InTurn(Vec<String>),
    /// A byte each tenth of a second.
    Trickle,
    Endless,
    Hang,
}

struct Source {
    up: Upstream,
    answer: Arc<Mutex<Answer>>,
    asked: Arc<Mutex<Vec<Headers>>>,
}

impl Source {
    fn start(answer: Answer) -> Self {
        let answer = Arc::new(Mutex::new(answer));
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (answers, record) = (answer.clone(), asked.clone());
        let up = Upstream::raw(move |mut wire, number| {
            let Ok(Some((_, headers))) = wire.head() else { return };
            record.lock().unwrap().push(headers.clone());
            let answer = answers.lock().unwrap().clone();
            let written = match answer {
                Answer::Document(_, etag) if headers.get("if-none-match") == Some(etag) => {
                    wire.write(b"HTTP/1.1 304 Not Modified\r\n\r\n")
                }
                Answer::Document(text, etag) => wire.write(&ok(&text, &format!("ETag: {etag}\r\n"))),
                Answer::Bytes(bytes) => wire.write(&bytes),
                Answer::InTurn(texts) => wire.write(&ok(&texts[number % texts.len()], "")),
                Answer::Trickle => {
                    let whole = ok(&config(200), "");
                    whole.chunks(1).try_for_each(|byte| {
                        std::thread::sleep(Duration::from_millis(100));
                        wire.write(byte)
                    })
                }
                Answer::Endless => {
                    let piece = vec![b'#'; 1 << 16];
                    wire.write(b"HTTP/1.1 200 OK\r\n\r\n").and_then(|()| {
                        loop {
                            wire.write(&piece)?;
                        }
                    })
                }
                Answer::Hang => wire.head().map(|_| ()),
            };
            // A gateway that has seen enough closes the connection.
            drop(written);
        });
        Self { up, answer, asked }
    }

    fn set(&self, answer: Answer) {
        *self.answer.lock().unwrap() = answer;
    }

    fn url(&self) -> String {
        format!("http://{}/gateway.toml", self.up.address())
    }

    fn asked(&self) -> usize {
        self.asked.lock().unwrap().len()
    }

    fn wait_asked(&self, more: usize) {
        let wanted = self.asked() + more;
        until("the source is asked", PATIENCE, || self.asked() >= wanted);
    }
}

fn ok(text: &str, headers: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n{headers}\r\n{text}", text.len()).into_bytes()
}

fn document(status: u16, etag: &'static str) -> Answer {
    Answer::Document(config(status), etag)
}

fn start(url: &str, every: &str, state: &Path) -> Gateway {
    Gateway::with_source(&["--config", url, "--config-every", every, "--state-dir", state.to_str().unwrap()], &[])
}

fn status(gateway: &Gateway) -> u16 {
    gateway.client().get("/").status
}

fn wait_status(gateway: &Gateway, wanted: u16) {
    until(&format!("status {wanted}"), PATIENCE, || status(gateway) == wanted);
}

fn reload(gateway: &Gateway) -> Response {
    let host = gateway.admin;
    Client::connect(host).call(format!("POST /api/reload HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\n\r\n"))
}

fn source_of(gateway: &Gateway) -> Value {
    gateway.admin("/api/source").json()
}

fn fetches(gateway: &Gateway, result: &str) -> f64 {
    gateway.metric(&format!("gateway_config_fetches_total{{result=\"{result}\"}}")).unwrap()
}

fn is_good(gateway: &Gateway) -> bool {
    gateway.metric("gateway_config_last_reload_successful") == Some(1.0)
}

fn stop(mut gateway: Gateway) -> Vec<String> {
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.wait_exit().code(), Some(0));
    gateway.log()
}

fn only_file(folder: &Path) -> PathBuf {
    let files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    files[0].clone()
}

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// Runs the gateway until it ends because it cannot start; meanwhile the source is away.
#[track_caller]
fn refusal(url: &str, state: &Path) -> String {
    let output = run(&["--config", url, "--state-dir", state.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_change_is_applied_at_the_next_poll_and_what_is_the_same_is_not_sent_again() {
    let (source, state) = (Source::start(document(201, "\"1\"")), folder());
    let gateway = start(&source.url(), "1s", state.path());
    assert_eq!(status(&gateway), 201);
    source.wait_asked(2);
    until("polls", PATIENCE, || fetches(&gateway, "unchanged") >= 2.0);
    assert_eq!((fetches(&gateway, "changed"), gateway.reloads()), (1.0, 0), "what is the same is not applied again");
    assert!(source.asked.lock().unwrap()[1..].iter().all(|headers| headers.get("if-none-match") == Some("\"1\"")));

    source.set(document(202, "\"2\""));
    wait_status(&gateway, 202);
    assert!(is_good(&gateway) && fetches(&gateway, "failed") == 0.0);
    let remote = &source_of(&gateway)["remote"];
    assert_eq!(
        (&remote["error"], &remote["copy_in_force"], &remote["every_seconds"]),
        (&Value::Null, &Value::Null, &1.into())
    );
    assert_eq!(source_of(&gateway)["source"], source.url().as_str());
    // The same text without a version is nothing new either.
    source.set(Answer::Bytes(ok(&config(202), "")));
    source.wait_asked(2);
    assert_eq!(gateway.reloads(), 1);
    let copy = fs::read_to_string(only_file(state.path())).unwrap();
    assert!(copy.ends_with(&config(202)), "{copy}");
}

#[test]
fn a_signal_and_the_api_fetch_at_once() {
    let (source, state) = (Source::start(document(201, "\"1\"")), folder());
    let gateway = start(&source.url(), "1d", state.path());
    source.set(document(202, "\"2\""));
    gateway.signal(Signal::HUP);
    wait_status(&gateway, 202);
    source.set(document(203, "\"3\""));
    assert_eq!(reload(&gateway).status, 200);
    assert_eq!(status(&gateway), 203);
    // A reload reads the same text again, because files that it names may have changed.
    assert_eq!(reload(&gateway).status, 200);
    until("the log tells of all three", Duration::from_secs(10), || gateway.reloads() == 3);
    assert_eq!(source.asked(), 4);
}

#[test]
fn what_is_refused_is_told_once_and_the_metrics_go_on_saying_it() {
    let (source, state) = (Source::start(document(201, "\"1\"")), folder());
    let gateway = start(&source.url(), "1s", state.path());
    let broken = config(202).replace("status = 202", "status = \"x\"");
    source.set(Answer::Document(broken, "\"2\""));
    let line = gateway.wait_message("reload refused");
    let place = format!("{}:7:22", source.url());
    assert!(line["problems"].as_str().unwrap().contains(&place), "{line}");
    source.wait_asked(3);
    let refused = || gateway.log().iter().filter(|line| line.contains("reload refused")).count();
    assert_eq!((refused(), status(&gateway), is_good(&gateway)), (1, 201, false));
    assert_eq!(gateway.metric("gateway_config_reloads_total{result=\"refused\"}"), Some(1.0));
    let told = source_of(&gateway);
    assert_eq!((&told["current"], &told["problems"][0]["place"]), (&false.into(), &place.as_str().into()), "{told}");
    let copy = fs::read_to_string(only_file(state.path())).unwrap();
    assert!(copy.ends_with(&config(201)), "only what is good is kept");

    let answer = reload(&gateway);
    assert_eq!((answer.status, &answer.json()["problems"][0]["place"]), (422, &place.as_str().into()));
    until("who asks is told", PATIENCE, || refused() == 2);
    source.wait_asked(2);
    assert_eq!(refused(), 2);

    // Back to what is in force: then everything is well.
    source.set(document(201, "\"1\""));
    until("it is good again", PATIENCE, || is_good(&gateway));
    assert_eq!(status(&gateway), 201);
    assert_eq!(source_of(&gateway)["problems"], Value::Array(Vec::new()));
}

#[test]
fn a_refusal_that_passes_by_itself_is_tried_again() {
    let (folder, state) = (folder(), folder());
    let file = folder.path().join("keys.txt");
    let keys =
        format!("[limits.l]\nkey = \"header:x-key\"\nrates = [\"9/d\"]\nknown_keys = {:?}\n", file.to_str().unwrap());
    let source = Source::start(document(201, "\"1\""));
    let gateway = start(&source.url(), "1s", state.path());
    let limited = keys + &config(202).replace("respond", "limits = [\"l\"]\nrespond");
    source.set(Answer::Document(limited, "\"2\""));
    gateway.wait_message("reload refused");
    fs::write(&file, "k\n").unwrap();
    wait_status(&gateway, 202);
    assert!(is_good(&gateway));
}

#[test]
fn a_source_that_was_away_for_a_moment_is_no_reason_to_reload() {
    let (source, state) = (Source::start(document(201, "\"1\"")), folder());
    let gateway = start(&source.url(), "1s", state.path());
    for times in 1..=2 {
        source.set(Answer::Bytes(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n".to_vec()));
        until("it is away", PATIENCE, || !is_good(&gateway));
        assert_ne!(source_of(&gateway)["problems"], Value::Array(Vec::new()));
        source.set(document(201, "\"1\""));
        until("it is good again", PATIENCE, || is_good(&gateway));
        assert_eq!(source_of(&gateway)["problems"], Value::Array(Vec::new()));
        let reloads = ["ok", "refused"]
            .map(|result| gateway.metric(&format!("gateway_config_reloads_total{{result=\"{result}\"}}")));
        assert_eq!((gateway.reloads(), reloads), (0, [Some(0.0), Some(f64::from(times))]));
    }
    gateway.wait_message("the source can be used again, and matches the configuration in force");
}

#[test]
fn the_copy_is_used_while_the_source_is_away_at_the_start() {
    let (source, state) = (Source::start(document(201, "\"1\"")), folder());
    let network = Fault::start(source.up.address(), Mode::Pass);
    let url = format!("http://{}/gateway.toml", network.address);
    stop(start(&url, "1s", state.path()));
    let copy = only_file(state.path());
    let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&copy).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);

    network.set(Mode::Refuse);
    let gateway = start(&url, "1s", state.path());
    let line = gateway.wait_message("the source cannot be used: the last good copy is in force");
    assert_eq!((&line["level"], &line["source"]), (&"WARN".into(), &url.as_str().into()), "{line}");
    assert!(
        line["age_seconds"].as_u64().unwrap() < 600 && line["problems"].as_str().unwrap().contains("cannot connect")
    );
    assert_eq!((status(&gateway), is_good(&gateway)), (201, false));
    assert_eq!(gateway.metric("gateway_config_copy_in_force"), Some(1.0));
    assert!(gateway.metric("gateway_config_copy_timestamp_seconds").unwrap() > 1e9);
    assert_eq!(gateway.metric("gateway_config_last_fetch_timestamp_seconds"), Some(0.0));
    let remote = source_of(&gateway)["remote"].clone();
    assert!(remote["copy_in_force"]["age_seconds"].as_u64().unwrap() < 600, "{remote}");
    assert!(remote["error"].as_str().unwrap().contains("cannot connect"), "{remote}");
    until("it goes on asking", PATIENCE, || fetches(&gateway, "failed") >= 3.0);
    assert!(!gateway.log().iter().any(|line| line.contains("reload refused")), "the start has said so already");

    network.set(Mode::Pass);
    until("it is current", PATIENCE, || gateway.metric("gateway_config_copy_in_force") == Some(0.0));
    assert!(is_good(&gateway) && source_of(&gateway)["remote"]["copy_in_force"].is_null());
    network.set(Mode::Refuse);
    gateway.wait_message("reload refused");
    assert_eq!((status(&gateway), is_good(&gateway)), (201, false));
    source.set(document(203, "\"3\""));
    network.set(Mode::Pass);
    wait_status(&gateway, 203);
    assert!(is_good(&gateway));
}

#[test]
fn the_copy_is_used_if_the_source_sends_something_invalid_at_the_start() {
    let (source, state) = (Source::start(document(201, "\"1\"")), folder());
    stop(start(&source.url(), "1d", state.path()));
    source.set(Answer::Document("this is no toml".to_owned(), "\"2\""));
    let gateway = start(&source.url(), "1d", state.path());
    let line = gateway.wait_message("the source cannot be used: the last good copy is in force");
    assert!(line["problems"].as_str().unwrap().contains(&format!("{}:1:6", source.url())), "{line}");
    assert_eq!(status(&gateway), 201);
    let events = gateway.metric("gateway_config_reloads_total{result=\"refused\"}");
    assert_eq!(events, Some(1.0));
}

#[test]
fn without_a_good_copy_there_is_no_start_and_it_is_said_why() {
    let (_held, address) = closed_port();
    let (away, state) = (format!("http://{address}/gateway.toml"), folder());
    let said = refusal(&away, state.path());
    assert!(said.contains("cannot fetch the configuration: cannot connect") && said.contains(&away), "{said}");
    assert!(!said.contains("copy"), "{said}");

    let source = Source::start(Answer::Document("this is no toml".to_owned(), "\"1\""));
    let output = run(&["--config", &source.url(), "--state-dir", state.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2), "to try again would not help");

    source.set(document(201, "\"1\""));
    stop(start(&source.url(), "1d", state.path()));
    // The copy of another URL is not used, even under the name of this copy.
    assert!(!refusal(&away, state.path()).contains("copy"));
    let copy = only_file(state.path());
    let text = fs::read(&copy).unwrap();
    source.set(Answer::Bytes(b"HTTP/1.1 503 Away\r\nContent-Length: 0\r\n\r\n".to_vec()));
    for broken in [&text[..text.len() - 1], &[&text[..], b"#"].concat(), b"", b"[server]\n", &[b'#'; 5000]] {
        fs::write(&copy, broken).unwrap();
        let said = refusal(&source.url(), state.path());
        assert!(
            said.contains("the server answers 503") && said.contains("it is broken, or from another URL"),
            "{said}"
        );
    }
    fs::write(&copy, &text).unwrap();
    assert_eq!(status(&start(&source.url(), "1d", state.path())), 201);
}

#[test]
fn where_the_copy_is_kept_follows_from_the_environment() {
    let (source, state) = (Source::start(document(201, "\"1\"")), folder());
    let path = |name: &str| state.path().join(name).to_str().unwrap().to_owned();
    let url = source.url();
    let kept = |variables: &[(&str, &str)]| {
        let empty = [("STATE_DIRECTORY", ""), ("XDG_STATE_HOME", ""), ("HOME", "")];
        let gateway = Gateway::with_source(&["--config", &url], &[&empty[..], variables].concat());
        stop(gateway).iter().any(|line| line.contains("no copy of the configuration is kept"))
    };
    assert!(!kept(&[("STATE_DIRECTORY", &format!("{}:{}", path("a"), path("b")))]));
    assert!(!kept(&[("XDG_STATE_HOME", &path("x"))]));
    assert!(!kept(&[("HOME", &path("h"))]));
    assert!(kept(&[]), "a warning says that nothing is kept");
    for used in ["a", "x/gateway", "h/.local/state/gateway"] {
        only_file(&state.path().join(used));
    }
    assert!(!state.path().join("b").exists());
    // A gateway starts even if it cannot write the folder.
    fs::write(path("file"), "").unwrap();
    let gateway = start(&url, "1d", &state.path().join("file"));
    gateway.wait_message("cannot keep a copy of the configuration");
    assert_eq!(status(&gateway), 201);
}

/// A bad answer of the source changes nothing, and is reported.
#[track_caller]
fn refused(answer: Answer, why: &str) {
    let (source, state) = (Source::start(document(201, "\"1\"")), folder());
    let gateway = start(&source.url(), "1s", state.path());
    source.set(answer);
    let line = gateway.wait_message("reload refused");
    assert!(line["problems"].as_str().unwrap().contains(why), "{line}");
    assert!(line.to_string().len() < 100_000, "a line of {} bytes", line.to_string().len());
    assert_eq!((status(&gateway), is_good(&gateway)), (201, false));
    let memory = gateway.memory("VmHWM");
    assert!(memory < 400 << 20, "{memory} bytes");
    // The gateway still takes the next version.
    source.set(document(202, "\"2\""));
    wait_status(&gateway, 202);
    stop(gateway);
}

#[test]
fn a_source_that_hangs_is_given_up() {
    refused(Answer::Hang, "not done within 10s");
}

#[test]
fn a_source_that_hangs_holds_nothing_up() {
    let (source, state) = (Source::start(document(201, "\"1\"")), folder());
    let gateway = start(&source.url(), "1s", state.path());
    source.set(Answer::Hang);
    source.wait_asked(1);
    let begun = Instant::now();
    assert_eq!((status(&gateway), is_good(&gateway)), (201, true));
    stop(gateway);
    assert!(begun.elapsed() < Duration::from_secs(8), "it waits for the source: {:?}", begun.elapsed());
}

#[test]
fn a_source_that_trickles_is_given_up() {
    refused(Answer::Trickle, "not done within 10s");
}

#[test]
fn a_source_without_an_end_is_given_up() {
    refused(Answer::Endless, "the answer has more than 4096 KiB");
}

#[test]
fn what_may_be_only_the_beginning_of_a_document_is_refused() {
    let bytes = |head: &str, text: &str| Answer::Bytes(format!("HTTP/1.1 200 OK\r\n{head}\r\n{text}").into_bytes());
    refused(bytes("", &config(202)), "it must send Content-Length or Transfer-Encoding: chunked");
    let chunks = format!("{:x}\r\n{}\r\n", config(203).len(), config(203));
    let source = Source::start(bytes("Transfer-Encoding: chunked\r\n", &format!("{chunks}0\r\n\r\n")));
    let state = folder();
    let gateway = start(&source.url(), "1s", state.path());
    assert_eq!(status(&gateway), 203);
    source.set(bytes("Transfer-Encoding: chunked\r\n", &chunks.replace("203", "204")));
    let line = gateway.wait_message("reload refused");
    assert!(line["problems"].as_str().unwrap().contains("does not send all of the document"), "{line}");
    assert_eq!(status(&gateway), 203);
}

#[test]
fn an_error_page_is_no_configuration() {
    refused(Answer::Bytes(ok("\n <!DOCTYPE html><title>Log in</title>", "")), "a web page, not TOML");
}

#[test]
fn a_text_of_one_long_line_is_told_in_short() {
    refused(Answer::Bytes(ok(&"a b ".repeat(1_000_000), "")), "syntax error");
}

#[test]
fn many_mistakes_on_one_long_line_are_told_in_short() {
    let routes = "{}, ".repeat(100_000);
    refused(Answer::Bytes(ok(&format!("routes = [{routes}]"), "")), "and ");
}

#[test]
fn an_empty_answer_is_no_configuration() {
    refused(Answer::Bytes(ok("", "")), "has no routes");
}

#[test]
fn bytes_that_are_no_text_are_no_configuration() {
    refused(Answer::Bytes(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n\xff\xfe\x08\x00".to_vec()), "is not UTF-8");
    refused(
        Answer::Bytes(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n\x1f\x8b\x08\x00".to_vec()),
        "broken gzip data",
    );
}

#[test]
fn redirects_are_not_followed() {
    let redirect = b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n";
    refused(Answer::Bytes(redirect.to_vec()), "redirects are not followed");
}

#[test]
fn a_text_that_is_cut_is_no_configuration() {
    let whole = ok(&config(202), "");
    refused(Answer::Bytes(whole[..whole.len() - 3].to_vec()), "does not send all");
}

#[test]
fn an_endless_head_is_given_up() {
    let head = format!("HTTP/1.1 200 OK\r\nETag: \"{}\"\r\n", "a".repeat(1 << 20));
    refused(Answer::Bytes((head + "Content-Length: 0\r\n\r\n").into_bytes()), "the server does not answer");
}

#[test]
fn an_etag_that_cannot_be_sent_back_is_ignored() {
    let state = folder();
    for etag in ["no quotes", "\"a\"b\"", "\"a b\"", "\"a\tb\"", "W/\"", &format!("\"{}\"", "a".repeat(2000))] {
        let source = Source::start(Answer::Bytes(ok(&config(201), &format!("ETag: {etag}\r\n"))));
        let gateway = start(&source.url(), "1s", state.path());
        source.wait_asked(1);
        assert_eq!((status(&gateway), is_good(&gateway)), (201, true));
        assert!(source.asked.lock().unwrap().iter().all(|headers| headers.get("if-none-match").is_none()));
    }
    for etag in ["\"a\0b\"", "\"a\x01b\"", "\"a\x7fb\""] {
        let head = format!("ETag: {etag}\r\n");
        refused(Answer::Bytes(ok(&config(202), &head)), "the server does not answer");
    }
}

#[test]
fn an_unasked_304_is_an_error() {
    let (source, state) = (Source::start(Answer::Bytes(b"HTTP/1.1 304 Not Modified\r\n\r\n".to_vec())), folder());
    let said = refusal(&source.url(), state.path());
    assert!(said.contains("the server answers 304, although it was not asked"), "{said}");
    source.set(Answer::Bytes(ok(&config(201), "")));
    let gateway = start(&source.url(), "1s", state.path());
    source.set(Answer::Bytes(b"HTTP/1.1 304 Not Modified\r\n\r\n".to_vec()));
    gateway.wait_message("reload refused");
    assert_eq!(status(&gateway), 201);
}

#[test]
fn a_source_that_flips_is_followed_without_harm() {
    let limit = "[limits.l]\nkey = \"client-ip\"\nrates = [\"3/d\"]\n";
    let texts = [201, 202].map(|code| limit.to_owned() + &config(code).replace("respond", "limits = [\"l\"]\nrespond"));
    let (source, state) = (Source::start(Answer::InTurn(texts.to_vec())), folder());
    let gateway = start(&source.url(), "1s", state.path());
    let mut client = gateway.client();
    let statuses = [(); 3].map(|()| client.get("/").status);
    assert!(statuses.iter().all(|code| [201, 202].contains(code)), "{statuses:?}");
    until("it flips", PATIENCE, || gateway.reloads() >= 4);
    assert_eq!(client.get("/").status, 429, "the counts stay");
    assert!(is_good(&gateway));
    stop(gateway);
    only_file(state.path());
}

#[test]
fn over_tls_the_server_needs_a_certificate_that_is_trusted() {
    let (authority, other, state) = (Authority::new(), Authority::new(), folder());
    let issued = authority.issue_with("conf", "conf", &[], |params| {
        params.subject_alt_names.push(rcgen::SanType::IpAddress([127, 0, 0, 1].into()));
    });
    let mut tls = authority.server(&issued, false);
    tls.alpn_protocols.clear();
    let served = TlsServer::raw(tls, |mut stream, _| {
        while read_request(&mut stream).is_some() {
            if stream.write_all(&ok(&config(201), "")).is_err() {
                return;
            }
        }
    });
    let url = format!("https://{}/gateway.toml", served.address);
    let arguments = ["--config", &url, "--state-dir", state.path().to_str().unwrap()];
    let gateway = Gateway::with_source(&arguments, &[("SSL_CERT_FILE", authority.ca().to_str().unwrap())]);
    assert_eq!(status(&gateway), 201);
    stop(gateway);
    // With another authority, the gateway uses the copy.
    let gateway = Gateway::with_source(&arguments, &[("SSL_CERT_FILE", other.ca().to_str().unwrap())]);
    let line = gateway.wait_message("the source cannot be used: the last good copy is in force");
    assert!(line["problems"].as_str().unwrap().contains("invalid peer certificate"), "{line}");
    assert_eq!(served.handshakes().len(), 1);
}

#[test]
fn credentials_are_sent_and_shown_nowhere() {
    let (source, state) = (Source::start(document(201, "\"1\"")), folder());
    let address = source.up.address();
    let secret = format!("http://name:hid%40den@{address}/gateway.toml?key=hidden");
    let arguments =
        ["--config", "env:CONFIG_URL", "--config-every", "1s", "--state-dir", state.path().to_str().unwrap()];
    let gateway = Gateway::with_source(&arguments, &[("CONFIG_URL", &secret)]);
    let basic = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, "name:hid@den");
    assert_eq!(source.asked.lock().unwrap()[0].must("authorization"), format!("Basic {basic}"));
    source.set(Answer::Document("this is no toml".to_owned(), "\"2\""));
    gateway.wait_message("reload refused");
    source.set(Answer::Bytes(b"HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n".to_vec()));
    gateway.wait_log("403", |line| line["problems"].as_str().is_some_and(|text| text.contains("answers 403")));
    let shown = format!("http://***@{address}/gateway.toml?***");
    let api = ["/api/source", "/api/config", "/metrics"].map(|path| gateway.admin(path).text().to_owned()).concat();
    let events = reload(&gateway).text().to_owned();
    assert!(api.contains(&shown) && events.contains(&shown), "{api}{events}");
    let all = api + &events + &stop(gateway).concat();
    assert!(!all.contains("hid%40den") && !all.contains("hid@den") && !all.contains("hidden"), "{all}");

    source.set(document(201, "\"1\""));
    let plain = source.url();
    let gateway = Gateway::with_source(&["--config", &plain], &[("GATEWAY_CONFIG_TOKEN", "hidden"), ("HOME", "")]);
    let last = source.asked.lock().unwrap().last().unwrap().must("authorization").to_owned();
    assert_eq!(last, "Bearer hidden");
    assert!(!stop(gateway).concat().contains("hidden"));
}

#[test]
fn the_command_line_says_what_does_not_go_together() {
    let (source, state) = (Source::start(document(201, "\"1\"")), folder());
    let url = source.url();
    let file = state.path().join("gateway.toml");
    fs::write(&file, config(200)).unwrap();
    for (arguments, why) in [
        (&["--watch", "--config", &url][..], "--watch is for files: a URL is asked again as --config-every says"),
        (&["--config-every", "5s", "--config", file.to_str().unwrap()], "--config-every is for a URL"),
        (&["--config-every", "500ms", "--config", &url], "it is 1s to 1d"),
        (&["--config", "http://192.0.2.1/gateway.toml"], "without TLS others in the network could change the document"),
        (&["--config", "ftp://conf.test/"], "is not a scheme of documents"),
        (&["--config", "env:NOT_SET_ANYWHERE"], "there is no environment variable \"NOT_SET_ANYWHERE\""),
    ] {
        let output = run(arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && said.contains(why), "{arguments:?}: {said}");
    }
    assert_eq!(source.asked(), 0);
}

#[test]
fn the_commands_take_urls_and_relative_paths_are_refused() {
    let (source, state) = (Source::start(document(201, "\"1\"")), folder());
    let url = source.url();
    for arguments in
        [&["check", &url][..], &["check", "--json", "--config", &url], &["explain", "--config", &url, "/a"]]
    {
        let output = run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    for (section, place) in [
        ("[limits.l]\nkey = \"bearer\"\nrates = [\"1/s\"]\nknown_keys = \"keys.txt\"\n", "11:14"),
        ("[limits.l]\nkey = \"bearer\"\nrates = [\"1/s\"]\noverrides_file = \"a.csv\"\n", "11:18"),
        ("[store]\nsnapshot = \"counters\"\n", "9:12"),
        ("[log]\naccess_file = \"access.log\"\n", "9:15"),
        ("[tracing]\nendpoint = \"http://127.0.0.1:1\"\nheaders = { x = \"file:secret\" }\n", "10:17"),
    ] {
        source.set(Answer::Document(config(201) + section, "\"2\""));
        let said = String::from_utf8(run(&["check", &url]).stderr).unwrap();
        assert!(said.contains("is a relative path") && said.contains(&format!("{url}:{place}")), "{said}");
    }
    // Probes look for the listener of the running gateway: the copy has its address, although the source is wrong now.
    let (_held, address) = reserved_port();
    let admin = config(201).replace("[admin]\nlisten = \"127.0.0.1:0\"", &format!("[admin]\nlisten = \"{address}\""));
    source.set(Answer::Document(admin, "\"3\""));
    let gateway = start(&url, "1d", state.path());
    // The listener opens before the copy is written.
    let is_copy = |entry: fs::DirEntry| entry.path().extension().is_some_and(|end| end == "toml");
    until("the copy is kept", PATIENCE, || fs::read_dir(state.path()).unwrap().any(|entry| is_copy(entry.unwrap())));
    source.set(Answer::Document("this is no toml".to_owned(), "\"4\""));
    let asked = source.asked();
    let probe = ["check", "--live", "--config", &url, "--state-dir", state.path().to_str().unwrap()];
    until("the probe succeeds", PATIENCE, || run(&probe).status.code() == Some(0));
    assert_eq!(source.asked(), asked, "a probe does not wait for the source");
    stop(gateway);
    assert_eq!(run(&probe).status.code(), Some(1));
}

#[test]
fn counters_are_saved_and_restored_whatever_the_source_is() {
    let state = folder();
    let counters = state.path().join("counters");
    let text = format!(
        "[store]\nsnapshot = {:?}\n[limits.l]\nkey = \"client-ip\"\nrates = [\"2/d\"]\n{}",
        counters.to_str().unwrap(),
        config(201).replace("respond", "limits = [\"l\"]\nrespond")
    );
    let source = Source::start(Answer::Document(text, "\"1\""));
    let gateway = start(&source.url(), "1s", state.path());
    assert_eq!([status(&gateway), status(&gateway), status(&gateway)], [201, 201, 429]);
    stop(gateway);
    let gateway = start(&source.url(), "1s", state.path());
    gateway.wait_message("counters are restored");
    assert_eq!(status(&gateway), 429);
}
