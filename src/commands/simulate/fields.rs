//! Which fields of a JSON line have which attributes: by default the names of common proxies, or those of `--field`.

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

const NAMES: [(&str, Attribute); 8] = [
    ("client", Attribute::Client),
    ("time", Attribute::Time),
    ("method", Attribute::Method),
    ("path", Attribute::Path),
    ("host", Attribute::Host),
    ("status", Attribute::Status),
    ("cost", Attribute::Cost),
    ("bytes", Attribute::Bytes),
];

/// As `--field` spells it.
impl fmt::Display for Attribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(f, "header:{name}"),
            plain => {
                NAMES.iter().filter(|(_, attribute)| attribute == plain).try_for_each(|(name, _)| f.write_str(name))
            }
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
        let plain = NAMES.into_iter().find(|(plain, _)| *plain == name);
        let attribute = match (plain, name.strip_prefix("header:")) {
            (Some((_, attribute)), _) => attribute,
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
    let names = NAMES.map(|(name, _)| name);
    let nearest = names.into_iter().min_by_key(distance).filter(|known| distance(known) <= 2);
    let hint = nearest.map_or(String::new(), |nearest| format!("; did you mean `{nearest}`?"));
    format!("`{name}` is not one of {} and header:NAME{hint}", names.join(", "))
}

/// For each attribute, in the order of lookup.
#[derive(Clone, Debug)]
pub(super) struct FieldNames {
    pub(super) client: Vec<String>,
    pub(super) time: Vec<String>,
    pub(super) method: Vec<String>,
    pub(super) path: Vec<String>,
    pub(super) host: Vec<String>,
    pub(super) status: Vec<String>,
    /// Empty by default: a number is a cost only if the user says so.
    pub(super) cost: Vec<String>,
    pub(super) bytes: Vec<String>,
    /// For each header that the configuration uses.
    pub(super) headers: Vec<Vec<String>>,
}

/// The fields of the gateway's own log with the tokens that a request used. The first field includes tokens from the provider's
/// cache.
pub(super) const TOKENS: [&str; 2] = ["tokens_input", "tokens_output"];

/// A field with a whole request line, such as `$request` of nginx.
pub(super) const REQUEST_LINE: &str = "request";

impl FieldNames {
    /// `headers` are those that the configuration uses. Names in `fields` replace the default names.
    pub(super) fn new(headers: &[HeaderName], fields: &[Field]) -> Self {
        let names = |attribute: &Attribute, defaults: &[&str]| {
            let given = fields.iter().find(|field| field.attribute == *attribute).map(|field| field.field.clone());
            given.map_or_else(|| defaults.iter().map(|name| (*name).to_owned()).collect(), |field| vec![field])
        };
        let header = |name: &HeaderName| {
            let variable = format!("http_{}", name.as_str().replace('-', "_"));
            let nested = ["request.headers.", "headers.", "request_"].map(|prefix| format!("{prefix}{name}"));
            let [request, plain, traefik] = &nested;
            names(&Attribute::Header(name.clone()), &[name.as_str(), &variable, request, plain, traefik])
        };
        Self {
            client: names(
                &Attribute::Client,
                &[
                    "client",
                    "client_ip",
                    "remote_addr",
                    "remote_ip",
                    "request.client_ip",
                    "request.remote_ip",
                    "ClientHost",
                    "clientip",
                    "client.ip",
                    "downstream_remote_address",
                    "remote_host",
                    "ip",
                ],
            ),
            time: names(
                &Attribute::Time,
                &[
                    "timestamp",
                    "time",
                    "@timestamp",
                    "ts",
                    "time_iso8601",
                    "time_local",
                    "msec",
                    "StartUTC",
                    "start_time",
                    "datetime",
                    "date",
                ],
            ),
            method: names(
                &Attribute::Method,
                &["method", "request_method", "request.method", "RequestMethod", "http_method", "http.request.method"],
            ),
            path: names(
                &Attribute::Path,
                &[
                    "path",
                    "request_uri",
                    "uri",
                    "request.uri",
                    "RequestPath",
                    "url",
                    "url.original",
                    "url.path",
                    "request_path",
                ],
            ),
            host: names(
                &Attribute::Host,
                &["host", "http_host", "request.host", "RequestHost", "authority", ":authority", "url.domain"],
            ),
            status: names(
                &Attribute::Status,
                &["status", "status_code", "response_code", "DownstreamStatus", "http.response.status_code"],
            ),
            cost: names(&Attribute::Cost, &[]),
            bytes: names(
                &Attribute::Bytes,
                &[
                    "bytes",
                    "body_bytes_sent",
                    "bytes_sent",
                    "size",
                    "DownstreamContentSize",
                    "http.response.body.bytes",
                ],
            ),
            headers: headers.iter().map(header).collect(),
        }
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
        let headers = ["x-api-key".parse().unwrap()];
        let names = FieldNames::new(&headers, &["time=when".parse().unwrap()]);
        assert_eq!(names.time, ["when"]);
        assert!(names.client.contains(&"remote_addr".to_owned()));
        assert!(names.headers[0].contains(&"http_x_api_key".to_owned()));
        let names = FieldNames::new(&headers, &["header:x-api-key=key".parse().unwrap()]);
        assert_eq!(names.headers, [["key"]]);
    }
}
