//! What outlives the process: the key of the account and the certificates, in a folder for each authority.
//!
//! Files are for their owner alone, and each is replaced as a whole. One that is broken, or that others can have written, is
//! renamed, and the log says so, once. A certificate's file has its private key, too, so that they always
//! belong together.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use instant_acme::AccountCredentials;
use tempfile::NamedTempFile;

use crate::base::clock::Time;
use crate::config::{Acme, regular_file};
use crate::net::fetch::Url;
use crate::net::tls::{self, Identity, PemError};

/// The largest file that is read, in bytes.
const MOST: u64 = 1 << 20;
/// The most certificates that are looked at: one for each list of names that there was.
const MOST_CERTIFICATES: usize = 100;
/// How far the clock of an authority may be ahead.
pub(super) const SKEW: Duration = Duration::from_secs(300);
/// The bits of a file's mode that let others than its owner use it.
const OTHERS: u32 = 0o077;

/// See the head of this file.
#[derive(Debug)]
pub(super) struct Folder(PathBuf);

impl Folder {
    /// That of an authority, in the folder for all state. Certificates of one are not used in place of another's.
    pub(super) fn of(state: &Path, directory: &Url) -> Self {
        let url = format!("{}://{}{}", directory.scheme(), directory.authority, directory.target.as_sent());
        Self(state.join("acme").join(format!("{}-{}", directory.host, short_hash(&url))))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Makes the folder, if there is none.
    pub(super) fn create(&self) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.0)
    }

    /// Locks the folder until the result is dropped, also by the end of the process; `None` if somebody else has locked it.
    pub(super) fn lock(&self) -> io::Result<Option<File>> {
        let path = self.0.join("lock");
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// The account; `None` if there is none, or if its file is not used any more.
    pub(super) fn account(&self) -> Option<AccountCredentials> {
        read(&self.account_path(), |bytes| serde_json::from_slice(bytes).map_err(|error| error.to_string()))
    }

    pub(super) fn keep_account(&self, account: &AccountCredentials) -> io::Result<()> {
        self.write(&self.account_path(), &serde_json::to_vec(account)?)
    }

    /// Lets go of the account, of which the authority does not know any more.
    pub(super) fn forget_account(&self) {
        set_aside(&self.account_path(), "the authority knows no such account");
    }

    fn account_path(&self) -> PathBuf {
        self.0.join("account.json")
    }

    /// The best certificate by [`rank`] that is valid; `None` if there is none for any of these names.
    pub(super) fn best(&self, names: &[String], now: Time) -> Option<Identity> {
        let entries = fs::read_dir(&self.0).into_iter().flatten().flatten();
        let is_certificate = |path: &PathBuf| {
            let name = path.file_stem().and_then(OsStr::to_str).unwrap_or_default();
            name.starts_with("certificate-") && path.extension() == Some(OsStr::new("pem"))
        };
        let paths = entries.map(|entry| entry.path()).filter(is_certificate).take(MOST_CERTIFICATES);
        let identities = paths.filter_map(|path| {
            let file = path.display().to_string();
            read(&path, |pem| identity(file.clone(), pem).map_err(|error| error.to_string()))
        });
        let usable = identities
            .filter(|one| covered(one, names) > 0 && one.not_before <= now.after(SKEW) && now < one.not_after);
        usable.max_by_key(|identity| rank(identity, names))
    }

    /// Until when the authority asks not to be asked for these names again; a moment that is over if it does not.
    pub(super) fn paused_until(&self, acme: &Acme) -> Time {
        let read = |bytes: &[u8]| {
            std::str::from_utf8(bytes).ok()?.trim().parse().ok().map(|seconds: u64| seconds.saturating_mul(1_000_000))
        };
        let micros = read(&regular_file::read_own(MOST, &self.pause_path(acme)).unwrap_or_default());
        Time::from_micros(micros.unwrap_or_default())
    }

    /// Keeps that for a restart, and for other gateways.
    pub(super) fn pause_until(&self, acme: &Acme, until: Time) -> io::Result<()> {
        self.write(&self.pause_path(acme), format!("{}\n", until.seconds_up()).as_bytes())
    }

    fn pause_path(&self, acme: &Acme) -> PathBuf {
        self.certificate_path(acme).with_extension("wait")
    }

    /// Writes a certificate for these names with its private key.
    pub(super) fn keep_certificate(&self, acme: &Acme, pem: &[u8]) -> io::Result<()> {
        self.write(&self.certificate_path(acme), pem)
    }

    /// Where the certificate for these names is.
    pub(super) fn certificate_path(&self, acme: &Acme) -> PathBuf {
        let mut names = acme.names.clone();
        names.sort_unstable();
        self.0.join(format!("certificate-{}.pem", short_hash(&names.join(" "))))
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.create()?;
        let mut file = NamedTempFile::new_in(&self.0)?;
        file.write_all(bytes)?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        // The new name is on the disk when its folder is.
        File::open(&self.0)?.sync_all()
    }
}

/// What `parse` makes of a file; `None` if there is none, or if it is not used any more.
fn read<T>(path: &Path, parse: impl FnOnce(&[u8]) -> Result<T, String>) -> Option<T> {
    let bytes = match regular_file::read_own(MOST, path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => {
            set_aside(path, &error.to_string());
            return None;
        }
    };
    if fs::metadata(path).is_ok_and(|metadata| metadata.permissions().mode() & OTHERS != 0) {
        let file = path.display();
        tracing::warn!(%file, "others could read this file, which has a private key: its mode is 600 again");
        let _ = fs::set_permissions(path, Permissions::from_mode(0o600));
    }
    parse(&bytes).inspect_err(|why| set_aside(path, why)).ok()
}

/// The certificate and the private key of one file.
pub(super) fn identity(file: String, pem: &[u8]) -> Result<Identity, PemError> {
    Identity::new(file, tls::certificates(pem)?, tls::private_key(pem)?, None)
}

/// Which certificate is used for these names, the largest: that for most of them, of those the newest. A new one may end earlier,
/// if the authority now issues them for a shorter time; it is the one that was wanted last.
pub(super) fn rank(identity: &Identity, names: &[String]) -> (usize, Time, Time) {
    (covered(identity, names), identity.not_before, identity.not_after)
}

/// How many of these names a certificate has.
pub(super) fn covered(identity: &Identity, names: &[String]) -> usize {
    names.iter().filter(|name| identity.names.contains(name)).count()
}

/// Renames a file that cannot be used.
fn set_aside(path: &Path, why: &str) {
    let (file, aside) = (path.display(), path.with_extension("broken"));
    match fs::rename(path, &aside) {
        Ok(()) => tracing::error!(%file, why, renamed = %aside.display(), "a file of certificates cannot be used"),
        Err(error) => tracing::error!(%file, why, %error, "a file of certificates cannot be used, nor be renamed"),
    }
}

fn short_hash(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex()[..16].to_owned()
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;
    use crate::config::{Challenge, document_url};

    const NOW: Time = Time::from_micros(1_700_000_000_000_000);

    fn acme(names: &[&str]) -> Acme {
        Acme {
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            email: None,
            directory: document_url("https://acme.test/directory").unwrap(),
            ca: None,
            tls: None,
            challenge: Challenge::TlsAlpn01,
        }
    }

    fn pem(names: &[&str], until: i32) -> String {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let (key, mut params) = (KeyPair::generate().unwrap(), CertificateParams::new(names).unwrap());
        params.not_after = date_time_ymd(until, 1, 1);
        params.self_signed(&key).unwrap().pem() + &key.serialize_pem()
    }

    /// The names of the files, but for the lock.
    fn files(folder: &Folder) -> Vec<String> {
        let entries = fs::read_dir(folder.path()).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn the_certificate_with_most_names_and_then_the_one_that_lasts_is_used() {
        let state = tempfile::tempdir().unwrap();
        let one = acme(&["a.test"]);
        let folder = Folder::of(state.path(), &one.directory);
        assert!(folder.best(&one.names, NOW).is_none(), "there is not even a folder");
        let (both, swapped) = (acme(&["a.test", "b.test"]), acme(&["b.test", "a.test"]));
        folder.keep_certificate(&one, pem(&["a.test"], 2030).as_bytes()).unwrap();
        let best = |acme: &Acme| folder.best(&acme.names, NOW).map(|one| one.names);
        assert_eq!(best(&both), Some(vec!["a.test".to_owned()]), "until there is a better one");
        folder.keep_certificate(&swapped, pem(&["a.test", "b.test"], 2029).as_bytes()).unwrap();
        assert_eq!(folder.certificate_path(&both), folder.certificate_path(&swapped));
        assert_eq!(best(&both).map(|names| names.len()), Some(2));
        assert_eq!(best(&one).map(|names| names.len()), Some(1), "it lasts longer");
        assert_eq!(best(&acme(&["c.test"])), None);
        let later = Time::from_micros(1_880_000_000_000_000);
        assert_eq!(folder.best(&both.names, later).map(|one| one.names.len()), Some(1), "the other has expired");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(folder.path()), mode(&folder.certificate_path(&one))), (0o700, 0o600));
        let elsewhere = Folder::of(state.path(), &document_url("https://acme.test/staging").unwrap());
        assert!(elsewhere.best(&one.names, NOW).is_none(), "another authority has issued it");
        assert_eq!(files(&folder).len(), 2, "nothing else is left");
    }

    #[test]
    fn files_that_are_broken_or_of_others_are_set_aside() {
        let state = tempfile::tempdir().unwrap();
        let one = acme(&["a.test"]);
        let folder = Folder::of(state.path(), &one.directory);
        let (path, whole) = (folder.certificate_path(&one), pem(&["a.test"], 2030));
        let other = pem(&["a.test"], 2030);
        let key = &other[other.find("-----BEGIN PRIVATE").unwrap()..];
        let mismatched = whole[..whole.find("-----BEGIN PRIVATE").unwrap()].to_owned() + key;
        let broken = [&whole[..whole.len() / 2], &whole[..20], "", "\0\u{7f}", &mismatched];
        for text in broken {
            folder.keep_certificate(&one, text.as_bytes()).unwrap();
            assert!(folder.best(&one.names, NOW).is_none(), "{text}");
            let names = files(&folder);
            assert!(names.len() == 1 && names[0].ends_with(".broken"), "{names:?}");
        }
        for (mode, is_used) in [(0o620, false), (0o602, false), (0o644, true), (0o400, true)] {
            folder.keep_certificate(&one, whole.as_bytes()).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            assert_eq!(folder.best(&one.names, NOW).is_some(), is_used, "mode {mode:o}");
            if is_used {
                assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & OTHERS, 0);
            }
        }
        fs::write(folder.account_path(), "{\"id\": 1}").unwrap();
        assert!(folder.account().is_none());
        assert!(files(&folder).contains(&"account.broken".to_owned()));
    }

    #[test]
    fn one_at_a_time_has_the_lock() {
        let state = tempfile::tempdir().unwrap();
        let folders = [(); 2].map(|()| Folder::of(state.path(), &acme(&["a.test"]).directory));
        folders[0].create().unwrap();
        let first = folders[0].lock().unwrap();
        assert!(first.is_some() && folders[1].lock().unwrap().is_none());
        drop(first);
        assert!(folders[1].lock().unwrap().is_some());
    }
}
