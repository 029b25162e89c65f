//! What the log says at the start besides the addresses: what the gateway forwards to, and which limits hold.

use crate::config::{Config, Limit, Upstream};

/// Further upstreams and limits are only counted.
const MOST_NAMED: usize = 5;

pub(super) fn log(config: &Config) {
    let upstreams = listed(&config.upstreams, upstream);
    tracing::info!(routes = config.routes.len(), upstreams, "forwarding");
    let (limits, warnings) = (listed(&config.limits, limit), config.warnings.located().count());
    tracing::info!(limits, store = config.store.kind(), warnings, "limiting");
}

/// The texts of the first items, and how many more there are.
fn listed<T>(all: &[T], text: fn(&T) -> String) -> String {
    let mut texts: Vec<_> = all.iter().take(MOST_NAMED).map(text).collect();
    if all.len() > MOST_NAMED {
        texts.push(format!("{} more", all.len() - MOST_NAMED));
    }
    if texts.is_empty() { "none".to_owned() } else { texts.join("; ") }
}

fn upstream(Upstream { name, servers, .. }: &Upstream) -> String {
    match &servers[..] {
        [] => name.clone(),
        [one] => format!("{name} ({})", one.address),
        [first, others @ ..] => format!("{name} ({} and {} more)", first.address, others.len()),
    }
}

fn limit(limit: &Limit) -> String {
    let rates: Vec<_> = limit.rates.iter().map(ToString::to_string).collect();
    let concurrency = limit.max_in_flight.map(|most| format!("{most} in flight"));
    let what: Vec<_> = rates.into_iter().chain(concurrency).collect();
    format!("{}: {} by {}", limit.name, what.join(", "), limit.key)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config;

    fn texts(text: &str) -> [String; 2] {
        let config = config::parse(text.as_bytes(), "test", Path::new("")).unwrap();
        [listed(&config.upstreams, upstream), listed(&config.limits, limit)]
    }

    #[test]
    fn it_names_upstreams_and_limits() {
        let one = "[upstreams.up]\nservers = [\"http://10.0.0.1:9000\", \"http://10.0.0.2:9000\"]\n\
                   [limits.l]\nkey = \"client-ip\"\nrates = [\"10/s\", \"3000/10m\"]\nmax_in_flight = 3\n\
                   [[routes]]\npath = \"/*\"\nupstream = \"up\"\nlimits = [\"l\"]\n";
        let expected = ["up (http://10.0.0.1:9000 and 1 more)", "l: 10/s, 3000/10m, 3 in flight by client-ip"];
        assert_eq!(texts(one), expected);
        let route = "[[routes]]\npath = \"/*\"\nrespond = { status = 200 }\n";
        assert_eq!(texts(route), ["none", "none"]);
        let many = [0, 1, 2, 3, 4, 5, 6, 7].map(|n| format!("[limits.l{n}]\nkey = \"client-ip\"\nrates = [\"1/s\"]\n"));
        assert!(texts(&(many.concat() + route))[1].ends_with("l4: 1/s by client-ip; 3 more"));
    }
}
