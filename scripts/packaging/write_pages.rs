//! Writes the manual and the shell completions to a folder: `cargo run --example write_pages -- FOLDER`.

mod pages;

use std::io;
use std::path::PathBuf;

fn main() -> io::Result<()> {
    let folder = std::env::args_os().nth(1).map(PathBuf::from);
    pages::write(&folder.ok_or_else(|| io::Error::other("which folder?"))?)
}
