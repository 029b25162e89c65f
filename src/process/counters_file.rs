//! The file to which counters in memory are saved at the end of the process, and from which they are restored at the start,
//! so that a restart grants no quota twice. The gateway starts and stops even if the file cannot be used. A file that could
//! not be read at the start may be good (no file handles, a slow disk), so it is read again at the end, and its counters are
//! added. If it is still unreadable, the file stays and the counters of this process are lost: the operator can move the file.
//! A new file is written beside it, and renamed.

use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, IntoInnerError, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::base::clock;
use crate::base::threads::Background;
use crate::config::{self, regular_file, temporary_file};
use crate::limit::Limit;
use crate::proxy::snapshot::{SharedState, Snapshot};
use crate::sources::notices;
use crate::store::memory::{Memory, RestoredCounters, SAVED_NAME};
use crate::store::{Counters, Store};

/// For reading or writing the file: a disk may not answer.
const LIMIT: Duration = Duration::from_secs(10);

pub(super) fn restore(config: &config::Store, gateway: &Snapshot, shared: &SharedState) {
    let Some((memory, path, max_memory)) = memory_and_file(config, &gateway.store) else { return };
    let file = path.display();
    let (name, most) = (path.clone(), most_bytes(max_memory));
    let read = Background::start("counters", LIMIT, move |_| {
        if let Err(error) = may_replace(&name).and_then(|()| temporary_file::beside(&name)) {
            tracing::warn!(file = %name.display(), %error, "counters cannot be saved at the end");
        }
        regular_file::read_up_to(most, &name)
    });
    let bytes = match read.and_then(Background::wait).flatten() {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            tracing::info!(%file, "there are no saved counters: limits begin anew");
            return;
        }
        Err(error) => {
            tracing::error!(%file, %error, "saved counters cannot be read: limits begin anew");
            // A file that is too large for this configuration is wrong, whatever it contains.
            if error.kind() != ErrorKind::FileTooLarge {
                *shared.unread_counters.lock() = Some(path.clone());
            }
            return;
        }
    };
    let now = clock::now();
    match memory.restore(&limits(gateway), &bytes, now) {
        Ok(RestoredCounters { saved, keys, spent, unknown }) => {
            let age_seconds = now.micros_since(saved) / 1_000_000;
            tracing::info!(%file, age_seconds, keys, spent, unknown, "counters are restored");
            if unknown > 0 {
                let why = "their limit is gone, or has another strategy, precision, time zone or periods";
                tracing::warn!(%file, keys = unknown, why, "counters are not restored");
            }
        }
        Err(error) => tracing::error!(%file, %error, "saved counters cannot be used: limits begin anew"),
    }
}

/// The maximum size of saved counters. A saved cell takes less than in memory, or a little more if it is a long log.
fn most_bytes(max_memory: usize) -> u64 {
    2 * max_memory as u64
}

fn limits(gateway: &Snapshot) -> Vec<Arc<Limit>> {
    gateway.limits.iter().flat_map(|rates| rates.all()).chain(notices::remembered()).cloned().collect()
}

/// Saves the counters, if the configuration names a file. Nothing may change them any more.
pub(super) async fn save(config: &config::Store, gateway: &Snapshot, shared: &SharedState) {
    let store = gateway.store.clone();
    let Some((_, path, max_memory)) = memory_and_file(config, &store) else { return };
    let (name, file) = (path.clone(), path.display());
    let is_unread = shared.unread_counters.lock().as_ref() == Some(path);
    let (saved, limits) = (store.clone(), limits(gateway));
    let writing = Background::start("counters", LIMIT, move |_| match &saved.counters {
        Counters::Memory(memory) => {
            if is_unread {
                add_unread(memory, &limits, &name, most_bytes(max_memory))?;
            }
            write(memory, &name)
        }
        Counters::Shared(_) => Ok(0),
    });
    let written = match writing {
        Ok(mut writing) => writing.result().await.map_err(io::Error::from).flatten(),
        Err(error) => Err(error),
    };
    match written {
        Ok(keys) => tracing::info!(%file, keys, "counters are saved"),
        Err(error) => {
            tracing::error!(%file, %error, "counters cannot be saved: the next start reads those saved before, if any");
        }
    }
}

/// Adds the counters of a file that could not be read before. A readable file with other content will be replaced. Fails when
/// the file still cannot be read.
fn add_unread(memory: &Memory, limits: &[Arc<Limit>], path: &Path, most: u64) -> io::Result<()> {
    match regular_file::read_up_to(most, path) {
        Ok(bytes) => {
            let file = path.display();
            match memory.restore(limits, &bytes, clock::now()) {
                Ok(RestoredCounters { keys, .. }) => {
                    tracing::info!(%file, keys, "saved counters can be read again, and are added");
                }
                Err(error) => tracing::error!(%file, %error, "saved counters cannot be used, and are replaced"),
            }
            Ok(())
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => {
            Err(io::Error::new(error.kind(), format!("the previous ones still cannot be read, so they stay: {error}")))
        }
    }
}

fn memory_and_file<'a>(config: &'a config::Store, store: &'a Store) -> Option<(&'a Memory, &'a PathBuf, usize)> {
    match (config, &store.counters) {
        (config::Store::Memory { snapshot: Some(path), max_memory, .. }, Counters::Memory(memory)) => {
            Some((memory, path, *max_memory))
        }
        _ => None,
    }
}

/// Writes a new file and renames it, so that the file is always complete.
fn write(memory: &Memory, path: &Path) -> io::Result<usize> {
    may_replace(path)?;
    let mut out = BufWriter::new(temporary_file::beside(path)?);
    let keys = memory.save(clock::now(), &mut out)?;
    let file = out.into_inner().map_err(IntoInnerError::into_error)?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(keys)
}

/// Checks whether the path may get another file. Fails if it has something other than saved counters: the configuration may
/// name a wrong file.
fn may_replace(path: &Path) -> io::Result<()> {
    let metadata = match path.metadata() {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    let mut beginning = Vec::new();
    File::open(path)?.take(SAVED_NAME.len() as u64).read_to_end(&mut beginning)?;
    if beginning.is_empty() || beginning == SAVED_NAME {
        return Ok(());
    }
    Err(io::Error::other("it is a file of something other than counters, which is not replaced"))
}
