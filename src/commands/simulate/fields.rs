//! Which fields of a JSON line have which attributes: by default the names of common proxies, or those of `--field`.

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;

use http::HeaderName;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attribute {
    Client,
    Time,
    Method,
    /// The path, with the query if the log has one; or a URL.
    Path,
    Host,
    Status,
    /// The cost, where the response says it.
    Cost,
    /// The bytes of the response's body.
    Bytes,
    Header(HeaderName),
}

/// `--field NAME=FIELD`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    pub attribute: Attribute,
    /// `a.b` is also the field `b` of the object `a`.
    pub field: String,
}

/// The attributes with their names in `--field`, and their usual fields, in the order of lookup. Nothing is the cost by default:
/// a number is a cost only if the user says so.
const ATTRIBUTES: [(&str, Attribute, &str); 8] = [
    (
        "client",
        Attribute::Client,
        "client client_ip remote_addr remote_ip request.client_ip request.remote_ip ClientHost clientip client.ip \
         downstream_remote_address remote_host ip",
    ),
    (
        "time",
        Attribute::Time,
        "timestamp time @timestamp ts time_iso8601 time_local msec StartUTC start_time datetime date",
    ),
    ("method", Attribute::Method, "method request_method request.method RequestMethod http_method http.request.method"),
    ("path", Attribute::Path, "path request_uri uri request.uri RequestPath url url.original url.path request_path"),
    ("host", Attribute::Host, "host http_host request.host RequestHost authority :authority url.domain"),
    ("status", Attribute::Status, "status status_code response_code DownstreamStatus http.response.status_code"),
    ("cost", Attribute::Cost, ""),
    ("bytes", Attribute::Bytes, "bytes body_bytes_sent bytes_sent size DownstreamContentSize http.response.body.bytes"),
];

/// As `--field` spells it.
impl fmt::Display for Attribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(f, "header:{name}"),
            plain => f.write_str(ATTRIBUTES.iter().find(|(_, known, _)| known == plain).map_or("", |(name, ..)| name)),
        }
    }
}

/// Reads `client=remote_addr` or `header:x-api-key=key`. The error is a sentence for people.
impl FromStr for Field {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, field) = text.split_once('=').ok_or("a field is NAME=FIELD, like client=remote_addr")?;
        if field.is_empty() {
            return Err("the name of the field after `=` is missing".to_owned());
        }
        let plain = ATTRIBUTES.into_iter().find(|(plain, ..)| *plain == name);
        let attribute = match (plain, name.strip_prefix("header:")) {
            (Some((_, attribute, _)), _) => attribute,
            (None, Some(header)) => {
                Attribute::Header(header.parse().map_err(|_| format!("{header:?} is not the name of a header"))?)
            }
            (None, None) => return Err(unknown(name)),
        };
        Ok(Self { attribute, field: field.to_owned() })
    }
}

fn unknown(name: &str) -> String {
    let distance = |known: &&str| strsim::damerau_levenshtein(known, name);
    let names = ATTRIBUTES.map(|(name, ..)| name);
    let nearest = names.into_iter().min_by_key(distance).filter(|known| distance(known) <= 2);
    let hint = nearest.map_or(String::new(), |nearest| format!("; did you mean `{nearest}`?"));
    format!("`{name}` is not one of {} and header:NAME{hint}", names.join(", "))
}

/// The fields of the gateway's own log with the tokens that a request used. The first field includes tokens from the provider's
/// cache.
pub(super) const TOKENS: [&str; 2] = ["tokens_input", "tokens_output"];

/// A field with a whole request line, such as `$request` of nginx.
pub(super) const REQUEST_LINE: &str = "request";

/// The fields of each attribute, in the order of lookup.
#[derive(Clone, Debug)]
pub(super) struct FieldNames(Vec<(Attribute, Vec<String>)>);

impl FieldNames {
    /// `headers` are those that the configuration uses. Names in `given` replace the default names.
    pub(super) fn new(headers: &HashSet<HeaderName>, given: &[Field]) -> Self {
        let usual = ATTRIBUTES.into_iter().map(|(_, attribute, names)| (attribute, names.to_owned()));
        let header = |name: &HeaderName| {
            let variable = name.as_str().replace('-', "_");
            let names = format!("{name} http_{variable} request.headers.{name} headers.{name} request_{name}");
            (Attribute::Header(name.clone()), names)
        };
        let names = |(attribute, names): (Attribute, String)| {
            let names = match given.iter().find(|field| field.attribute == attribute) {
                Some(given) => vec![given.field.clone()],
                None => names.split_whitespace().map(str::to_owned).collect(),
            };
            (attribute, names)
        };
        Self(usual.chain(headers.iter().map(header)).map(names).collect())
    }

    pub(super) fn of(&self, attribute: &Attribute) -> &[String] {
        self.0.iter().find(|(known, _)| known == attribute).map_or(&[], |(_, names)| names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_names_its_attribute() {
        let field = |text: &str| text.parse::<Field>();
        assert_eq!(field("client=a.b").unwrap(), Field { attribute: Attribute::Client, field: "a.b".into() });
        let header = Attribute::Header("x-api-key".parse().unwrap());
        assert_eq!(field("header:X-Api-Key=k=v").unwrap(), Field { attribute: header, field: "k=v".into() });
        for (bad, part) in [
            ("client", "NAME=FIELD"),
            ("client=", "missing"),
            ("clinet=x", "did you mean `client`?"),
            ("costs=x", "did you mean `cost`?"),
            ("zzzzzzz=x", "is not one of client, time"),
            ("header:a b=x", "is not the name of a header"),
        ] {
            let error = field(bad).unwrap_err();
            assert!(error.contains(part), "{bad}: {error}");
        }
    }

    #[test]
    fn given_names_replace_the_default_ones() {
        let headers = ["x-api-key".parse().unwrap()].into();
        let names = FieldNames::new(&headers, &["time=when".parse().unwrap()]);
        let header = Attribute::Header("x-api-key".parse().unwrap());
        assert_eq!(names.of(&Attribute::Time), ["when"]);
        assert!(names.of(&Attribute::Client).contains(&"remote_addr".to_owned()));
        assert!(names.of(&header).contains(&"http_x_api_key".to_owned()));
        let names = FieldNames::new(&headers, &["header:x-api-key=key".parse().unwrap()]);
        assert_eq!(names.of(&header), ["key"]);
    }
}
