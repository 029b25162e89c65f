//! Signals that come while the configuration is read.

use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::Duration;

use rustix::process::Signal;

use crate::harness::{Process, Upstream, signal, until};

#[test]
fn signals_that_come_while_the_configuration_is_read_do_not_end_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("admin.sock");
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nworkers = 1\n[admin]\nlisten = \"unix:{}\"\n\
         [[routes]]\npath = \"/*\"\nrespond = {{ status = 200 }}\n",
        socket.display()
    );
    let ((asked, was_asked), (go, told)) = (channel(), channel::<()>());
    let (asked, told) = (Mutex::new(asked), Mutex::new(told));
    // The first answer waits until the test has sent the signals.
    let server = Upstream::start(move |_| {
        let _ = asked.lock().unwrap().send(());
        let _ = told.lock().unwrap().recv_timeout(Duration::from_secs(9));
        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{text}", text.len()).into_bytes()
    });
    let mut command = Command::new(env!("CARGO_BIN_EXE_gateway"));
    command
        .args(["--config", &format!("http://{}/", server.address()), "--state-dir"])
        .arg(folder.path().join("state"));
    let mut gateway = Process(command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    was_asked.recv_timeout(Duration::from_secs(60)).unwrap();
    for sent in [Signal::HUP, Signal::USR1, Signal::USR2] {
        signal(&gateway, sent);
    }
    drop(go);
    until("the gateway has started", Duration::from_secs(60), || {
        assert_eq!(gateway.try_wait().unwrap(), None, "a signal has ended it");
        UnixStream::connect(&socket).is_ok()
    });
}
