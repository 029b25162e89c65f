//! What the head of a request declares about its body, and about the response that it wants.

use http::{HeaderMap, HeaderValue, header};

use crate::request::identify::RequestAttributes;

/// The charsets that all servers read as the gateway does.
const CHARSETS: [&[u8]; 4] = [b"utf-8", b"utf8", b"us-ascii", b"ascii"];

pub(super) fn is_compressed(headers: &HeaderMap) -> bool {
    headers.get_all(header::CONTENT_ENCODING).iter().any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"identity"))
}

pub(super) fn is_json(headers: &HeaderMap) -> bool {
    let is_json = |kind: &[u8]| {
        let essence = kind.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii().to_ascii_lowercase();
        essence.ends_with(b"/json") || essence.ends_with(b"+json")
    };
    types(headers).flat_map(|kind| kind.as_bytes().split(|byte| *byte == b',')).any(is_json)
}

/// Whether all servers read all named charsets alike. Whatever looks like a parameter counts, since servers differ.
pub(super) fn charsets_are_known(headers: &HeaderMap) -> bool {
    types(headers).all(|kind| {
        let kind = kind.as_bytes().to_ascii_lowercase();
        memchr::memmem::find_iter(&kind, b"charset").all(|at| is_known(&kind[at + b"charset".len()..]))
    })
}

/// Whether a known charset follows the name of the parameter.
fn is_known(rest: &[u8]) -> bool {
    let end = rest.iter().position(|byte| matches!(byte, b';' | b',')).unwrap_or(rest.len());
    let Some(value) = rest[..end].trim_ascii_start().strip_prefix(b"=") else { return false };
    let value = value.trim_ascii();
    let value = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value);
    CHARSETS.contains(&value)
}

fn types(headers: &HeaderMap) -> impl Iterator<Item = &HeaderValue> {
    headers.get_all(header::CONTENT_TYPE).iter()
}

/// Whether a request for a model at Google selects fields of the response, and the usage is not one of them.
pub(super) fn hides_usage(head: &RequestAttributes<'_>) -> bool {
    if !head.path.trim_end_matches('/').to_ascii_lowercase().ends_with("generatecontent") {
        return false;
    }
    let pairs = form_urlencoded::parse(head.query.unwrap_or_default().as_bytes());
    let is_mask = |name: &str| ["fields", "$fields"].iter().any(|known| name.eq_ignore_ascii_case(known));
    let in_query = pairs.filter(|(name, _)| is_mask(name)).any(|(_, fields)| !has_usage(fields.as_bytes()));
    let in_headers = head.headers.get_all("x-goog-fieldmask").iter();
    in_query || in_headers.into_iter().any(|fields| !has_usage(fields.as_bytes()))
}

/// Whether these fields include the whole usage, as in `candidates(content,index),usageMetadata`.
fn has_usage(fields: &[u8]) -> bool {
    let mut deep = 0_usize;
    let mut outermost = fields.split(|byte| {
        match byte {
            b'(' => deep += 1,
            b')' => deep = deep.saturating_sub(1),
            _ => {}
        }
        *byte == b',' && deep == 0
    });
    outermost.any(|field| matches!(field.trim_ascii(), b"*" | b"usageMetadata" | b"usage_metadata"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_type(kinds: &[&str]) -> HeaderMap {
        kinds.iter().map(|kind| (header::CONTENT_TYPE, kind.parse().unwrap())).collect()
    }

    #[test]
    fn only_charsets_that_all_servers_read_alike_are_known() {
        for kinds in [
            &[][..],
            &["application/json"],
            &["application/json; charset=utf-8"],
            &["application/json;CHARSET = \"UTF-8\" ; a=b"],
            &["text/plain; charset=us-ascii", "application/json; charset=utf8"],
        ] {
            assert!(charsets_are_known(&of_type(kinds)), "{kinds:?}");
        }
        for kinds in [
            &["application/json; charset=utf-7"][..],
            &["application/json; charset=\"utf-7\""],
            &["application/json;charset=UTF-16LE"],
            &["application/json; charset=iso-8859-1"],
            &["application/json; charset=utf-8; charset=utf-7"],
            &["application/json; charset=utf-8", "application/json; charset=utf-7"],
            &["application/json; charset=utf-8, application/json; charset=utf-7"],
            &["application/json; charset*=utf-8''utf-7"],
            &["application/json; charset*0=utf-; charset*1=7"],
            &["application/json; charset=\"utf\\-7\""],
            &["application/json; charset='utf-7'"],
            &["application/json; charset=utf-8 utf-7"],
            &["application/json; charset="],
            &["application/json; charset"],
            &["application/json charset=utf-7"],
        ] {
            assert!(!charsets_are_known(&of_type(kinds)), "{kinds:?}");
        }
    }

    #[test]
    fn json_is_said_in_several_ways() {
        for kind in [
            "application/json",
            "Application/JSON ; charset=utf-8",
            "text/json",
            "application/vnd.api+json",
            "a/b, application/json",
        ] {
            assert!(is_json(&of_type(&[kind])), "{kind}");
        }
        for kind in ["text/plain", "application/jsonl", "application/x-ndjson", "text/plain; a=application/json", ""] {
            assert!(!is_json(&of_type(&[kind])), "{kind}");
        }
    }

    #[test]
    fn a_mask_of_fields_has_the_usage_as_a_whole_or_not() {
        for fields in ["*", "usageMetadata", "candidates(content,index), usageMetadata", "a/b,usage_metadata"] {
            assert!(has_usage(fields.as_bytes()), "{fields}");
        }
        for fields in [
            "",
            "candidates",
            "usageMetadata/promptTokenCount",
            "usageMetadata(x)",
            "candidates(a,usageMetadata,b)",
            "(,usageMetadata",
        ] {
            assert!(!has_usage(fields.as_bytes()), "{fields}");
        }
    }
}
