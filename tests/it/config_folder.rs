//! `--config FOLDER`: the `*.toml` of a folder form one configuration, and problems name their files.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::harness::{Client, Gateway, reserved_port, run, until};

const SERVER: &str = "[server]\nlisten = \"127.0.0.1:0\"\n[admin]\nlisten = \"127.0.0.1:0\"\n";
const LIMIT: &str = "[limits.l]\nkey = \"client-ip\"\nrates = [\"1/d\"]\n";

fn route(path: &str, answer: &str) -> String {
    format!("[[routes]]\npath = \"{path}\"\nlimits = [\"l\"]\nrespond = {{ status = 200, body = \"{answer}\" }}\n")
}

fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    files.iter().for_each(|(name, text)| write(folder.path(), name, text));
    folder
}

/// Replaces a file atomically, because a reload may be reading the folder.
fn write(folder: &Path, name: &str, text: &str) {
    let beside = folder.join(format!(".{name}.new"));
    fs::write(&beside, text).unwrap();
    fs::rename(beside, folder.join(name)).unwrap();
}

fn start(folder: &Path, more: &[&str]) -> Gateway {
    let arguments = [&["--config", folder.to_str().unwrap()], more].concat();
    Gateway::with_source(&arguments, &[])
}

fn wait_reloads(gateway: &Gateway, count: usize) {
    until(&format!("reload {count}"), Duration::from_secs(20), || gateway.reloads() >= count);
}

fn rate(gateway: &Gateway) -> String {
    gateway.admin("/api/limits").json()["limits"][0]["rates"][0].as_str().unwrap().to_owned()
}

fn reload(gateway: &Gateway) -> (u16, serde_json::Value) {
    let host = gateway.admin;
    let response = Client::connect(host).call(format!(
        "POST /api/reload HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: 0\r\n\r\n"
    ));
    (response.status, response.json())
}

#[test]
fn the_files_of_a_folder_are_one_configuration() {
    let folder = folder(&[
        ("00-server.toml", SERVER),
        ("10-limits.toml", LIMIT),
        ("20-a.toml", &route("/a", "a")),
        ("21-b.toml", &route("/b", "b")),
        (".hidden.toml", "this is no toml"),
        ("notes.txt", "this is no toml"),
    ]);
    fs::create_dir(folder.path().join("not-read.toml")).unwrap();
    let gateway = start(folder.path(), &[]);
    let mut client = gateway.client();
    assert_eq!([client.get("/a").text(), client.get("/b").status.to_string().as_str()], ["a", "429"]);

    write(folder.path(), "21-b.toml", &route("/b", "b").replace("\"l\"", "\"other\""));
    write(folder.path(), "22-c.toml", "[limits.l]\nkey = \"global\"\n");
    let (status, body) = reload(&gateway);
    assert_eq!(status, 422);
    let place = |name: &str, place: &str| format!("{}:{place}", folder.path().join(name).display());
    let problems = body["problems"].as_array().unwrap();
    let places: Vec<_> = problems.iter().map(|problem| problem["place"].as_str().unwrap()).collect();
    assert_eq!(places, [place("21-b.toml", "3:11"), place("22-c.toml", "1:9")]);
    assert_eq!(problems[0]["message"], "there is no limit `other`");
    let twice = format!("[limits.l] is defined twice: first at {}", place("10-limits.toml", "1:9"));
    assert_eq!(problems[1]["message"], twice.as_str());
    let refused = gateway.wait_message("reload refused");
    assert!(refused["problems"].as_str().unwrap().contains(&place("21-b.toml", "3:11")), "{refused}");
    assert_eq!(gateway.metric("gateway_config_last_reload_successful"), Some(0.0));

    fs::remove_file(folder.path().join("22-c.toml")).unwrap();
    write(folder.path(), "21-b.toml", &route("/b", "new"));
    gateway.signal(Signal::HUP);
    wait_reloads(&gateway, 1);
    assert_eq!(gateway.client().get("/a").status, 429, "a reload of a folder keeps what was counted");
}

#[test]
fn relative_paths_begin_at_the_folder() {
    let keys = format!("{LIMIT}known_keys = \"keys.txt\"\n").replace("client-ip", "header:x-key");
    let folder = folder(&[("a.toml", SERVER), ("b.toml", &keys), ("c.toml", &route("/*", "")), ("keys.txt", "k\n")]);
    let gateway = start(folder.path(), &[]);
    assert_eq!(gateway.client().get_with("/", "X-Key: k\r\n").status, 200);
    fs::remove_file(folder.path().join("keys.txt")).unwrap();
    let (_, body) = reload(&gateway);
    let place = format!("{}:4:14", folder.path().join("b.toml").display());
    assert_eq!(body["problems"][0]["place"], place.as_str(), "{body}");
}

#[test]
fn a_folder_is_watched_whatever_happens_in_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    // As Kubernetes mounts files.
    for (generation, rate) in [("..1", "1/d"), ("..2", "2/d")] {
        fs::create_dir(path(generation)).unwrap();
        fs::write(path(generation).join("limits.toml"), LIMIT.replace("1/d", rate)).unwrap();
        fs::write(path(generation).join("server.toml"), format!("{SERVER}{}", route("/*", "first"))).unwrap();
    }
    symlink("..1", path("..data")).unwrap();
    for name in ["limits.toml", "server.toml"] {
        symlink(Path::new("..data").join(name), path(name)).unwrap();
    }
    let gateway = start(folder.path(), &["--watch"]);
    assert_eq!(rate(&gateway), "1/d");
    symlink("..2", path("..next")).unwrap();
    fs::rename(path("..next"), path("..data")).unwrap();
    wait_reloads(&gateway, 1);
    assert_eq!(rate(&gateway), "2/d");

    let answer = |at: &str| gateway.client().get(at).status;
    assert_eq!(answer("/new"), 200);
    write(folder.path(), "more.toml", "[[routes]]\npath = \"/new\"\nrespond = { status = 201 }\n");
    wait_reloads(&gateway, 2);
    assert_eq!(answer("/new"), 201);
    // In place, and without an empty file in between, whose reading would be a reload of its own.
    let mut file = fs::OpenOptions::new().write(true).open(path("more.toml")).unwrap();
    file.write_all(b"[[routes]]\npath = \"/new\"\nrespond = { status = 202 }\n").unwrap();
    wait_reloads(&gateway, 3);
    assert_eq!(answer("/new"), 202);
    fs::rename(path("more.toml"), path("other.toml")).unwrap();
    wait_reloads(&gateway, 4);
    assert_eq!(answer("/new"), 202);
    fs::remove_file(path("other.toml")).unwrap();
    wait_reloads(&gateway, 5);
    assert_eq!(answer("/new"), 200);

    // A file that is wrong at first, and right later.
    write(folder.path(), "late.toml", "[[routes]]\n");
    gateway.wait_message("reload refused");
    write(folder.path(), "late.toml", "[[routes]]\npath = \"/new\"\nrespond = { status = 203 }\n");
    wait_reloads(&gateway, 6);
    assert_eq!(answer("/new"), 203);
    write(folder.path(), "notes.txt", "");
    fs::write(path(".late.toml.swp"), "").unwrap();
    // Far longer than the watch needs.
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(gateway.reloads(), 6, "files that do not count are no reason to read the others");
}

#[test]
fn the_commands_take_folders_and_explain_what_is_wrong() {
    let whole = folder(&[("a.toml", SERVER), ("b.toml", LIMIT), ("c.toml", &route("/*", ""))]);
    let path = whole.path().to_str().unwrap();
    let log = whole.path().join("access.log");
    fs::write(&log, "192.0.2.1 - - [01/Jul/2026:10:00:00 +0000] \"GET / HTTP/1.1\" 200 1\n").unwrap();
    for arguments in [
        &["check", path][..],
        &["check", "--json", "--config", path],
        &["check", path, "--against", path],
        &["explain", "--config", path, "http://a.test/"],
        &["simulate", "--config", path, log.to_str().unwrap()],
    ] {
        let output = run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(!output.stdout.is_empty());
    }
    let said = |folder: &Path| {
        let output = run(&["check", folder.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(said(folder(&[]).path()).contains("the folder has no file whose name ends with .toml"));
    let broken = folder(&[("a.toml", "")]);
    symlink("nowhere", broken.path().join("b.toml")).unwrap();
    let text = said(broken.path());
    assert!(text.contains("b.toml\n") && text.contains("a symbolic link that leads nowhere"), "{text}");
    let pipe = folder(&[("a.toml", "")]);
    let made = std::process::Command::new("mkfifo").arg(pipe.path().join("p.toml")).status().unwrap();
    assert!(made.success() && said(pipe.path()).contains("it is a named pipe, not a file"));
}

#[test]
fn a_probe_finds_the_admin_listener_of_a_folder() {
    // The listener must be at a port that the file names.
    let (_held, address) = reserved_port();
    let server = SERVER.replace("[admin]\nlisten = \"127.0.0.1:0\"", &format!("[admin]\nlisten = \"{address}\""));
    let folder = folder(&[("a.toml", &server), ("b.toml", LIMIT), ("c.toml", &route("/*", ""))]);
    let path = folder.path().to_str().unwrap();
    assert_eq!(run(&["check", "--live", "--config", path]).status.code(), Some(1));
    let _gateway = start(folder.path(), &[]);
    assert_eq!(run(&["check", "--live", "--config", path]).status.code(), Some(0));
    // Another file became wrong meanwhile.
    write(folder.path(), "c.toml", "this is no toml");
    assert_eq!(run(&["check", "--live", "--config", path]).status.code(), Some(0));
}
