//! The value of a number in any spelling: `10`, `10.0` and `1e1` are the same, and so are fractions that are the same double.

/// Powers of ten are clamped to plus or minus this. No server can tell numbers beyond it apart.
const FARTHEST: i64 = 1_000_000_000_000_000;

/// The one way to write this number: `10`, `0.5`, or `15e300` instead of many zeros. Whole numbers are exact, because many
/// servers read large ones exactly. Others are rounded to doubles, as nearly all servers read them (RFC 8259, section 6).
/// `None` if the word is no number.
pub fn normal(word: &[u8]) -> Option<String> {
    let text = exact(word)?;
    if !text.contains('.') && !text.contains("e-") {
        return Some(text);
    }
    let double: f64 = text.parse().ok()?;
    exact(double.to_string().as_bytes())
}

/// [`normal`] without rounding.
pub(super) fn exact(word: &[u8]) -> Option<String> {
    let word = str::from_utf8(word).ok().filter(|word| is_number(word.as_bytes()))?;
    let (sign, rest) = word.strip_prefix('-').map_or(("", word), |rest| ("-", rest));
    let (mantissa, exponent) = rest.split_once(['e', 'E']).unwrap_or((rest, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, "0"));
    let unsigned = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
    let significant = unsigned.trim_start_matches('0');
    // More digits are beyond the clamp anyway.
    let shift = if significant.len() < 18 { format!("0{significant}").parse().ok()? } else { 2 * FARTHEST };
    let shift = if exponent.starts_with('-') { -shift } else { shift };
    let all = format!("{whole}{fraction}");
    let significant = all.trim_end_matches('0');
    let digits = significant.trim_start_matches('0');
    if digits.is_empty() {
        return Some("0".to_owned());
    }
    // The value is `digits` as a whole number, times ten to this power.
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

/// By RFC 8259, section 6.
#[inline]
pub fn is_number(word: &[u8]) -> bool {
    matches!(word, [b'0'..=b'9']) || is_long_number(word)
}

fn is_long_number(word: &[u8]) -> bool {
    let digits = |rest: &mut &[u8]| {
        let length = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        *rest = &rest[length..];
        length
    };
    let mut rest = word.strip_prefix(b"-").unwrap_or(word);
    let begins_with_zero = rest.first() == Some(&b'0');
    let whole = digits(&mut rest);
    if whole == 0 || whole > 1 && begins_with_zero {
        return false;
    }
    if let [b'.', fraction @ ..] = rest {
        rest = fraction;
        if digits(&mut rest) == 0 {
            return false;
        }
    }
    if let [b'e' | b'E', exponent @ ..] = rest {
        rest = exponent.strip_prefix(b"+").or(exponent.strip_prefix(b"-")).unwrap_or(exponent);
        return digits(&mut rest) > 0 && rest.is_empty();
    }
    rest.is_empty()
}

/// The number if it is whole, not negative, and below 2^64.
pub fn count(word: &[u8]) -> Option<u64> {
    let next = |value: u64, digit: u8| value.checked_mul(10)?.checked_add(u64::from(digit - b'0'));
    // Nearly all counts are plain digits.
    if word.iter().all(u8::is_ascii_digit) && !word.starts_with(b"0") && !word.is_empty() {
        return word.iter().copied().try_fold(0, next);
    }
    exact(word)?.parse().ok()
}
