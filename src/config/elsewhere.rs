//! What other proxies call the tables, keys, words and sources of the file. One table has all of these names.

/// Its first lines say what the columns are.
const TABLE: &str = include_str!("elsewhere.txt");

pub(super) struct Meant {
    /// The key, the word or the source that is meant; empty if there is none of the same meaning.
    pub(super) name: &'static str,
    help: &'static str,
}

/// What a name of other proxies means where it `stands`.
pub(super) fn meant(stands: &str, name: &str) -> Option<Meant> {
    let plain = name.to_ascii_lowercase().replace('-', "_");
    TABLE.lines().filter_map(columns).find_map(|[place, names, name, help]| {
        (is_at(place, stands) && names.split(' ').any(|name| name == plain)).then_some(Meant { name, help })
    })
}

fn is_at(place: &str, stands: &str) -> bool {
    let Some((before, after)) = place.split_once('*') else { return stands.starts_with(place) };
    let name = stands.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
    name.is_some_and(|name| !name.contains('.'))
}

fn columns(line: &'static str) -> Option<[&'static str; 4]> {
    let columns: Vec<_> = line.splitn(4, '|').map(str::trim).collect();
    columns.try_into().ok().filter(|_| !line.starts_with('#'))
}

impl Meant {
    /// What to write instead. `value` is as the file spells it, and `below` is the name of the first table below it.
    pub(super) fn help(&self, value: Option<&str>, below: Option<&str>) -> String {
        let mut parts = self.help.split('<');
        let mut help = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let (slot, rest) = part.split_once('>').unwrap_or_default();
            let (kind, default) = slot.split_once(':').unwrap_or_default();
            let found =
                if kind == "name" { below.or(value).and_then(name) } else { value.and_then(|value| of(kind, value)) };
            help.extend([found.as_deref().unwrap_or(default), rest]);
        }
        help
    }
}

fn name(value: &str) -> Option<String> {
    let text = value.trim_matches('"');
    let is_name = text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    is_name.then(|| text.to_owned())
}

/// A value as the file spells it, if it is of this kind.
fn of(kind: &str, value: &str) -> Option<String> {
    let text = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    match kind {
        "url" => {
            let (scheme, rest) =
                text.filter(|text| text.contains(['.', ':']))?.split_once("://").unwrap_or(("http", text?));
            Some(format!("\"{scheme}://{}\"", rest.split('/').next()?))
        }
        "text" => text.map(|_| value.to_owned()),
        "number" => Some(value.to_owned()).filter(|value| value.bytes().all(|byte| byte.is_ascii_digit())),
        "list" => Some(value.to_owned()).filter(|value| value.starts_with('[')),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use toml::de::DeValue;

    use super::*;

    /// The settings in a text, each `KEY = VALUE` with the longest valid value.
    fn settings(help: &str) -> Vec<(&str, &str)> {
        let is_outer = |at: usize| help[..at].matches('{').count() == help[..at].matches('}').count();
        let found = help.match_indices(" = ").filter(|(at, _)| is_outer(*at));
        let setting = |(at, _): (usize, &str)| {
            let (key, after) = (help[..at].rsplit(' ').next().unwrap(), &help[at + 3..]);
            let is_value =
                |length: &usize| DeValue::parse(&after[..*length]).is_ok_and(|_| !after[..*length].ends_with(' '));
            let length = (1..=after.len()).rev().find(is_value).unwrap_or_else(|| panic!("{key} in {help}"));
            (key, &after[..length])
        };
        found.map(setting).collect()
    }

    /// A valid file, in which these settings stand in the table that is called `place`.
    fn file(place: &str, settings: &[(&str, &str)]) -> String {
        let mut text = String::new();
        for (title, lines) in [
            ("[upstreams.app]", [("servers", "[\"builtin:echo\"]"), ("timeout", "\"1s\"")]),
            ("[limits.per-client]", [("key", "\"client-ip\""), ("rates", "[\"10/s\"]")]),
            ("[[routes]]", [("path", "\"/api/*\""), ("upstream", "\"app\"")]),
        ] {
            let is_here = |key: &str| if key == "servers" { title == "[upstreams.app]" } else { is_at(place, title) };
            let mut table = BTreeMap::from(lines);
            table.extend(settings.iter().copied().filter(|(key, _)| is_here(key)));
            if table.contains_key("respond") {
                table.remove("upstream");
            }
            text.extend([title, "\n"]);
            table.iter().for_each(|(key, value)| text.extend([key, " = ", value, "\n"]));
        }
        text
    }

    #[test]
    fn what_to_write_instead_is_valid() {
        for [place, _, _, help] in TABLE.lines().filter_map(columns).filter(|[.., help]| !help.is_empty()) {
            let help = Meant { name: "", help }.help(None, None);
            let settings = settings(&help);
            // Settings of other tables are only parsed.
            if ["[limits.*]", "[upstreams.*]", "[[routes]]"].contains(&place) && !help.contains("[store]") {
                let text = file(place, &settings);
                let said = crate::config::parse(text.as_bytes(), "gateway.toml", Path::new(""));
                assert!(said.is_ok(), "{text}{}", said.unwrap_err());
            }
        }
    }

    #[test]
    fn every_line_has_its_columns_and_its_names_only_once() {
        let rows: Vec<_> = TABLE.lines().filter(|line| !line.starts_with('#')).collect();
        let all = rows.iter().map(|row| columns(row).unwrap_or_else(|| panic!("{row}")));
        let mut names: Vec<_> =
            all.flat_map(|[place, names, ..]| names.split(' ').map(move |name| (place, name))).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!((names.len(), rows.len() > 30), (count, true));
        assert!(names.iter().all(|(_, name)| !name.contains('-') && *name == name.to_ascii_lowercase()));
    }

    #[test]
    fn names_and_values_of_the_file_are_kept() {
        let said = |stands: &str, key: &str, value, below| meant(stands, key).map(|meant| meant.help(value, below));
        for (stands, key, value, below, part) in [
            (
                "[[routes]]",
                "proxy_pass",
                Some("\"http://10.0.1.1/x\""),
                None,
                "[upstreams.app] has servers = [\"http://10.0.1.1\"]",
            ),
            ("[[routes]]", "reverse_proxy", Some("\"localhost:9000\""), None, "servers = [\"http://localhost:9000\"]"),
            (
                "[[routes]]",
                "backend",
                Some("\"web\""),
                None,
                "[upstreams.web] has servers = [\"http://127.0.0.1:9000\"]",
            ),
            ("[[routes]]", "hosts", Some("\"a.test\""), None, "host = \"a.test\""),
            ("[[routes]]", "hosts", Some("[\"a.test\"]"), None, "host = \"api.example.com\""),
            ("the file", "Backends", None, Some("web"), "[upstreams.web]"),
            ("[limits.l]", "limit-conn", Some("5"), None, "max_in_flight = 5"),
            ("[limits.l]", "whitelist", Some("[\"10.1.0.0/16\"]"), None, "keys = [\"10.1.0.0/16\"]"),
        ] {
            let said = said(stands, key, value, below).unwrap();
            assert!(said.contains(part), "{key}: {said}");
        }
        for (stands, key) in [("the file", "zones"), ("[limits.l.tiers.t]", "shadow"), ("`ban`", "rate_limit")] {
            assert_eq!(said(stands, key, None, None), None, "{key}");
        }
    }
}
