//! The files that are watched: those of certificates always, and the others of the configuration if that is asked for.

use std::collections::BTreeSet;
use std::path::Path;

use super::file_watch::FileWatch;
use crate::base::clock::Time;
use crate::config::{Config, ReloadError, Tls};

/// The watches of the configuration in force.
pub(super) struct Watches {
    pub(super) certificates: FileWatch,
    /// All other files of the configuration.
    pub(super) config: FileWatch,
    is_config_watched: bool,
}

impl Watches {
    /// The watches of the files from which `config` was read since this moment.
    pub(super) fn new(is_config_watched: bool, config: &Config, since: Time) -> Self {
        let certificates = FileWatch::new("the files of certificates");
        let files = FileWatch::new("the files of the configuration");
        let mut watches = Self { certificates, config: files, is_config_watched };
        watches.set(config, None, since);
        watches
    }

    /// Watches the files of this configuration from now on, and those of one that was `refused` instead of it: it may be good
    /// as soon as one of them changes.
    pub(super) fn set(&mut self, config: &Config, refused: Option<&ReloadError>, since: Time) {
        let tls: BTreeSet<_> = config.tls().into_iter().flatten().flat_map(Tls::files).map(Path::to_owned).collect();
        if self.is_config_watched {
            let refused = refused.into_iter().flat_map(ReloadError::files);
            self.config.set(config.files.difference(&tls).chain(refused).cloned(), since);
        }
        self.certificates.set(tls, since);
    }
}
