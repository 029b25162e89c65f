//! Removes what container runtimes and journald write before and around the lines of a log.

use std::borrow::Cow;

use super::json_object::Object;

/// The line as the server wrote it.
pub(super) fn unwrapped(line: &[u8]) -> Cow<'_, [u8]> {
    if line.starts_with(b"{") {
        return of_json(line).map_or(Cow::Borrowed(line), Cow::Owned);
    }
    Cow::Borrowed(of_kubernetes(line).or_else(|| of_journal(line)).unwrap_or(line))
}

/// Docker's json-file, `{"log":"...\n","stream":"stdout","time":"..."}`, and `journalctl -o json`.
fn of_json(line: &[u8]) -> Option<Vec<u8>> {
    // Most JSON lines are neither, so they are parsed only once.
    let is_named = |name: &[u8]| memchr::memmem::find(line, name).is_some();
    let (text, beside) = match () {
        () if is_named(b"\"log\"") && is_named(b"\"stream\"") => ("log", "stream"),
        () if is_named(b"\"MESSAGE\"") && is_named(b"\"__REALTIME_TIMESTAMP\"") => ("MESSAGE", "__REALTIME_TIMESTAMP"),
        () => return None,
    };
    let object = Object::read(line)?;
    object.text(beside)?;
    let written = object.text(text)?;
    Some(written.trim_end_matches(['\r', '\n']).as_bytes().to_vec())
}

/// `2016-10-06T00:17:09.669794202Z stdout F ...`, as the runtimes of Kubernetes write (CRI).
fn of_kubernetes(line: &[u8]) -> Option<&[u8]> {
    let (time, rest) = word(line)?;
    let (stream, rest) = word(rest)?;
    let (tag, rest) = word(rest)?;
    let is_time = time.first().is_some_and(u8::is_ascii_digit) && time.contains(&b'T');
    (is_time && matches!(stream, b"stdout" | b"stderr") && tag == b"F").then_some(rest)
}

/// `Nov 27 01:02:03 host unit[123]: ...`, as journalctl and syslog write.
fn of_journal(line: &[u8]) -> Option<&[u8]> {
    let (month, rest) = word(line)?;
    let (_day, rest) = word(rest.trim_ascii_start())?;
    let (time, rest) = word(rest)?;
    let (_host, rest) = word(rest)?;
    let (unit, rest) = word(rest)?;
    let is_time = month.len() == 3 && month.iter().all(u8::is_ascii_alphabetic) && time.get(2) == Some(&b':');
    (is_time && unit.ends_with(b":")).then_some(rest)
}

/// The text up to a space, and the rest after that space.
fn word(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let (word, rest) = text.split_at(memchr::memchr(b' ', text)?);
    Some((word, &rest[1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_comes_out_as_it_was_written() {
        const LINE: &str = "192.0.2.1 - - [10/Oct/2000:13:55:36 +0000] \"GET /a HTTP/1.1\" 200 1";
        let quoted = serde_json::to_string(LINE).unwrap();
        for wrapped in [
            LINE.to_owned(),
            format!("2000-10-10T13:55:36.669794202Z stdout F {LINE}"),
            format!("2000-10-10T13:55:36.66+02:00 stderr F {LINE}"),
            format!(
                "{{\"log\":{},\"stream\":\"stdout\",\"time\":\"2000-10-10T13:55:36Z\"}}",
                quoted.replace("1\"", "1\\n\"")
            ),
            format!("{{\"__REALTIME_TIMESTAMP\":\"971186136000000\",\"MESSAGE\":{quoted},\"_PID\":\"1\"}}"),
            format!("Oct 10 13:55:36 web-1 nginx[123]: {LINE}"),
            format!("Oct  9 13:55:36 web-1 gateway: {LINE}"),
        ] {
            assert_eq!(String::from_utf8(unwrapped(wrapped.as_bytes()).into_owned()).unwrap(), LINE, "{wrapped}");
        }
        for other in [
            "",
            "{",
            "{\"client\":\"192.0.2.1\",\"log\":\"x\"}",
            "2000-10-10T13:55:36Z stdout P part",
            "2000-10-10T13:55:36Z stdout F",
            "Oct 10 13:55:36 web-1 no unit here",
        ] {
            assert_eq!(&*unwrapped(other.as_bytes()), other.as_bytes());
        }
    }
}
