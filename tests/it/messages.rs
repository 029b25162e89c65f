//! What the command line understands, and says when it does not.

use std::path::PathBuf;

use tempfile::TempDir;

use crate::harness::run;

const FIXED: &str = "[[routes]]\nhost = \"example.com\"\npath = \"/v1\"\nrespond = { status = 200 }\n";

fn file(text: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("edge.toml");
    std::fs::write(&path, text).unwrap();
    (folder, path)
}

/// The exit code, standard output and standard error.
fn said(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = run(arguments);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn the_file_is_named_in_short_too() {
    let (_folder, path) = file(FIXED);
    let path = path.to_str().unwrap();
    for arguments in [&["check", path][..], &["check", "-c", path], &["-c", path, "check"]] {
        let (code, out, err) = said(arguments);
        assert!(code == Some(0) && out.contains("example.com/v1"), "{arguments:?}: {out}{err}");
    }
    for arguments in [&["check", "-c", path, path][..], &["-c", path, "check", path]] {
        let (code, _, err) = said(arguments);
        assert!(code == Some(2) && err.contains("name one"), "{arguments:?}: {err}");
    }
}

#[test]
fn the_url_of_a_question_needs_no_scheme() {
    let (_folder, path) = file(FIXED);
    let path = path.to_str().unwrap();
    for url in [
        "example.com/v1",
        "example.com:8080/v1?x=1",
        "http://example.com/v1",
        "example.com/v1?u=http://x/",
        "EXAMPLE.com/v1",
    ] {
        let (code, out, err) = said(&["explain", "-c", path, url]);
        assert!(code == Some(0) && out.contains("route example.com/v1"), "{url}: {out}{err}");
    }
    let (_, out, _) = said(&["explain", "-c", path, "-H", "Host: example.com", "/v1"]);
    assert!(out.contains("route example.com/v1"), "{out}");
    let (code, _, err) = said(&["explain", "-c", path, "?x=1"]);
    assert!(code == Some(2) && err.contains("write it like http://host/path, host/path or /path"), "{err}");
}
