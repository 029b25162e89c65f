//! The man pages and the shell completions that are packaged say what the command line takes; `UPDATE=1` writes them again.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;

use super::Cli;

/// The section of gateway(1) that is about more than its arguments.
const FILES: &str = r"
.SH FILES
.TP
\fI/etc/gateway/gateway.toml\fR
The configuration that the service reads. It is written for the Debian package; elsewhere it may be any file.
.TP
\fI/usr/share/doc/gateway/\fR
All settings (README.md), and the documentation of each part.
";

/// The last section of the page of a subcommand.
const SEE_ALSO: &str = r#"
.SH "SEE ALSO"
\fBgateway\fR(1)
"#;

/// The man page of a command, and those of its subcommands.
fn man_pages(command: &clap::Command, pages: &mut BTreeMap<PathBuf, String>) {
    // An empty date would not be written, and the next word would be in its place.
    let man = Man::new(command.clone())
        .date(" ")
        .source(concat!("gateway ", env!("CARGO_PKG_VERSION")))
        .manual("User Commands");
    let mut text = Vec::new();
    man.render(&mut text).unwrap();
    let text = String::from_utf8(text).unwrap().replace(".SH EXTRA", ".SH NOTES");
    let text = text + if command.get_name() == "gateway" { FILES } else { SEE_ALSO }.trim_start();
    pages.insert(Path::new("man").join(man.get_filename()), text);
    command.get_subcommands().filter(|command| !command.is_hide_set()).for_each(|command| man_pages(command, pages));
}

#[test]
fn man_pages_and_completions_are_up_to_date() {
    let mut files = BTreeMap::new();
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    man_pages(&command, &mut files);
    for (name, shell) in [("gateway.bash", Shell::Bash), ("_gateway", Shell::Zsh), ("gateway.fish", Shell::Fish)] {
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut Cli::command(), "gateway", &mut text);
        files.insert(Path::new("completions").join(name), String::from_utf8(text).unwrap());
    }
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/packaging");
    let is_updated = std::env::var_os("UPDATE").is_some();
    for (path, text) in &files {
        if is_updated {
            fs::write(packaging.join(path), text).unwrap();
        }
        let written = fs::read_to_string(packaging.join(path)).unwrap_or_default();
        assert!(written == *text, "{} is not up to date: UPDATE=1 cargo test --lib cli::", path.display());
    }
    for entry in ["man", "completions"].iter().flat_map(|folder| fs::read_dir(packaging.join(folder)).unwrap()) {
        let path = entry.unwrap().path();
        let is_made = files.contains_key(path.strip_prefix(&packaging).unwrap());
        assert!(is_made, "{} is of a command that is gone: remove it", path.display());
    }
}
