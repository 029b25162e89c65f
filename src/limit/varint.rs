//! Numbers of variable length (LEB128), as states are encoded.

use integer_encoding::VarInt;

pub(super) fn push(number: u64, bytes: &mut Vec<u8>) {
    let mut digits = [0; 10];
    let length = number.encode_var(&mut digits);
    bytes.extend_from_slice(&digits[..length]);
}

/// Removes a number from the beginning of `rest`. `None` if there is none.
pub(super) fn pull(rest: &mut &[u8]) -> Option<u64> {
    let (number, length) = u64::decode_var(rest)?;
    *rest = rest.get(length..)?;
    Some(number)
}
