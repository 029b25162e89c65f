//! `[jwt.NAME]`: whose tokens are believed, and `jwt:NAME:CLAIM`, the claims that keys use.

use std::sync::Arc;

use http::header;

use super::named_file::NamedFile;
use super::named_section;
use super::upstream_tls::SystemAuthorities;
use crate::base::jwt::{ALGORITHMS, Algorithm, KeyOrigin, KeySet, algorithm_name, needs_secret};
use crate::config::read::{Field, Name, Wrong, report_repeated};
use crate::config::report::{did_you_mean, either, nearest, quoted};
use crate::config::settings::jwt;
use crate::config::{Jwks, Jwt, Source, regular_file, values};

const ISSUER: &str = "add what tokens have as `iss`: issuer = \"https://login.example.com/\"";
const JWKS: &str = "add where the keys of the issuer are: jwks = \"https://login.example.com/.well-known/jwks.json\", \
                    or a file";
const FROM: &str = "allowed: \"bearer\", \"header:NAME\" or \"cookie:NAME\"";

/// The names of all `[jwt.*]`.
pub(super) struct Names<'a>(Vec<&'a str>);

impl<'a> Names<'a> {
    pub(super) fn new(sections: &[(Name<'a>, Field<'a>)]) -> Self {
        Self(sections.iter().map(|(name, _)| name.text).collect())
    }

    /// Reads what follows `jwt:` in a source: `NAME:CLAIM`, or `CLAIM` if there is only one `[jwt.*]`. The names of some claims
    /// are URLs and have colons, so a first part that is not the name of a token belongs to the claim.
    pub(super) fn claim(&self, text: &str) -> Result<Source, Wrong> {
        let Self(names) = self;
        let Some(first) = names.first() else {
            return Err(Wrong::new(
                "there is no [jwt.*], so there are no claims",
                "define whose tokens are accepted: [jwt.site]",
            ));
        };
        let split = text.split_once(':').filter(|(name, _)| names.contains(name));
        let (name, claim) = match (split, names.len()) {
            (Some(split), _) => split,
            (None, 1) => (*first, text),
            (None, _) => {
                let name = text.split(':').next().unwrap_or_default();
                let all = format!("write which token it is from: `jwt:NAME:CLAIM` with the name {}", either(names));
                let help = if text.contains(':') { did_you_mean(name, names, &all) } else { all };
                return Err(Wrong::new(format!("`jwt:{text}` does not say which token it is from"), help));
            }
        };
        // A claim whose name begins almost like the name of a token is more likely a typing mistake.
        let nearly = text.split_once(':').filter(|_| split.is_none()).and_then(|(name, claim)| {
            let near = nearest(name, names.iter().copied())?;
            Some(format!("did you mean `jwt:{near}:{claim}`?"))
        });
        if let Some(help) = nearly {
            return Err(Wrong::new(format!("there is no [jwt.{}]", text.split(':').next().unwrap_or_default()), help));
        }
        if claim.is_empty() || claim.trim() != claim || claim.contains(char::is_control) {
            let help = format!("write the name of a claim of the token, like `jwt:{name}:sub`");
            return Err(Wrong::new(format!("{} is not the name of a claim", quoted(claim)), help));
        }
        Ok(Source::Jwt { name: name.to_owned(), claim: claim.to_owned() })
    }
}

/// `None` if the section has an error.
pub(super) fn read(name: &Name<'_>, field: &Field<'_>, system: &SystemAuthorities) -> Option<Jwt> {
    let section = named_section(name, field, "jwt", "a token", &jwt::TABLE)?;
    let issuer = section.required(&jwt::issuer, ISSUER).and_then(|field| field.parse(not_empty));
    let audience = section.field(&jwt::audience).map_or(Some(Vec::new()), |field| texts(&field));
    let signed = section.required(
        &jwt::algorithms,
        &format!("add how its tokens are signed: algorithms = {}", jwt::algorithms.example),
    );
    let signed = signed.and_then(|field| algorithms(&field));
    let located = section.required(&jwt::jwks, JWKS);
    let jwks = located.as_ref().and_then(|field| jwks(field, system));
    let from = section.read_as(&jwt::from, |field| field.parse(from));
    let required = section.read(&jwt::required);
    section.close();
    let (jwks, signed) = (jwks?, signed?);
    fit(&jwks, &located?, &signed)?;
    Some(Jwt {
        name: name.text.to_owned(),
        issuer: issuer?,
        audience: audience?,
        jwks,
        algorithms: signed.into_iter().map(|(algorithm, _)| algorithm).collect(),
        from,
        required,
    })
}

fn not_empty(text: &str) -> Result<String, Wrong> {
    if text.is_empty() {
        Err(Wrong::new("the text is empty", "write what tokens have here"))
    } else {
        Ok(text.to_owned())
    }
}

fn texts(field: &Field<'_>) -> Option<Vec<String>> {
    let list = field.list(&jwt::audience)?;
    let texts: Vec<_> = list.iter().map(|field| field.parse(not_empty)).collect();
    texts.into_iter().collect()
}

fn algorithms<'a>(field: &Field<'a>) -> Option<Vec<(Algorithm, Field<'a>)>> {
    let list = field.list(&jwt::algorithms)?;
    let read = |field: Field<'a>| {
        if field.is_text() && field.text()?.eq_ignore_ascii_case("none") {
            field.report(
                "tokens without a signature are never accepted",
                format!("write how tokens are signed: {}", jwt::algorithms.example),
            );
            return None;
        }
        Some((field.parse(algorithm)?, field))
    };
    let algorithms: Vec<_> = list.into_iter().map(read).collect();
    let algorithms: Vec<_> = algorithms.into_iter().collect::<Option<_>>()?;
    report_repeated(&algorithms, "this algorithm", "list it once");
    (!algorithms.is_empty()).then_some(algorithms)
}

fn algorithm(text: &str) -> Result<Algorithm, Wrong> {
    let found = ALGORITHMS.iter().find(|(name, _)| *name == text).map(|(_, algorithm)| *algorithm);
    let names = ALGORITHMS.map(|(name, _)| name);
    let help = || did_you_mean(text, &names, &format!("allowed: {}", either(&names)));
    found.ok_or_else(|| Wrong::new(format!("{} is not an algorithm of signatures", quoted(text)), help()))
}

fn from(text: &str) -> Result<Source, Wrong> {
    match text.split_once(':') {
        None if text == "bearer" => Ok(Source::Bearer),
        Some(("header", name)) => match values::header(name)? {
            header::AUTHORIZATION => {
                let help = "write \"bearer\", which reads Authorization: Bearer";
                Err(Wrong::new("this header contains more than a token", help))
            }
            name => Ok(Source::Header(name)),
        },
        Some(("cookie", name)) if values::header(name).is_ok() => Ok(Source::Cookie(name.to_owned())),
        Some(("cookie", name)) => {
            Err(Wrong::new(format!("{} is not the name of a cookie", quoted(name)), "like `cookie:session`"))
        }
        _ => Err(Wrong::new(format!("{} is not where a token can be", quoted(text)), FROM)),
    }
}

/// A file, which is read here, or a URL, which is not asked yet.
fn jwks(field: &Field<'_>, system: &SystemAuthorities) -> Option<Jwks> {
    if field.text()?.contains("://") {
        let url = field.hiding_query().parse(values::document)?;
        let tls = match url.server_name {
            None => None,
            Some(_) => Some(system.tls(field)?),
        };
        return Some(Jwks::Server { url, tls });
    }
    let file = NamedFile::new(field)?;
    let bytes = match regular_file::read(&file.path()) {
        Ok(bytes) => bytes,
        Err(error) => {
            file.unreadable(&error);
            return None;
        }
    };
    match KeySet::parse(&bytes, KeyOrigin::File) {
        Ok(keys) => Some(Jwks::File { path: file.path(), keys: Arc::new(keys) }),
        Err(error) => {
            let help = "a JWK Set is {\"keys\": [...]}; a key for HS256 is of the type oct and has at least 32 bytes";
            field.report(format!("{}: {error}", quoted(file.name)), help);
            None
        }
    }
}

/// Checks that these keys can verify tokens of each algorithm.
fn fit(jwks: &Jwks, field: &Field<'_>, algorithms: &[(Algorithm, Field<'_>)]) -> Option<()> {
    let mut fits = Some(());
    for (algorithm, listed) in algorithms {
        let name = algorithm_name(*algorithm);
        match jwks {
            Jwks::Server { .. } if needs_secret(*algorithm) => {
                let help =
                    "the key would be a secret that a server tells everybody: use jwks = \"FILE\", or RS256 or ES256";
                listed.report(format!("`{name}` needs keys from a file"), help);
                fits = None;
            }
            Jwks::File { keys, .. } if !keys.has_key_for(*algorithm) => {
                let help = "add such a key to the file, or remove the algorithm; RS and PS need a key of the type RSA, \
                            ES256 one of the curve P-256, ES384 of P-384, EdDSA of Ed25519, HS256 a secret of the type \
                            oct of at least 32 bytes";
                field.report(format!("the file has no key for `{name}`"), help);
                fits = None;
            }
            Jwks::Server { .. } | Jwks::File { .. } => {}
        }
    }
    fits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_may_be_a_url_and_a_name_is_only_needed_among_several() {
        let (none, one, two) = (Names(vec![]), Names(vec!["site"]), Names(vec!["site", "staff"]));
        let claim = |names: &Names<'_>, text: &str| names.claim(text).map(|source| source.to_string()).ok();
        for (text, by_one, by_two) in [
            ("sub", Some("jwt:site:sub"), None),
            ("site:sub", Some("jwt:site:sub"), Some("jwt:site:sub")),
            ("staff:sub", Some("jwt:site:staff:sub"), Some("jwt:staff:sub")),
            ("https://a.test/plan", Some("jwt:site:https://a.test/plan"), None),
            ("site:https://a.test/plan", Some("jwt:site:https://a.test/plan"), Some("jwt:site:https://a.test/plan")),
            ("site:site:sub", Some("jwt:site:site:sub"), Some("jwt:site:site:sub")),
            ("sites:sub", None, None),
            ("site:", None, None),
            ("site: sub", None, None),
            ("", None, None),
        ] {
            assert_eq!(claim(&one, text).as_deref(), by_one, "{text}");
            assert_eq!(claim(&two, text).as_deref(), by_two, "{text}");
            assert_eq!(claim(&none, text), None);
        }
    }
}
