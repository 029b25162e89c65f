//! What outlives the process: the key of the account and the certificates, in a folder for each authority.
//!
//! Files are private, and are replaced atomically. A file that is invalid, or that others can have written, is renamed, and
//! logged once. A file that cannot be read now is kept, and nothing replaces it, because it may soon be readable again. A
//! certificate and its private key are in one file, so that they always belong together.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use instant_acme::AccountCredentials;

use super::failure::{Kind, OrderFailure};
use crate::base::clock::Time;
use crate::config::Acme;
use crate::config::regular_file::OwnFile;
use crate::config::state_folder::StateFolder;
use crate::net::fetch::Url;
use crate::net::tls::{self, Identity, PemError};

/// In bytes.
const MOST: u64 = 1 << 20;
/// The maximum number of certificates that are read. There is one for each list of names that was ever configured.
const MOST_CERTIFICATES: usize = 100;
/// How far the clock of an authority may be ahead.
pub(super) const SKEW: Duration = Duration::from_secs(300);
/// The mode bits that let others than the owner use a file.
const OTHERS: u32 = 0o077;

/// The size for which room is required before an order: a certificate with its chain and key, in bytes.
const LARGEST: usize = 64 << 10;

#[derive(Clone, Debug)]
pub(super) struct Folder {
    pub(super) state: StateFolder,
}

/// What a file has, or why it is not used although it can be read.
type Stored<T> = Result<T, String>;

pub(super) struct Certificates {
    /// The best valid certificate by [`rank`]; `None` if there is none for any of the names.
    pub(super) best: Option<Identity>,
    /// Files that are not used, and why.
    pub(super) wrong: Vec<(PathBuf, String)>,
    /// The error of a file that cannot be read now, although it may be better.
    pub(super) unread: Option<io::Error>,
}

impl Folder {
    /// The folder of an authority below the folder for all state. Certificates of one authority never replace those of another.
    pub(super) fn of(state: &Path, directory: &Url) -> Self {
        let below = Path::new("acme").join(format!("{}-{}", directory.host, short_hash(&directory.whole())));
        Self { state: StateFolder::new(state, below) }
    }

    pub(super) fn path(&self) -> &Path {
        self.state.path()
    }

    pub(super) fn failed(&self, error: &io::Error) -> OrderFailure {
        OrderFailure::new(Kind::Files, format!("cannot use the folder {}: {error}", self.path().display()))
    }

    /// Checks that there is room for a certificate, before one is ordered.
    pub(super) fn try_write(&self) -> io::Result<()> {
        self.state.try_write(LARGEST)
    }

    /// `None` if there is no account. An invalid file is renamed.
    pub(super) fn account(&self) -> io::Result<Option<AccountCredentials>> {
        let path = self.account_path();
        let parse = |bytes: &[u8]| serde_json::from_slice(bytes).map_err(|error| error.to_string());
        let read = self.read(&path, parse)?;
        Ok(read.and_then(|account| account.map_err(|why| set_aside(&path, &why)).ok()))
    }

    pub(super) fn keep_account(&self, account: &AccountCredentials) -> io::Result<()> {
        self.state.write(&self.account_path(), &[&serde_json::to_vec(account)?])
    }

    /// Renames the account, which the authority no longer knows.
    pub(super) fn forget_account(&self) {
        set_aside(&self.account_path(), "the authority does not know this account");
    }

    fn account_path(&self) -> PathBuf {
        self.path().join("account.json")
    }

    /// Reads the certificates for these names. Changes nothing.
    pub(super) fn certificates(&self, names: &[String], now: Time) -> Certificates {
        let mut found = Certificates { best: None, wrong: Vec::new(), unread: None };
        let paths = match self.certificate_paths() {
            Ok(paths) => paths,
            Err(error) => return Certificates { unread: Some(error), ..found },
        };
        for path in paths {
            let file = path.display().to_string();
            match self.read(&path, |pem| identity(file, pem).map_err(|error| error.to_string())) {
                Ok(Some(Ok(one))) => {
                    let is_usable =
                        covered(&one, names) > 0 && one.not_before <= now.after(SKEW) && now < one.not_after;
                    if is_usable && found.best.as_ref().is_none_or(|best| rank(best, names) <= rank(&one, names)) {
                        found.best = Some(one);
                    }
                }
                Ok(Some(Err(why))) => found.wrong.push((path, why)),
                Ok(None) => {}
                Err(error) => found.unread = Some(error),
            }
        }
        found
    }

    /// Renames invalid certificates, so that they are reported only once, and makes all other files private.
    pub(super) fn tidy(&self, found: &Certificates) {
        if self.state.check().is_err() {
            return;
        }
        found.wrong.iter().for_each(|(path, why)| set_aside(path, why));
        self.certificate_paths().into_iter().flatten().chain([self.account_path()]).for_each(|path| hide(&path));
    }

    fn certificate_paths(&self) -> io::Result<Vec<PathBuf>> {
        let entries = match fs::read_dir(self.path()) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let is_certificate = |path: &PathBuf| {
            let name = path.file_stem().and_then(OsStr::to_str).unwrap_or_default();
            name.starts_with("certificate-") && path.extension() == Some(OsStr::new("pem"))
        };
        let paths = entries.map(|entry| entry.map(|entry| entry.path()));
        paths.filter(|path| path.as_ref().map_or(true, is_certificate)).take(MOST_CERTIFICATES).collect()
    }

    /// `None` if the file does not exist.
    fn read<T>(&self, path: &Path, parse: impl FnOnce(&[u8]) -> Stored<T>) -> io::Result<Option<Stored<T>>> {
        let in_file =
            |error: io::Error| io::Error::new(error.kind(), format!("cannot read {}: {error}", path.display()));
        Ok(self.state.read(path, MOST).map_err(in_file)?.map(|file| match file {
            OwnFile::Wrong(why) => Err(why.to_owned()),
            OwnFile::Bytes(bytes) => parse(&bytes),
        }))
    }

    /// The moment until which the authority must not be asked for these names; in the past if it may be asked.
    pub(super) fn paused_until(&self, acme: &Acme) -> io::Result<Time> {
        let parse = |bytes: &[u8]| {
            let text = std::str::from_utf8(bytes).ok().and_then(|text| text.trim().parse().ok());
            text.map(|seconds: u64| seconds.saturating_mul(1_000_000)).ok_or_else(String::new)
        };
        let read = self.read(&self.pause_path(acme), parse)?;
        Ok(Time::from_micros(read.and_then(Result::ok).unwrap_or(0)))
    }

    /// Saves the moment for a restart and for other gateways.
    pub(super) fn pause_until(&self, acme: &Acme, until: Time) -> io::Result<()> {
        self.state.write(&self.pause_path(acme), &[format!("{}\n", until.seconds_up()).as_bytes()])
    }

    /// The id of the last claim of this folder in a shared store; `None` if there was none.
    pub(super) fn last_claim(&self) -> io::Result<Option<String>> {
        let parse = |bytes: &[u8]| String::from_utf8(bytes.to_owned()).map_err(|error| error.to_string());
        let text = self.read(&self.claim_path(), parse)?.and_then(Result::ok);
        Ok(text.map(|text| text.trim().to_owned()))
    }

    pub(super) fn keep_claim(&self, id: &str) -> io::Result<()> {
        self.state.write(&self.claim_path(), &[format!("{id}\n").as_bytes()])
    }

    fn claim_path(&self) -> PathBuf {
        self.path().join("claim")
    }

    fn pause_path(&self, acme: &Acme) -> PathBuf {
        self.certificate_path(acme).with_extension("wait")
    }

    /// Saves a certificate with its private key.
    pub(super) fn keep_certificate(&self, acme: &Acme, pem: &[u8]) -> io::Result<()> {
        self.state.write(&self.certificate_path(acme), &[pem])
    }

    /// The file of the certificate for these names, in whatever order.
    pub(super) fn certificate_path(&self, acme: &Acme) -> PathBuf {
        let mut names = acme.names.clone();
        names.sort_unstable();
        self.path().join(format!("certificate-{}.pem", short_hash(&names.join(" "))))
    }
}

/// Makes a file with a private key private.
fn hide(path: &Path) {
    let is_open = |metadata: fs::Metadata| metadata.is_file() && metadata.permissions().mode() & OTHERS != 0;
    if fs::symlink_metadata(path).is_ok_and(is_open) {
        let file = path.display();
        tracing::warn!(%file, "others could read this file, which has a private key: its mode is 600 again");
        let _ = fs::set_permissions(path, Permissions::from_mode(0o600));
    }
}

pub(super) fn identity(file: String, pem: &[u8]) -> Result<Identity, PemError> {
    Identity::new(file, tls::certificates(pem)?, tls::private_key(pem)?, None)
}

/// The certificate with the largest rank is used: the one for most of the names, of these the newest. A newer one may end
/// earlier if the authority has shortened lifetimes, but is the one that was ordered last.
pub(super) fn rank(identity: &Identity, names: &[String]) -> (usize, Time, Time) {
    (covered(identity, names), identity.not_before, identity.not_after)
}

pub(super) fn covered(identity: &Identity, names: &[String]) -> usize {
    names.iter().filter(|name| identity.names.contains(name)).count()
}

fn set_aside(path: &Path, why: &str) {
    let (file, aside) = (path.display(), path.with_extension("broken"));
    match fs::rename(path, &aside) {
        Ok(()) => tracing::error!(%file, why, renamed = %aside.display(), "a file of certificates cannot be used"),
        Err(error) => tracing::error!(%file, why, %error, "a file of certificates can be neither used nor renamed"),
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
            challenge_secret: None,
            external_account: None,
        }
    }

    /// The best certificate, after invalid files were renamed.
    fn best(folder: &Folder, names: &[String], now: Time) -> Option<Identity> {
        let found = folder.certificates(names, now);
        folder.tidy(&found);
        assert!(found.unread.is_none());
        found.best
    }

    fn pem(names: &[&str], until: i32) -> String {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let (key, mut params) = (KeyPair::generate().unwrap(), CertificateParams::new(names).unwrap());
        params.not_after = date_time_ymd(until, 1, 1);
        params.self_signed(&key).unwrap().pem() + &key.serialize_pem()
    }

    /// The names of the files, without the lock.
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
        assert!(best(&folder, &one.names, NOW).is_none(), "there is not even a folder");
        let (both, swapped) = (acme(&["a.test", "b.test"]), acme(&["b.test", "a.test"]));
        folder.keep_certificate(&one, pem(&["a.test"], 2030).as_bytes()).unwrap();
        let best_names = |acme: &Acme| best(&folder, &acme.names, NOW).map(|one| one.names);
        assert_eq!(best_names(&both), Some(vec!["a.test".to_owned()]), "until there is a better one");
        folder.keep_certificate(&swapped, pem(&["a.test", "b.test"], 2029).as_bytes()).unwrap();
        assert_eq!(folder.certificate_path(&both), folder.certificate_path(&swapped));
        assert_eq!(best_names(&both).map(|names| names.len()), Some(2));
        assert_eq!(best_names(&one).map(|names| names.len()), Some(1), "it lasts longer");
        assert_eq!(best_names(&acme(&["c.test"])), None);
        let later = Time::from_micros(1_880_000_000_000_000);
        assert_eq!(best(&folder, &both.names, later).map(|one| one.names.len()), Some(1), "the other has expired");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(folder.path()), mode(&folder.certificate_path(&one))), (0o700, 0o600));
        let elsewhere = Folder::of(state.path(), &document_url("https://acme.test/staging").unwrap());
        assert!(best(&elsewhere, &one.names, NOW).is_none(), "another authority has issued it");
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
            assert!(best(&folder, &one.names, NOW).is_none(), "{text}");
            let names = files(&folder);
            assert!(names.len() == 1 && names[0].ends_with(".broken"), "{names:?}");
        }
        for (mode, is_used) in [(0o620, false), (0o602, false), (0o644, true), (0o400, true)] {
            folder.keep_certificate(&one, whole.as_bytes()).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            assert_eq!(best(&folder, &one.names, NOW).is_some(), is_used, "mode {mode:o}");
            if is_used {
                assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & OTHERS, 0);
            }
        }
        fs::write(folder.account_path(), "{\"id\": 1}").unwrap();
        assert!(folder.account().unwrap().is_none());
        assert!(files(&folder).contains(&"account.broken".to_owned()));
    }

    #[test]
    fn what_cannot_be_read_now_stays_and_is_told() {
        let state = tempfile::tempdir().unwrap();
        let one = acme(&["a.test"]);
        let folder = Folder::of(state.path(), &one.directory);
        folder.keep_certificate(&one, pem(&["a.test"], 2030).as_bytes()).unwrap();
        fs::write(folder.account_path(), "{\"id\": 1}").unwrap();
        let before = files(&folder);
        // Makes opening any file fail.
        let limits = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let none = rustix::process::Rlimit { current: Some(0), ..limits };
        rustix::process::setrlimit(rustix::process::Resource::Nofile, none).unwrap();
        let found = folder.certificates(&one.names, NOW);
        let account = folder.account();
        let paused = folder.paused_until(&one);
        let locked = folder.state.lock();
        folder.tidy(&found);
        rustix::process::setrlimit(rustix::process::Resource::Nofile, limits).unwrap();
        assert!(found.best.is_none() && found.wrong.is_empty() && found.unread.is_some());
        assert!(account.is_err() && paused.is_err() && locked.is_err());
        assert_eq!(files(&folder), before);
        assert!(best(&folder, &one.names, NOW).is_some());
    }
}
