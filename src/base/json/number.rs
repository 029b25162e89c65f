//! The value of a number, however it is written: `10`, `10.0` and `1e1` are the same.

/// A power of ten is at most this, and at least this below zero. No server can tell numbers beyond it apart.
const FARTHEST: i64 = 1_000_000_000_000_000;

/// The one way to write this number: `10`, `0.5`, or `15e300` where there would be many zeros. `None` if the word is no
/// number of RFC 8259, section 6.
pub fn normal(word: &[u8]) -> Option<String> {
    let word = str::from_utf8(word).ok()?;
    let (sign, rest) = word.strip_prefix('-').map_or(("", word), |rest| ("-", rest));
    let (mantissa, exponent) = rest.split_once(['e', 'E']).unwrap_or((rest, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, "0"));
    let unsigned = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
    let are_digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if ![whole, fraction, unsigned].into_iter().all(are_digits) || whole.len() > 1 && whole.starts_with('0') {
        return None;
    }
    let significant = unsigned.trim_start_matches('0');
    // What has more digits is beyond the farthest anyway.
    let shift = if significant.len() < 18 { format!("0{significant}").parse().ok()? } else { 2 * FARTHEST };
    let shift = if exponent.starts_with('-') { -shift } else { shift };
    let all = format!("{whole}{fraction}");
    let significant = all.trim_end_matches('0');
    let digits = significant.trim_start_matches('0');
    if digits.is_empty() {
        return Some("0".to_owned());
    }
    // The value is the digits as a whole number, times ten to this power.
    let power = shift + i64::try_from(whole.len()).ok()? - i64::try_from(significant.len()).ok()?;
    Some(match power.clamp(-FARTHEST, FARTHEST) {
        power @ 0..=20 => format!("{sign}{digits}{}", "0".repeat(usize::try_from(power).ok()?)),
        power @ -20..0 => {
            let places = usize::try_from(-power).ok()?;
            let padded = format!("{digits:0>width$}", width = places + 1);
            let (whole, fraction) = padded.split_at(padded.len() - places);
            format!("{sign}{whole}.{fraction}")
        }
        power => format!("{sign}{digits}e{power}"),
    })
}

/// The number if it is whole, not negative, and below 2^64.
pub fn count(word: &[u8]) -> Option<u64> {
    normal(word)?.parse().ok()
}
