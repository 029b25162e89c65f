//! The contents of packages: the programs that read them (installed by `scripts/test --all`) accept the units of systemd,
//! completions, manual and Dockerfile, and these agree with each other.

#[path = "../../scripts/packaging/pages.rs"]
mod pages;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::harness::{Gateway, run, run_json, until};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn packaging(file: &str) -> PathBuf {
    root().join("scripts/packaging").join(file)
}

fn written_pages() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    pages::write(folder.path()).unwrap();
    folder
}

/// Whether a program succeeded, and its outputs.
#[track_caller]
fn ask(command: &mut Command) -> (bool, String, String) {
    let output =
        command.output().unwrap_or_else(|error| panic!("{command:?}: {error}: scripts/test --all installs it"));
    let [out, err] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    (output.status.success(), out, err)
}

fn values<'a>(unit: &'a str, name: &str) -> Vec<&'a str> {
    unit.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('=')).collect()
}

/// The files of the Debian package: source, target and mode.
fn assets() -> Vec<[String; 3]> {
    let manifest: toml::Table = fs::read_to_string(root().join("Cargo.toml")).unwrap().parse().unwrap();
    manifest["package"]["metadata"]["deb"]["assets"].clone().try_into().unwrap()
}

#[test]
#[ignore = "needs systemd-analyze"]
#[cfg(target_os = "linux")]
fn systemd_accepts_the_units_and_finds_little_exposed() {
    let folder = tempfile::tempdir().unwrap();
    let copies = ["gateway.service", "gateway.socket"].map(|name| {
        let text = fs::read_to_string(packaging("systemd").join(name)).unwrap();
        let copy = folder.path().join(name);
        fs::write(&copy, text.replace("/usr/bin/gateway", env!("CARGO_BIN_EXE_gateway"))).unwrap();
        copy
    });
    let verify = |files: &[PathBuf]| ask(Command::new("systemd-analyze").args(["verify", "--man=no"]).args(files));
    let (accepted, _, said) = verify(&copies);
    assert!(accepted && said.is_empty(), "{said}");
    // The highest accepted exposure, of 100.
    let security = ["security", "--offline=true", "--no-pager", "--threshold=20"];
    let (accepted, out, err) = ask(Command::new("systemd-analyze").args(security).arg(&copies[0]));
    assert!(accepted, "{out}{err}");

    let broken = fs::read_to_string(&copies[0]).unwrap().replace("ProtectHome=", "ProtectHouse=");
    fs::write(&copies[0], broken).unwrap();
    assert!(verify(&copies).2.contains("ProtectHouse"));
}

#[test]
fn the_units_agree_with_the_packaged_configuration() {
    let service = fs::read_to_string(packaging("systemd/gateway.service")).unwrap();
    let socket = fs::read_to_string(packaging("systemd/gateway.socket")).unwrap();
    let users = fs::read_to_string(packaging("systemd/gateway.sysusers")).unwrap();
    let path = "/etc/gateway/gateway.toml";
    assert_eq!(values(&service, "ExecStart"), [format!("/usr/bin/gateway --config {path}")]);
    let reload = format!("/bin/sh -c '/usr/bin/gateway check --config {path} >/dev/null && kill -HUP $MAINPID'");
    assert_eq!(values(&service, "ExecReload"), [reload]);
    let packaged = assets().into_iter().find(|[_, to, _]| *to == path[1..]).unwrap();
    assert!(users.lines().any(|line| line.starts_with(&format!("u {} ", values(&service, "User")[0]))));

    let settings = run_json(&["check", "--json", root().join(&packaged[0]).to_str().unwrap()]);
    let server = &settings["server"];
    let listen = server["listen"].to_string();
    for address in values(&socket, "ListenStream") {
        assert!(listen.contains(&format!("\"{address}\"")), "{address} is not in {listen}");
    }
    // systemd kills only after the longest drain and the last writes.
    let drain = ["drain_delay", "drain_timeout"].map(|name| {
        let text = server[name].as_str().unwrap();
        text.strip_suffix('s').unwrap().parse::<f64>().unwrap()
    });
    let stop: f64 = values(&service, "TimeoutStopSec")[0].parse().unwrap();
    assert!(drain.iter().sum::<f64>() + 25.0 < stop, "{drain:?} and {stop}");
}

#[test]
fn everything_in_the_debian_package_is_there() {
    let (assets, pages) = (assets(), written_pages());
    assert!(assets.len() > 5);
    for [source, to, mode] in assets {
        let path = match source.strip_prefix("target/package/") {
            Some(page) => pages.path().join(page),
            None => root().join(&source),
        };
        let ending = path.to_str().unwrap().split_once('*').map(|(_, ending)| ending.to_owned());
        let is_there = match ending {
            Some(ending) => fs::read_dir(path.parent().unwrap())
                .unwrap()
                .any(|entry| entry.unwrap().file_name().to_str().unwrap().ends_with(&ending)),
            None => source == "target/release/gateway" || path.is_file(),
        };
        assert!(is_there, "{source} is not there");
        assert_eq!(mode, if to == "usr/bin/" { "755" } else { "644" }, "{source}");
    }
}

#[test]
fn the_health_check_of_the_image_finds_the_gateway() {
    let dockerfile = fs::read_to_string(packaging("Dockerfile")).unwrap();
    let (_, check) = dockerfile.split_once("HEALTHCHECK").unwrap();
    let (_, command) = check.split_once("CMD ").unwrap();
    let command: Vec<String> = serde_json::from_str(command.lines().next().unwrap()).unwrap();
    assert_eq!(command[0], "/gateway");
    let gateway = Gateway::start("[[routes]]\npath = \"/*\"\nrespond = { status = 200 }\n");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gateway.toml");
    fs::write(&path, format!("[admin]\nlisten = \"{}\"\n", gateway.admin)).unwrap();
    let arguments = command[1..].iter().map(|argument| match argument.as_str() {
        "/etc/gateway/gateway.toml" => path.to_str().unwrap(),
        other => other,
    });
    let arguments: Vec<_> = arguments.collect();
    // A check waits for 2 s, and the machine may stand still for longer.
    until("the check finds the gateway", Duration::from_secs(20), || run(&arguments).status.success());
}

#[test]
fn the_changelog_names_this_version() {
    let changelog = fs::read_to_string(packaging("changelog")).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    assert!(changelog.starts_with(&format!("gateway ({version}-1) ")), "the first entry is not of {version}");
    let manifests = fs::read_to_string(packaging("kubernetes/gateway.yaml")).unwrap();
    assert!(manifests.contains(&format!("image: gateway:{version}\n")), "the image is not of {version}");
    let page = fs::read_to_string(root().join("docs/installing.md")).unwrap();
    assert!(page.contains(&format!("gateway:{version}")) && page.contains(&format!("gateway-{version}-")));
}

fn commands() -> BTreeSet<String> {
    let output = run(&["--help"]);
    let help = String::from_utf8(output.stdout).unwrap();
    let list = help.split_once("Commands:\n").unwrap().1.split_once("\n\n").unwrap().0;
    let names = list.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    names.filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[test]
#[ignore = "needs fish and zsh"]
fn bash_and_fish_complete_commands_and_options() {
    let (home, pages) = (tempfile::tempdir().unwrap(), written_pages());
    let completions = |name: &str| pages.path().join("completions").join(name);
    let complete = |shell: &str, words: &str| -> BTreeSet<String> {
        let mut command = Command::new(shell);
        match shell {
            "bash" => {
                let script = r#"source "$0"; COMP_WORDS=(gateway $1 "$2"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
                    _gateway gateway "$2" "${COMP_WORDS[COMP_CWORD - 1]}"; printf '%s\n' "${COMPREPLY[@]}""#;
                let (before, last) = words.rsplit_once(' ').unwrap_or(("", words));
                command.args(["--norc", "-c", script]).arg(completions("gateway.bash")).args([before, last]);
            }
            _ => {
                let script = format!("source $argv; complete -C 'gateway {words}'");
                command.args(["--no-config", "-c", &script]).arg(completions("gateway.fish"));
            }
        }
        let (succeeded, out, err) = ask(command.env("HOME", home.path()));
        assert!(succeeded && err.is_empty(), "{shell}: {err}");
        out.lines().filter_map(|line| line.split('\t').next()).map(str::to_owned).collect()
    };
    let commands = commands();
    assert!(commands.contains("check"));
    for shell in ["bash", "fish"] {
        let all = complete(shell, "");
        assert!(commands.is_subset(&all), "{shell}: {all:?}");
        assert_eq!(complete(shell, "che"), BTreeSet::from(["check".to_owned()]), "{shell}");
        let options = complete(shell, "check --");
        assert!(["--json", "--against"].iter().all(|option| options.contains(*option)), "{shell}: {options:?}");
        assert!(!options.contains("--html"), "{shell}: {options:?}");
    }
    let (accepted, _, said) = ask(Command::new("zsh").arg("-n").arg(completions("_gateway")));
    assert!(accepted && said.is_empty(), "zsh: {said}");
}

#[test]
#[ignore = "needs groff"]
fn the_manual_is_formatted_without_warnings() {
    let (folder, mut pages) = (written_pages(), BTreeSet::new());
    for entry in fs::read_dir(folder.path().join("man")).unwrap() {
        let path = entry.unwrap().path();
        let mut groff = Command::new("groff");
        let (accepted, text, said) = ask(groff.args(["-man", "-ww", "-Tascii", "-P-cbou"]).arg(&path));
        assert!(accepted && said.is_empty(), "{}: {said}", path.display());
        assert!(text.contains("SYNOPSIS") && text.contains("User Commands"), "{text}");
        pages.insert(path.file_name().unwrap().to_str().unwrap().to_owned());
    }
    let expected = commands().into_iter().filter(|name| name != "help").map(|name| format!("gateway-{name}.1"));
    assert_eq!(pages, expected.chain(["gateway.1".to_owned()]).collect());
}

#[test]
#[ignore = "needs hadolint"]
fn the_dockerfile_has_no_findings() {
    let lint = |file: &Path| ask(Command::new(root().join("target/hadolint/bin/hadolint")).arg(file));
    let (accepted, found, said) = lint(&packaging("Dockerfile"));
    assert!(accepted, "{found}{said}");
    let folder = tempfile::tempdir().unwrap();
    let broken = folder.path().join("Dockerfile");
    fs::write(&broken, fs::read_to_string(packaging("Dockerfile")).unwrap().replace("WORKDIR /src", "WORKDIR src"))
        .unwrap();
    assert!(lint(&broken).1.contains("DL3000"));
}

/// The build gets only some files of the project. Without .cargo it would succeed, but build jemalloc in another way.
#[test]
fn the_image_is_built_from_all_that_it_needs() {
    let ignored = fs::read_to_string(packaging("Dockerfile.dockerignore")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    for name in ignored.lines().filter_map(|line| line.strip_prefix('!')) {
        let (copied, _, said) = ask(Command::new("cp").arg("-r").arg(root().join(name)).arg(folder.path()));
        assert!(copied, "{said}");
    }
    assert!(folder.path().join(".cargo/config.toml").is_file());
    let mut cargo = Command::new(env!("CARGO"));
    let arguments = ["metadata", "--locked", "--offline", "--no-deps", "--format-version=1"];
    let (read, _, said) = ask(cargo.args(arguments).current_dir(folder.path()));
    assert!(read, "{said}");
}
