//! Answers to challenges that gateways leave for each other in a shared store, as notes.
//!
//! Whoever can write into the store could make an authority believe that they answer for our names. So each note has a MAC
//! with a key that is not in the store: `challenge_secret` of the configuration, or the key of the account, which gateways
//! with the same state folder share. A note also has an expiry, so an old note is useless.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::spawn_blocking;

use super::folder::Folder;
use crate::base::clock;
use crate::config::{ChallengeSecret, SharedStore};
use crate::store::shared::Notes;

/// How long a note is valid if the gateway crashes: a little longer than an order takes.
const LIFETIME: Duration = Duration::from_secs(330);
/// The text of a note of a gateway that is ordering and has no answer yet.
const CLAIM: &str = "-";

#[derive(Debug)]
pub(super) struct SharedAnswers {
    notes: Notes,
    secret: Option<ChallengeSecret>,
    folder: Arc<Folder>,
}

impl SharedAnswers {
    pub(super) fn new(store: &SharedStore, secret: Option<ChallengeSecret>, folder: Folder) -> Self {
        Self { notes: Notes::new(store), secret, folder: Arc::new(folder) }
    }

    /// Claims the note of this name. `false` if another gateway is ordering a certificate for it. Gateways that share only
    /// their folder lock that folder, so they need no claim.
    pub(super) async fn claim(&self, name: &str) -> io::Result<bool> {
        let Some(secret) = &self.secret else { return Ok(true) };
        let key = secret.key();
        let claim = signed(&key, name, now().saturating_add(LIFETIME.as_secs()), CLAIM);
        if self.notes.claim(name, &claim, LIFETIME).await? {
            return Ok(true);
        }
        let note = self.notes.read(name).await?;
        if note.is_some_and(|note| verified(&key, name, &note, now()).is_some()) {
            return Ok(false);
        }
        tracing::warn!(
            name,
            "a claim in the store is not trusted, and is replaced: no gateway with this challenge_secret made it"
        );
        self.notes.write(name, &claim, LIFETIME).await.map(|()| true)
    }

    pub(super) async fn write(&self, name: &str, key_authorization: &str) -> io::Result<()> {
        let key = self.key().await?.ok_or_else(|| io::Error::other("there is no account"))?;
        let note = signed(&key, name, now().saturating_add(LIFETIME.as_secs()), key_authorization);
        self.notes.write(name, &note, LIFETIME).await
    }

    /// The answer that another gateway has left for this name; `None` if there is none with a valid MAC.
    pub(super) async fn read(&self, name: &str) -> io::Result<Option<String>> {
        let Some(note) = self.notes.read(name).await? else { return Ok(None) };
        let text = self.trusted_text(name, &note).await?;
        if text.is_none() {
            tracing::warn!(
                name,
                "an answer in the store is not trusted: no gateway with this state folder or challenge_secret left it"
            );
        }
        Ok(text.filter(|text| text != CLAIM))
    }

    /// Removes the note of this name, unless a gateway with another key has left it.
    pub(super) async fn remove(&self, name: &str) -> io::Result<()> {
        match self.notes.read(name).await? {
            Some(note) if self.trusted_text(name, &note).await?.is_some() => self.notes.remove(name).await,
            _ => Ok(()),
        }
    }

    /// The text of this note, if a gateway with our key has left it.
    async fn trusted_text(&self, name: &str, note: &str) -> io::Result<Option<String>> {
        let key = self.key().await?;
        Ok(key.and_then(|key| verified(&key, name, note, now()).map(str::to_owned)))
    }

    async fn key(&self) -> io::Result<Option<[u8; 32]>> {
        if let Some(secret) = &self.secret {
            return Ok(Some(secret.key()));
        }
        let folder = self.folder.clone();
        let account = spawn_blocking(move || folder.account()).await.map_err(io::Error::other)??;
        let account = account.map(|account| serde_json::to_vec(&account)).transpose()?;
        Ok(account.map(|account| blake3::derive_key("gateway 2026 notes of an account of an authority", &account)))
    }
}

fn now() -> u64 {
    clock::now().seconds()
}

/// A note that is valid until this second.
fn signed(key: &[u8; 32], name: &str, until: u64, text: &str) -> String {
    format!("{until} {text} {}", code(key, name, until, text).to_hex())
}

/// The text of a note, if it is valid now.
fn verified<'a>(key: &[u8; 32], name: &str, note: &'a str, now: u64) -> Option<&'a str> {
    let mut parts = note.split(' ');
    let (until, text, hex) = (parts.next()?.parse().ok()?, parts.next()?, parts.next()?);
    // A gateway whose clock was wrong must not leave a claim that is valid for years.
    let holds = (now..=now.saturating_add(2 * LIFETIME.as_secs())).contains(&until) && parts.next().is_none();
    // The comparison of hashes takes constant time.
    (holds && blake3::Hash::from_hex(hex).ok()? == code(key, name, until, text)).then_some(text)
}

fn code(key: &[u8; 32], name: &str, until: u64, text: &str) -> blake3::Hash {
    blake3::keyed_hash(key, format!("{name} {until} {text}").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_believed_from_who_has_the_secret_for_its_name_and_time_alone() {
        let (key, other, answer) = ([1; 32], [2; 32], "token.thumbprint");
        let note = signed(&key, "a.test", 1000, answer);
        assert_eq!(verified(&key, "a.test", &note, 900), Some(answer));
        assert_eq!(verified(&key, "a.test", &note, 1000), Some(answer));
        assert_eq!(verified(&key, "a.test", &note, 1001), None, "it is over");
        assert_eq!(verified(&key, "a.test", &note, 1), None, "it would hold for too long");
        assert_eq!(verified(&key, "b.test", &note, 900), None);
        assert_eq!(verified(&other, "a.test", &note, 900), None);
        for at in 0..note.len() {
            let mut changed = note.clone().into_bytes();
            changed[at] ^= 1;
            assert_eq!(verified(&key, "a.test", &String::from_utf8(changed).unwrap(), 900), None, "byte {at}");
            assert_eq!(verified(&key, "a.test", &note[..at], 900), None);
        }
        for wrong in ["", " ", answer, "1000 token.thumbprint", "1000 token.thumbprint 00", &format!("{note} x")] {
            assert_eq!(verified(&key, "a.test", wrong, 900), None, "{wrong:?}");
        }
    }
}
