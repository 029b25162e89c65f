//! A configuration on a server, which is asked regularly. The last good answer is kept in a file.
//!
//! The copy is written before its configuration is put in force. A gateway that can keep no copy logs that, and goes on.

mod copy;
mod location;

use std::fmt;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flate2::bufread::MultiGzDecoder;
use http::{HeaderMap, HeaderValue, header};
use parking_lot::Mutex;

use crate::admin::RemoteStatus;
use crate::base::clock;
use crate::base::threads::{Background, block_on};
use crate::config::{Admin, Config, Document, Problems};
use crate::net::fetch::{self, Fetched};
use crate::net::tls::ConnectorTls;

use copy::{CopyFile, Saved};
use location::Location;

const MAX_BYTES: usize = 4 << 20;
/// The beginning of a gzip file (RFC 1952, section 2.3.1).
const GZIP: [u8; 2] = [0x1f, 0x8b];
const LIMIT: Duration = Duration::from_secs(10);
/// For writing the copy.
const WRITE_LIMIT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub struct Remote {
    location: Location,
    /// Between two polls.
    pub every: Duration,
    /// `None` if there is no folder for it.
    copy: Option<CopyFile>,
    /// Locked while the copy is being written, which a disk may delay.
    writing: Arc<Mutex<()>>,
    state: Mutex<State>,
    /// Shared with the admin thread, which only reads.
    pub status: Arc<Mutex<RemoteStatus>>,
}

#[derive(Debug, Default)]
struct State {
    /// The last one that was fetched.
    last: Option<RemoteDocument>,
    /// The text in force. `None` at first, and if the copy is in force.
    in_force: Option<Bytes>,
    /// Whether the document in force was good when it was last read, together with the files that it names.
    is_settled: bool,
}

#[derive(Clone, Debug)]
struct RemoteDocument {
    text: Bytes,
    etag: Option<HeaderValue>,
}

impl Remote {
    /// The copy is in the folder `state`. The error says what is wrong with the URL or the token, without quoting them.
    pub fn new(url: &str, token: Option<&str>, every: Duration, state: Option<&Path>) -> Result<Self, String> {
        let location = Location::new(url, token)?;
        let copy = state.map(|folder| CopyFile::new(folder, location.identity()));
        let status = Arc::new(Mutex::new(RemoteStatus { every, ..RemoteStatus::default() }));
        Ok(Self { location, every, copy, writing: Arc::default(), state: Mutex::default(), status })
    }

    /// `None` if no copy is kept.
    pub fn copy_path(&self) -> Option<&Path> {
        self.copy.as_ref().map(|copy| &*copy.path)
    }

    /// Fetches the configuration and checks it. The error says why there is none, or has all its problems.
    pub(super) fn load(&self) -> Result<Config, Problems> {
        self.parsed(&self.fetch()?)?.config()
    }

    /// Like [`Self::load`]; `None` if this configuration is already in force.
    pub(super) fn poll(&self) -> Result<Option<Config>, Problems> {
        let was_settled = self.state.lock().is_settled;
        let text = self.fetch()?;
        if was_settled && self.state.lock().in_force.as_ref() == Some(&text) {
            return Ok(None);
        }
        self.parsed(&text)?.config().map(Some)
    }

    /// Loads and checks the copy. `None` if there is none. The error says why it cannot be used.
    pub(super) fn load_copy(&self) -> Result<Option<Config>, String> {
        let Some((copy, Saved { at, text })) = self.saved()? else { return Ok(None) };
        let name = copy.path.display().to_string();
        let config = Document::one(&name, text, None).config().map_err(|problems| problems.to_string())?;
        self.status.lock().copy_saved = Some(at);
        Ok(Some(config))
    }

    /// `[admin]` of the running gateway's configuration, as far as that is known: from the copy, else from the server.
    pub(super) fn load_admin(&self) -> Result<Option<Admin>, Problems> {
        if let Ok(Some((copy, Saved { text, .. }))) = self.saved() {
            return Document::one(&copy.path.display().to_string(), text, None).admin();
        }
        self.parsed(&self.fetch()?)?.admin()
    }

    fn saved(&self) -> Result<Option<(&CopyFile, Saved)>, String> {
        let Some(copy) = &self.copy else { return Ok(None) };
        let saved = copy.read(MAX_BYTES).map_err(|error| format!("cannot read {}: {error}", copy.path.display()))?;
        Ok(saved.map(|saved| (copy, saved)))
    }

    /// Keeps the last document as the copy. It was checked and can be put in force.
    pub fn keep(&self) {
        let last = self.state.lock().last.clone();
        let (Some(copy), Some(RemoteDocument { text, .. })) = (self.copy.clone(), last) else { return };
        let (path, writing) = (copy.path.display().to_string(), self.writing.clone());
        let written = Background::start("copy", WRITE_LIMIT, move |_| {
            let Some(_alone) = writing.try_lock() else {
                return Err(io::Error::other("the previous one is still being written"));
            };
            let is_same = copy.read(MAX_BYTES).is_ok_and(|known| known.is_some_and(|known| known.text == text));
            if is_same { Ok(()) } else { copy.write(&text, clock::now()) }
        });
        if let Err(error) = written.and_then(Background::wait).flatten() {
            tracing::warn!(file = path, %error, "cannot keep a copy of the configuration");
        }
    }

    /// The last document is in force.
    pub fn applied(&self) {
        let mut state = self.state.lock();
        state.in_force = state.last.as_ref().map(|last| last.text.clone());
        state.is_settled = true;
        self.status.lock().copy_saved = None;
    }

    /// The server's configuration was refused. The one in force stays good if it is another document, or if none could be
    /// fetched.
    pub fn refused(&self) {
        let mut state = self.state.lock();
        let is_same = state.last.as_ref().map(|last| &last.text) == state.in_force.as_ref();
        state.is_settled &= self.status.lock().error.is_some() || !is_same;
    }

    fn parsed(&self, text: &Bytes) -> Result<Document<'static>, Problems> {
        if text.trim_ascii_start().starts_with(b"<") {
            let help = "check what the server answers at this URL: it may be an error page";
            return Err(self.problem("the server has sent a web page, not TOML".to_owned(), help));
        }
        Ok(Document::one(&self.to_string(), text.to_vec(), None))
    }

    fn problem(&self, message: String, help: &str) -> Problems {
        Problems::without_text(&self.to_string(), message, help)
    }

    /// Blocks for at most [`LIMIT`].
    fn fetch(&self) -> Result<Bytes, Problems> {
        let known = self.state.lock().last.clone();
        let asked = self.ask(known.as_ref());
        let mut status = self.status.lock();
        status.error = asked.as_ref().err().cloned();
        let document = asked.map_err(|why| {
            status.failed += 1;
            self.problem(format!("cannot fetch the configuration: {why}"), "check that its server answers at this URL")
        })?;
        let is_same = known.is_some_and(|known| known.text == document.text);
        *(if is_same { &mut status.unchanged } else { &mut status.changed }) += 1;
        status.last_fetch = Some(clock::now());
        drop(status);
        let text = document.text.clone();
        self.state.lock().last = Some(document);
        Ok(text)
    }

    fn ask(&self, known: Option<&RemoteDocument>) -> Result<RemoteDocument, String> {
        let Location { url, authorization, .. } = &self.location;
        // The authorities of the system may have been replaced.
        let tls = url.server_name.as_ref().map(|_| ConnectorTls::of_system()).transpose();
        let tls = tls.map_err(|error| error.to_string())?;
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, HeaderValue::from_static("application/toml, */*;q=0.5"));
        headers.extend(authorization.clone().map(|value| (header::AUTHORIZATION, value)));
        headers.extend(known.and_then(|known| known.etag.clone()).map(|etag| (header::IF_NONE_MATCH, etag)));
        let fetched = block_on(fetch::fetch_changed(url, tls.as_ref(), headers, MAX_BYTES, LIMIT));
        match fetched.map_err(|error| error.to_string())?.map_err(|error| error.to_string())? {
            Fetched::Document { body, etag } => Ok(RemoteDocument { text: unpacked(body)?, etag }),
            Fetched::Unchanged => known.cloned().ok_or_else(|| "the server has sent nothing".to_owned()),
        }
    }
}

/// Some servers compress by gzip without being asked to.
fn unpacked(body: Bytes) -> Result<Bytes, String> {
    if !body.starts_with(&GZIP) {
        return Ok(body);
    }
    let mut text = Vec::new();
    let unpacking = MultiGzDecoder::new(&*body).take(MAX_BYTES as u64 + 1).read_to_end(&mut text);
    unpacking.map_err(|error| format!("the server has sent broken gzip data: {error}"))?;
    if text.len() > MAX_BYTES {
        return Err(format!("the document has more than {} MiB when decompressed", MAX_BYTES >> 20));
    }
    Ok(text.into())
}

/// Without the secrets of the URL.
impl fmt::Display for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.location.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn packed(text: &[u8]) -> Bytes {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap().into()
    }

    #[test]
    fn a_document_that_came_compressed_is_read() {
        assert_eq!(unpacked(Bytes::from_static(b"[server]")).unwrap(), "[server]");
        assert_eq!(unpacked(packed(b"[server]")).unwrap(), "[server]");
        let whole = packed(b"[server]");
        assert!(unpacked(whole.slice(..whole.len() - 5)).unwrap_err().contains("broken gzip data"));
        assert!(unpacked(packed(&vec![b' '; MAX_BYTES + 1])).unwrap_err().contains("more than 4 MiB"));
    }
}
