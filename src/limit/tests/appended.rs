//! Charges that are appended to a saved state, beside the same charges made at once.

use proptest::prelude::*;

use super::*;

fn limit_of(kind: usize) -> Limit {
    let minute = |quota, counting| Rate::new(quota, Duration::from_secs(60)).unwrap().counted(counting).unwrap();
    let moving = minute(100, super::super::Strategy::Moving);
    let fixed = minute(90, super::super::Strategy::Fixed);
    let bucket = minute(80, super::super::Strategy::Bucket { burst: 20 });
    let rates = match kind {
        0 => vec![moving],
        1 => vec![fixed],
        2 => vec![bucket],
        _ => vec![moving, "70/m".parse().unwrap(), fixed, bucket],
    };
    Limit::new("test", &rates)
}

/// What is kept as a whole, as bytes.
fn whole(cell: &Cell, limit: &Limit) -> Vec<u8> {
    cell.save(limit.rates(), 0)
}

proptest! {
    #[test]
    fn what_is_appended_is_as_if_it_had_been_charged(
        kind in 0..4_usize,
        steps in prop::collection::vec((prop_oneof![0..2_000_u64, 0..40 * SECOND], 1..5_u64, any::<bool>()), 1..60),
    ) {
        let limit = limit_of(kind);
        let mut now = 1_800_000_000 * SECOND;
        let mut cell = Cell::new(limit.rates(), at(now));
        let mut bytes = whole(&cell, &limit);
        let mut times = 0;
        for (gap, cost, is_appended) in steps {
            now += gap;
            cell.advance(limit.rates(), at(now));
            limit.charge(&mut cell, at(now), cost);
            if is_appended {
                Cell::append_charge(at(now), cost, at(now), &mut bytes);
                times += 1;
            } else {
                bytes = whole(&cell, &limit);
                times = 0;
            }
            let restored = Cell::restore(limit.rates(), at(now), &bytes).unwrap();
            prop_assert_eq!(whole(&restored.cell, &limit), whole(&cell, &limit));
            prop_assert_eq!((restored.appended, restored.ahead), (times, 0));
        }
        // Nor does it matter who reads it when.
        cell.advance(limit.rates(), at(now + 30 * SECOND));
        let restored = Cell::restore(limit.rates(), at(now + 30 * SECOND), &bytes).unwrap();
        prop_assert_eq!(whole(&restored.cell, &limit), whole(&cell, &limit));
    }
}
