//! Cells that are raised to what another one counts.

use proptest::prelude::*;

use super::migrations::{is_moving, rates, run, schedules, used};
use super::*;

proptest! {
    /// Every rate counts as much as it does in the fuller one of both cells, although that may be a moment ahead. Doing that
    /// twice changes nothing, and nothing leaves earlier because of it.
    #[test]
    fn a_raised_cell_counts_what_the_fuller_one_counts(rates in rates(), one in schedules(), other in schedules(),
        (later, ahead) in (0..2 * SECOND, ahead()), gaps in prop::collection::vec(0..70 * SECOND, 0..6)) {
        let limit = Limit::new("l", &rates);
        let ((mut cell, one), (mut least, other)) = (run(&limit, &one), run(&limit, &other));
        let mut now = one.max(other) + later;
        cell.advance(limit.rates(), at(now));
        least.advance(limit.rates(), at(now + ahead));
        let mut raised = cell.clone();
        limit.raise(&mut raised, &least, at(now));
        let counted = [&cell, &least, &raised].map(|cell| used(&limit, cell, now));
        let later = used(&limit, &cell, now + ahead);
        for (place, rate) in limit.rates().iter().enumerate() {
            let [cell, least, raised] = [0, 1, 2].map(|of| counted[of][place]);
            // What a shorter moving window lacks is in the log that the longer ones see as well.
            let most = if is_moving(rate) { cell + least } else { cell.max(least) };
            // A day that has begun at the other cell's moment takes the place of the one before.
            let is_calendar = matches!(rate.strategy(), super::super::Strategy::Calendar(_));
            let cell = if is_calendar { cell.min(later[place]) } else { cell };
            prop_assert!((cell.max(least)..=most).contains(&raised), "{rate}: {cell} and {least} become {raised}");
        }
        let mut again = raised.clone();
        limit.raise(&mut again, &least, at(now));
        prop_assert_eq!(&again, &raised);
        now += ahead;
        for gap in gaps {
            now += gap;
            let (without, with) = (used(&limit, &cell, now), used(&limit, &raised, now));
            prop_assert!(without.iter().zip(&with).all(|(without, with)| without <= with), "{without:?}, {with:?}");
        }
    }

    /// Where nothing was counted, the other cell is copied, although that may be a moment ahead.
    #[test]
    fn an_empty_cell_becomes_the_other_one(rates in rates(), schedule in schedules(),
        (later, ahead) in (0..2 * SECOND, ahead()), gaps in prop::collection::vec(0..70 * SECOND, 0..6)) {
        let limit = Limit::new("l", &rates);
        let (mut least, mut now) = run(&limit, &schedule);
        now += later;
        least.advance(limit.rates(), at(now + ahead));
        let mut raised = Cell::new(limit.rates(), at(now));
        limit.raise(&mut raised, &least, at(now));
        for gap in gaps {
            prop_assert_eq!(used(&limit, &raised, now), used(&limit, &least, now));
            now += gap;
        }
    }
}

/// By how much another thread may have read the clock later.
fn ahead() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), 0..SECOND]
}

#[test]
fn a_calendar_window_that_is_a_moment_ahead_is_carried_over() {
    let limit = limit(&["9/day"]);
    let midnight = 2 * 86_400 * SECOND;
    let [mut cell, mut least] = [midnight - 1, midnight].map(|now| Cell::new(limit.rates(), at(now)));
    limit.charge(&mut cell, at(midnight - 1), 1);
    limit.charge(&mut least, at(midnight), 5);
    limit.raise(&mut cell, &least, at(midnight - 1));
    assert_eq!(used(&limit, &cell, midnight), [5]);
}

#[test]
fn a_sum_of_another_calendar_window_is_not_carried_over() {
    let limit = limit(&["9/day"]);
    let day = 86_400 * SECOND;
    let [mut cell, mut least] = [2 * day, day].map(|now| Cell::new(limit.rates(), at(now)));
    limit.charge(&mut least, at(day), 5);
    limit.charge(&mut cell, at(2 * day), 1);
    limit.raise(&mut cell, &least, at(2 * day));
    assert_eq!(used(&limit, &cell, 2 * day), [1]);
}
