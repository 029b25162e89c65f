//! A source of quotas that speaks HTTP, and limits that ask it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use super::client::Client;
use super::gate::Gate;
use super::gateway::Gateway;
use super::upstream::{Upstream, reply};

/// Statuses and bodies by the target of a request.
type Answers = Mutex<HashMap<String, (u16, String)>>;

/// A source whose answers the test sets. For other targets it answers 404.
pub(crate) struct Plans {
    pub(crate) server: Upstream,
    answers: Arc<Answers>,
    pub(crate) gate: Gate,
}

impl Plans {
    pub(crate) fn start() -> Self {
        let (answers, gate) = (Arc::<Answers>::default(), Gate::opened());
        let (known, passed) = (answers.clone(), gate.clone());
        let server = Upstream::start(move |request| {
            passed.pass();
            let all = known.lock().unwrap();
            let answer = all.get(&request.target).or_else(|| all.get("*"));
            answer.map_or_else(|| reply(404, ""), |(status, body)| reply(*status, body))
        });
        Self { server, answers, gate }
    }

    /// `*` is any other target.
    pub(crate) fn set(&self, target: &str, status: u16, body: &str) {
        self.answers.lock().unwrap().insert(target.to_owned(), (status, body.to_owned()));
    }

    pub(crate) fn forget(&self, target: &str) {
        self.answers.lock().unwrap().remove(target);
    }

    pub(crate) fn asked(&self, target: &str) -> usize {
        self.server.received().iter().filter(|request| request.target == target).count()
    }

    pub(crate) fn url(&self) -> String {
        url(self.server.address())
    }
}

pub(crate) fn url(address: SocketAddr) -> String {
    format!("http://{address}/v1/{{key}}")
}

/// A limit of one request a day with this source. Requests wait for long, so that tests do not depend on time.
pub(crate) fn limit(url: &str, quotas: &str, more: &str) -> String {
    let timeout = if quotas.contains("timeout") { "" } else { "timeout = \"5s\"" };
    format!(
        "[limits.l]\nkey = \"header:x-api-key\"\nrates = [\"1/d\"]\n{more}\n\
         [limits.l.quotas]\nsource = {url:?}\n{timeout}\n{quotas}\n\
         [[routes]]\npath = \"/*\"\nlimits = [\"l\"]\nrespond = {{ status = 200 }}\n"
    )
}

pub(crate) fn field(key: &str) -> String {
    format!("x-api-key: {key}\r\n")
}

pub(crate) fn statuses<const N: usize>(client: &mut Client, key: &str) -> [u16; N] {
    [(); N].map(|()| client.get_with("/", field(key)).status)
}

/// Sends requests over as many connections before it reads their statuses.
pub(crate) fn burst(gateway: &Gateway, fields: &str) -> [u16; 20] {
    let mut clients = [(); 20].map(|()| gateway.client());
    clients.iter_mut().for_each(|client| client.send(format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n")));
    clients.map(|mut client| client.response(false).status)
}
