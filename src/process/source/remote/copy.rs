//! The copy of the last good configuration of a URL, for a start while its server is away.
//!
//! Only its owner may read the file, which is replaced as a whole. Its first line has the URL's identity, the time of saving, and
//! a hash over both and the text, so that neither a broken copy nor that of another URL is used. A copy that other users could
//! have written is not used either, because whoever writes a configuration controls the gateway.

use std::io;
use std::path::{Path, PathBuf};

use blake3::Hash;

use crate::base::clock::Time;
use crate::config::regular_file::OwnFile;
use crate::config::state_folder::StateFolder;

/// The number is the version of the format.
const BEGINNING: &str = "# gateway-config-copy 1";
const LONGEST_LINE: usize = 512;

#[derive(Clone, Debug)]
pub(super) struct CopyFile {
    folder: StateFolder,
    pub(super) path: PathBuf,
    identity: Hash,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Saved {
    pub(super) at: Time,
    pub(super) text: Vec<u8>,
}

impl CopyFile {
    /// The folder need not exist yet.
    pub(super) fn new(folder: &Path, identity: Hash) -> Self {
        // Gateways with other URLs may use the same folder.
        let name = format!("config-{}.toml", &identity.to_hex()[..16]);
        Self { folder: StateFolder::new(folder, ""), path: folder.join(name), identity }
    }

    /// Replaces the copy. Fails when the copy cannot be written. Then the previous one stays.
    pub(super) fn write(&self, text: &[u8], now: Time) -> io::Result<()> {
        self.folder.write(&self.path, &[self.line(now.micros(), text).as_bytes(), text])
    }

    /// Reads the copy, whose text has at most `most` bytes. `None` if there is none. Fails when the copy cannot be read, is
    /// broken, is of another document, or could have been written by others.
    pub(super) fn read(&self, most: usize) -> io::Result<Option<Saved>> {
        match self.folder.read(&self.path, (most + LONGEST_LINE) as u64)? {
            None => Ok(None),
            Some(OwnFile::Wrong(why)) => Err(io::Error::other(why)),
            Some(OwnFile::Bytes(bytes)) => {
                let saved = self.checked(&bytes).ok_or_else(|| io::Error::other("it is broken, or from another URL"));
                saved.map(Some)
            }
        }
    }

    fn checked(&self, bytes: &[u8]) -> Option<Saved> {
        let end = bytes.iter().take(LONGEST_LINE).position(|byte| *byte == b'\n')? + 1;
        let (line, text) = bytes.split_at(end);
        let line = std::str::from_utf8(line).ok()?;
        let saved = line.split_once(" saved=")?.1.split(' ').next()?.parse().ok()?;
        (line == self.line(saved, text)).then(|| Saved { at: Time::from_micros(saved), text: text.to_owned() })
    }

    fn line(&self, saved: u64, text: &[u8]) -> String {
        let facts = format!("{BEGINNING} url={} saved={saved}", self.identity.to_hex());
        let hash = blake3::Hasher::new().update(facts.as_bytes()).update(b"\n").update(text).finalize();
        format!("{facts} hash={}\n", hash.to_hex())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const NOW: Time = Time::from_micros(1_700_000_000_000_000);

    #[test]
    fn what_was_written_is_read_again_for_the_same_url_alone() {
        let folder = tempfile::tempdir().unwrap();
        let below = folder.path().join("a/b");
        let copy = CopyFile::new(&below, blake3::hash(b"one"));
        assert_eq!(copy.read(100).unwrap(), None);
        for text in [&b""[..], b"first\nsecond\n", b"\xff\0"] {
            copy.write(text, NOW).unwrap();
            assert_eq!(copy.read(100).unwrap().unwrap(), Saved { at: NOW, text: text.to_owned() });
        }
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&copy.path), mode(&below)), (0o600, 0o700));
        assert_eq!(fs::read_dir(&below).unwrap().count(), 1, "nothing else is left");

        let other = CopyFile::new(&below, blake3::hash(b"two"));
        assert_eq!(other.read(100).unwrap(), None);
        fs::copy(&copy.path, &other.path).unwrap();
        assert!(other.read(100).is_err());
        assert!(copy.read(100).unwrap().is_some());
        for (mode, is_used) in [(0o620, false), (0o602, false), (0o644, true)] {
            fs::set_permissions(&copy.path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(copy.read(100).is_ok(), is_used, "mode {mode:o}");
        }
        copy.write(&[b'#'; 1000], NOW).unwrap();
        assert!(copy.read(100).is_err(), "it is too large");
    }

    #[test]
    fn a_copy_with_any_changed_byte_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let copy = CopyFile::new(folder.path(), blake3::hash(b"one"));
        copy.write(b"[server]\n", NOW).unwrap();
        let whole = fs::read(&copy.path).unwrap();
        for at in 0..whole.len() {
            let mut broken = whole.clone();
            broken[at] ^= 1;
            assert_eq!(copy.checked(&broken), None, "byte {at}");
            assert_eq!(copy.checked(&whole[..at]), None, "cut at {at}");
        }
        assert_eq!(copy.checked(&[&whole[..], b"x"].concat()), None);
        assert_eq!(copy.checked(&[b'#'; 10_000]), None);
    }
}
