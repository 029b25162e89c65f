//! Certificates in force: their files are watched and read again when they change, and a certificate that expires soon is
//! logged once a day.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use crate::clock::Time;
use crate::config::Tls;

/// A certificate is replaced in several steps. The files are read after so much time without a change.
const SETTLES_AFTER: Duration = Duration::from_millis(500);
/// The longest that changes without an end put off the reading.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// How often certificates are checked for whether they expire soon.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(86_400);

/// Watches the files of certificates. Folders are watched rather than files: a file is mostly replaced by another one, and
/// Kubernetes replaces a symbolic link beside it.
pub(super) struct CertificateWatch {
    /// `None` if there are no certificates, or the system cannot watch files.
    watcher: Option<RecommendedWatcher>,
    folders: BTreeSet<PathBuf>,
    changed: (mpsc::Sender<()>, mpsc::Receiver<()>),
    /// When the first and the last change were seen that are not dealt with yet.
    changing: Option<(Instant, Instant)>,
}

impl CertificateWatch {
    /// A watch of these files.
    pub(super) fn new(tls: Option<&Tls>) -> Self {
        let mut watch = Self { watcher: None, folders: BTreeSet::new(), changed: mpsc::channel(1), changing: None };
        watch.set(tls);
        watch
    }

    /// Watches the files of this configuration from now on.
    pub(super) fn set(&mut self, tls: Option<&Tls>) {
        let folders: BTreeSet<_> = tls.iter().flat_map(|tls| tls.files()).flat_map(folders).collect();
        if folders == self.folders {
            return;
        }
        self.watcher = None;
        self.folders = folders;
        if self.folders.is_empty() {
            return;
        }
        let changed = self.changed.0.clone();
        let started = notify::recommended_watcher(move |event: notify::Result<Event>| {
            let is_change = event.is_ok_and(|event| !matches!(event.kind, EventKind::Access(_)));
            if is_change {
                // If the channel is full, a change is already to be looked at.
                let _ = changed.try_send(());
            }
        });
        let started = started.and_then(|mut watcher| {
            self.folders.iter().try_for_each(|folder| watcher.watch(folder, RecursiveMode::NonRecursive))?;
            Ok(watcher)
        });
        match started {
            Ok(watcher) => self.watcher = Some(watcher),
            Err(error) => {
                let help = "send SIGHUP when a certificate has changed";
                tracing::warn!(%error, help, "cannot watch the files of certificates");
            }
        }
    }

    /// Returns when files have changed and no further change has come for a moment. The returned future may be dropped and
    /// created again: a change that it has seen is not forgotten.
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
                return;
            }
            self.changing = Some((first, Instant::now()));
        }
    }
}

/// Where a file changes: in its own folder, and in that of the file to which symbolic links lead.
fn folders(file: &Path) -> impl Iterator<Item = PathBuf> {
    let real = file.canonicalize().ok();
    let folder = |path: &Path| match path.parent() {
        Some(folder) if folder != Path::new("") => folder.to_owned(),
        _ => PathBuf::from("."),
    };
    [Some(folder(file)), real.as_deref().map(folder)].into_iter().flatten()
}

/// Logs the certificates that have expired or will soon.
pub(super) fn warn_of_expiry(tls: &Tls, now: Time) {
    for identity in &tls.settings.identities {
        let left = identity.not_after.seconds().saturating_sub(now.seconds());
        if identity.expires_soon(now) {
            let certificate = identity.file.as_str();
            tracing::warn!(certificate, days_left = left / 86_400, "a certificate expires soon");
        }
    }
}
