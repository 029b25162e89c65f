//! Pools: limits that are charged instead of limits that have no room and name them with `overflow`.

use super::find;
use crate::config::file::{Draft, Overflow};
use crate::config::read::Source;
use crate::config::{Cost, Limit, Missing, Role};
use crate::limit::Rate;

/// Checks that every pool is a limit that can stand in for others.
pub(super) fn check(draft: &Draft<'_>, source: &Source<'_>) {
    for Overflow { limit: owner, pool, .. } in &draft.overflows {
        let Some(named) = pool else { continue };
        if named.text == owner.text {
            let message = format!("the limit `{}` overflows into itself", owner.text);
            source.report(named.span.clone(), message, "name another limit");
            continue;
        }
        let Some(index) = find(named, &draft.limits, "limit", source) else { continue };
        let of_pool = &draft.overflows[index];
        let user = format!("`{}` overflows into it {}", owner.text, source.elsewhere(named.span.start));
        if let Some(further) = &of_pool.pool {
            let message = format!("the pool `{}` cannot overflow: {user}", named.text);
            source.report(further.span.clone(), message, "remove this `overflow`, or name another pool there");
        }
        let Some(pool) = &draft.limits[index].1 else { continue };
        if pool.on_limit.role() == Role::Reports {
            let message = format!("the pool `{}` cannot only report: {user}", named.text);
            source.report(of_pool.on_limit.clone(), message, "remove this `on_limit`, or name another pool there");
        }
        if pool.rates.is_empty() {
            let message = format!("the pool `{}` has no `rates`: {user}", named.text);
            source.report(of_pool.limit.span.clone(), message, "add rates = [\"100/s\"], or name another pool there");
        }
        let limit = draft.limits.iter().find(|(name, _)| name.text == owner.text).and_then(|(_, limit)| limit.as_ref());
        if limit.is_some_and(|limit| limit.missing == Missing::Shared && limit.key.may_be_of_strangers()) {
            let message =
                format!("requests without a key of `{}` share one counter, which does not overflow", owner.text);
            let help = "refuse them: missing = \"reject\"; or tell them apart: add `| client-ip` to the key";
            source.warn(named.span.clone(), message, help);
        }
        if let Some((cost, most)) = limit.and_then(|limit| Some((initial(&limit.cost)?, most(limit)?.max(most(pool)?))))
            && cost > most
        {
            let message = format!("a request that costs {cost} can pass neither `{}` nor its pool", owner.text);
            source.report(named.span.clone(), message, format!("the larger of the two allows {most}"));
        }
    }
}

/// The indices of the pools of these limits, without pools that are among these limits.
pub(super) fn pools(limits: &[usize], draft: &Draft<'_>) -> Vec<usize> {
    let mut pools = Vec::new();
    for index in limits {
        let name = draft.limits[*index].1.as_ref().and_then(Limit::pool);
        let pool = name.and_then(|name| draft.limits.iter().position(|(limit, _)| limit.text == name));
        pools.extend(pool.filter(|pool| !limits.contains(pool) && !pools.contains(pool)));
    }
    pools
}

/// The cost that is charged before a response, if it is fixed in the file.
fn initial(cost: &Cost) -> Option<u64> {
    match cost {
        Cost::Fixed(cost) | Cost::OnStatus(cost, _) | Cost::ResponseHeader { reserve: cost, .. } => Some(*cost),
        Cost::RequestHeader(_) | Cost::Tokens(_) => None,
    }
}

/// The most that one request may cost.
fn most(limit: &Limit) -> Option<u64> {
    limit.part(&limit.rates).iter().map(Rate::capacity).min()
}
