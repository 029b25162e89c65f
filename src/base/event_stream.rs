//! Reads an event stream (HTML, section 9.2.6) that arrives in pieces, cut anywhere, and keeps nothing of it: a [`Visit`]
//! gets the data of an event in parts. Only data and ends are reported: nothing here needs the other fields.

use memchr::memchr2;

use super::byte_order_mark::MARK;

pub trait Visit {
    /// The next part of the event's data. A line feed separates lines of data.
    fn data(&mut self, part: &[u8]);
    /// An empty line ended the event, before this place in the piece.
    fn end(&mut self, at: usize);
}

/// Reads one event stream, in any number of pieces.
#[derive(Default)]
pub struct Reader {
    state: State,
    /// The beginning of the line, up to its colon, and how much of it was read.
    field: [u8; FIELD],
    field_length: usize,
    is_behind_first_line: bool,
    /// Whether the event has had a line of data.
    has_data: bool,
    /// Whether the last line ended with a carriage return, so that a line feed would belong to it.
    pub is_behind_return: bool,
}

#[derive(Clone, Copy, Default, PartialEq)]
enum State {
    #[default]
    Field,
    /// Data begins; a space here is not part of it.
    Space,
    Data,
    /// The rest of a line that is no data.
    Ignored,
}

/// The longest recognized field: `data` after a byte order mark.
const FIELD: usize = 7;

impl Reader {
    pub fn read(&mut self, piece: &[u8], to: &mut impl Visit) {
        let mut at = 0;
        while at < piece.len() {
            let rest = &piece[at..];
            if self.is_behind_return {
                self.is_behind_return = false;
                if rest[0] == b'\n' {
                    at += 1;
                    continue;
                }
            }
            match self.state {
                State::Field if self.field_length == 0 && rest.starts_with(b"data:") => {
                    self.data_begins(to);
                    self.state = State::Space;
                    at += 5;
                }
                State::Field => {
                    at += 1;
                    match rest[0] {
                        byte @ (b'\r' | b'\n') => {
                            if self.is_data() {
                                self.data_begins(to);
                            }
                            let is_empty = self.field().is_empty();
                            self.line_ended(byte);
                            if is_empty {
                                self.has_data = false;
                                // If the line feed has come already, it belongs to this end.
                                if self.is_behind_return && piece.get(at) == Some(&b'\n') {
                                    self.is_behind_return = false;
                                    at += 1;
                                }
                                to.end(at);
                            }
                        }
                        b':' if self.is_data() => {
                            self.data_begins(to);
                            self.state = State::Space;
                        }
                        byte if byte != b':' && self.field_length < FIELD => {
                            self.field[self.field_length] = byte;
                            self.field_length += 1;
                        }
                        _ => self.state = State::Ignored,
                    }
                }
                State::Space => {
                    at += usize::from(rest[0] == b' ');
                    self.state = State::Data;
                }
                State::Data | State::Ignored => {
                    let length = memchr2(b'\r', b'\n', rest);
                    let part = &rest[..length.unwrap_or(rest.len())];
                    if self.state == State::Data && !part.is_empty() {
                        to.data(part);
                    }
                    at += part.len();
                    if length.is_some() {
                        self.line_ended(piece[at]);
                        at += 1;
                    }
                }
            }
        }
    }

    /// Without the byte order mark at the beginning of the stream.
    fn field(&self) -> &[u8] {
        let field = &self.field[..self.field_length];
        if self.is_behind_first_line { field } else { field.strip_prefix(MARK).unwrap_or(field) }
    }

    fn is_data(&self) -> bool {
        self.field() == b"data"
    }

    fn data_begins(&mut self, to: &mut impl Visit) {
        if self.has_data {
            to.data(b"\n");
        }
        self.has_data = true;
    }

    fn line_ended(&mut self, byte: u8) {
        self.is_behind_return = byte == b'\r';
        self.is_behind_first_line = true;
        self.field_length = 0;
        self.state = State::Field;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Default)]
    struct Events {
        data: Vec<u8>,
        events: Vec<String>,
    }

    impl Visit for Events {
        fn data(&mut self, part: &[u8]) {
            self.data.extend_from_slice(part);
        }

        fn end(&mut self, _: usize) {
            self.events.push(String::from_utf8_lossy(&std::mem::take(&mut self.data)).into_owned());
        }
    }

    fn events<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<String> {
        let (mut reader, mut seen) = (Reader::default(), Events::default());
        pieces.into_iter().for_each(|piece| reader.read(piece, &mut seen));
        seen.events
    }

    #[test]
    fn reads_the_data_of_events() {
        for (text, data) in [
            ("data: a\n\ndata:b\n\n", &["a", "b"][..]),
            ("data:  a: b\r\rdata:\r\n\r\n\r\n", &[" a: b", "", ""]),
            ("\u{feff}data: a\n\n\u{feff}data: b\n\n", &["a", ""]),
            ("\u{feff}\ndata: a\n\n", &["", "a"]),
            (": comment\nevent: e\nid: 1\nretry: 5\ndata: a\ndata\ndata: b\n\n", &["a\n\nb"]),
            ("data : a\nDATA: b\ndatabase: c\ndat: d\n data: e\n\n", &[""]),
            ("data: not ended\n", &[]),
            ("data\n\ndata\ndata\n\n", &["", "\n"]),
        ] {
            assert_eq!(events([text.as_bytes()]), data, "{text:?}");
            assert_eq!(events(text.as_bytes().chunks(1)), data, "{text:?}");
        }
    }

    #[test]
    fn an_event_ends_behind_its_line_feed() {
        struct Ends(Vec<usize>);
        impl Visit for Ends {
            fn data(&mut self, _: &[u8]) {}
            fn end(&mut self, at: usize) {
                self.0.push(at);
            }
        }
        let mut reader = Reader::default();
        let mut ends = Ends(Vec::new());
        reader.read(b"data: a\r\n\r\ndata: b\r\n\r", &mut ends);
        assert_eq!(ends.0, [11, 21]);
        assert!(reader.is_behind_return);
        reader.read(b"\n", &mut ends);
        assert_eq!((ends.0.len(), reader.is_behind_return), (2, false));
    }

    proptest! {
        #[test]
        fn cuts_change_nothing(text in "(\u{feff})?(data|event|:|: |x|\r|\n|\r\n){0,30}", size in 1_usize..9) {
            prop_assert_eq!(events([text.as_bytes()]), events(text.as_bytes().chunks(size)));
        }
    }
}
