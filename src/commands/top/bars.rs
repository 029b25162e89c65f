//! Charts of text: a column of blocks for each number.

/// From an eighth of a cell to a whole one.
const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Stands for a time of which nothing is known.
const NOTHING: char = ' ';
/// Stands for zero in the lowest line.
const ZERO: char = '·';

/// The lines of a chart that is `height` lines high, the highest first. A number above 0 is at least an eighth of a cell high,
/// so that nobody takes it for zero. The highest number is `most`.
pub(super) fn bars(numbers: &[Option<f64>], most: f64, height: usize) -> Vec<String> {
    let levels: Vec<_> = numbers.iter().map(|number| number.map(|number| level(number, most, height))).collect();
    let line = |above: usize| levels.iter().map(|level| level.map_or(NOTHING, |level| cell(level, above))).collect();
    (0..height).rev().map(line).collect()
}

/// The character of a column in the line that has so many lines below it.
fn cell(level: usize, below: usize) -> char {
    match level.saturating_sub(below * BLOCKS.len()) {
        0 if level == 0 && below == 0 => ZERO,
        0 => NOTHING,
        eighths => BLOCKS[eighths.min(BLOCKS.len()) - 1],
    }
}

/// The height of a column in eighths.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is between 0 and the height")]
#[expect(clippy::cast_precision_loss, reason = "a screen has few lines")]
fn level(number: f64, most: f64, height: usize) -> usize {
    let highest = height * BLOCKS.len();
    let part = if most > 0.0 { (number / most).clamp(0.0, 1.0) } else { 0.0 };
    (part * highest as f64).ceil() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_become_columns() {
        let numbers = [None, Some(0.0), Some(0.001), Some(50.0), Some(100.0), Some(1e9)];
        assert_eq!(bars(&numbers, 100.0, 1), [" ·▁▄██"]);
        assert_eq!(bars(&numbers, 100.0, 2), ["    ██", " ·▁███"]);
        assert_eq!(bars(&numbers, 0.0, 1), [" ·····"]);
        assert_eq!(bars(&[Some(f64::NAN)], 1.0, 1), ["·"]);
        assert!(bars(&numbers, 100.0, 0).is_empty());
    }
}
