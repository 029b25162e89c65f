//! The order of turns: endpoints by their weights, spread evenly.

/// Spreads indices evenly (smooth weighted round-robin): the next one is that whose share is furthest behind.
pub(super) fn schedule(weights: &[u32]) -> Vec<usize> {
    let total: i64 = weights.iter().map(|weight| i64::from(*weight)).sum();
    let mut owed = vec![0i64; weights.len()];
    let mut turn = || {
        owed.iter_mut().zip(weights).for_each(|(owed, weight)| *owed += i64::from(*weight));
        let chosen = (0..owed.len()).max_by_key(|index| (owed[*index], std::cmp::Reverse(*index)))?;
        owed[chosen] -= total;
        Some(chosen)
    };
    (0..total).map_while(|_| turn()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_spread_by_weight() {
        assert_eq!(schedule(&[1]), [0]);
        assert_eq!(schedule(&[1, 1]), [0, 1]);
        assert_eq!(schedule(&[3, 1]), [0, 0, 1, 0]);
        assert_eq!(schedule(&[]), Vec::<usize>::new());
        assert_eq!(schedule(&[100, 50, 1]).len(), 151);
    }
}
