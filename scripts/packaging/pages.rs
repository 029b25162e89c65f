//! The manual and the shell completions, made from what the command line takes.

use std::fs;
use std::io;
use std::path::Path;

use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;

/// The section of gateway(1) that is about more than its arguments.
const FILES: &str = r"
.SH FILES
.TP
\fI/etc/gateway/gateway.toml\fR
The configuration that the service reads. It is written for the Debian package; elsewhere it may be any file.
.TP
\fI/usr/share/doc/gateway/\fR
All settings (docs/reference.md), and the documentation of each part.
";

/// The last section of the page of a subcommand.
const SEE_ALSO: &str = r#"
.SH "SEE ALSO"
\fBgateway\fR(1)
"#;

/// Writes the manual to the folder `man` in this one, and the completions to `completions`.
///
/// # Errors
/// If a file cannot be written.
pub(crate) fn write(folder: &Path) -> io::Result<()> {
    let (man, completions) = (folder.join("man"), folder.join("completions"));
    fs::create_dir_all(&man)?;
    fs::create_dir_all(&completions)?;
    let mut command = gateway::commands::command().disable_help_subcommand(true);
    command.build();
    write_man(&command, &man)?;
    for (name, shell) in [("gateway.bash", Shell::Bash), ("_gateway", Shell::Zsh), ("gateway.fish", Shell::Fish)] {
        let mut file = fs::File::create(completions.join(name))?;
        clap_complete::generate(shell, &mut gateway::commands::command(), "gateway", &mut file);
    }
    Ok(())
}

/// Writes the page of a command, and those of its subcommands.
fn write_man(command: &Command, folder: &Path) -> io::Result<()> {
    // An empty date would not be written, and the next word would be in its place.
    let man = Man::new(command.clone())
        .date(" ")
        .source(concat!("gateway ", env!("CARGO_PKG_VERSION")))
        .manual("User Commands");
    let mut page = Vec::new();
    man.render(&mut page)?;
    let page = String::from_utf8_lossy(&page).replace(".SH EXTRA", ".SH NOTES");
    let end = if command.get_name() == "gateway" { FILES } else { SEE_ALSO };
    fs::write(folder.join(man.get_filename()), page + end.trim_start())?;
    command
        .get_subcommands()
        .filter(|command| !command.is_hide_set())
        .try_for_each(|command| write_man(command, folder))
}
