//! The panels: limits, keys, upstreams and the store.

use std::cmp::Reverse;

use bytesize::ByteSize;
use jiff::Timestamp;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Wrap};

use super::{BAD, GOOD, Panel, REFUSED, SOFT, Screen, count, latency, rate, titled, when};
use crate::admin::dashboard::{Decisions, KeyCount, LimitNumbers, ServerNumbers, StoreNumbers};

impl Screen {
    /// In the order of the gateway.
    pub(super) fn draw_limits(&self, frame: &mut Frame<'_>, area: Rect) {
        let described = self.model.limits.as_ref().map_or(&[][..], |limits| &limits.limits);
        let row = |limit: &LimitNumbers| {
            let per_second = |read: fn(&Decisions) -> u64| {
                self.model.per_second(|numbers| {
                    let found = numbers.limits.iter().find(|other| other.name == limit.name);
                    found.map(|found| read(&found.decisions))
                })
            };
            let refused = per_second(Decisions::refused);
            let mut name = vec![Span::from(limit.name.clone())];
            if let Some(known) = described.iter().find(|known| known.name == limit.name) {
                // A limit that only reports refuses nothing.
                name.extend((known.on_limit != "reject").then(|| format!(" ({})", known.on_limit).into()));
                name.push(Span::styled(format!("  {}", known.rates.join(" ")), SOFT));
            }
            vec![
                Line::from(name),
                rate(per_second(|decisions| decisions.of("admitted"))).into(),
                Line::styled(rate(refused), when(refused, REFUSED)),
                count(limit.refused_this_minute).into(),
                count(limit.decisions.refused()).into(),
            ]
        };
        let panel = Panel {
            title: "Limits, by refusals",
            columns: &[("limit", 0), ("admitted/s", 10), ("refused/s", 9), ("this minute", 11), ("since start", 13)],
            empty: "no limit is configured",
        };
        panel.draw(frame, area, self.model.numbers.limits.iter().map(row));
    }

    /// The most refused keys of all limits.
    pub(super) fn draw_keys(&self, frame: &mut Frame<'_>, area: Rect) {
        let (limits, since, empty) = match &self.model.limits {
            Ok(limits) => (&*limits.limits, limits.keys_since.parse::<Timestamp>().ok(), "no key yet"),
            Err(why) => (&[][..], None, why.as_str()),
        };
        let mut keys: Vec<_> =
            limits.iter().flat_map(|limit| limit.most_refused.iter().map(|key| (&*limit.name, key))).collect();
        keys.sort_by_key(|(_, key)| Reverse(key.count));
        let row = |(limit, key): (&str, &KeyCount)| {
            let name = if key.key.is_empty() { "(no key)" } else { &key.key };
            let about = if key.error > 0 { "≈" } else { "" };
            vec![
                Line::from(name.to_owned()),
                Line::styled(format!("{about}{}", count(key.count)), REFUSED),
                Line::styled(limit.to_owned(), SOFT),
            ]
        };
        let since = since.map_or(String::new(), |since| since.strftime(" since %H:%M UTC").to_string());
        let title = &format!("Most refused keys{since}");
        let panel = Panel { title, columns: &[("key", 0), ("refused", 8), ("limit", 10)], empty };
        panel.draw(frame, area, keys.into_iter().map(row));
    }

    /// Servers that are not well come first.
    pub(super) fn draw_upstreams(&self, frame: &mut Frame<'_>, area: Rect) {
        let upstreams = self.model.numbers.upstreams.iter();
        let mut servers: Vec<_> =
            upstreams.flat_map(|upstream| upstream.servers.iter().map(|server| (&*upstream.name, server))).collect();
        let is_healthy = |server: &ServerNumbers| server.health == "healthy";
        servers.sort_by_key(|(_, server)| is_healthy(server));
        let row = |(upstream, server): (&str, &ServerNumbers)| {
            let per_second = |read: fn(&ServerNumbers) -> u64| {
                self.model.per_second(|numbers| {
                    let found = numbers.upstreams.iter().find(|other| other.name == upstream)?;
                    found.servers.iter().find(|other| other.server == server.server).map(read)
                })
            };
            let most = server.max_in_flight.map_or(String::new(), |most| format!(" of {}", count(most as u64)));
            vec![
                Line::from_iter([server.server.clone().into(), Span::styled(format!("  {upstream}"), SOFT)]),
                Line::styled(server.health.clone(), if is_healthy(server) { GOOD } else { BAD }),
                rate(per_second(|server| server.requests)).into(),
                latency(server.latency_seconds).into(),
                Line::styled(count(server.failures), when(per_second(|server| server.failures), BAD)),
                format!("{}{most}", count(server.in_flight as u64)).into(),
            ]
        };
        let panel = Panel {
            title: "Upstreams",
            columns: &[("server", 0), ("health", 9), ("req/s", 6), ("latency", 8), ("failures", 8), ("in flight", 11)],
            empty: "no upstream is configured",
        };
        panel.draw(frame, area, servers.into_iter().map(row));
    }

    pub(super) fn draw_store(&self, frame: &mut Frame<'_>, area: Rect) {
        let (title, facts) = match &self.model.numbers.store {
            Some(StoreNumbers::Memory(store)) => {
                let keys = format!("keys {} of {}", count(store.keys as u64), count(store.max_keys as u64));
                let [bytes, most] = [store.bytes, store.max_bytes].map(|bytes| ByteSize(bytes as u64));
                let evicted = format!("keys evicted in use {}", count(store.evictions));
                ("Store: in memory", vec![keys.into(), format!("memory {bytes} of {most}").into(), evicted.into()])
            }
            Some(numbers @ (StoreNumbers::Memcached(store) | StoreNumbers::Valkey(store))) => {
                let (up, down): (Vec<_>, Vec<_>) = store.servers.iter().partition(|server| server.up);
                let round_trips = self.model.per_second(|numbers| match &numbers.store {
                    Some(StoreNumbers::Memcached(store) | StoreNumbers::Valkey(store)) => Some(store.round_trips),
                    _ => None,
                });
                let down = down.iter().map(|server| Span::styled(format!("{} down", server.server), BAD));
                let facts = [
                    format!("{} of {} up", up.len(), store.servers.len()),
                    format!("round trips/s {}", rate(round_trips)),
                    format!("errors {}", count(store.errors)),
                    format!("decided without it {}", count(store.local)),
                    format!("counters lost {}", count(store.lost)),
                ];
                let is_memcached = matches!(numbers, StoreNumbers::Memcached(_));
                let title = if is_memcached { "Store: in Memcached" } else { "Store: in Valkey" };
                (title, down.chain(facts.map(Span::from)).collect())
            }
            None => ("Store", Vec::new()),
        };
        let facts: Line<'_> = facts.into_iter().flat_map(|fact| [fact, "  ".into()]).collect();
        let text = Paragraph::new(facts).wrap(Wrap { trim: true });
        frame.render_widget(text.block(titled(format!(" {title} "))), area);
    }
}
