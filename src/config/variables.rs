//! Environment variables in texts: `${NAME}`, or `${NAME:-text}` with a default, as in shells. `$${` stands for `${`.

use std::env;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::report::{Problem, quoted};

type Lookup<'v> = &'v dyn Fn(&str) -> Result<Option<String>, &'static str>;

/// Replaces all variables in a table. A variable that cannot be replaced becomes a problem.
pub(super) fn expand(table: &mut DeTable<'_>, problems: &mut Vec<Problem>) {
    each_text(table, &value_of, problems);
}

fn value_of(name: &str) -> Result<Option<String>, &'static str> {
    match env::var(name) {
        Ok(value) => Ok(Some(value)),
        Err(env::VarError::NotPresent) => Ok(None),
        Err(env::VarError::NotUnicode(_)) => Err("is not UTF-8"),
    }
}

fn each_text(table: &mut DeTable<'_>, lookup: Lookup<'_>, problems: &mut Vec<Problem>) {
    for (_, value) in table.iter_mut() {
        value_texts(value, lookup, problems);
    }
}

fn value_texts(value: &mut Spanned<DeValue<'_>>, lookup: Lookup<'_>, problems: &mut Vec<Problem>) {
    let span = value.span();
    match value.get_mut() {
        DeValue::String(text) if text.contains("${") => match expanded(text, lookup) {
            Ok(value) => *text = value.into(),
            Err((message, help)) => problems.push(Problem { span, message, help: Some(help.to_owned()) }),
        },
        DeValue::Array(list) => list.iter_mut().for_each(|value| value_texts(value, lookup, problems)),
        DeValue::Table(table) => each_text(table, lookup, problems),
        _ => {}
    }
}

/// The error is a message and its help.
fn expanded(text: &str, lookup: Lookup<'_>) -> Result<String, (String, &'static str)> {
    const FORM: &str = "write ${NAME} or ${NAME:-default}; the text ${ itself is written $${";
    let (mut done, mut rest) = (String::new(), text);
    while let Some(at) = rest.find("${") {
        let (before, after) = (&rest[..at], &rest[at + 2..]);
        if let Some(before) = before.strip_suffix('$') {
            done.extend([before, "${"]);
            rest = after;
            continue;
        }
        let end = after.find('}').ok_or_else(|| (format!("a variable in {} has no }}", quoted(text)), FORM))?;
        let (name, default) = match after[..end].split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (&after[..end], None),
        };
        let is_name = |name: &str| {
            !name.starts_with(|first: char| first.is_ascii_digit())
                && !name.is_empty()
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        };
        if !is_name(name) {
            return Err((format!("{} is not the name of a variable", quoted(name)), FORM));
        }
        let found = lookup(name).map_err(|why| {
            (format!("the environment variable {} {why}", quoted(name)), "set it where the gateway is started")
        })?;
        // As in shells, an empty variable gets the default too.
        let value = match (found, default) {
            (Some(value), Some(default)) if value.is_empty() => default.to_owned(),
            (Some(value), _) => value,
            (None, Some(default)) => default.to_owned(),
            (None, None) => {
                let help = "set it where the gateway is started, or write ${NAME:-default}";
                return Err((format!("there is no environment variable {}", quoted(name)), help));
            }
        };
        done.extend([before, value.as_str()]);
        rest = &after[end + 1..];
    }
    Ok(done + rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<String, String> {
        let lookup = |name: &str| match name {
            "A" => Ok(Some("a}b${A}".to_owned())),
            "EMPTY" => Ok(Some(String::new())),
            "BAD" => Err("is not UTF-8"),
            _ => Ok(None),
        };
        expanded(text, &lookup).map_err(|(message, _)| message)
    }

    #[test]
    fn variables_are_replaced_once() {
        for (text, expected) in [
            ("${A}", "a}b${A}"),
            ("x${A}y${EMPTY}z", "xa}b${A}yz"),
            ("${EMPTY:-d}${NONE:-e f:-g}", "de f:-g"),
            ("${NONE:-}", ""),
            ("$${A} $A $ {A} {A}", "${A} $A $ {A} {A}"),
            ("$$${A}", "$${A}"),
            ("\u{e4}${A}\u{e4}", "\u{e4}a}b${A}\u{e4}"),
        ] {
            assert_eq!(of(text).as_deref(), Ok(expected), "{text}");
        }
        for (text, why) in [
            ("${NONE}", "there is no environment variable \"NONE\""),
            ("${BAD}", "is not UTF-8"),
            ("${A", "has no }"),
            ("${}", "\"\" is not the name"),
            ("${1A}", "is not the name"),
            ("${A-b}", "is not the name"),
            ("${ A }", "is not the name"),
        ] {
            let said = of(text).unwrap_err();
            assert!(said.contains(why), "{text}: {said}");
        }
    }
}
