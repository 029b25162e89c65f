//! The file to which counters in memory are saved at the end of the process, and from which they are restored at the start,
//! so that a restart gives nobody its quota a second time.
//!
//! Whatever is wrong with the file, the gateway starts and stops: limits then begin anew, and the log says so.

use std::error::Error;
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::clock;
use crate::config::{self, regular_file};
use crate::snapshot::Snapshot;
use crate::store::Store;
use crate::store::memory::Memory;

/// Restores the counters, if the configuration names a file.
pub(super) fn restore(config: &config::Store, gateway: &Snapshot) {
    let Some((memory, path, max_memory)) = memory_and_file(config, gateway) else { return };
    let file = path.display();
    if let Err(error) = new_file(path) {
        tracing::warn!(%file, %error, "counters cannot be saved at the end");
    }
    // A saved cell takes less than it takes in memory, or a little more if it is a long log.
    let bytes = match regular_file::read_up_to(2 * max_memory as u64, path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            tracing::info!(%file, "there are no saved counters: limits begin anew");
            return;
        }
        Err(error) => {
            tracing::error!(%file, %error, "saved counters cannot be read: limits begin anew");
            return;
        }
    };
    let limits: Vec<_> = gateway.limits.iter().flat_map(|rates| rates.limits()).cloned().collect();
    let now = clock::now();
    match memory.restore(&limits, &bytes, now) {
        Ok(restored) => {
            let (keys, spent, unknown) = (restored.keys, restored.spent, restored.unknown);
            let age_seconds = now.micros_since(restored.saved) / 1_000_000;
            tracing::info!(%file, age_seconds, keys, spent, unknown, "counters are restored");
        }
        Err(error) => tracing::error!(%file, %error, "saved counters cannot be used: limits begin anew"),
    }
}

/// Saves the counters, if the configuration names a file. Nothing changes them any more.
pub(super) fn save(config: &config::Store, gateway: &Snapshot) {
    let Some((memory, path, _)) = memory_and_file(config, gateway) else { return };
    let file = path.display();
    match write(memory, path) {
        Ok(keys) => tracing::info!(%file, keys, "counters are saved"),
        Err(error) => tracing::error!(%file, %error, "counters cannot be saved: limits begin anew after the start"),
    }
}

fn memory_and_file<'a>(config: &'a config::Store, gateway: &'a Snapshot) -> Option<(&'a Memory, &'a PathBuf, usize)> {
    match (config, &*gateway.store) {
        (config::Store::Memory { snapshot: Some(path), max_memory, .. }, Store::Memory(memory)) => {
            Some((memory, path, *max_memory))
        }
        _ => None,
    }
}

/// Writes another file and gives it the name at last, so that the file is always whole.
fn write(memory: &Memory, path: &Path) -> Result<usize, Box<dyn Error>> {
    if path.metadata().is_ok_and(|metadata| !metadata.is_file()) {
        return Err("there is something else than a file".into());
    }
    let mut out = BufWriter::new(new_file(path)?);
    let keys = memory.save(clock::now(), &mut out)?;
    out.flush()?;
    let file = out.into_inner()?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(keys)
}

/// A file beside this one, which is removed unless it gets a name. Only its owner may read it.
fn new_file(path: &Path) -> io::Result<NamedTempFile> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    NamedTempFile::new_in(folder.unwrap_or(Path::new(".")))
}
