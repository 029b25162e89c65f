//! Answers to an authority that checks whether the gateway answers for a name. Workers ask here; only names of the
//! configuration are known.
//!
//! An answer is the key authorization of a challenge (RFC 8555, section 8.1): its token, a dot, and a hash of the account's
//! key. With a shared store, any gateway may be asked for an answer that another has. The store is asked at most once a
//! second for each name, so that a stranger cannot cause more load.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use rustls::server::ServerConfig;
use tokio::sync::Mutex as AsyncMutex;

use super::shared_answers::SharedAnswers;
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

    /// Prepares to answer for these names. `None` if another gateway that shares the store is answering for one of them.
    pub(super) async fn claim(self: &Arc<Self>, names: &[String]) -> Option<Claim> {
        let notes = self.state.lock().notes.clone();
        let mut claim = Claim { challenges: self.clone(), notes, names: Vec::new() };
        let Some(notes) = claim.notes.clone() else { return Some(claim) };
        for name in names {
            match notes.claim(name).await {
                Ok(true) => claim.names.push(name.clone()),
                Ok(false) => {
                    claim.end().await;
                    return None;
                }
                Err(error) => {
                    tracing::warn!(name, %error, "other gateways cannot answer an authority: the store does not take the answer");
                    claim.end().await;
                    return Some(Claim { challenges: self.clone(), notes: None, names: Vec::new() });
                }
            }
        }
        Some(claim)
    }
}

/// The answers of one order, which are withdrawn when this is dropped.
pub(super) struct Claim {
    challenges: Arc<Challenges>,
    notes: Option<Arc<SharedAnswers>>,
    /// Names that are claimed in the store.
    names: Vec<String>,
}

impl Claim {
    pub(super) async fn answer(&self, name: &str, key_authorization: &str) {
        let slot = self.challenges.state.lock().names.get(name).cloned();
        if let Some(slot) = slot {
            *slot.own.lock() = Some(Answer::new(key_authorization.to_owned()));
        }
        if let Some(notes) = &self.notes
            && let Err(error) = notes.write(name, key_authorization).await
        {
            tracing::warn!(name, %error, "other gateways cannot answer an authority: the store does not take the answer");
        }
    }

    /// Waits until all gateways answer, even those that have just asked the store.
    pub(super) async fn spread(&self) {
        if self.notes.is_some() {
            tokio::time::sleep(SPREAD).await;
        }
    }

    /// Withdraws the answers, also from the store.
    pub(super) async fn end(&mut self) {
        for name in std::mem::take(&mut self.names) {
            if let Some(notes) = &self.notes {
                // A note that stays in the store expires.
                let _ = notes.remove(&name).await;
            }
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.challenges.state.lock().names.values().for_each(|slot| *slot.own.lock() = None);
    }
}
