//! With `--watch` the gateway reads its files again when they change, however they are replaced.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use crate::harness::{Gateway, limited, until};

fn wait_reloads(gateway: &Gateway, count: usize) {
    until(&format!("reload {count}"), Duration::from_secs(20), || gateway.reloads() >= count);
}

/// Writes a file that others see only as a whole.
fn write_whole(path: &Path, text: &str) {
    let beside = path.with_extension("new");
    fs::write(&beside, text).unwrap();
    fs::rename(beside, path).unwrap();
}

fn rates(gateway: &Gateway) -> String {
    gateway.admin("/api/limits").json()["limits"][0]["rates"][0].as_str().unwrap().to_owned()
}

#[test]
fn a_file_is_read_again_when_it_changes_in_any_way() {
    let gateway = Gateway::with_arguments(&["--watch"], &limited("client-ip", "1/d", ""));
    let path = gateway.config_path().to_owned();
    let folder = path.parent().unwrap();
    assert_eq!(rates(&gateway), "1/d");

    // In place.
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("1/d", "2/d")).unwrap();
    wait_reloads(&gateway, 1);
    assert_eq!(rates(&gateway), "2/d");

    // Another file takes its name.
    gateway.write_config(&limited("client-ip", "3/d", ""));
    wait_reloads(&gateway, 2);
    assert_eq!(rates(&gateway), "3/d");

    // As Kubernetes does: the file is a link into a folder, which is a link that is replaced.
    for (generation, rate) in [("..1", "4/d"), ("..2", "5/d")] {
        fs::create_dir(folder.join(generation)).unwrap();
        fs::write(folder.join(generation).join("gateway.toml"), text.replace("1/d", rate)).unwrap();
    }
    symlink("..1", folder.join("..data")).unwrap();
    symlink("..data/gateway.toml", folder.join("link")).unwrap();
    fs::rename(folder.join("link"), &path).unwrap();
    wait_reloads(&gateway, 3);
    assert_eq!(rates(&gateway), "4/d");
    symlink("..2", folder.join("..next")).unwrap();
    fs::rename(folder.join("..next"), folder.join("..data")).unwrap();
    wait_reloads(&gateway, 4);
    assert_eq!(rates(&gateway), "5/d");

    // An invalid file changes nothing, and the next one is read.
    fs::write(&path, "this is no toml").unwrap();
    gateway.wait_message("reload refused");
    assert_eq!(rates(&gateway), "5/d");
    fs::write(&path, text.replace("1/d", "6/d")).unwrap();
    wait_reloads(&gateway, 5);
    assert_eq!(rates(&gateway), "6/d");
}

#[test]
fn files_that_the_configuration_names_are_watched_too_and_others_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let known = folder.path().join("keys.txt");
    fs::write(&known, "a\n").unwrap();
    let keys = format!("known_keys = {:?}\nmissing = \"reject\"", known.to_str().unwrap());
    let gateway = Gateway::with_arguments(&["--watch"], &limited("header:x-key", "100/d", &keys));
    let status = |key: &str| gateway.client().get_with("/", format!("X-Key: {key}\r\n")).status;
    assert_eq!([status("a"), status("b")], [200, 400]);
    fs::write(folder.path().join("other"), "").unwrap();
    write_whole(&known, "a\nb\n");
    wait_reloads(&gateway, 1);
    assert_eq!([status("a"), status("b")], [200, 200]);
    fs::write(folder.path().join("other"), "again").unwrap();
    write_whole(&known, "b\n");
    wait_reloads(&gateway, 2);
    assert_eq!([status("a"), status("b")], [400, 200]);
    assert_eq!(gateway.reloads(), 2, "another file is no reason to read these");
}

#[test]
fn files_that_only_a_refused_configuration_names_are_watched_too() {
    for place in ["keys.txt", "not/there/yet/keys.txt"] {
        let folder = tempfile::tempdir().unwrap();
        let known = folder.path().join(place);
        let keys = format!("known_keys = {:?}\nmissing = \"reject\"", known.to_str().unwrap());
        let gateway = Gateway::with_arguments(&["--watch"], &limited("client-ip", "1/d", ""));
        gateway.write_config(&limited("header:x-key", "100/d", &keys));
        gateway.wait_message("reload refused");
        fs::create_dir_all(known.parent().unwrap()).unwrap();
        write_whole(&known, "a\n");
        wait_reloads(&gateway, 1);
        let status = |key: &str| gateway.client().get_with("/", format!("X-Key: {key}\r\n")).status;
        assert_eq!([status("a"), status("b")], [200, 400], "{place}");
    }
}

#[test]
fn without_it_a_change_waits_for_a_signal() {
    let gateway = Gateway::start(&limited("client-ip", "1/d", ""));
    gateway.write_config(&limited("client-ip", "2/d", ""));
    // Far longer than the watch needs.
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!((gateway.reloads(), rates(&gateway)), (0, "1/d".to_owned()));
}
