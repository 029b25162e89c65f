//! Which header names servers read as the same name.

/// Whether both headers become the same CGI variable. Servers write `_` for everything except letters and digits (RFC
/// 3875, section 4.1.18, as implemented). Both names are in lower case.
pub fn is_same_variable(one: &str, other: &str) -> bool {
    let same = |(a, b): (u8, u8)| a == b || !(a.is_ascii_alphanumeric() || b.is_ascii_alphanumeric());
    one.len() == other.len() && one.bytes().zip(other.bytes()).all(same)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_are_the_same_and_letters_are_not() {
        for (one, other) in [("x-debug", "x_debug"), ("x_debug", "x-debug"), ("x.a~b", "x-a_b"), ("a", "a"), ("", "")] {
            assert!(is_same_variable(one, other), "{one} {other}");
        }
        for (one, other) in
            [("x-debug", "xdebug"), ("x-debug", "x-debug-"), ("x-1", "x-2"), ("x-a", "xaa"), ("xaa", "x-a")]
        {
            assert!(!is_same_variable(one, other), "{one} {other}");
        }
    }
}
