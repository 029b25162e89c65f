//! Answers to an authority that checks whether the gateway answers for a name. Workers ask here; only names of the
//! configuration are known.
//!
//! An answer is the key authorization of a challenge (RFC 8555, section 8.1): its token, a dot, and a hash of the account's
//! key. With a shared store, any gateway may be asked for an answer that another has. The store is asked at most once a
//! second for each name, so that a stranger cannot cause more load.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use rustls::server::ServerConfig;
use tokio::runtime::Handle;
use tokio::sync::Mutex as AsyncMutex;

use super::folder::Folder;
use super::shared_answers::{OrderIds, SharedAnswers};
use crate::base::clock::{self, Monotonic};
use crate::base::metrics::SharedCounter;
use crate::config::Challenge;
use crate::net::tls::challenge_config;

/// How long an answer from the store is used before the store is asked again, in microseconds.
const KNOWN_FOR: u64 = 1_000_000;
/// How long a gateway waits until others that have just asked the store ask again.
const SPREAD: Duration = Duration::from_millis(1500);

#[derive(Debug, Default)]
pub struct Challenges {
    /// 0 if no challenges are answered, else one more than the [`Challenge`].
    kind: AtomicU8,
    state: Mutex<State>,
    pub answered: SharedCounter,
    /// Requests for an answer that is not known.
    pub unknown: SharedCounter,
}

#[derive(Debug, Default)]
struct State {
    names: HashMap<String, Arc<Slot>>,
    notes: Option<Arc<SharedAnswers>>,
}

#[derive(Debug, Default)]
struct Slot {
    own: Mutex<Option<Arc<Answer>>>,
    /// The answer of another gateway in the store, and when it was read. The lock is held while the store is asked.
    others: AsyncMutex<Option<(Monotonic, Option<Arc<Answer>>)>>,
}

#[derive(Debug)]
struct Answer {
    key_authorization: String,
    /// Made at the first use.
    handshake: OnceLock<Option<Arc<ServerConfig>>>,
}

impl Answer {
    fn new(key_authorization: String) -> Arc<Self> {
        Arc::new(Self { key_authorization, handshake: OnceLock::new() })
    }

    fn is_for(&self, token: &str) -> bool {
        self.key_authorization.split_once('.').is_some_and(|(of, _)| of == token)
    }
}

impl Challenges {
    pub fn answer(&self, kind: Challenge) -> bool {
        self.kind.load(Ordering::Relaxed) == kind as u8 + 1
    }

    /// Answers challenges for these names from now on, and forgets all others. With `notes` in a shared store, gateways
    /// answer for each other.
    pub(super) fn apply(&self, acme: Option<(Challenge, &[String])>, notes: Option<Arc<SharedAnswers>>) {
        self.kind.store(acme.map_or(0, |(kind, _)| kind as u8 + 1), Ordering::Relaxed);
        let mut state = self.state.lock();
        let names = acme.map_or(&[][..], |(_, names)| names).iter();
        let names = names.map(|name| (name.clone(), state.names.remove(name).unwrap_or_default())).collect();
        *state = State { names, notes };
    }

    /// The TLS settings for a handshake in which an authority checks this name.
    pub async fn handshake(&self, name: &str) -> Option<Arc<ServerConfig>> {
        let answer = self.find(name, |_| true).await;
        let config = answer.and_then(|answer| {
            let new = || {
                challenge_config(name, &answer.key_authorization)
                    .inspect_err(
                        |error| tracing::error!(name, %error, "a challenge of an authority cannot be answered"),
                    )
                    .ok()
            };
            answer.handshake.get_or_init(new).clone()
        });
        self.count(config.is_some());
        config
    }

    /// The body of the response to a request for this token at this host.
    pub async fn response(&self, host: &str, token: &str) -> Option<String> {
        let own = || {
            self.state.lock().names.values().find_map(|slot| slot.own.lock().clone().filter(|own| own.is_for(token)))
        };
        let answer = match own() {
            Some(own) => Some(own),
            None => self.find(host, |answer| answer.is_for(token)).await,
        };
        self.count(answer.is_some());
        answer.map(|answer| answer.key_authorization.clone())
    }

    async fn find(&self, name: &str, is_wanted: impl Fn(&Answer) -> bool) -> Option<Arc<Answer>> {
        let (slot, notes) = {
            let state = self.state.lock();
            (state.names.get(name)?.clone(), state.notes.clone())
        };
        let own = slot.own.lock().clone();
        if let Some(own) = own.filter(|own| is_wanted(own)) {
            return Some(own);
        }
        let notes = notes?;
        let mut others = slot.others.lock().await;
        let known = others.as_ref().filter(|(read, _)| clock::monotonic().micros_since(*read) < KNOWN_FOR);
        let answer = match known {
            Some((_, answer)) => answer.clone(),
            None => {
                let read = notes.read(name).await;
                let read =
                    read.inspect_err(|error| tracing::warn!(name, %error, "the store has no answer for an authority"));
                let answer = read.ok().flatten().map(Answer::new);
                *others = Some((clock::monotonic(), answer.clone()));
                answer
            }
        };
        answer.filter(|answer| is_wanted(answer))
    }

    fn count(&self, is_answered: bool) {
        if is_answered { self.answered.one() } else { self.unknown.one() }
    }

    /// Prepares to answer for these names, in an order of this folder, which is locked. `None` if another gateway that shares
    /// the store is answering for one of them. Fails when the folder cannot be used.
    pub(super) async fn claim(
        self: &Arc<Self>,
        names: &[String],
        folder: &Folder,
        lock: File,
    ) -> io::Result<Option<Claim>> {
        let notes = self.state.lock().notes.clone();
        let mut claim = Claim { challenges: self.clone(), lock: Some(lock), claimed: None };
        let Some(notes) = notes else { return Ok(Some(claim)) };
        let ids = OrderIds::after(folder.last_claim()?)?;
        let without_store = |name: &str, error: io::Error| {
            tracing::warn!(name, %error, "other gateways cannot answer an authority: the store does not take the answer");
        };
        // Nothing is written each second while another gateway orders.
        for name in names {
            match notes.is_claimed(name, &ids).await {
                Ok(true) => return Ok(None),
                Ok(false) => {}
                Err(error) => {
                    without_store(name, error);
                    return Ok(Some(claim));
                }
            }
        }
        folder.keep_claim(&ids.new)?;
        let claimed = claim.claimed.insert(Claimed { notes, id: ids.new.clone(), names: Vec::new() });
        for name in names {
            // The store may take the claim although its answer does not arrive.
            claimed.names.push(name.clone());
            match claimed.notes.claim(name, &ids).await {
                Ok(true) => {}
                Ok(false) => {
                    claim.end().await;
                    return Ok(None);
                }
                Err(error) => {
                    without_store(name, error);
                    claim.end().await;
                    return Ok(Some(claim));
                }
            }
        }
        Ok(Some(claim))
    }
}

/// The answers of one order, which are withdrawn when this is dropped.
pub(super) struct Claim {
    challenges: Arc<Challenges>,
    /// Of the state folder, until the answers are withdrawn: then the next order of this folder may begin.
    lock: Option<File>,
    /// `None` if no other gateway can answer.
    claimed: Option<Claimed>,
}

/// What an order has in the store.
struct Claimed {
    notes: Arc<SharedAnswers>,
    /// That of the order.
    id: String,
    names: Vec<String>,
}

impl Claimed {
    async fn withdraw(self) {
        for name in &self.names {
            // A note that stays in the store expires.
            let _ = self.notes.remove(name, &self.id).await;
        }
    }
}

impl Claim {
    pub(super) async fn answer(&self, name: &str, key_authorization: &str) {
        let slot = self.challenges.state.lock().names.get(name).cloned();
        if let Some(slot) = slot {
            *slot.own.lock() = Some(Answer::new(key_authorization.to_owned()));
        }
        if let Some(Claimed { notes, id, .. }) = &self.claimed
            && let Err(error) = notes.write(name, key_authorization, id).await
        {
            tracing::warn!(name, %error, "other gateways cannot answer an authority: the store does not take the answer");
        }
    }

    /// Waits until all gateways answer, even those that have just asked the store.
    pub(super) async fn spread(&self) {
        if self.claimed.is_some() {
            tokio::time::sleep(SPREAD).await;
        }
    }

    /// Withdraws the answers, also from the store.
    pub(super) async fn end(&mut self) {
        if let Some(claimed) = self.claimed.take() {
            claimed.withdraw().await;
        }
    }
}

impl Drop for Claim {
    /// An order that is cancelled, by a reload or after its time, withdraws its answers, too.
    fn drop(&mut self) {
        self.challenges.state.lock().names.values().for_each(|slot| *slot.own.lock() = None);
        if let (Some(claimed), Ok(runtime)) = (self.claimed.take(), Handle::try_current()) {
            let lock = self.lock.take();
            runtime.spawn(async move {
                claimed.withdraw().await;
                drop(lock);
            });
        }
    }
}
