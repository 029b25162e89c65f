//! Compares sketches with exact counts, on streams like those of real clients and on streams of attackers.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

fn key(number: u64) -> Fingerprint {
    Fingerprint::of(&number.to_be_bytes())
}

fn record(sketch: &mut Sketch, number: u64) {
    sketch.record(key(number), || number.to_string());
}

fn exact(stream: &[u64]) -> HashMap<u64, u64> {
    let mut counts = HashMap::new();
    stream.iter().for_each(|number| *counts.entry(*number).or_insert(0) += 1);
    counts
}

/// A stream in random order in which the frequency of the key of rank `r` follows Zipf's law.
fn zipf(keys: u64, exponent: f64, length: usize, random: &mut fastrand::Rng) -> Vec<u64> {
    let weights: Vec<f64> = (1..=keys)
        .scan(0.0, |sum, rank| {
            #[expect(clippy::cast_precision_loss, reason = "ranks are small")]
            let weight = (rank as f64).powf(-exponent);
            *sum += weight;
            Some(*sum)
        })
        .collect();
    let all = weights.last().copied().unwrap();
    (0..length).map(|_| weights.partition_point(|sum| *sum < random.f64() * all) as u64).collect()
}

/// Streams of attackers, all with the same heavy hitters: keys that come once, at any time, only first or only last; keys
/// that come exactly as often as needed to keep a place; and keys in turns, so that each displaces the next.
fn adversarial(kind: usize, length: usize, random: &mut fastrand::Rng) -> Vec<u64> {
    let heavy = |random: &mut fastrand::Rng| random.u64(0..5);
    let mut next = 1_000;
    let mut invented = || {
        next += 1;
        next
    };
    match kind {
        0 => (0..length).map(|_| if random.u8(0..10) == 0 { heavy(random) } else { invented() }).collect(),
        1 => (0..length).map(|at| if at > length * 9 / 10 { heavy(random) } else { invented() }).collect(),
        2 => (0..length).map(|at| if at < length / 10 { heavy(random) } else { invented() }).collect(),
        3 => {
            let twice = (0..length as u64).map(|at| 1_000 + at / 2);
            twice.map(|other| if random.u8(0..10) == 0 { heavy(random) } else { other }).collect()
        }
        _ => {
            let turns = (0..length as u64).map(|at| 1_000 + at % (CAPACITY as u64 + 1));
            turns.map(|other| if random.u8(0..10) == 0 { heavy(random) } else { other }).collect()
        }
    }
}

/// Checks all bounds of `heavy_hitters` for a stream that is divided among `sketches`.
#[track_caller]
fn check(stream: &[u64], sketches: usize, random: &mut fastrand::Rng) {
    let mut all: Vec<Sketch> = (0..sketches).map(|_| Sketch::default()).collect();
    let mut parts = vec![Vec::new(); sketches];
    for number in stream {
        let at = random.usize(0..sketches);
        record(&mut all[at], *number);
        parts[at].push(*number);
    }
    let mut ranking = Ranking::default();
    let numbers: HashMap<_, _> = exact(stream).into_keys().map(|number| (key(number), number)).collect();
    for (sketch, part) in all.iter().zip(&parts) {
        let counts = exact(part);
        assert!(sketch.places.len() <= CAPACITY);
        assert!(sketch.unseen() <= (part.len() / CAPACITY) as u64);
        assert_eq!(sketch.places.iter().map(|place| place.count).sum::<u64>(), part.len() as u64);
        let mut missing = counts.clone();
        for place in &sketch.places {
            let number = numbers[&place.key];
            let count = counts[&number];
            assert!((place.count - place.error..=place.count).contains(&count), "{place:?} {count}");
            assert!(place.error <= sketch.unseen());
            assert!(!place.has_text || place.text == number.to_string());
            missing.remove(&number);
        }
        assert!(missing.values().all(|count| *count <= sketch.unseen()));
        ranking.add(sketch);
    }
    let counts = exact(stream);
    let unseen = ranking.unseen + ranking.missed;
    assert!(unseen <= (stream.len() / CAPACITY) as u64);
    let top = ranking.top(10);
    let mut others = counts.clone();
    for hitter in &top {
        let count = others.remove(&hitter.text.parse().unwrap()).unwrap();
        assert!((hitter.count..=hitter.count + hitter.error).contains(&count), "{hitter:?} {count}");
    }
    assert!(top.is_sorted_by_key(|hitter| Reverse(hitter.count)));
    let last = top.get(9).map_or(0, |hitter| hitter.count);
    assert!(others.values().all(|count| *count <= last.max(1) + unseen), "{last} {unseen}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn the_bounds_hold_for_the_keys_of_real_clients(
        seed: u64, keys in 1..5_000u64, exponent in 0.5..2.0f64, length in 0..8_000usize, sketches in 1..5usize,
    ) {
        let mut random = fastrand::Rng::with_seed(seed);
        let stream = zipf(keys, exponent, length, &mut random);
        check(&stream, sketches, &mut random);
    }

    #[test]
    fn the_bounds_hold_for_the_keys_of_attackers(
        seed: u64, kind in 0..5usize, length in 0..8_000usize, sketches in 1..5usize,
    ) {
        let mut random = fastrand::Rng::with_seed(seed);
        let stream = adversarial(kind, length, &mut random);
        check(&stream, sketches, &mut random);
    }
}

#[test]
fn a_flood_of_invented_keys_does_not_push_out_those_that_come_often() {
    let mut random = fastrand::Rng::with_seed(7);
    for kind in 0..5 {
        let stream = adversarial(kind, 100_000, &mut random);
        let mut sketch = Sketch::default();
        stream.iter().for_each(|number| record(&mut sketch, *number));
        let mut ranking = Ranking::default();
        ranking.add(&sketch);
        let top = ranking.top(10);
        let mut first: Vec<u64> = top.iter().take(5).map(|hitter| hitter.text.parse().unwrap()).collect();
        first.sort_unstable();
        assert_eq!(first, [0, 1, 2, 3, 4], "kind {kind}: {top:?}");
    }
}

#[test]
fn few_keys_are_counted_exactly_and_a_cleared_sketch_is_new() {
    let mut sketch = Sketch::default();
    for round in 0..3 {
        let stream: Vec<u64> = (0..CAPACITY).flat_map(|number| vec![number as u64; number % 7 + 1]).collect();
        stream.iter().for_each(|number| record(&mut sketch, *number + round));
        let mut ranking = Ranking::default();
        ranking.add(&sketch);
        let top = ranking.top(CAPACITY + 1);
        assert_eq!(top.len(), CAPACITY);
        let counts = exact(&stream);
        assert!(top.iter().all(|hitter| {
            (hitter.count, hitter.error) == (counts[&(hitter.text.parse::<u64>().unwrap() - round)], 0)
        }));
        sketch.clear();
    }
    let mut ranking = Ranking::default();
    ranking.add(&sketch);
    assert_eq!(ranking.top(10), []);
}

#[test]
fn what_was_missed_is_part_of_the_error() {
    let mut sketch = Sketch::default();
    record(&mut sketch, 7);
    sketch.missed += 3;
    let mut ranking = Ranking::default();
    ranking.add(&sketch);
    assert_eq!(ranking.unseen + ranking.missed, 3);
    assert_eq!(ranking.top(10), [HeavyHitter { key: key(7), text: "7".to_owned(), count: 1, error: 3 }]);
}

#[test]
fn long_texts_keep_their_beginning_and_their_end() {
    let shortened = |text: &str| {
        let mut sketch = Sketch::default();
        sketch.record(key(1), || text.to_owned());
        let text = sketch.places.remove(0).text;
        assert!(text.len() <= LONGEST_TEXT, "{text}");
        text
    };
    let fits = "k".repeat(LONGEST_TEXT);
    assert_eq!(shortened(&fits), fits);
    assert_eq!(shortened(&format!("{}wxyz", "k".repeat(5_000))), format!("{}\u{2026}wxyz", "k".repeat(57)));
    let wide = "\u{1f980}".repeat(40);
    assert_eq!(shortened(&wide), format!("{}\u{2026}{}", "\u{1f980}".repeat(11), "\u{1f980}".repeat(4)));
    assert_eq!(shortened(""), "");
}

#[test]
fn memory_is_bounded_whatever_comes() {
    let mut sketch = Sketch::default();
    for number in 0..20_000u64 {
        // Twice, so that each key has a text.
        for _ in 0..2 {
            sketch.record(key(number), || "k".repeat(1_000));
        }
    }
    assert!(sketch.places.capacity() <= CAPACITY && sketch.least.capacity() <= CAPACITY);
    // A limit has four sketches on each worker.
    assert!(4 * CAPACITY * (size_of::<Place>() + LONGEST_TEXT) < 79 << 10);
    assert!(sketch.places.iter().all(|place| place.text.capacity() <= LONGEST_TEXT));
}
