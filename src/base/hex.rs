//! Numbers and bytes as hexadecimal digits in lower case. Every request needs some, so numbers take no allocation, and both
//! directions use tables.

static PAIRS: [[u8; 2]; 256] = {
    let digits = b"0123456789abcdef";
    let mut pairs = [[0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        pairs[byte] = [digits[byte >> 4], digits[byte & 15]];
        byte += 1;
    }
    pairs
};

/// [`NO_DIGIT`] for bytes that are no digits.
static VALUES: [u8; 256] = {
    let mut values = [NO_DIGIT; 256];
    let mut value = 0;
    while value < 16 {
        values[PAIRS[value as usize][1] as usize] = value;
        value += 1;
    }
    values
};

/// Has a bit that no digit's value has.
const NO_DIGIT: u8 = 0x80;

pub fn digits(bits: u64) -> [u8; 16] {
    let mut digits = [0; 16];
    for (two, byte) in digits.chunks_exact_mut(2).zip(bits.to_be_bytes()) {
        two.copy_from_slice(&PAIRS[usize::from(byte)]);
    }
    digits
}

pub fn text(bytes: &[u8]) -> String {
    bytes.iter().flat_map(|byte| PAIRS[usize::from(*byte)]).map(char::from).collect()
}

/// `None` if there is anything except digits in lower case.
pub fn bits<const DIGITS: usize>(digits: &[u8; DIGITS]) -> Option<u64> {
    const { assert!(DIGITS <= 16) };
    let read = |(bits, all), digit: &u8| {
        let value = VALUES[usize::from(*digit)];
        (bits << 4 | u64::from(value & 15), all | value)
    };
    let (bits, all) = digits.iter().fold((0, 0), read);
    (all & NO_DIGIT == 0).then_some(bits)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn digits_are_those_of_the_standard_library(number: u64) {
            prop_assert_eq!(digits(number).to_vec(), format!("{number:016x}").into_bytes());
            prop_assert_eq!(text(&number.to_be_bytes()), format!("{number:016x}"));
            prop_assert_eq!(bits(&digits(number)), Some(number));
        }
    }

    #[test]
    fn other_characters_are_no_digits() {
        for byte in 0..=u8::MAX {
            let is_digit = matches!(byte, b'0'..=b'9' | b'a'..=b'f');
            assert_eq!(bits(&[b'0', byte, b'f']).is_some(), is_digit, "{byte}");
        }
        assert_eq!(bits(b"0a1"), Some(0xa1));
    }
}
