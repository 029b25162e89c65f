//! The key of a limit: sources joined by `|`, or a list of such parts.

use crate::config::file::jwt::Names;
use crate::config::read::{Field, Setting, Wrong};
use crate::config::report::{did_you_mean, quoted};
use crate::config::{Key, Source, values};
use crate::tokens::pointer::{Pointer, PointerError};

const PLAIN: [(&str, Source); 8] = [
    ("client-ip", Source::ClientIp { v6: 64 }),
    ("bearer", Source::Bearer),
    ("path", Source::Path),
    ("host", Source::Host),
    ("method", Source::Method),
    ("route", Source::Route),
    ("client-cert", Source::ClientCert),
    ("global", Source::Global),
];
const POINTER: &str = "a pointer (RFC 6901) begins with a slash, like json:/model or json:/metadata/user";
const SOURCES: &str = "sources are client-ip, header:NAME, cookie:NAME, query:NAME, bearer, path, path:NAME, host, \
                       method, route, client-cert, jwt:CLAIM, json:/POINTER, descriptor:NAME and global";

/// The key of a limit, or of an upstream that balances by a hash.
pub(in crate::config::file) fn key(field: &Field<'_>, key: &Setting<()>, jwts: &Names<'_>) -> Option<Key> {
    let part = |text: &str| part(text, jwts);
    if !field.is_list() {
        return Some(Key { parts: vec![field.parse(part)?] });
    }
    let parts: Vec<_> = field.list(key)?.iter().map(|field| field.parse(part)).collect();
    Some(Key { parts: parts.into_iter().collect::<Option<_>>()? })
}

/// Sources joined by `|`.
fn part(text: &str, jwts: &Names<'_>) -> Result<Vec<Source>, Wrong> {
    let mut start = 0;
    let mut sources = Vec::new();
    for piece in text.split('|') {
        let word = piece.trim();
        let from = start + (piece.len() - piece.trim_start().len());
        let place = from..from + word.len();
        let source =
            source(word, jwts).map_err(|wrong| if word.is_empty() { wrong } else { wrong.at(place.clone()) })?;
        if sources.contains(&source) {
            return Err(Wrong::new(format!("`{source}` is written twice"), "remove one of them").at(place));
        }
        sources.push(source);
        start += piece.len() + 1;
    }
    Ok(sources)
}

pub(super) fn source(word: &str, jwts: &Names<'_>) -> Result<Source, Wrong> {
    let plain = |word: &str| PLAIN.iter().find(|(name, _)| *name == word).map(|(_, source)| source.clone());
    let Some((kind, name)) = word.split_once(':') else {
        return match word {
            "" => Err(Wrong::new("a source is missing", SOURCES)),
            "json" => Err(Wrong::new("`json` has no pointer", POINTER)),
            "jwt" => Err(Wrong::new("`jwt` has no claim", "write which one: \"jwt:CLAIM\", or \"jwt:NAME:CLAIM\"")),
            "header" | "cookie" | "query" | "descriptor" => {
                Err(Wrong::new(format!("`{word}` has no name"), format!("write which one: \"{word}:NAME\"")))
            }
            _ => plain(word).ok_or_else(|| unknown(word, word)),
        };
    };
    match kind {
        "client-ip" => {
            let help = "IPv6 addresses are cut to this prefix length, from 1 to 128, like `client-ip:56`";
            let prefix = name.parse().ok().filter(|v6| (1..=128).contains(v6));
            let wrong = || Wrong::new(format!("{} is not a prefix length", quoted(name)), help);
            prefix.map(|v6| Source::ClientIp { v6 }).ok_or_else(wrong)
        }
        "header" => values::header(name).map(Source::Header),
        "jwt" => jwts.claim(name),
        "cookie" if values::header(name).is_ok() => Ok(Source::Cookie(name.to_owned())),
        "query" if !name.is_empty() && !name.contains(char::is_control) => Ok(Source::Query(name.to_owned())),
        "cookie" | "query" => {
            Err(Wrong::new(format!("{} is not the name of a {kind}", quoted(name)), format!("like `{kind}:session`")))
        }
        "json" => pointer(name).map(Source::Json),
        "descriptor" if name.is_empty() => {
            Err(Wrong::new("`descriptor` has no name", "write which entry: \"descriptor:remote_address\""))
        }
        "descriptor" => Ok(Source::Descriptor(name.to_owned())),
        "path" => values::capture(name).map(|()| Source::Capture(name.to_owned())),
        _ if plain(kind).is_some() => {
            Err(Wrong::new(format!("`{kind}` takes no name"), format!("write `{kind}` alone")))
        }
        _ => Err(unknown(word, kind)),
    }
}

pub(super) fn pointer(text: &str) -> Result<Pointer, Wrong> {
    if text.is_empty() {
        return Err(Wrong::new("a JSON pointer is missing", POINTER));
    }
    text.parse()
        .map_err(|why: PointerError| Wrong::new(format!("{} is not a JSON pointer: {why}", quoted(text)), POINTER))
}

fn unknown(word: &str, kind: &str) -> Wrong {
    let mut names: Vec<_> = PLAIN.iter().map(|(name, _)| *name).collect();
    names.extend(["header", "cookie", "query", "jwt", "json", "descriptor"]);
    Wrong::new(format!("{} is not a source of keys", quoted(word)), did_you_mean(kind, &names, SOURCES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_every_source() {
        let text = "client-ip|client-ip:128|header:x-api-key|cookie:sid|query:q|bearer|path|path:id|host|method|route|client-cert|json:/a/b|descriptor:remote_address|global";
        let sources = part(text, &Names::new(&[])).unwrap();
        assert_eq!(sources.iter().map(ToString::to_string).collect::<Vec<_>>().join("|"), text);
    }

    #[test]
    fn refuses_other_sources() {
        for text in [
            "",
            "|",
            "client-ip|",
            "client-ip:0",
            "client-ip:129",
            "header:",
            "header:a b",
            "cookie:",
            "cookie:a=b",
            "query:",
            "path:",
            "path:a/b",
            "json:",
            "json:model",
            "descriptor",
            "descriptor:",
            "bearer:x",
            "client-cert:CN",
            "ip",
            "host|host",
        ] {
            assert!(part(text, &Names::new(&[])).is_err(), "{text}");
        }
    }
}
