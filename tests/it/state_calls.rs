//! Failing system calls on files that outlive the process lose nothing and order nothing again, and the log says what is wrong.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;

use crate::harness::acme::{AcmeMood, AcmeServer, certificate_in, everything, start};
use crate::harness::{Gateway, TlsClient, Upstream, limited, run, until};

fn start_failing(state: &Path, fault: &str, paths: &[&Path]) -> Gateway {
    let config = state.join("gateway.toml").display().to_string();
    Gateway::with_failing_call(&["--config", &config, "--state-dir", state.to_str().unwrap()], fault, paths)
}

#[track_caller]
fn serves(gateway: &Gateway, server: &AcmeServer) {
    until("a.test has a certificate", Duration::from_secs(30), || {
        TlsClient::connect(gateway.https(), &server.authority().client(None), "a.test")
            .and_then(|mut client| client.get("/"))
            .is_ok()
    });
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = entries.collect();
    names.sort_unstable();
    names
}

#[test]
#[ignore = "needs strace"]
fn a_certificate_that_cannot_be_read_now_is_neither_set_aside_nor_ordered_anew() {
    let (server, state) = (AcmeServer::start(), tempfile::tempdir().unwrap());
    let text = server.config(&["a.test"], "", &everything());
    let gateway = start(state.path(), &text);
    serves(&gateway, &server);
    drop(gateway);
    let certificate = certificate_in(state.path());
    let folder = certificate.parent().unwrap();
    let before = names(folder);
    for fault in [
        "open,openat:error=EMFILE",
        "open,openat:error=ENFILE",
        "open,openat:error=EACCES",
        "open,openat:error=EIO",
        "read:error=EIO",
    ] {
        let gateway = start_failing(state.path(), fault, &[&certificate]);
        let told = gateway.wait_message("cannot get a certificate: TLS handshakes for these names fail");
        assert_eq!(told["reason"], "files", "{told}");
        assert!(told["error"].as_str().unwrap().contains(certificate.to_str().unwrap()), "{told}");
        assert_eq!(gateway.metric("gateway_acme_orders_total{result=\"files\"}"), Some(1.0));
        drop(gateway);
        assert_eq!((names(folder), server.orders().len()), (before.clone(), 1), "{fault}");
    }
    // A certificate that can be read soon is used without an order.
    let gateway = start_failing(state.path(), "open,openat:error=EMFILE:when=1..2", &[&certificate]);
    serves(&gateway, &server);
    assert_eq!((names(folder), server.orders().len()), (before, 1));
}

#[test]
#[ignore = "needs strace"]
fn an_account_that_cannot_be_read_now_is_not_replaced() {
    let (server, state) = (AcmeServer::start(), tempfile::tempdir().unwrap());
    let text = server.config(&["a.test"], "", &everything());
    let gateway = start(state.path(), &text);
    serves(&gateway, &server);
    drop(gateway);
    let certificate = certificate_in(state.path());
    let account = certificate.with_file_name("account.json");
    let before = fs::read(&account).unwrap();
    fs::remove_file(&certificate).unwrap();
    for fault in ["open,openat:error=EMFILE", "open,openat:error=EACCES", "read:error=EIO"] {
        let gateway = start_failing(state.path(), fault, &[&account]);
        let told = gateway.wait_message("cannot get a certificate: TLS handshakes for these names fail");
        assert_eq!(told["reason"], "files", "{told}");
        drop(gateway);
        assert_eq!((server.accounts(), server.orders().len()), (1, 1), "{fault}");
        assert_eq!(fs::read(&account).unwrap(), before);
        assert!(!account.with_extension("broken").exists());
    }
}

fn passed(gateway: &Gateway, key: &str) -> usize {
    let mut client = gateway.client();
    (0..10).filter(|_| client.get_with("/", format!("X-Api-Key: {key}\r\n")).status == 200).count()
}

fn stop(mut gateway: Gateway) -> String {
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.wait_exit().code(), Some(0));
    gateway.log().join("\n")
}

#[test]
#[ignore = "needs strace"]
fn saved_counters_that_cannot_be_read_now_are_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let (config, file) = (folder.path().join("gateway.toml"), folder.path().join("counters"));
    let store = format!("[store]\nsnapshot = \"{}\"\n", file.display());
    let text = "[server]\nlisten = \"127.0.0.1:0\"\n[admin]\nlisten = \"127.0.0.1:0\"\n".to_owned();
    fs::write(&config, text + &store + &limited("header:x-api-key", "5/d", "")).unwrap();
    let arguments = ["--config", config.to_str().unwrap()];
    let gateway = Gateway::with_source(&arguments, &[]);
    assert_eq!(["old", "both"].map(|key| passed(&gateway, key)), [5; 2]);
    stop(gateway);
    let before = fs::read(&file).unwrap();
    for call in ["open,openat:error=EMFILE", "open,openat:error=EACCES", "open,openat:error=EIO", "read:error=EIO"] {
        // The call never works: the file stays.
        let gateway = Gateway::with_failing_call(&arguments, call, &[&file]);
        let told = gateway.wait_message("saved counters cannot be read: limits begin anew");
        assert_eq!(told["level"], "ERROR", "{told}");
        assert_eq!(gateway.metric("gateway_store_snapshot_unread"), Some(1.0), "{call}");
        assert_eq!(passed(&gateway, "new"), 5);
        let log = stop(gateway);
        assert!(log.contains("counters cannot be saved") && log.contains("so they stay"), "{log}");
        assert!(fs::read(&file).unwrap() == before && names(folder.path()) == ["counters", "gateway.toml"], "{call}");
    }
    let gateway = Gateway::with_source(&arguments, &[]);
    assert_eq!(gateway.metric("gateway_store_snapshot_unread"), Some(0.0));
    assert_eq!(["old", "both"].map(|key| passed(&gateway, key)), [0; 2]);
}

#[test]
#[ignore = "needs strace"]
fn nothing_is_ordered_that_could_not_be_kept() {
    for fault in ["fsync:error=ENOSPC", "fsync:error=EIO", "flock:error=EIO"] {
        let (server, state) = (AcmeServer::start(), tempfile::tempdir().unwrap());
        fs::write(state.path().join("gateway.toml"), server.config(&["a.test"], "", &everything())).unwrap();
        let gateway = start_failing(state.path(), fault, &[]);
        let told = gateway.wait_message("cannot get a certificate: TLS handshakes for these names fail");
        assert_eq!(told["reason"], "files", "{told}");
        assert_eq!((server.accounts(), server.orders().len()), (0, 0), "{fault}");
        drop(gateway);
        let folder = fs::read_dir(state.path().join("acme")).unwrap().next().unwrap().unwrap().path();
        assert!(names(&folder).iter().all(|name| name == "lock"), "nothing else is left");
    }
}

#[test]
#[ignore = "needs strace"]
fn a_certificate_stays_in_use_whatever_fails_when_it_is_renewed() {
    let (server, state) = (AcmeServer::start(), tempfile::tempdir().unwrap());
    let text = server.config(&["a.test"], "", &everything());
    // The certificate is in the last third of its life from the beginning.
    server.set(AcmeMood::Aged(86_400, 600));
    let gateway = start(state.path(), &text);
    serves(&gateway, &server);
    drop(gateway);
    for fault in ["flock:error=EIO", "fsync:error=ENOSPC"] {
        let gateway = start_failing(state.path(), fault, &[]);
        let told = gateway.wait_message("cannot get a new certificate: the previous one stays in use");
        assert_eq!(told["reason"], "files", "{told}");
        serves(&gateway, &server);
    }
    assert_eq!(server.orders().len(), 1);
}

#[test]
#[ignore = "needs strace"]
fn the_copy_of_a_configuration_survives_whatever_fails() {
    let text = "[server]\nlisten = \"127.0.0.1:0\"\n[admin]\nlisten = \"127.0.0.1:0\"\n[[routes]]\npath = \"/*\"\nrespond = { status = 204 }\n";
    let served = Upstream::start(move |_| {
        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{text}", text.len()).into_bytes()
    });
    let url = format!("http://{}/gateway.toml", served.address());
    let state = tempfile::tempdir().unwrap();
    let folder = state.path().join("state");
    let arguments = ["--config", &url, "--config-every", "1h", "--state-dir", folder.to_str().unwrap()];
    let first = Gateway::with_source(&arguments, &[]);
    // Beside it, there may still be what is written before it is renamed.
    let kept = || names(&folder).into_iter().find(|name| Path::new(name).extension().is_none_or(|end| end != "tmp"));
    until("the copy is kept", Duration::from_secs(30), || folder.is_dir() && kept().is_some());
    let copy = folder.join(kept().unwrap());
    drop(first);
    let before = fs::read(&copy).unwrap();
    // The file is read before it is written.
    for fault in ["fsync:error=ENOSPC", "fsync:error=EIO", "rename,renameat,renameat2:error=EIO"] {
        fs::write(&copy, "broken").unwrap();
        let gateway = Gateway::with_failing_call(&arguments, fault, &[]);
        gateway.wait_message("cannot keep a copy of the configuration");
        assert_eq!(gateway.client().get("/").status, 204, "{fault}");
        drop(gateway);
        assert_eq!((fs::read(&copy).unwrap(), names(&folder).len()), (b"broken".to_vec(), 1), "{fault}");
        fs::write(&copy, &before).unwrap();
    }
    drop(served);
    let gateway = Gateway::with_source(&arguments, &[]);
    assert_eq!(gateway.client().get("/").status, 204, "from the copy");
    drop(gateway);
    // A process that cannot read it at the start ends, and leaves the file.
    let _ = run(&["check", "--config", &url, "--state-dir", folder.to_str().unwrap()]);
    assert_eq!(fs::read(&copy).unwrap(), before);
}

#[test]
#[ignore = "needs strace"]
fn saved_counters_that_cannot_be_written_leave_those_of_before() {
    let folder = tempfile::tempdir().unwrap();
    let counters = folder.path().join("counters");
    let config = folder.path().join("gateway.toml");
    let store = format!("[store]\nsnapshot = {counters:?}\n");
    let limit = "[limits.l]\nkey = \"global\"\nrates = [\"9/d\"]\n[[routes]]\npath = \"/*\"\nlimits = [\"l\"]\nrespond = { status = 204 }\n";
    let listen = "[server]\nlisten = \"127.0.0.1:0\"\n[admin]\nlisten = \"127.0.0.1:0\"\n";
    fs::write(&config, format!("{listen}{store}{limit}")).unwrap();
    let arguments = ["--config", config.to_str().unwrap()];
    let used = |fault: Option<&str>| {
        let mut gateway = match fault {
            Some(fault) => Gateway::with_failing_call(&arguments, fault, &[]),
            None => Gateway::with_source(&arguments, &[]),
        };
        assert_eq!(gateway.client().get("/").status, 204);
        gateway.signal(Signal::TERM);
        assert!(gateway.wait_exit().success());
        fs::read(&counters).unwrap()
    };
    let first = used(None);
    for fault in ["fsync:error=ENOSPC", "fsync:error=EIO", "rename,renameat,renameat2:error=EIO"] {
        assert_eq!(used(Some(fault)), first, "{fault}");
        assert_eq!(names(folder.path()).len(), 2, "{fault}");
    }
    assert_ne!(used(None), first);
}
