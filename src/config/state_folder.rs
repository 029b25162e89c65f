//! A folder for what outlives the process: private keys, certificates, the copy of a configuration.
//!
//! Whoever can write there controls the gateway. So a folder that another user owns or can write is refused, and links in it
//! are not followed: they could lead to files of other users.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use tempfile::NamedTempFile;

use super::regular_file::{self, OwnFile, is_own, open_at_once};
use super::temporary_file;

/// A folder that belongs to the user of the process alone.
#[derive(Clone, Debug)]
pub struct StateFolder {
    root: PathBuf,
    path: PathBuf,
}

impl StateFolder {
    /// A folder `below` the folder `root`, which the user has named. Neither needs to exist yet.
    pub fn new(root: &Path, below: impl AsRef<Path>) -> Self {
        Self { root: root.to_owned(), path: root.join(below) }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Fails when it cannot be made, or others can write there.
    pub fn create(&self) -> io::Result<()> {
        let mut builder = DirBuilder::new();
        builder.mode(0o700);
        builder.recursive(true).create(&self.root)?;
        // Folders between `root` and this one are also private.
        let below: Vec<_> = self.path.ancestors().take_while(|path| *path != self.root).collect();
        for path in below.iter().rev() {
            builder.create(path)?;
        }
        self.check()
    }

    /// Checks that no other user can write there. Fails when somebody can, or when there is no such folder.
    pub fn check(&self) -> io::Result<()> {
        let below = self.path.ancestors().take_while(|path| *path != self.root);
        for path in below.chain([&*self.root]) {
            // The user may have named a link, as systemd does.
            let metadata = if path == self.root { fs::metadata(path) } else { fs::symlink_metadata(path) }?;
            if !metadata.is_dir() {
                return Err(io::Error::other(format!("{} is not a folder", path.display())));
            }
            if !is_own(&metadata) {
                let path = path.display();
                return Err(io::Error::other(format!(
                    "other users can write {path}: give it to the user of the gateway alone (chmod 700), or name a folder in it, \
                     which will be made"
                )));
            }
        }
        Ok(())
    }

    /// `None` if the file does not exist. Fails when it cannot be read now. That says nothing about what is in it.
    pub fn read(&self, path: &Path, most: u64) -> io::Result<Option<OwnFile>> {
        match self.check().and_then(|()| regular_file::read_own(most, path)) {
            Ok(read) => Ok(Some(read)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Replaces a file of this folder atomically by these parts. Fails when it cannot be written. Then the one before stays.
    pub fn write(&self, path: &Path, parts: &[&[u8]]) -> io::Result<()> {
        self.written(path, parts)?.persist(path)?;
        // The new name is durable only after the folder is synced.
        File::open(&self.path)?.sync_all()
    }

    /// Checks that there is room for a file of this size. Fails if there is none.
    pub fn try_write(&self, bytes: usize) -> io::Result<()> {
        self.written(&self.path.join("trial"), &[&vec![0; bytes]]).map(drop)
    }

    /// A temporary file for `path` that only its owner can read.
    fn written(&self, path: &Path, parts: &[&[u8]]) -> io::Result<NamedTempFile> {
        self.create()?;
        let mut file = temporary_file::beside(path)?;
        parts.iter().try_for_each(|part| file.write_all(part))?;
        file.as_file().sync_all()?;
        Ok(file)
    }

    /// Locks the folder until the result is dropped or the process ends; `None` if another process has locked it. Fails if that
    /// is not known.
    pub fn lock(&self) -> io::Result<Option<File>> {
        self.create()?;
        let path = self.path.join("lock");
        let opened = open_at_once(OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW, &path);
        let file = opened.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_folder_that_others_can_write_is_refused() {
        let root = tempfile::tempdir().unwrap();
        mode(root.path(), 0o700);
        let folder = StateFolder::new(root.path(), "a/b");
        let file = folder.path().join("file");
        assert_eq!(folder.check().unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(folder.read(&file, 9).unwrap().is_none());
        folder.write(&file, &[b"1", b"2"]).unwrap();
        for path in [root.path(), &root.path().join("a"), folder.path()] {
            assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o700);
            for wrong in [0o770, 0o707, 0o1777] {
                mode(path, wrong);
                assert!(
                    folder.create().unwrap_err().to_string().contains("other users can write"),
                    "{path:?} {wrong:o}"
                );
                assert!(
                    folder.read(&file, 9).is_err() && folder.write(&file, &[b"x"]).is_err() && folder.lock().is_err()
                );
            }
            mode(path, 0o755);
            assert!(matches!(folder.read(&file, 9).unwrap(), Some(OwnFile::Bytes(bytes)) if bytes == b"12"));
            mode(path, 0o700);
            // Only root can change the owner of a folder.
            if chown(path, Some(12_345), None).is_ok() {
                assert!(folder.create().is_err() && folder.read(&file, 9).is_err(), "{path:?}");
                chown(path, Some(0), None).unwrap();
            }
        }
    }

    #[test]
    fn no_link_is_followed_below_the_folder_that_the_user_has_named() {
        let (root, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let link = elsewhere.path().join("link");
        symlink(root.path(), &link).unwrap();
        let folder = StateFolder::new(&link, "a");
        let file = folder.path().join("file");
        folder.write(&file, &[b"12"]).unwrap();
        assert!(folder.lock().unwrap().is_some());

        let target = elsewhere.path().join("target");
        fs::remove_file(folder.path().join("lock")).unwrap();
        symlink(&target, folder.path().join("lock")).unwrap();
        assert!(folder.lock().is_err() && !target.exists());
        fs::write(&target, "theirs").unwrap();
        fs::remove_file(&file).unwrap();
        symlink(&target, &file).unwrap();
        let said = folder.read(&file, 9).unwrap_err().to_string();
        assert_eq!(said, "it is a link, which is not followed");
        folder.write(&file, &[b"ours"]).unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"theirs");

        fs::rename(folder.path(), elsewhere.path().join("moved")).unwrap();
        symlink(elsewhere.path().join("moved"), folder.path()).unwrap();
        assert!(folder.check().unwrap_err().to_string().contains("is not a folder"));
    }

    #[test]
    fn nobody_is_waited_for() {
        let root = tempfile::tempdir().unwrap();
        let folder = StateFolder::new(root.path(), "a");
        folder.create().unwrap();
        for name in ["lock", "file"] {
            mknodat(CWD, folder.path().join(name), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        }
        assert!(folder.lock().is_err());
        let said = folder.read(&folder.path().join("file"), 9).unwrap_err().to_string();
        assert_eq!(said, "it is a named pipe, not a file");
    }

    #[test]
    fn one_at_a_time_has_the_lock() {
        let root = tempfile::tempdir().unwrap();
        let folders = [(); 2].map(|()| StateFolder::new(root.path(), "a"));
        let first = folders[0].lock().unwrap();
        assert!(first.is_some() && folders[1].lock().unwrap().is_none());
        drop(first);
        assert!(folders[1].lock().unwrap().is_some());
    }
}
