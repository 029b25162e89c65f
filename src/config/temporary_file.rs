//! A temporary file beside the file that it will replace, so that the file is always complete.
//!
//! A process that is killed leaves its temporary file. The next one removes it: it is locked no longer, as it is while a living
//! process writes it.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::OFlags;
use tempfile::{Builder, NamedTempFile};

use super::regular_file::open_at_once;

/// The number of random letters and digits in a name.
const RANDOM: usize = 6;
const SUFFIX: &str = ".tmp";

/// A file in the same folder, which is removed unless it gets a name. Only its owner may read it. Removes those for the same
/// `path` that ended processes have left. Fails when there cannot be one.
pub fn beside(path: &Path) -> io::Result<NamedTempFile> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut prefix = OsString::from(".");
    prefix.push(path.file_name().unwrap_or_default());
    prefix.push(".");
    remove_left(folder, &prefix);
    loop {
        let file = Builder::new().prefix(&prefix).suffix(SUFFIX).rand_bytes(RANDOM).tempfile_in(folder)?;
        // A file system without locks removes none. Otherwise, another process may have been faster than the lock.
        if file.as_file().lock().is_err() || file.as_file().metadata()?.nlink() > 0 {
            return Ok(file);
        }
    }
}

/// What cannot be removed stays: it harms nothing but the room on the disk.
fn remove_left(folder: &Path, prefix: &OsStr) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let (name, path) = (entry.file_name(), entry.path());
        let random = name.as_encoded_bytes().strip_prefix(prefix.as_encoded_bytes());
        let random = random.and_then(|rest| rest.strip_suffix(SUFFIX.as_bytes()));
        let is_temporary = random.is_some_and(|random| random.len() == RANDOM);
        let left = is_temporary.then(|| open_at_once(OFlags::RDONLY | OFlags::NOFOLLOW, &path));
        if let Some(Ok(file)) = left
            && file.try_lock().is_ok()
        {
            let _ = fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_an_ended_process_has_left_goes_and_what_another_writes_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let names = || fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();
        for other in ["file", ".file.old.tmp", ".other.abcdef.tmp"] {
            fs::write(folder.path().join(other), "").unwrap();
        }
        let (file, left) = beside(&path).unwrap().keep().unwrap();
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(names().len(), 4);
        // The lock ends with the file handle, as at the end of a process.
        drop(file);
        let writing = beside(&path).unwrap();
        assert!(!left.exists());
        let also_writing = beside(&path).unwrap();
        assert!(writing.path().exists());
        writing.persist(&path).unwrap();
        also_writing.persist(&path).unwrap();
        assert_eq!(names().len(), 3, "{:?}", names());
    }
}
