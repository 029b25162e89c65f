//! Limits and upstreams, which other sections refer to by name: whether the name exists, and whether what it names fits there.

use super::limit::keys as limit;
use super::read::{Field, Name, Setting, report_repeated};
use super::report::{either, nearest};
use super::{Cost, Limit, Missing, Role, Upstream};
use crate::limit::Rate;

/// `None` stands for what has an error, which was reported.
pub(super) struct Named<'a> {
    pub(super) limits: Vec<(Name<'a>, Option<Limit>)>,
    pub(super) upstreams: Vec<(Name<'a>, Option<Upstream>)>,
}

impl Named<'_> {
    /// The limits that a list names: their indices, each with its place in the list.
    pub(super) fn limits_in<'f>(&self, field: &Field<'f>, key: &Setting<()>) -> Vec<(usize, Field<'f>)> {
        let list = field.list(key).unwrap_or_default();
        let names: Vec<_> = list.into_iter().filter_map(|field| Some((field.text()?, field))).collect();
        report_repeated(&names, "this limit", "list it once: a request is counted once by each limit");
        names.into_iter().filter_map(|(_, field)| Some((find(&field, &self.limits, "limit")?, field))).collect()
    }

    pub(super) fn limit(&self, index: usize) -> Option<&Limit> {
        self.limits[index].1.as_ref()
    }

    /// The index of an upstream, and the upstream itself.
    pub(super) fn upstream(&self, name: &Field<'_>) -> Option<(usize, Option<&Upstream>)> {
        find(name, &self.upstreams, "upstream").map(|index| (index, self.upstreams[index].1.as_ref()))
    }

    /// The indices of the pools of these limits, without pools that are among these limits.
    pub(super) fn pools(&self, limits: &[usize]) -> Vec<usize> {
        let mut pools = Vec::new();
        for index in limits {
            let name = self.limit(*index).and_then(Limit::pool);
            let pool = name.and_then(|name| self.limits.iter().position(|(limit, _)| limit.text == name));
            pools.extend(pool.filter(|pool| !limits.contains(pool) && !pools.contains(pool)));
        }
        pools
    }

    /// Checks that every pool is a limit that can stand in for others. `written` has all limits as the file has them.
    pub(super) fn check_pools(&self, written: &[(Name<'_>, Field<'_>)]) {
        let pool_of = |index: usize| written[index].1.entry(&limit::overflow).filter(|(_, field)| field.value.is_str());
        for (index, (owner, limit)) in self.limits.iter().enumerate() {
            let Some((_, named)) = &pool_of(index) else { continue };
            if named.text() == Some(owner.text) {
                named.report(format!("the limit `{}` overflows into itself", owner.text), "name another limit");
                continue;
            }
            let Some(index) = find(named, &self.limits, "limit") else { continue };
            let (name, pool) = &self.limits[index];
            let user = format!("`{}` overflows into it {}", owner.text, named.source.elsewhere(named.span.start));
            if let Some((_, further)) = pool_of(index) {
                let message = format!("the pool `{}` cannot overflow: {user}", name.text);
                further.report(message, "remove this `overflow`, or name another pool there");
            }
            let Some(pool) = pool else { continue };
            if pool.on_limit.role() == Role::Reports
                && let Some((place, _)) = written[index].1.entry(&limit::on_limit)
            {
                let message = format!("the pool `{}` cannot only report: {user}", name.text);
                named.source.report(place, message, "remove this `on_limit`, or name another pool there");
            }
            if pool.rates.is_empty() {
                let message = format!("the pool `{}` has no `rates`: {user}", name.text);
                named.source.report(name.span.clone(), message, "add rates = [\"100/s\"], or name another pool there");
            }
            let Some(limit) = limit else { continue };
            if limit.counts_bytes() != pool.counts_bytes() {
                let message = format!("only one of `{}` and its pool counts bytes", owner.text);
                named.report(message, "give both `cost = { bytes = ... }`, or name another pool");
            }
            warn_of_strangers(limit, named);
            let most = most(limit).zip(most(pool)).map(|(own, other)| own.max(other));
            if let Some((cost, most)) = initial(&limit.cost).zip(most).filter(|(cost, most)| cost > most) {
                let message = format!("a request that costs {cost} can pass neither `{}` nor its pool", owner.text);
                named.report(message, format!("the larger of the two allows {most}"));
            }
        }
    }
}

/// The index of what the field names. A name that does not exist is reported.
fn find<T>(field: &Field<'_>, defined: &[(Name<'_>, T)], what: &str) -> Option<usize> {
    let name = field.text()?;
    let index = defined.iter().position(|(candidate, _)| candidate.text == name);
    if index.is_none() {
        let names: Vec<&str> = defined.iter().map(|(candidate, _)| candidate.text).collect();
        let help = match nearest(name, names.iter().copied()) {
            _ if name.contains("://") => {
                format!("give it a name: [{what}s.NAME] with servers = [{name:?}], and write that name here")
            }
            Some(near) => format!("did you mean `{near}`?"),
            None if names.is_empty() => format!("define it: [{what}s.{name}]"),
            None => format!("define it: [{what}s.{name}], or use {}", either(&names)),
        };
        field.report(format!("there is no {what} `{name}`"), help);
    }
    index
}

/// Warns of a limit whose pool the clients without a key of their own would use up if they got anything from it.
fn warn_of_strangers(limit: &Limit, pool: &Field<'_>) {
    let is_shared = limit.missing == Missing::Shared;
    let Some(lacked) = limit.key.of_strangers(limit.known_keys.is_some(), is_shared) else { return };
    let message =
        format!("clients without a key of their own in `{}` share counters, which do not overflow", limit.name);
    let own = lacked.iter().filter(|source| source.identifies_clients()).map(ToString::to_string);
    let own: Vec<_> = own.chain(["client-ip".to_owned()]).collect();
    let apart = format!("tell them apart: \"{}\"", own.join(" | "));
    let help = match is_shared && limit.key.of_strangers(limit.known_keys.is_some(), false).is_none() {
        true => format!("refuse them: missing = \"reject\"; or {apart}"),
        false => apart,
    };
    pool.warn(message, help);
}

/// The cost that is charged before a response, if it is fixed in the file.
fn initial(cost: &Cost) -> Option<u64> {
    match cost {
        Cost::Fixed(cost) | Cost::OnStatus(cost, _) | Cost::ResponseHeader { reserve: cost, .. } => Some(*cost),
        Cost::RequestHeader(_) | Cost::Tokens(_) | Cost::Bytes(_) | Cost::Elements => None,
    }
}

/// The most that one request may cost.
fn most(limit: &Limit) -> Option<u64> {
    limit.part(&limit.rates).iter().map(Rate::capacity).min()
}
