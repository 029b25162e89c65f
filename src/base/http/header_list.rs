//! Headers whose value is a list (RFC 9110, section 5.6.1), and headers that must not be a list.

use http::{HeaderMap, HeaderName, HeaderValue};

/// Messages have few headers, and seldom one of these, so a look at each header costs less than a lookup.
pub fn has(headers: &HeaderMap, name: &HeaderName) -> bool {
    headers.keys().any(|found| found == name)
}

/// The members of a list from all lines of the header, trimmed. Members may be empty.
pub fn members<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a [u8]> + use<'a> {
    let lines = has(headers, name).then(|| headers.get_all(name)).into_iter().flatten();
    lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b',')).map(<[u8]>::trim_ascii)
}

/// Whether the list has a member, in any case.
pub fn has_member(headers: &HeaderMap, name: &HeaderName, member: &str) -> bool {
    members(headers, name).any(|one| one.eq_ignore_ascii_case(member.as_bytes()))
}

/// Removes a member, in any case, from a list. The other members stay, in one line.
pub fn remove_member(headers: &mut HeaderMap, name: &HeaderName, member: &str) {
    if !has_member(headers, name, member) {
        return;
    }
    let others = members(headers, name).filter(|one| !one.eq_ignore_ascii_case(member.as_bytes()));
    let others: Vec<_> = others.collect();
    if let Ok(value) = HeaderValue::from_bytes(&others.join(&b", "[..])) {
        headers.insert(name.clone(), value);
    }
}

/// The value of each of these headers, if the header has exactly one line. One pass for two headers that most requests lack
/// costs less than a lookup for each.
pub fn single_lines<'a, const N: usize>(
    headers: &'a HeaderMap,
    names: [&HeaderName; N],
) -> [Option<&'a HeaderValue>; N] {
    let (mut lines, mut is_repeated) = ([None; N], [false; N]);
    for (name, value) in headers {
        if let Some(at) = names.iter().position(|wanted| name == *wanted) {
            is_repeated[at] |= lines[at].replace(value).is_some();
        }
    }
    for (line, is_repeated) in lines.iter_mut().zip(is_repeated) {
        *line = line.filter(|_| !is_repeated);
    }
    lines
}

#[cfg(test)]
mod tests {
    use http::header;

    use super::*;

    #[test]
    fn only_a_header_with_one_line_has_a_single_line() {
        let mut headers = HeaderMap::new();
        for (name, value) in [("b", "1"), ("a", "2"), ("b", "3"), ("c", "4"), ("b", "5")] {
            headers.append(name, HeaderValue::from_static(value));
        }
        let [a, b, c, d] = ["a", "b", "c", "d"].map(HeaderName::from_static);
        let lines = single_lines(&headers, [&a, &b, &c, &d]).map(|line| line.map(HeaderValue::as_bytes));
        assert_eq!(lines, [Some(&b"2"[..]), None, Some(b"4"), None]);
    }

    #[test]
    fn a_removed_member_leaves_the_others() {
        for (lines, left) in
            [(&["a, B , c", "b"][..], &["a, c"][..]), (&["b"], &[""]), (&["a", "bb"], &["a", "bb"]), (&[], &[])]
        {
            let mut headers = HeaderMap::new();
            lines.iter().for_each(|line| _ = headers.append(header::CONNECTION, HeaderValue::from_static(line)));
            remove_member(&mut headers, &header::CONNECTION, "b");
            assert_eq!(headers.get_all(header::CONNECTION).iter().collect::<Vec<_>>(), left, "{lines:?}");
        }
    }

    #[test]
    fn a_list_may_have_several_lines() {
        let mut headers = HeaderMap::new();
        assert_eq!((members(&headers, &header::TE).count(), has(&headers, &header::TE)), (0, false));
        for line in ["a, b;q=1 ,", "\tc"] {
            headers.append(header::TE, HeaderValue::from_static(line));
        }
        assert!(has(&headers, &header::TE) && !has(&headers, &header::VIA));
        assert_eq!(members(&headers, &header::TE).collect::<Vec<_>>(), [&b"a"[..], b"b;q=1", b"", b"c"]);
    }
}
