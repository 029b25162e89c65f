//! Tests of the reader of JSON.

use std::fmt::Write;
use std::mem;
use std::ops::Range;

use proptest::prelude::*;

use super::number::exact;
use super::*;

/// Writes what the reader reports; each string and each word has its place.
#[derive(Default)]
struct Written {
    text: String,
    string: Vec<u8>,
}

impl Visit for Written {
    fn name(&mut self, name: Option<&[u8]>, _: usize) {
        let name = name.map_or("?".into(), String::from_utf8_lossy);
        write!(self.text, "{name}: ").unwrap();
    }

    fn begin(&mut self, kind: Kind, at: usize) {
        write!(self.text, "{at}{kind:?} ").unwrap();
    }

    fn text(&mut self, part: &[u8]) {
        self.string.extend_from_slice(part);
    }

    fn end(&mut self, kind: Kind, at: usize) {
        let string = mem::take(&mut self.string);
        write!(self.text, "{}{at}{kind:?} ", String::from_utf8_lossy(&string)).unwrap();
    }

    fn word(&mut self, word: Option<&[u8]>, at: Range<usize>) {
        let word = word.map_or("?".into(), String::from_utf8_lossy);
        write!(self.text, "{word}@{at:?} ").unwrap();
    }
}

/// The reports, the number of bytes read, and whether they were one value.
fn read<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (String, usize, bool) {
    let (mut reader, mut written) = (Reader::default(), Written::default());
    let length = pieces.into_iter().map(|piece| reader.read(piece, &mut written)).sum();
    let is_whole = reader.finish(&mut written);
    assert!(!(is_whole && matches!(reader.state, State::Broken | State::Trailing)));
    (written.text, length, is_whole)
}

#[test]
fn tells_values_and_their_places() {
    let text = br#" {"a":[1, "b\n", true],"":{}} "#;
    let told = "1Object a: 6Array 1@7..8 10String b\n15String true@17..21 22Array : 26Object 28Object 29Object ";
    assert_eq!(read([&text[..]]), (told.to_owned(), text.len(), true));
}

#[test]
fn decodes_escapes() {
    for (text, decoded) in [
        (r#""\"\\\/\b\f\n\r\té""#, "\"\\/\u{8}\u{c}\n\r\té"),
        (r#""\ud83d\ude00\u0041""#, "\u{1f600}A"),
        (r#""\ud83d""#, "\u{fffd}"),
        (r#""\ud83dx\ude00""#, "\u{fffd}x\u{fffd}"),
        (r#""\ud83d\ud83d\ude00\ud83d\n\ud83d\u0041""#, "\u{fffd}\u{1f600}\u{fffd}\n\u{fffd}A"),
        ("\"a\tb\nc\0\"", "a\tb\nc\0"),
    ] {
        assert_eq!(read([text.as_bytes()]).0, format!("0String {decoded}{}String ", text.len()), "{text}");
        assert_eq!(read(text.as_bytes().chunks(1)), read([text.as_bytes()]), "{text}");
    }
    assert_eq!(read([&b"\"\xff\""[..]]).0, "0String \u{fffd}3String ");
    assert_eq!(read([&br#"{"mod\u0065l":1}"#[..]]).0, "0Object model: 1@14..15 16Object ");
}

#[test]
fn reads_what_lenient_servers_read() {
    for text in ["\u{feff}1", "NaN", "-Infinity", "[+1,.5,nan,undefined,0x1f]", " \t\r\n[]\n"] {
        assert!(read([text.as_bytes()]).2, "{text}");
    }
}

#[test]
fn reads_no_more_behind_what_is_no_json() {
    for (text, length) in [
        ("", 0),
        (" ", 1),
        ("[1,]", 3),
        ("[,1]", 1),
        ("[1 2]", 3),
        ("{\"a\":}", 5),
        ("{\"a\"}", 4),
        ("{\"a\" 1}", 5),
        ("{\"a\":1,}", 7),
        ("{a:1}", 1),
        ("{'a':1}", 1),
        ("{\"a\":1]", 6),
        ("[1}", 2),
        ("{} {}", 3),
        ("1 2", 2),
        ("]", 0),
        ("/**/1", 0),
        ("\"\\x\"", 2),
        ("\"\\u00g0\"", 5),
        ("[\u{feff}1]", 1),
        ("{\"a\":1", 6),
        ("\"abc", 4),
        ("\"\\", 2),
    ] {
        let (told, count, is_whole) = read([text.as_bytes()]);
        assert_eq!((count, is_whole), (length, false), "{text}");
        assert_eq!(read(text.as_bytes().chunks(1)), (told, count, is_whole), "{text}");
    }
    assert_eq!(read([&b"[\xbb1]"[..]]).1, 1, "a part of a byte order mark, in its place");
}

#[test]
fn what_is_kept_is_bounded() {
    for (length, is_told) in [(MAX_NAME, true), (MAX_NAME + 1, false)] {
        let name = "n".repeat(length);
        let text = format!("{{\"{name}\":1,\"b\":2}}");
        let told = read([text.as_bytes()]);
        assert_eq!(told.0.contains(&name), is_told);
        assert!(told.0.contains("b: 2"));
        assert_eq!(read(text.as_bytes().chunks(7)), told);
        assert_eq!(read([text.replacen('n', "\\u006e", 3).as_bytes()]).0.contains(&name), is_told);
    }
    for (length, is_told) in [(MAX_WORD, true), (MAX_WORD + 1, false)] {
        let word = "1".repeat(length);
        let text = format!("[{word},2]");
        let told = read([text.as_bytes()]);
        assert_eq!(told.0.contains(&word), is_told);
        assert!(told.0.contains(" 2@"));
        assert_eq!(read(text.as_bytes().chunks(7)), told);
    }
    let deep = |depth: usize| ["[{\"a\":".repeat(depth / 2), "1".to_owned(), "}]".repeat(depth / 2)].concat();
    assert!(read([deep(MAX_DEPTH).as_bytes()]).2);
    let (_, length, is_whole) = read([deep(MAX_DEPTH + 2).as_bytes()]);
    assert_eq!((length, is_whole), (MAX_DEPTH * 3, false));
    for (text, is_too_deep) in [(deep(MAX_DEPTH), false), (deep(MAX_DEPTH + 2), true), ("[[}".to_owned(), false)] {
        let mut reader = Reader::default();
        reader.read(text.as_bytes(), &mut Written::default());
        assert_eq!(reader.is_too_deep(), is_too_deep);
    }
}

#[test]
fn begins_anew() {
    let (mut reader, mut written) = (Reader::default(), Written::default());
    for broken in ["[[", "{\"a", "{\"\\u00", "[12", "\"\\ud83d", "}"] {
        reader.read(broken.as_bytes(), &mut Written::default());
        reader.reset();
        written.text.clear();
        reader.read(b"{\"b\":[3]}", &mut written);
        assert_eq!(written.text, "0Object b: 5Array 3@6..7 8Array 9Object ", "{broken}");
        assert!(reader.finish(&mut written));
        reader.reset();
    }
}

#[test]
fn numbers_have_one_normal_form() {
    for (form, spellings) in [
        ("1", &["1", "1.0", "1e0", "10e-1", "0.1E+1", "1.000e-0"][..]),
        ("0", &["0", "-0", "0.0", "0e99", "-0.0e-9"]),
        ("-12000", &["-12000", "-1.2e4", "-120e2"]),
        ("0.005", &["0.005", "5e-3", "0.5e-2"]),
        ("12.5", &["12.5", "125e-1", "12.50"]),
        ("5e300", &["5e300", "50e299", "0.5e301"]),
        ("5e-300", &["5e-300", "0.5e-299"]),
        ("7", &["7e0000000000000000000000000", "70e-0000000000000000000001"]),
        ("7e1000000000000000", &["7e99999999999999999999", "70e1000000000000000", "7e1000000000000000"]),
        ("0", &["7e-99999999999999999999", "1e-400"]),
        // What is the same double.
        ("1", &["1.000000000000000000001", "0.99999999999999999999", "1000000000000000000001e-21"]),
        ("0.1", &["0.1", "0.1000000000000000055511151231257827"]),
        ("-1", &["-1.00000000000000000000000009"]),
        // Whole numbers are exact.
        ("9007199254740993", &["9007199254740993", "9007199254740993.0", "90071992547409930e-1"]),
        ("-9007199254740993", &["-9007199254740993"]),
    ] {
        for spelling in spellings {
            assert_eq!(normal(spelling.as_bytes()).as_deref(), Some(form), "{spelling}");
        }
    }
    for word in ["", "-", "01", "1.", ".5", "+1", "1e", "1e+", "1e1.5", "1e+-1", "NaN", "0x1f", "1_0"] {
        assert_eq!(normal(word.as_bytes()), None, "{word}");
    }
    for (word, number) in [
        ("0", Some(0)),
        ("1e3", Some(1000)),
        ("18446744073709551615", Some(u64::MAX)),
        ("18446744073709551616", None),
        ("1e300", None),
        ("-1", None),
        ("0.5", None),
        ("true", None),
    ] {
        assert_eq!(count(word.as_bytes()), number, "{word}");
    }
}

proptest! {
    #[test]
    fn whole_numbers_are_what_they_are(number: u64, zeros in 0_usize..9) {
        let word = format!("{number}{}e-{zeros}", "0".repeat(zeros));
        prop_assert_eq!(count(word.as_bytes()), Some(number));
    }

    #[test]
    fn a_count_is_the_whole_number_that_a_word_means(word in "-?[0-9]{1,3}[0.]{0,4}[0-9]{0,20}([eE][+-]?[0-9]{1,3})?") {
        prop_assert_eq!(count(word.as_bytes()), exact(word.as_bytes()).and_then(|exact| exact.parse().ok()));
    }

    #[test]
    fn cuts_change_nothing(
        text in r#"([\[\]{}:, 1e\-"a]|"\\ud83d\\ude00é"|"a":|\{"a":\[1,"){0,30}"#, at in any::<prop::sample::Index>(), size in 1_usize..9,
    ) {
        let bytes = text.as_bytes();
        let whole = read([bytes]);
        prop_assert_eq!(&read(bytes.chunks(size)), &whole);
        let (first, second) = bytes.split_at(at.index(bytes.len() + 1));
        prop_assert_eq!(&read([first, second]), &whole);
    }
}
