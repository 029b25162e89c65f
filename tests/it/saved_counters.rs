//! Counters in memory outlive the process in a file: a restart gives nobody a second quota.

use std::fs::{self, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::harness::{Client, Gateway, limited, until};

const PATIENCE: Duration = Duration::from_secs(20);

fn saved(file: &Path, rate: &str) -> String {
    format!("[store]\nsnapshot = \"{}\"\n{}", file.display(), limited("client-ip", rate, ""))
}

fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("counters");
    (folder, file)
}

#[track_caller]
fn stop(mut gateway: Gateway) -> String {
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.wait_exit().code(), Some(0));
    gateway.log().join("\n")
}

fn passed(gateway: &Gateway) -> usize {
    let mut client = gateway.client();
    (0..10).filter(|_| client.get("/").status == 200).count()
}

#[test]
fn a_restart_goes_on_with_what_was_counted() {
    let (_folder, file) = folder();
    let gateway = Gateway::start(&saved(&file, "5/d"));
    gateway.wait_message("there are no saved counters: limits begin anew");
    let mut client = gateway.client();
    for _ in 0..3 {
        assert_eq!(client.get("/").status, 200);
    }
    assert!(stop(gateway).contains("counters are saved"));
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600, "it is for its owner alone");
    assert_eq!(fs::read_dir(file.parent().unwrap()).unwrap().count(), 1, "nothing else is left");

    let gateway = Gateway::start(&saved(&file, "5/d"));
    let line = gateway.wait_message("counters are restored");
    assert_eq!((&line["keys"], &line["spent"], &line["unknown"]), (&1.into(), &0.into(), &0.into()), "{line}");
    assert_eq!(passed(&gateway), 2);
    // A changed quota keeps its counts; a limit that counts in another way begins again, and the log says so.
    stop(gateway);
    let gateway = Gateway::start(&saved(&file, "7/d"));
    assert_eq!(passed(&gateway), 2);
    stop(gateway);
    let gateway = Gateway::start(&saved(&file, "7/h"));
    assert_eq!(gateway.wait_message("counters are restored")["unknown"], 1);
    assert_eq!(gateway.wait_message("counters are not restored")["keys"], 1);
    assert_eq!(passed(&gateway), 7);
    stop(gateway);
    let of_bytes = saved(&file, "7MB/h").replace("rates", "cost = { bytes = \"response\" }\nrates");
    assert_eq!(Gateway::start(&of_bytes).wait_message("counters are restored")["unknown"], 1, "it counts bytes");
}

#[test]
fn the_file_may_change_with_a_reload() {
    let (folder, file) = folder();
    let other = folder.path().join("other");
    let gateway = Gateway::start(&saved(&file, "5/d"));
    assert_eq!(passed(&gateway), 5);
    gateway.reload("", &saved(&other, "5/d"));
    gateway.wait_message("reloaded");
    stop(gateway);
    assert!(!file.exists() && other.exists());
    assert_eq!(passed(&Gateway::start(&saved(&other, "5/d"))), 0);
}

#[test]
fn what_was_counted_before_a_crash_is_that_of_the_last_end() {
    let (_folder, file) = folder();
    let gateway = Gateway::start(&saved(&file, "12/d"));
    assert_eq!(passed(&gateway), 10);
    stop(gateway);
    let mut gateway = Gateway::start(&saved(&file, "12/d"));
    assert_eq!(passed(&gateway), 2);
    gateway.signal(Signal::KILL);
    gateway.wait_exit();
    assert_eq!(passed(&Gateway::start(&saved(&file, "12/d"))), 2);
}

#[test]
fn a_file_that_cannot_be_used_is_reported_and_replaced() {
    let (_folder, file) = folder();
    let gateway = Gateway::start(&saved(&file, "5/d"));
    assert_eq!(passed(&gateway), 5);
    stop(gateway);
    let good = fs::read(&file).unwrap();
    let mut flipped = good.clone();
    flipped[good.len() / 2] ^= 1;
    let version = [b"gateway counters, version 999\n", &good[..]].concat();
    let broken: [(&[u8], &str); 4] = [
        (b"", "no counters"),
        (&good[..good.len() - 1], "checksum"),
        (&flipped, "checksum"),
        (&version, "another version"),
    ];
    for (bytes, why) in broken {
        fs::write(&file, bytes).unwrap();
        let gateway = Gateway::start(&saved(&file, "5/d"));
        let line = gateway.wait_message("saved counters cannot be used: limits begin anew");
        assert!(line["error"].as_str().unwrap().contains(why), "{line}");
        assert_eq!((&line["level"], passed(&gateway)), (&"ERROR".into(), 5));
        stop(gateway);
        assert_eq!(passed(&Gateway::start(&saved(&file, "5/d"))), 0, "the next one has what was counted since");
    }
}

#[test]
fn a_path_that_cannot_be_used_stops_nobody() {
    let (folder, _) = folder();
    let pipe = folder.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).unwrap();
    let nowhere = folder.path().join("nowhere").join("counters");
    let unread = "saved counters cannot be read: limits begin anew";
    let unwritten = "counters cannot be saved at the end";
    for (path, at_start) in [(&*pipe, unread), (folder.path(), unread), (&*nowhere, unwritten)] {
        let gateway = Gateway::start(&saved(path, "5/d"));
        gateway.wait_message(at_start);
        assert_eq!(passed(&gateway), 5);
        let log = stop(gateway);
        assert!(log.contains("counters cannot be saved: the next start reads those saved before, if any"), "{log}");
        assert!(!path.is_file(), "nothing else is replaced");
    }
}

#[test]
fn a_file_that_can_be_read_again_is_added_to() {
    let (folder, file) = folder();
    let text = format!("[store]\nsnapshot = \"{}\"\n{}", file.display(), limited("header:x-api-key", "5/d", ""));
    let passed = |gateway: &Gateway, key: &str| {
        let mut client = gateway.client();
        (0..10).filter(|_| client.get_with("/", format!("X-Api-Key: {key}\r\n")).status == 200).count()
    };
    let gateway = Gateway::start(&text);
    assert_eq!(["old", "both"].map(|key| passed(&gateway, key)), [5; 2]);
    stop(gateway);
    // Something blocks the file at the start, but not at the end.
    let aside = folder.path().join("aside");
    fs::rename(&file, &aside).unwrap();
    fs::create_dir(&file).unwrap();
    let gateway = Gateway::start(&text);
    gateway.wait_message("saved counters cannot be read: limits begin anew");
    assert_eq!(gateway.metric("gateway_store_snapshot_unread"), Some(1.0));
    assert_eq!(["both", "new"].map(|key| passed(&gateway, key)), [5; 2]);
    fs::remove_dir(&file).unwrap();
    fs::rename(&aside, &file).unwrap();
    let log = stop(gateway);
    assert!(log.contains("saved counters can be read again, and are added"), "{log}");
    let gateway = Gateway::start(&text);
    assert_eq!(gateway.wait_message("counters are restored")["keys"], 3);
    assert_eq!(["old", "both", "new"].map(|key| passed(&gateway, key)), [0; 3]);
    assert_eq!(gateway.metric("gateway_store_snapshot_unread"), Some(0.0));
}

#[test]
fn a_file_with_something_else_is_not_replaced() {
    let (_folder, file) = folder();
    fs::write(&file, "a private key").unwrap();
    let gateway = Gateway::start(&saved(&file, "5/d"));
    gateway.wait_message("counters cannot be saved at the end");
    gateway.wait_message("saved counters cannot be used: limits begin anew");
    assert_eq!(passed(&gateway), 5);
    assert!(stop(gateway).contains("which is not replaced"));
    assert_eq!(fs::read(&file).unwrap(), b"a private key");
}

#[test]
fn a_full_disk_leaves_the_file_of_before() {
    let (folder, file) = folder();
    let gateway = Gateway::start(&saved(&file, "11/d"));
    assert_eq!(passed(&gateway), 10);
    stop(gateway);
    let before = fs::read(&file).unwrap();
    let gateway = Gateway::with_full_disk(&saved(&file, "11/d"));
    assert_eq!(passed(&gateway), 1);
    let log = stop(gateway);
    assert!(log.contains("counters cannot be saved: the next start reads those saved before, if any"), "{log}");
    assert_eq!(fs::read(&file).unwrap(), before);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left");
}

#[test]
fn restarts_under_load_admit_no_more_than_the_limit() {
    let (_folder, file) = folder();
    fs::set_permissions(file.parent().unwrap(), Permissions::from_mode(0o700)).unwrap();
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let rest = saved(&file, "500/d");
    let mut running = Gateway::with_socket(&socket, Path::new(""), &rest);
    let (done, admitted, refused) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !done.load(Ordering::SeqCst) {
                    let begun = Instant::now();
                    let mut client = Client::connect(address);
                    let sent = client.wire.write(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
                    let is_late = begun.elapsed() > Duration::from_millis(500);
                    match sent.and_then(|()| client.try_response(false)).map(|response| response.status) {
                        Ok(200) => _ = admitted.fetch_add(1, Ordering::SeqCst),
                        Ok(429) => _ = refused.fetch_add(1, Ordering::SeqCst),
                        // A gateway that stops waits only for a while for a request on a connection.
                        Err(_) if is_late => {}
                        other => panic!("{other:?}"),
                    }
                }
            });
        }
        let asked = || admitted.load(Ordering::SeqCst) + refused.load(Ordering::SeqCst);
        while refused.load(Ordering::SeqCst) < 200 {
            let before = asked();
            until("requests go on", PATIENCE, || asked() > before + 120);
            running.signal(Signal::TERM);
            assert_eq!(running.wait_exit().code(), Some(0));
            running = Gateway::with_socket(&socket, Path::new(""), &rest);
        }
        done.store(true, Ordering::SeqCst);
    });
    assert_eq!(admitted.into_inner(), 500);
}
