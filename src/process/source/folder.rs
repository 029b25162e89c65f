//! A folder of configuration files: which files count, and how all of them are read in one state.
//!
//! The files are `*.toml` in the folder itself, without a leading dot, in the order of their names. Kubernetes mounts files as
//! symbolic links into a hidden folder that is replaced as a whole. So if anything has changed while the files were read, they
//! are read again, because they may be of two versions.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use crate::config::ReadFile;
use crate::config::regular_file::{self, MAX_BYTES};

const MOST_FILES: usize = 10_000;

/// How often a folder that changes is read before that is an error, and the pause between two attempts.
const ATTEMPTS: usize = 10;
const PAUSE: Duration = Duration::from_millis(50);

/// The files of a folder that are part of the configuration, in the order of their names. Fails when the folder cannot be read,
/// or has too many files.
pub(in crate::process) fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        let is_hidden = name.as_bytes().starts_with(b".");
        if is_hidden || Path::new(&name).extension() != Some(OsStr::new("toml")) {
            continue;
        }
        // A broken link stays, so that reading it reports the error.
        if folder.join(&name).metadata().is_ok_and(|metadata| metadata.is_dir()) {
            continue;
        }
        if names.len() == MOST_FILES {
            let message = format!("it has more than {MOST_FILES} files");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
        }
        names.push(name);
    }
    names.sort_unstable();
    Ok(names.into_iter().map(|name| folder.join(name)).collect())
}

/// Reads all files of a folder, in the order of their names and in one state. Fails when the folder cannot be read, has too
/// many files, or does not stop changing.
pub(super) fn read(folder: &Path) -> io::Result<Vec<ReadFile>> {
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            sleep(PAUSE);
        }
        let before = version(folder);
        let read = read_once(&files(folder)?);
        if before == version(folder) {
            return Ok(read);
        }
    }
    Err(io::Error::other("its files keep changing"))
}

/// Reads files that have up to [`MAX_BYTES`] together.
fn read_once(files: &[PathBuf]) -> Vec<ReadFile> {
    let mut left = MAX_BYTES;
    let mut read = |path: &PathBuf| {
        let bytes = regular_file::read_up_to(MAX_BYTES, path)?;
        left = left.checked_sub(bytes.len() as u64).ok_or_else(|| {
            let message = format!("with the files before it, it is larger than {} MiB", MAX_BYTES >> 20);
            io::Error::new(io::ErrorKind::FileTooLarge, message)
        })?;
        Ok(bytes)
    };
    files.iter().map(|path| (path.clone(), read(path))).collect()
}

/// The configuration files at a path, each with what differs after a change: device and inode (another file at the same path
/// has another one), length, and the seconds and nanoseconds of the last write. `None` stands for a file that is not there.
pub(in crate::process) type Version = Vec<(PathBuf, Option<(u64, u64, u64, i64, i64)>)>;

/// The version of a file, or of the configuration files in a folder. Follows symbolic links.
pub(in crate::process) fn version(path: &Path) -> Version {
    let stamp = |of: fs::Metadata| (of.dev(), of.ino(), of.len(), of.mtime(), of.mtime_nsec());
    let files = if path.is_dir() { files(path).unwrap_or_default() } else { vec![path.to_owned()] };
    files.into_iter().map(|file| (file.clone(), fs::metadata(file).ok().map(stamp))).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let files = files(folder).unwrap();
        files.iter().map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn files_are_chosen_by_their_names_and_are_in_their_order() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in ["b.toml", "a.toml", "10.toml", "9.toml", ".hidden.toml", "a.toml~", "a.TOML", "readme.md", "toml"]
        {
            fs::write(path(name), name).unwrap();
        }
        fs::create_dir(path("folder.toml")).unwrap();
        fs::create_dir(path("..1")).unwrap();
        fs::write(path("..1").join("link.toml"), "linked").unwrap();
        symlink("..1", path("..data")).unwrap();
        symlink("..data/link.toml", path("link.toml")).unwrap();
        symlink("nothing", path("nowhere.toml")).unwrap();
        symlink("..1", path("to-a-folder.toml")).unwrap();
        assert_eq!(names(folder.path()), ["10.toml", "9.toml", "a.toml", "b.toml", "link.toml", "nowhere.toml"]);
        let read = read(folder.path()).unwrap();
        assert_eq!(read[4].1.as_ref().unwrap(), b"linked");
        assert_eq!(read[5].1.as_ref().unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn versions_of_a_folder_differ_by_its_files_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let version = || version(folder.path());
        let empty = version();
        fs::write(path(".a.toml.swp"), "").unwrap();
        fs::write(path("notes"), "").unwrap();
        assert_eq!(version(), empty);
        fs::write(path("a.toml"), "1").unwrap();
        let one = version();
        assert_ne!(one, empty);
        fs::rename(path("a.toml"), path("b.toml")).unwrap();
        assert_ne!(version(), one);
    }

    #[test]
    fn files_are_read_in_one_state() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let generation = |number: usize| {
            let hidden = path(&format!("..{number}"));
            fs::create_dir(&hidden).unwrap();
            for name in ["a.toml", "b.toml"] {
                fs::write(hidden.join(name), number.to_string()).unwrap();
            }
            symlink(hidden, path("..next")).unwrap();
            fs::rename(path("..next"), path("..data")).unwrap();
        };
        generation(0);
        for name in ["a.toml", "b.toml"] {
            symlink(Path::new("..data").join(name), path(name)).unwrap();
        }
        std::thread::scope(|scope| {
            let changing = scope.spawn(|| {
                for number in 1..100 {
                    generation(number);
                    sleep(Duration::from_millis(1));
                }
            });
            while !changing.is_finished() {
                // A folder that changes all the time is an error, which is fine here.
                let Ok(read) = read(folder.path()) else { continue };
                assert_eq!(read[0].1.as_ref().unwrap(), read[1].1.as_ref().unwrap());
            }
        });
        assert_eq!(read(folder.path()).unwrap()[1].1.as_ref().unwrap(), b"99");
    }
}
