//! Answers to challenges that gateways leave for each other in a shared store, as notes.
//!
//! Whoever can write into the store could make an authority believe that they answer for our names. So each note has a MAC
//! with a key that is not in the store: `challenge_secret` of the configuration, or the key of the account, which gateways
//! with the same state folder share. A note also has an expiry, so an old note is useless.
//!
//! Each order has a random id, which is in all of its notes, and in the state folder before it is in the store. So a gateway that
//! was killed replaces its own notes after its next start. Of two gateways with copies of one folder, only the first one to order
//! finds that id: its next order has another one.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::spawn_blocking;

use super::folder::Folder;
use crate::base::clock;
use crate::base::hidden::Hidden;
use crate::config::SharedStore;
use crate::store::shared::Notes;

/// How long a note is valid if the gateway crashes: a little longer than an order takes.
const LIFETIME: Duration = Duration::from_secs(330);
/// The text of a note of a gateway that is ordering and has no answer yet.
const CLAIM: &str = "-";

/// The ids of the orders of one state folder.
#[derive(Debug)]
pub(super) struct OrderIds {
    /// That of the last order, which may have ended without removing its notes.
    pub(super) last: Option<String>,
    pub(super) new: String,
}

#[derive(Debug, PartialEq, Eq)]
enum Holder {
    /// Another gateway, which is ordering.
    Other,
    /// An order with the same state folder, which has ended.
    Us,
    /// There is no note that can be trusted.
    Nobody,
}

/// What a note says that can be trusted.
#[derive(Debug, PartialEq, Eq)]
struct Trusted<'a> {
    text: &'a str,
    /// That of the order.
    id: &'a str,
}

#[derive(Debug)]
pub(super) struct SharedAnswers {
    notes: Notes,
    secret: Option<Hidden<[u8; 32]>>,
    folder: Arc<Folder>,
}

impl SharedAnswers {
    pub(super) fn new(store: &SharedStore, secret: Option<Hidden<[u8; 32]>>, folder: Folder) -> Self {
        Self { notes: Notes::new(store), secret, folder: Arc::new(folder) }
    }

    /// Whether another gateway is ordering a certificate for this name. Gateways that share only their folder lock that folder,
    /// so they need no claim.
    pub(super) async fn is_claimed(&self, name: &str, ids: &OrderIds) -> io::Result<bool> {
        let Some(secret) = &self.secret else { return Ok(false) };
        Ok(self.holder(name, &secret.0, ids).await? == Holder::Other)
    }

    /// Claims the note of this name. `false` if another gateway is ordering a certificate for it.
    pub(super) async fn claim(&self, name: &str, ids: &OrderIds) -> io::Result<bool> {
        let Some(secret) = &self.secret else { return Ok(true) };
        let key = secret.0;
        let until = now().saturating_add(LIFETIME.as_secs());
        let claim = signed(&key, name, until, &Trusted { text: CLAIM, id: &ids.new });
        if self.notes.claim(name, &claim, LIFETIME).await? {
            return Ok(true);
        }
        match self.holder(name, &key, ids).await? {
            Holder::Other => return Ok(false),
            Holder::Us => {}
            Holder::Nobody => tracing::warn!(
                name,
                "a claim in the store is not trusted, and is replaced: no gateway with this challenge_secret made it"
            ),
        }
        self.notes.write(name, &claim, LIFETIME).await.map(|()| true)
    }

    async fn holder(&self, name: &str, key: &[u8; 32], ids: &OrderIds) -> io::Result<Holder> {
        let note = self.notes.read(name).await?;
        let trusted = note.as_deref().and_then(|note| verified(key, name, note, now()));
        Ok(trusted.map_or(Holder::Nobody, |note| ids.holder(&note)))
    }

    pub(super) async fn write(&self, name: &str, key_authorization: &str, id: &str) -> io::Result<()> {
        let key = self.key().await?.ok_or_else(|| io::Error::other("there is no account"))?;
        let until = now().saturating_add(LIFETIME.as_secs());
        let note = signed(&key, name, until, &Trusted { text: key_authorization, id });
        self.notes.write(name, &note, LIFETIME).await
    }

    /// The answer that another gateway has left for this name; `None` if there is none with a valid MAC.
    pub(super) async fn read(&self, name: &str) -> io::Result<Option<String>> {
        let Some(note) = self.notes.read(name).await? else { return Ok(None) };
        let key = self.key().await?;
        let text = key.and_then(|key| Some(verified(&key, name, &note, now())?.text.to_owned()));
        if text.is_none() {
            tracing::warn!(
                name,
                "an answer in the store is not trusted: no gateway with this state folder or challenge_secret left it"
            );
        }
        Ok(text.filter(|text| text != CLAIM))
    }

    /// Removes the note of this name, if it is of the order with this id.
    pub(super) async fn remove(&self, name: &str, id: &str) -> io::Result<()> {
        let (Some(note), Some(key)) = (self.notes.read(name).await?, self.key().await?) else { return Ok(()) };
        match verified(&key, name, &note, now()) {
            Some(note) if note.id == id => self.notes.remove(name).await,
            _ => Ok(()),
        }
    }

    async fn key(&self) -> io::Result<Option<[u8; 32]>> {
        if let Some(secret) = &self.secret {
            return Ok(Some(secret.0));
        }
        let folder = self.folder.clone();
        let account = spawn_blocking(move || folder.account()).await.map_err(io::Error::other)??;
        let account = account.map(|account| serde_json::to_vec(&account)).transpose()?;
        Ok(account.map(|account| blake3::derive_key("gateway 2026 notes of an account of an authority", &account)))
    }
}

impl OrderIds {
    /// Those for an order that begins now, of a folder whose last order had the id `last`. Fails when the system has no random
    /// numbers.
    pub(super) fn after(last: Option<String>) -> io::Result<Self> {
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(io::Error::other)?;
        Ok(Self { last, new: format!("{:032x}", u128::from_be_bytes(random)) })
    }

    fn holder(&self, note: &Trusted<'_>) -> Holder {
        let is_own = note.id == self.new || self.last.as_deref() == Some(note.id);
        if is_own { Holder::Us } else { Holder::Other }
    }
}

fn now() -> u64 {
    clock::now().seconds()
}

/// A note that is valid until this second.
fn signed(key: &[u8; 32], name: &str, until: u64, note: &Trusted<'_>) -> String {
    let Trusted { text, id } = note;
    format!("{until} {text} {id} {}", code(key, name, until, note).to_hex())
}

/// What a note says, if it is valid now.
fn verified<'a>(key: &[u8; 32], name: &str, note: &'a str, now: u64) -> Option<Trusted<'a>> {
    let mut parts = note.split(' ');
    let until = parts.next()?.parse().ok()?;
    let (note, hex) = (Trusted { text: parts.next()?, id: parts.next()? }, parts.next()?);
    // A gateway whose clock was wrong must not leave a claim that is valid for years.
    let holds = (now..=now.saturating_add(2 * LIFETIME.as_secs())).contains(&until) && parts.next().is_none();
    // The comparison of hashes takes constant time.
    (holds && blake3::Hash::from_hex(hex).ok()? == code(key, name, until, &note)).then_some(note)
}

fn code(key: &[u8; 32], name: &str, until: u64, Trusted { text, id }: &Trusted<'_>) -> blake3::Hash {
    blake3::keyed_hash(key, format!("{name} {until} {text} {id}").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_believed_from_who_has_the_secret_for_its_name_and_time_alone() {
        let (key, other) = ([1; 32], [2; 32]);
        let answer = || Trusted { text: "token.thumbprint", id: "00c0ffee" };
        let note = signed(&key, "a.test", 1000, &answer());
        assert_eq!(verified(&key, "a.test", &note, 900), Some(answer()));
        assert_eq!(verified(&key, "a.test", &note, 1000), Some(answer()));
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
        let with_other_id = note.replace("00c0ffee", "00c0ffe0");
        let answer = "token.thumbprint";
        for wrong in
            ["", " ", answer, "1000 token.thumbprint", "1000 token.thumbprint 00", &format!("{note} x"), &with_other_id]
        {
            assert_eq!(verified(&key, "a.test", wrong, 900), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_claim_is_replaced_by_the_folder_that_made_it_and_by_no_copy_that_has_ordered_since() {
        let holder = |ids: &OrderIds, id: &str| ids.holder(&Trusted { text: CLAIM, id });
        let first = OrderIds::after(None).unwrap();
        let again = OrderIds::after(Some(first.new.clone())).unwrap();
        assert_eq!(holder(&again, &first.new), Holder::Us, "it was killed");
        let copies = [(); 2].map(|()| OrderIds::after(Some(again.new.clone())).unwrap());
        for (ids, other) in [(&copies[0], &copies[1]), (&copies[1], &copies[0])] {
            assert_eq!((holder(ids, &ids.new), holder(ids, &other.new)), (Holder::Us, Holder::Other));
            assert_eq!(holder(ids, &first.new), Holder::Other, "it is older");
        }
        assert_eq!(holder(&first, ""), Holder::Other);
    }
}
