//! A configuration that can be read only once, and variables in it.

use std::io::Write;
use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::harness::Gateway;

const TEXT: &str = "[server]\nlisten = \"127.0.0.1:0\"\nworkers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n\
                    [[routes]]\npath = \"/*\"\nrespond = { status = 200, body = \"${BODY:-hello}$${BODY}\" }\n";

#[test]
fn a_pipe_is_read_once_and_a_reload_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    // Opening waits until the gateway reads.
    let writer = {
        let pipe = pipe.clone();
        std::thread::spawn(move || std::fs::write(pipe, TEXT))
    };
    let gateway = Gateway::with_source(&["--config", pipe.to_str().unwrap()], &[("BODY", "from the environment")]);
    writer.join().unwrap().unwrap();
    assert_eq!(gateway.client().get("/").text(), "from the environment${BODY}");
    gateway.signal(Signal::HUP);
    let refused = gateway.wait_message("reload refused");
    assert!(refused["problems"].as_str().unwrap().contains("which can be read once only"), "{refused}");
    assert_eq!(gateway.client().get("/").status, 200);
}

fn check(arguments: &[&str], text: &str, variables: &[(&str, &str)]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gateway"));
    command.arg("check").args(arguments).envs(variables.iter().copied());
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A refusal before the text is read closes the pipe.
    let _ = child.stdin.take().unwrap().write_all(text.as_bytes());
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
}

#[test]
fn standard_input_is_read() {
    for name in ["-", "/dev/stdin"] {
        let (code, said) = check(&["--config", name], TEXT, &[]);
        assert_eq!(code, Some(0), "{name}: {said}");
        let (code, said) = check(&["--config", name], "[server", &[]);
        assert_eq!(code, Some(2), "{name}: {said}");
    }
    let (code, said) = check(&["--config", "-", "--json"], TEXT, &[]);
    assert!(code == Some(0) && said.contains("\"hello${BODY}\""), "{said}");
    let mut watching = Command::new(env!("CARGO_BIN_EXE_gateway"));
    let output = watching.args(["--config", "-", "--watch"]).stdin(Stdio::null()).output().unwrap();
    assert!(String::from_utf8(output.stderr).unwrap().contains("--watch is for files"));
}

#[test]
fn variables_are_shown_as_they_came_out_and_secrets_are_masked() {
    let text = "[upstreams.api]\nservers = [\"http://${HOST}:${PORT:-9000}\"]\n\
                [admin]\nlisten = \"127.0.0.1:9901\"\ntoken = \"${TOKEN}\"\n\
                [[routes]]\npath = \"/*\"\nupstream = \"api\"\n";
    let (code, said) = check(&["--config", "-"], text, &[("HOST", "a.internal"), ("TOKEN", "not-to-be-seen")]);
    assert!(code == Some(0) && said.contains("http://a.internal:9000"), "{said}");
    assert!(!said.contains("not-to-be-seen"), "{said}");
    let (code, said) = check(&["--config", "-"], text, &[("TOKEN", "x")]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("there is no environment variable \"HOST\"") && said.contains("standard input:2:"), "{said}");
    // A value stays one value, whatever it looks like.
    let (code, said) = check(&["--config", "-"], text, &[("HOST", "a\"]\n[x"), ("TOKEN", "x")]);
    assert_eq!(code, Some(2), "{said}");
    assert!(!said.contains("unknown key"), "{said}");
}
