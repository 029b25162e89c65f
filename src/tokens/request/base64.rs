//! Tells data in base64 from text, while it is read.

/// What was read of data in base64.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Base64 {
    /// In bytes, with what is before the data in a URL.
    pub(super) length: u64,
    /// The bytes of the last line.
    line: usize,
    /// Whether a line was short. Only the last one may be.
    is_short: bool,
}

impl Base64 {
    /// After `length` bytes of a URL.
    pub(super) fn after(length: u64) -> Self {
        Self { length, ..Self::default() }
    }

    /// Reads the next part; `None` if this is no base64, as programs write it.
    pub(super) fn and(mut self, part: &[u8]) -> Option<Self> {
        self.length += part.len() as u64;
        let mut rest = part;
        loop {
            let end = rest.iter().position(|byte| !is_of_base64(*byte));
            self.line += end.unwrap_or(rest.len());
            if self.is_short && self.line > 0 {
                return None;
            }
            let Some(end) = end else { return Some(self) };
            if !matches!(rest[end], b'\r' | b'\n') {
                return None;
            }
            self.is_short |= (1..MIN_LINE).contains(&self.line);
            (self.line, rest) = (0, &rest[end + 1..]);
        }
    }
}

/// Programs that write base64 in lines write 64 or 76 letters in each.
const MIN_LINE: usize = 60;

fn is_of_base64(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'-' | b'_' | b'=')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_base64_are_long() {
        let read = |text: &str, size: usize| {
            text.as_bytes().chunks(size).try_fold(Base64::default(), Base64::and).map(|read| read.length)
        };
        let of = |line: usize, end: &str| format!("{}{end}", "A".repeat(line)).repeat(9);
        for text in [
            String::new(),
            "A".to_owned(),
            "\n\nAAA=\n\n".to_owned(),
            "AA+/-_==".to_owned(),
            of(1000, ""),
            of(64, "\n"),
            of(76, "\r\n") + "AAA=\r\n",
            of(60, "\r"),
        ] {
            for size in [1, 3, 4096] {
                assert_eq!(read(&text, size), Some(text.len() as u64), "{text}");
            }
        }
        for text in [of(8, "\n"), of(59, "\r\n"), of(70, " "), "A\n\nA".to_owned(), "é".to_owned(), "A,".to_owned()] {
            for size in [1, 3, 4096] {
                assert_eq!(read(&text, size), None, "{text}");
            }
        }
    }
}
