//! Who is charged for a request, and who refuses it. Only this file interprets the roles of limits and their pools.
//!
//! A request is charged to all of its limits or to none. A limit that only reports is charged if it has room, and otherwise
//! lets the request pass. A full limit with a pool is replaced by its pool if that has room for what the limit needs. A pool
//! is charged once: the largest cost of the limits that it replaces, and of the request itself if the pool is one of its
//! limits. The cost of a limit that is asked for several keys, such as those of a batch, is the sum of what they lack.

use smallvec::SmallVec;

use super::{Ask, Reply};
use crate::base::clock::Time;
use crate::config::Role;
use crate::limit::Verdict;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    pub need: u64,
    pub cost: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AskPlan {
    pub(super) has_room: bool,
    /// All that the limit is asked as a pool, and whether it has room for that.
    pub(super) pooled: Option<(Demand, bool)>,
    pub(super) charged: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) parts: SmallVec<[AskPlan; 2]>,
    pub(super) admits: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pooled {
    pub place: usize,
    pub demand: Demand,
    pub verdict: Verdict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedAsk {
    pub place: usize,
    pub verdict: Verdict,
    /// The answer of its pool, which has no room either.
    pub pooled: Option<Pooled>,
}

impl Demand {
    fn with(self, other: Self) -> Self {
        Self { need: self.need.saturating_add(other.need), cost: self.cost.saturating_add(other.cost) }
    }
}

impl AskPlan {
    pub(super) fn fits(&self) -> bool {
        self.pooled.map_or(self.has_room, |(_, fits)| fits)
    }
}

impl Plan {
    /// `has_room` says whether the limit with this index has room for a demand.
    pub(super) fn new<'a>(
        asks: &(impl Iterator<Item = Ask<'a>> + Clone),
        mut has_room: impl FnMut(usize, Demand) -> bool,
    ) -> Self {
        let mut parts: SmallVec<[AskPlan; 2]> = SmallVec::new();
        for (index, ask) in asks.clone().enumerate() {
            let has_room = ask.is_idle() || has_room(index, ask.demand());
            parts.push(AskPlan { has_room, pooled: None, charged: ask.cost });
        }
        let pool = |place| asks.clone().enumerate().find(|(_, ask)| ask.place == place);
        for (index, Ask { limit, overflow, .. }) in asks.clone().enumerate() {
            if let (false, Some(place)) = (parts[index].has_room, overflow)
                && let Some((pool, of_pool)) = pool(place)
            {
                let lacks = |(index, ask): &(usize, Ask<'_>)| {
                    !parts[*index].has_room && ask.overflow == overflow && ask.limit.name() == limit.name()
                };
                let lacking = asks.clone().enumerate().filter(lacks).map(|(_, ask)| ask.demand());
                let lacked = lacking.fold(Demand::default(), Demand::with);
                let (asked, _) = parts[pool].pooled.unwrap_or((of_pool.demand(), false));
                let cost = if of_pool.in_steps { 0 } else { asked.cost.max(lacked.cost) };
                let demand = Demand { need: asked.need.max(lacked.need), cost };
                parts[pool].pooled = Some((demand, false));
            }
        }
        for (index, part) in parts.iter_mut().enumerate() {
            if let Some((demand, fits)) = &mut part.pooled {
                *fits = has_room(index, *demand);
            }
        }
        let passes = |(index, Ask { role, overflow, .. }): (usize, Ask<'_>)| {
            let stands_in = |place| pool(place).is_some_and(|(pool, _)| matches!(parts[pool].pooled, Some((_, true))));
            parts[index].has_room || role == Role::Reports || overflow.is_some_and(stands_in)
        };
        let admits = asks.clone().enumerate().all(passes);
        for part in &mut parts {
            part.charged = match (admits, part.pooled) {
                (true, Some((demand, true))) => demand.cost,
                (true, _) if part.has_room => part.charged,
                _ => 0,
            };
        }
        Self { parts, admits }
    }
}

impl Reply {
    /// The reply as of a later moment: waits are shorter by the time that has passed.
    #[must_use]
    pub fn later(mut self, now: Time) -> Self {
        let passed = self.as_of.map_or(0, |as_of| now.micros_since(as_of));
        let verdicts = self.verdicts.iter_mut().map(|(_, verdict)| verdict);
        for verdict in verdicts.chain(self.pooled.iter_mut().map(|pooled| &mut pooled.verdict)) {
            verdict.wait = verdict.wait.map(|wait| wait.saturating_sub(passed));
        }
        Self { as_of: Some(now), ..self }
    }

    /// Adds a later reply about other limits of the same request.
    #[must_use]
    pub fn joined(mut self, mut later: Self) -> Self {
        self.verdicts.append(&mut later.verdicts);
        self.pooled.append(&mut later.pooled);
        self.reserved.append(&mut later.reserved);
        self.reached.append(later.reached);
        self
    }

    pub fn pooled(&self, place: usize) -> Option<Pooled> {
        self.pooled.iter().find(|pooled| pooled.place == place).copied()
    }

    /// The verdict of the limit at this place on its own demand, if known.
    pub fn verdict(&self, place: usize) -> Option<Verdict> {
        self.verdicts.iter().find(|(of, _)| *of == place).map(|(_, verdict)| *verdict)
    }

    /// Whether the limit at this place has refused what it was asked, for itself or as a pool.
    pub(super) fn refuses(&self, place: usize) -> bool {
        self.verdict(place).is_some_and(|verdict| !verdict.admitted)
            || self.pooled(place).is_some_and(|pooled| !pooled.verdict.admitted)
    }

    /// The limits that refuse the request. One whose pool may have room is left out; then another limit refuses the request.
    pub fn refusals<'a>(&'a self, asks: &'a [Ask<'_>]) -> impl Iterator<Item = RefusedAsk> + 'a {
        let refusing = asks.iter().filter(|ask| ask.role == Role::Refuses);
        refusing.filter_map(|Ask { place, overflow, .. }| {
            let verdict = self.verdict(*place).filter(|verdict| !verdict.admitted)?;
            let pooled = match overflow {
                Some(pool) => Some(self.pooled(*pool).filter(|pooled| !pooled.verdict.admitted)?),
                None => None,
            };
            Some(RefusedAsk { place: *place, verdict, pooled })
        })
    }
}

impl RefusedAsk {
    /// The answer of its pool, if the pool has room before the limit itself.
    pub fn sooner(&self) -> Option<Pooled> {
        let wait = |verdict: Verdict| verdict.wait.unwrap_or(u64::MAX);
        self.pooled.filter(|pooled| wait(pooled.verdict) < wait(self.verdict))
    }

    /// Microseconds until the request passes this limit or its pool, if nothing else comes; `None` if it never does.
    pub fn wait(&self) -> Option<u64> {
        self.sooner().map_or(self.verdict.wait, |pooled| pooled.verdict.wait)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use std::sync::{Arc, LazyLock};

    use super::*;
    use crate::base::fingerprint::Fingerprint;
    use crate::limit::Limit;

    /// Each ask with the room of its limit.
    type Case = Vec<(Ask<'static>, u64)>;

    fn limit(name: &str, cost: u64, overflow: Option<usize>) -> Ask<'static> {
        static LIMITS: LazyLock<[Arc<Limit>; 3]> =
            LazyLock::new(|| ["", "a", "b"].map(|name| Arc::new(Limit::new(name, &[]))));
        let limit = LIMITS.iter().find(|limit| limit.name() == name).unwrap();
        Ask { overflow, ..Ask::new(limit, Fingerprint::of(b""), cost) }
    }

    /// Only stands in for others.
    fn idle() -> Ask<'static> {
        Ask { role: Role::Reports, ..limit("", 0, None) }
    }

    fn plan(case: &Case) -> Plan {
        let placed = |(place, (ask, _)): (usize, &(Ask<'static>, u64))| Ask { place, ..*ask };
        Plan::new(&case.iter().enumerate().map(placed), |index, demand| demand.need <= case[index].1)
    }

    /// Replaces just the full limits by their pools. Returns what each limit is charged; `None` if the request is refused.
    fn oracle(case: &Case) -> Option<Vec<u64>> {
        let fits = |index: usize| case[index].0.need <= case[index].1;
        let full = |index: &usize| !fits(*index);
        let refuses = |index: &usize| case[*index].0.role == Role::Refuses;
        // A need is as large as its cost here.
        let lacked = |index: usize| {
            let of = |index: usize| (case[index].0.limit.name(), case[index].0.overflow);
            let same = (0..case.len()).filter(full).filter(|other| of(*other) == of(index));
            same.map(|index| case[index].0.cost).sum::<u64>()
        };
        // Each full limit must be replaced, and each pool must have room for each limit that it replaces, and for itself.
        for index in (0..case.len()).filter(full).filter(refuses) {
            let pool = case[index].0.overflow?;
            if lacked(index).max(case[pool].0.need) > case[pool].1 {
                return None;
            }
        }
        let replaced =
            |pool: usize| (0..case.len()).filter(full).filter(move |index| case[*index].0.overflow == Some(pool));
        let own = |index: usize| if fits(index) { case[index].0.cost } else { 0 };
        let most = |pool: usize| replaced(pool).map(lacked).max();
        Some((0..case.len()).map(|index| own(index).max(most(index).unwrap_or(0))).collect())
    }

    /// A few limits, then the pools into which they overflow; a pool may be a limit of the request itself.
    fn cases() -> impl Strategy<Value = Case> {
        let name = prop::sample::select(&["a", "b"][..]);
        let one = (name, 0..5_u64, any::<bool>(), prop::option::of(0..3_usize), 0..6_u64);
        let pool = (0..5_u64, 0..6_u64);
        (prop::collection::vec(one, 0..4), prop::collection::vec(pool, 0..3)).prop_map(|(limits, pools)| {
            let first = limits.len();
            let limits = limits.into_iter().map(|(name, cost, reports, overflow, room)| {
                let role = if reports { Role::Reports } else { Role::Refuses };
                // A limit that only reports has no pool.
                let overflow = overflow.filter(|pool| !reports && *pool < pools.len()).map(|pool| first + pool);
                (Ask { role, ..limit(name, cost, overflow) }, room)
            });
            let limits: Case = limits.collect();
            let pools = pools.into_iter().map(|(cost, room)| {
                let role = if cost == 0 { Role::Reports } else { Role::Refuses };
                (Ask { role, ..limit("", cost, None) }, room)
            });
            limits.into_iter().chain(pools).collect()
        })
    }

    proptest! {
        #[test]
        fn a_plan_is_what_the_slow_way_says(case in cases()) {
            let plan = plan(&case);
            let charged = plan.parts.iter().map(|part| part.charged).collect::<Vec<_>>();
            match oracle(&case) {
                Some(expected) => prop_assert_eq!((plan.admits, charged), (true, expected)),
                None => prop_assert_eq!((plan.admits, charged), (false, vec![0; case.len()])),
            }
        }
    }

    fn charged(case: &Case) -> Option<Vec<u64>> {
        let plan = plan(case);
        plan.admits.then(|| plan.parts.iter().map(|part| part.charged).collect())
    }

    #[test]
    fn a_pool_is_charged_once() {
        let idle = idle();
        let one = |room, of_pool| charged(&vec![(limit("a", 1, Some(1)), room), (idle, of_pool)]);
        assert_eq!([one(1, 0), one(0, 1), one(0, 0)], [Some(vec![1, 0]), Some(vec![0, 1]), None]);
        let two =
            |other, room| charged(&vec![(limit("a", 2, Some(2)), 0), (limit(other, 3, Some(2)), 0), (idle, room)]);
        assert_eq!([two("b", 3), two("b", 2)], [Some(vec![0, 0, 3]), None], "the larger cost, once");
        assert_eq!([two("a", 5), two("a", 4)], [Some(vec![0, 0, 5]), None], "what two keys of a limit lack");
        let on_route = |room| charged(&vec![(limit("b", 1, None), room), (limit("a", 4, Some(0)), 0)]);
        assert_eq!([on_route(4), on_route(3)], [Some(vec![4, 0]), None]);
    }

    #[test]
    fn a_pool_that_is_charged_in_steps_only_needs_room() {
        let pool = Ask { in_steps: true, ..idle() };
        let plan = |room| plan(&vec![(limit("a", 4, Some(1)), 0), (pool, room)]);
        assert_eq!(
            plan(4).parts[1],
            AskPlan { has_room: true, pooled: Some((Demand { need: 4, cost: 0 }, true)), charged: 0 }
        );
        assert_eq!([4, 3].map(|room| plan(room).admits), [true, false]);
    }

    fn refused(wait: Option<u64>) -> Verdict {
        Verdict { admitted: false, rate: 0, remaining: 0, wait, level: 0 }
    }

    #[test]
    fn whoever_has_room_first_says_when() {
        let pooled = |wait| Pooled { place: 1, demand: Demand::default(), verdict: refused(wait) };
        let wait = |own, pool| RefusedAsk { place: 0, verdict: refused(own), pooled: Some(pooled(pool)) }.wait();
        assert_eq!(wait(Some(3), Some(2)), Some(2));
        assert_eq!(wait(Some(2), Some(3)), Some(2));
        assert_eq!((wait(None, Some(3)), wait(Some(3), None), wait(None, None)), (Some(3), Some(3), None));
        assert_eq!(RefusedAsk { place: 0, verdict: refused(Some(4)), pooled: None }.wait(), Some(4));
    }
}
