//! Watches files and reports when they have changed and the changes have settled.
//!
//! Folders are watched rather than files: a file is usually replaced by another one, and Kubernetes replaces a symbolic link
//! beside it. Other files in these folders may change at any time, so the watcher's thread looks at the files themselves: a
//! disk that does not answer delays nobody else.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use super::source::{folder_files, version};
use crate::base::clock::Time;
use crate::config::{Config, ReloadError, Tls};

/// Files are replaced in several steps. A change is reported after this time without another one.
const SETTLES_AFTER: Duration = Duration::from_millis(500);
/// The longest time for which further changes delay a report.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// The most by which the time that the system records for a change is early.
const COARSE: Duration = Duration::from_millis(20);

pub(super) struct FileWatch {
    what: &'static str,
    /// `None` if there are no files, or the system cannot watch them.
    watcher: Option<RecommendedWatcher>,
    files: BTreeSet<PathBuf>,
    changed: (mpsc::Sender<()>, mpsc::Receiver<()>),
    /// When the first and the last change were seen that are not reported yet.
    changing: Option<(Instant, Instant)>,
}

impl FileWatch {
    pub(super) fn new(what: &'static str) -> Self {
        Self { what, watcher: None, files: BTreeSet::new(), changed: mpsc::channel(1), changing: None }
    }

    /// Watches these files instead of the previous ones. They were read after `since`: a change since then is reported, too.
    pub(super) fn set(&mut self, files: impl IntoIterator<Item = PathBuf>, since: Time) {
        let files = files.into_iter().collect();
        if files == self.files {
            return;
        }
        self.files = files;
        self.begin();
        if self.files.iter().any(|file| has_changed(file, since)) {
            self.changing = Some((Instant::now(), Instant::now()));
        }
    }

    fn begin(&mut self) {
        self.watcher = None;
        if self.files.is_empty() {
            return;
        }
        match self.watch() {
            Ok(watcher) => self.watcher = Some(watcher),
            Err(error) => self.warn(&error),
        }
    }

    fn warn(&self, error: &notify::Error) {
        let help = "send SIGHUP when they have changed";
        tracing::warn!(%error, help, "cannot watch {}", self.what);
    }

    fn watch(&self) -> notify::Result<RecommendedWatcher> {
        let (changed, files) = (self.changed.0.clone(), self.files.clone());
        // A folder that is missing cannot be watched, and a file may come with it.
        let missing: BTreeSet<_> = files.iter().filter_map(|file| missing_folder(file)).map(Path::to_owned).collect();
        let appearing: Vec<_> = missing.iter().flat_map(|folder| folders(folder)).collect();
        let versions = move || {
            let files: Vec<_> = files.iter().map(|file| version(file)).collect();
            (files, missing.iter().map(|folder| folder.is_dir()).collect::<Vec<_>>())
        };
        let mut known = versions();
        let mut watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            if event.is_ok_and(|event| matches!(event.kind, EventKind::Access(_))) {
                return;
            }
            let now = versions();
            if now != known {
                known = now;
                // A full channel already has a message.
                let _ = changed.try_send(());
            }
        })?;
        let folders: BTreeSet<_> = self.files.iter().flat_map(|file| all_folders(file)).chain(appearing).collect();
        let folders = folders.iter().filter(|folder| folder.is_dir());
        let failed = folders.filter_map(|folder| watcher.watch(folder, RecursiveMode::NonRecursive).err());
        // The other folders are watched.
        failed.last().iter().for_each(|error| self.warn(error));
        Ok(watcher)
    }

    /// Returns when files have changed and the changes have settled. The future may be dropped and created again: no change
    /// that it has seen is lost.
    pub(super) async fn changed(&mut self) {
        let (_, changed) = &mut self.changed;
        loop {
            let Some((first, last)) = self.changing else {
                changed.recv().await;
                self.changing = Some((Instant::now(), Instant::now()));
                continue;
            };
            if timeout_at((first + LONGEST_WAIT).min(last + SETTLES_AFTER), changed.recv()).await.is_err() {
                self.changing = None;
                // A symbolic link may lead to another folder now.
                self.begin();
                return;
            }
            self.changing = Some((first, Instant::now()));
        }
    }
}

/// The folders where `path` changes; for a folder of configuration files, also those where its files change.
fn all_folders(path: &Path) -> impl Iterator<Item = PathBuf> {
    let of_files = folder_files(path).unwrap_or_default();
    let folder = path.is_dir().then(|| path.to_owned());
    folders(path).chain(folder).chain(of_files.into_iter().flat_map(|file| folders(&file).collect::<Vec<_>>()))
}

/// The outermost folder on the way to a file that does not exist.
fn missing_folder(file: &Path) -> Option<&Path> {
    let folders = file.ancestors().skip(1).filter(|folder| *folder != Path::new(""));
    folders.take_while(|folder| !folder.is_dir()).last()
}

/// Whether this file, or a file of this folder, was changed or replaced at `since` or later.
fn has_changed(path: &Path, since: Time) -> bool {
    let mut files = folder_files(path).unwrap_or_default();
    files.push(path.to_owned());
    files.iter().any(|file| file_has_changed(file, since))
}

fn file_has_changed(file: &Path, since: Time) -> bool {
    let changed = |metadata: fs::Metadata| {
        let seconds = u64::try_from(metadata.ctime()).unwrap_or_default();
        Time::from_micros(seconds.saturating_mul(1_000_000))
            .after(Duration::from_nanos(metadata.ctime_nsec().unsigned_abs()))
    };
    // The system records a time that it reads only now and then.
    let versions = [fs::metadata(file), fs::symlink_metadata(file)].into_iter().flatten();
    versions.map(changed).any(|changed| changed.after(COARSE) >= since)
}

/// Where a file changes: in its own folder, in the folder of the file to which symbolic links lead, and in the folders of
/// symbolic links on its path.
fn folders(file: &Path) -> impl Iterator<Item = PathBuf> {
    let folder = |path: &Path| match path.parent() {
        Some(folder) if folder != Path::new("") => folder.to_owned(),
        _ => PathBuf::from("."),
    };
    let real = file.canonicalize().ok().map(|real| folder(&real));
    let links = file.ancestors().skip(1).filter(|ancestor| ancestor.is_symlink()).map(folder);
    [folder(file)].into_iter().chain(real).chain(links)
}

pub(super) struct Watches {
    pub(super) certificates: FileWatch,
    /// All other files.
    pub(super) config: FileWatch,
    is_config_watched: bool,
}

impl Watches {
    /// `since` is when reading `config` began.
    pub(super) fn new(is_config_watched: bool, config: &Config, since: Time) -> Self {
        let certificates = FileWatch::new("the files of certificates");
        let files = FileWatch::new("the files of the configuration");
        let mut watches = Self { certificates, config: files, is_config_watched };
        watches.set(config, None, since);
        watches
    }

    /// Watches the files of this configuration, and those of a `refused` one: it may become good when one of them changes.
    pub(super) fn set(&mut self, config: &Config, refused: Option<&ReloadError>, since: Time) {
        let tls: BTreeSet<_> = config.tls().into_iter().flatten().flat_map(Tls::files).map(Path::to_owned).collect();
        if self.is_config_watched {
            let refused = refused.into_iter().flat_map(ReloadError::files);
            self.config.set(config.files.difference(&tls).chain(refused).cloned(), since);
        }
        self.certificates.set(tls, since);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use tokio::time::timeout;

    use super::*;
    use crate::base::clock;

    /// Enough for a busy machine.
    const PATIENCE: Duration = Duration::from_secs(30);

    fn run<F: Future>(future: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
    }

    fn watch(file: &Path) -> FileWatch {
        let mut watch = FileWatch::new("the files of this test");
        watch.set([file.to_owned()], clock::now().after(Duration::from_secs(3600)));
        watch
    }

    #[test]
    fn a_file_changes_in_place_by_a_rename_and_by_links_on_its_path() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for release in ["1", "2"] {
            fs::create_dir(path(release)).unwrap();
            fs::write(path(release).join("file"), release).unwrap();
        }
        symlink("1", path("current")).unwrap();
        let file = path("current").join("file");
        run(async {
            let mut watch = watch(&file);
            let told = async |watch: &mut FileWatch, what: &str| {
                timeout(PATIENCE, watch.changed()).await.unwrap_or_else(|_| panic!("not seen: {what}"));
            };
            fs::write(&file, "written").unwrap();
            told(&mut watch, "written in place").await;
            fs::write(path("next"), "next").unwrap();
            fs::rename(path("next"), &file).unwrap();
            told(&mut watch, "renamed").await;
            symlink("2", path("following")).unwrap();
            fs::rename(path("following"), path("current")).unwrap();
            told(&mut watch, "a link").await;
            fs::write(&file, "in the new folder").unwrap();
            told(&mut watch, "behind the new link").await;
            fs::remove_file(&file).unwrap();
            told(&mut watch, "removed").await;
        });
    }

    #[test]
    fn other_files_of_the_folder_do_not_matter() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "1").unwrap();
        run(async {
            let mut watch = watch(&file);
            fs::write(folder.path().join("another"), "2").unwrap();
            fs::read(&file).unwrap();
            assert!(timeout(4 * SETTLES_AFTER, watch.changed()).await.is_err());
        });
    }

    #[test]
    fn all_changes_of_a_folder_are_told() {
        let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = |name: &str| folder.path().join(name);
        let target = elsewhere.path().join("target");
        fs::write(&target, "1").unwrap();
        run(async {
            let mut watch = watch(folder.path());
            let told = async |watch: &mut FileWatch, what: &str| {
                timeout(PATIENCE, watch.changed()).await.unwrap_or_else(|_| panic!("not seen: {what}"));
            };
            fs::write(path("a.toml"), "1").unwrap();
            told(&mut watch, "added").await;
            fs::write(path("a.toml"), "12").unwrap();
            told(&mut watch, "written").await;
            fs::rename(path("a.toml"), path("b.toml")).unwrap();
            told(&mut watch, "renamed").await;
            symlink(&target, path("c.toml")).unwrap();
            told(&mut watch, "a link").await;
            fs::write(&target, "12").unwrap();
            told(&mut watch, "written behind a link").await;
            fs::remove_file(path("b.toml")).unwrap();
            told(&mut watch, "removed").await;
            fs::write(path(".a.toml.swp"), "").unwrap();
            fs::write(path("notes"), "").unwrap();
            assert!(timeout(4 * SETTLES_AFTER, watch.changed()).await.is_err());
            let next = elsewhere.path().join("next");
            fs::create_dir(&next).unwrap();
            fs::rename(folder.path(), elsewhere.path().join("before")).unwrap();
            told(&mut watch, "away").await;
            fs::write(next.join("d.toml"), "").unwrap();
            fs::rename(&next, folder.path()).unwrap();
            told(&mut watch, "another folder").await;
            fs::write(path("d.toml"), "1").unwrap();
            told(&mut watch, "written in another folder").await;
        });
    }

    #[test]
    fn a_file_may_come_with_its_folders() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a/b/file");
        run(async {
            let mut watch = watch(&file);
            for step in ["a", "a/b"] {
                fs::create_dir(folder.path().join(step)).unwrap();
                timeout(PATIENCE, watch.changed()).await.unwrap_or_else(|_| panic!("not seen: {step}"));
            }
            fs::write(&file, "1").unwrap();
            timeout(PATIENCE, watch.changed()).await.unwrap();
            fs::remove_dir_all(folder.path().join("a")).unwrap();
            timeout(PATIENCE, watch.changed()).await.unwrap();
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, "1").unwrap();
            timeout(PATIENCE, watch.changed()).await.unwrap();
        });
    }

    #[test]
    fn a_change_before_the_watch_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        let since = clock::now();
        fs::write(&file, "1").unwrap();
        run(async {
            let mut watch = FileWatch::new("the files of this test");
            watch.set([file], since);
            timeout(PATIENCE, watch.changed()).await.unwrap();
        });
    }
}
