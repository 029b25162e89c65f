//! Reads files that the configuration names: only regular files, and only up to a maximum size.
//!
//! Opening a named pipe waits for a writer, and reading a terminal waits for its user. Any path may lead to one of them. So
//! files are opened without blocking, and their type is checked before the first read.

use std::cell::Cell;
use std::fs::{File, FileType, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::read::Field;
use super::report::{self, quoted};

/// In bytes. A million lines with hashes of 64 digits take 80 MB.
pub const MAX_BYTES: u64 = 256 << 20;

/// The mode bits that let the group or all users write a file.
const OTHERS_WRITE: u32 = 0o022;

/// A regular file, open for reading. Reading more than `max` bytes is an error.
pub(super) struct RegularFile {
    file: File,
    max: u64,
    left: u64,
}

impl RegularFile {
    /// Without blocking. Fails when it cannot be opened, is not a regular file or is too large.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        Self::with_flags(OFlags::RDONLY, MAX_BYTES, path)
    }

    fn with_flags(flags: OFlags, max: u64, path: &Path) -> io::Result<Self> {
        let file = open_at_once(flags, path)?;
        let metadata = file.metadata()?;
        if metadata.len() > max {
            return Err(too_large(max));
        }
        Ok(Self { file, max, left: max })
    }
}

/// Fails when it cannot be opened or read, is not a regular file or is too large.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    read_up_to(MAX_BYTES, path)
}

/// Fails when it cannot be opened or read, is not a regular file or is too large.
pub fn read_up_to(max: u64, path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    RegularFile::with_flags(OFlags::RDONLY, max, path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Opens a regular file without waiting. Fails when it cannot be opened, or is not a regular file.
pub(super) fn open_at_once(flags: OFlags, path: &Path) -> io::Result<File> {
    // Without NOCTTY, a terminal could become the controlling terminal of the process.
    let flags = flags | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?);
    let metadata = file.metadata()?;
    if metadata.is_dir() {
        return Err(Errno::ISDIR.into());
    }
    if !metadata.is_file() {
        let message = format!("it is {}, not a file", kind(metadata.file_type()));
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    Ok(file)
}

/// Whether only root and the user of this process can have written the file.
pub(super) fn is_own(metadata: &Metadata) -> bool {
    let is_own = [0, rustix::process::geteuid().as_raw()].contains(&metadata.uid());
    is_own && metadata.mode() & OTHERS_WRITE == 0
}

/// A file that only root and the user of this process should be able to write.
#[derive(Debug)]
pub enum OwnFile {
    Bytes(Vec<u8>),
    /// Why the file is not used, although it can be read.
    Wrong(&'static str),
}

/// Links are not followed. Fails when it cannot be opened or read now, or is not a regular file. That says nothing about what
/// is in it.
pub fn read_own(max: u64, path: &Path) -> io::Result<OwnFile> {
    let read = RegularFile::with_flags(OFlags::RDONLY | OFlags::NOFOLLOW, max, path).and_then(|mut file| {
        if !is_own(&file.file.metadata()?) {
            return Ok(OwnFile::Wrong("other users may have written it"));
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(OwnFile::Bytes(bytes))
    });
    match read {
        Err(error) if error.kind() == io::ErrorKind::FileTooLarge => Ok(OwnFile::Wrong("it is too large")),
        Err(error) if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => {
            Err(io::Error::other("it is a link, which is not followed"))
        }
        other => other,
    }
}

impl Read for RegularFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        // The file may have grown since it was opened.
        self.left = self.left.checked_sub(read as u64).ok_or_else(|| too_large(self.max))?;
        Ok(read)
    }
}

fn too_large(max: u64) -> io::Error {
    let message = format!("it is larger than {} MiB", max >> 20);
    io::Error::new(io::ErrorKind::FileTooLarge, message)
}

fn kind(kind: FileType) -> &'static str {
    if kind.is_fifo() {
        "a named pipe"
    } else if kind.is_char_device() || kind.is_block_device() {
        "a device"
    } else {
        "a socket"
    }
}

/// Per file.
const MOST_REPORTED: usize = 20;

pub(super) struct NamedFile<'a> {
    pub(super) field: &'a Field<'a>,
    /// As written in the configuration.
    pub(super) name: &'a str,
    pub(super) path: PathBuf,
    /// How many problems its lines have so far.
    problems: Cell<usize>,
}

impl<'a> NamedFile<'a> {
    /// Records the file as a part of the configuration. `None`, after a report, if the value is not a path.
    pub(super) fn new(field: &'a Field<'a>) -> Option<Self> {
        let name = field.text()?;
        let path = field.path(name)?;
        field.source.record(path.clone());
        Some(Self { field, name, path, problems: Cell::default() })
    }

    pub(super) fn unreadable(&self, error: &io::Error) {
        let help = report::how_to_read(error.kind(), "a relative path starts at the folder of this file");
        self.field.report(format!("cannot read {}: {error}", quoted(self.name)), help);
    }

    /// Reports a problem of a line, unless there were many before.
    pub(super) fn report(&self, line: u64, column: u64, message: &str, help: &str) {
        self.problems.update(|problems| problems + 1);
        if self.problems.get() <= MOST_REPORTED {
            self.field.report(format!("{}:{line}:{column}: {message}", self.name), help);
        }
    }

    /// Says how many problems are not reported. Returns whether the lines have none.
    pub(super) fn report_rest(&self) -> bool {
        let problems = self.problems.get();
        if problems > MOST_REPORTED {
            self.field.report(format!("{}: and {} more problems", self.name, problems - MOST_REPORTED), "");
        }
        problems == 0
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::net::UnixListener;

    use super::*;

    fn refusal(path: &Path) -> String {
        read(path).unwrap_err().to_string()
    }

    #[test]
    fn reads_regular_files_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("file"), "text").unwrap();
        std::os::unix::fs::symlink(path("file"), path("link")).unwrap();
        assert_eq!(read(&path("file")).unwrap(), b"text");
        assert_eq!(read(&path("link")).unwrap(), b"text");

        rustix::fs::mknodat(rustix::fs::CWD, path("pipe"), rustix::fs::FileType::Fifo, Mode::RUSR, 0).unwrap();
        assert_eq!(refusal(&path("pipe")), "it is a named pipe, not a file");
        assert_eq!(refusal(Path::new("/dev/zero")), "it is a device, not a file");
        assert_eq!(refusal(folder.path()), "Is a directory (os error 21)");
        let _listener = UnixListener::bind(path("socket")).unwrap();
        assert!(read(&path("socket")).is_err());
        assert_eq!(read(&path("nothing")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn reads_up_to_the_maximum_size() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("large");
        File::create(&path).unwrap().set_len(MAX_BYTES + 1).unwrap();
        assert_eq!(refusal(&path), "it is larger than 256 MiB");

        fs::write(&path, "1234").unwrap();
        let mut growing = RegularFile { left: 3, ..RegularFile::open(&path).unwrap() };
        assert_eq!(growing.read_to_end(&mut Vec::new()).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    }
}
