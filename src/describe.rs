//! What was understood of a configuration, for `gateway check`: in the order in which it works.

use std::fmt::{self, Display, Write as _};

use crate::config::{Action, Address, Config, Key, Missing, OnError, PathPattern, Route, Store};
use crate::limit::{Edge, Rate, Strategy};
use crate::route;

/// The configuration in words.
pub fn describe(config: &Config) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write!(text, "{}", Description(config));
    text
}

struct Description<'a>(&'a Config);

impl Display for Description<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let config = self.0;
        let listen: Vec<_> = config.server.listen.iter().map(ToString::to_string).collect();
        writeln!(f, "listens on {}", listen.join(", "))?;
        match &config.admin {
            Some(admin) => writeln!(f, "admin on {}", admin.listen)?,
            None => writeln!(f, "no admin listener")?,
        }
        if config.server.trusted_proxies.is_empty() {
            writeln!(f, "trusts no proxy: a client's address is its peer's")?;
        } else {
            let trusted: Vec<_> = config.server.trusted_proxies.iter().map(ToString::to_string).collect();
            writeln!(f, "believes X-Forwarded-For from {}", trusted.join(", "))?;
        }
        writeln!(f, "\nstore")?;
        store(f, &config.store)?;
        writeln!(f, "\nroutes, in the order they match")?;
        for (_, route) in route::order(&config.routes) {
            writeln!(f, "  {}", route::label(route))?;
            writeln!(f, "    {}", action(config, route))?;
            let limits: Vec<_> = route.limits.iter().map(|index| config.limits[*index].name.as_str()).collect();
            writeln!(
                f,
                "    {}",
                if limits.is_empty() { "no limit".to_owned() } else { format!("limits: {}", limits.join(", ")) }
            )?;
        }
        writeln!(f, "\nlimits")?;
        config.limits.iter().try_for_each(|limit| {
            let rates: Vec<_> = limit.rates.iter().map(ToString::to_string).collect();
            writeln!(f, "  {}", limit.name)?;
            writeln!(f, "    {} per {}", rates.join(" and "), key(&limit.key))?;
            if let Some(Strategy::Sliding { precision, edge }) = limit.rates.first().map(Rate::strategy) {
                let edge = match edge {
                    Edge::Weighted => "weighted by its share in the window",
                    Edge::Whole => "counted whole",
                };
                writeln!(f, "    sliding window of {precision} bucket(s), the oldest {edge}")?;
            }
            let missing = match limit.missing {
                Missing::Shared => "share one counter",
                Missing::Skip => "are not limited",
                Missing::Reject => "are answered 400",
            };
            writeln!(f, "    requests without a key {missing}; over the limit: {}", limit.status)
        })?;
        writeln!(f, "\nupstreams")?;
        for upstream in &config.upstreams {
            writeln!(f, "  {}", upstream.name)?;
            for server in &upstream.servers {
                let address = match &server.address {
                    Address::Http { authority, .. } => format!("http://{authority}"),
                    Address::Echo => "builtin:echo".to_owned(),
                };
                writeln!(f, "    {address}, weight {}", server.weight)?;
            }
            writeln!(f, "    connects within {:?}, answers within {:?}", upstream.connect_timeout, upstream.timeout)?;
        }
        Ok(())
    }
}

fn store(f: &mut fmt::Formatter<'_>, store: &Store) -> fmt::Result {
    match store {
        Store::Memory { max_keys } => writeln!(f, "  memory, at most {max_keys} keys"),
        Store::Memcached(memcached) => {
            writeln!(f, "  memcached at {}", memcached.servers.join(", "))?;
            let away = match memcached.on_error {
                OnError::Allow => "pass uncounted",
                OnError::Reject => "are answered 503",
            };
            writeln!(f, "  keys begin with {}:", memcached.prefix)?;
            writeln!(f, "  waits at most {:?}; without an answer requests {away}", memcached.timeout)
        }
    }
}

fn action(config: &Config, route: &Route) -> String {
    match &route.action {
        Action::Respond { status, .. } => format!("answers {status}"),
        Action::Forward { upstream, strip, preserve_host } => {
            let stripped = match strip {
                0 => String::new(),
                count => format!(", without {}", first_segments(&route.path, *count)),
            };
            let host = if *preserve_host { ", with the client's Host" } else { "" };
            format!("goes to {}{stripped}{host}", config.upstreams[*upstream].name)
        }
    }
}

/// The leading segments of a pattern as written.
fn first_segments(path: &PathPattern, count: usize) -> String {
    path.text.split('/').take(count + 1).collect::<Vec<_>>().join("/")
}

fn key(key: &Key) -> String {
    let part = |part: &Vec<_>| part.iter().map(ToString::to_string).collect::<Vec<_>>().join(" | ");
    key.parts.iter().map(part).collect::<Vec<_>>().join(" and ")
}
