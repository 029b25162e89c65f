//! URLs of PostgreSQL servers, in the syntax of libpq.

use std::error::Error as _;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use form_urlencoded::{Serializer, parse};
use rustls::pki_types::ServerName;
use tokio_postgres::Config;
use tokio_postgres::config::Host;

const PARAMETERS: [&str; 9] =
    ["user", "password", "dbname", "host", "port", "options", "application_name", "sslmode", "sslrootcert"];

/// Values of `sslmode`. In libpq `require` accepts any certificate; here it means `verify-full`.
const SSL_MODES: [(&str, PostgresTls); 4] = [
    ("disable", PostgresTls::Never),
    ("prefer", PostgresTls::IfOffered),
    ("require", PostgresTls::Always),
    ("verify-full", PostgresTls::Always),
];

/// Set before the options of the URL, which may replace these timeouts (in milliseconds). A lookup reads one row by its key: if
/// it takes this long, it lacks an index. A lock ends it earlier with another error, since a lock on the table delays all keys.
const FIRST_OPTIONS: &str = "-c statement_timeout=2000 -c lock_timeout=1000";

/// Set after the options of the URL: the gateway can change nothing.
const LAST_OPTIONS: &str = "-c default_transaction_read_only=on";

const DEFAULT_PORT: u16 = 5432;

/// Whether a connection uses TLS. With TLS, the certificate and the host name of the server are always verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostgresTls {
    /// `disable`
    Never,
    /// `prefer`
    IfOffered,
    /// `require`, `verify-full`
    Always,
}

/// PostgreSQL servers and a database there, such as `postgres://gw@db/plans`.
#[derive(Clone, PartialEq)]
pub struct PostgresUrl {
    /// User, password, database and options of a session.
    pub config: Box<Config>,
    /// Of connections over TCP.
    pub tls: PostgresTls,
    /// The file of `sslrootcert`; `None` trusts the authorities of the system.
    pub root_certificates: Option<PathBuf>,
    /// Whether the name of the database is hidden too.
    pub is_database_secret: bool,
}

/// Without user, password and parameters.
impl fmt::Display for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("postgres://")?;
        for (index, (host, port)) in self.servers().into_iter().enumerate() {
            f.write_str(if index > 0 { "," } else { "" })?;
            match host {
                Host::Tcp(name) if name.contains(':') => write!(f, "[{name}]")?,
                Host::Tcp(name) => f.write_str(name)?,
                Host::Unix(folder) => write!(f, "{}", folder.display())?,
            }
            if port != DEFAULT_PORT {
                write!(f, ":{port}")?;
            }
        }
        let database = if self.is_database_secret { Some("***") } else { self.config.get_dbname() };
        write!(f, "/{}", database.unwrap_or_default())
    }
}

impl fmt::Debug for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl PostgresUrl {
    /// The error says what is wrong and what is allowed, without the password.
    pub fn parse(text: &str) -> Result<Self, String> {
        let rest = text.strip_prefix("postgres://").or_else(|| text.strip_prefix("postgresql://"));
        let rest = rest.ok_or("it does not begin with postgres://")?;
        let (start, parameters) = rest.split_once('?').unwrap_or((rest, ""));
        let mut tls = PostgresTls::IfOffered;
        let mut root_certificates = None;
        let mut others = Serializer::new(String::new());
        for (name, value) in parse(parameters.as_bytes()) {
            match &*name {
                "sslmode" => tls = ssl_mode(&value)?,
                "sslrootcert" if value == "system" => root_certificates = None,
                "sslrootcert" => root_certificates = Some(PathBuf::from(&*value)),
                name if PARAMETERS.contains(&name) => {
                    others.append_pair(name, &value);
                }
                name => {
                    return Err(format!("the parameter {name} is not known: allowed are {}", PARAMETERS.join(", ")));
                }
            }
        }
        // `+` means a space only in forms.
        let url = format!("postgres://{start}?{}", others.finish().replace('+', "%20"));
        let mut config = Config::from_str(&url).map_err(|error| match error.source() {
            Some(cause) => cause.to_string(),
            None => error.to_string(),
        })?;
        if config.get_hosts().is_empty() {
            return Err("it names no host".to_owned());
        }
        if ![0, 1, config.get_hosts().len()].contains(&config.get_ports().len()) {
            return Err("it needs one port, or one for each host".to_owned());
        }
        if tls != PostgresTls::Never {
            let names = config.get_hosts().iter().filter_map(|host| match host {
                Host::Tcp(name) => Some(name),
                Host::Unix(_) => None,
            });
            for name in names {
                let valid = ServerName::try_from(name.as_str());
                valid.map_err(|_| format!("no certificate can have the name of the host {name}"))?;
            }
        }
        let options = config.get_options().unwrap_or_default();
        let options = [FIRST_OPTIONS, options, LAST_OPTIONS].join(" ");
        config.options(options);
        if config.get_application_name().is_none() {
            config.application_name("gateway");
        }
        Ok(Self { config: Box::new(config), tls, root_certificates, is_database_secret: false })
    }

    /// Whether no connection can use TLS, so that no authorities are needed.
    pub fn never_uses_tls(&self) -> bool {
        self.tls == PostgresTls::Never || self.config.get_hosts().iter().all(|host| matches!(host, Host::Unix(_)))
    }

    /// With their ports, in the order in which they are tried.
    pub fn servers(&self) -> Vec<(&Host, u16)> {
        let ports = self.config.get_ports();
        let port = |index: usize| ports.get(index).or(ports.first()).copied().unwrap_or(DEFAULT_PORT);
        self.config.get_hosts().iter().enumerate().map(|(index, host)| (host, port(index))).collect()
    }
}

fn ssl_mode(value: &str) -> Result<PostgresTls, String> {
    let known = SSL_MODES.iter().find(|(name, _)| *name == value);
    known.map(|(_, tls)| *tls).ok_or_else(|| {
        let names = SSL_MODES.map(|(name, _)| name).join(", ");
        format!("sslmode is {value}, which is none of {names}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_servers_and_is_shown_without_its_password() {
        let url = PostgresUrl::parse("postgresql://gw@db,[::1]:5433/plans").unwrap();
        assert_eq!(url.to_string(), "postgres://db,[::1]:5433/plans");
        let url = PostgresUrl::parse("postgres://gw:se%40cret@db:1,[::1]:2/plans?application_name=my+edge").unwrap();
        assert_eq!(url.to_string(), "postgres://db:1,[::1]:2/plans");
        assert!(!format!("{url:?}").contains("cret"));
        assert_eq!(url.config.get_password(), Some(&b"se@cret"[..]));
        assert_eq!(url.config.get_application_name(), Some("my edge"));
        let url = PostgresUrl::parse("postgres:///plans?host=/run/postgresql").unwrap();
        assert_eq!(url.to_string(), "postgres:///run/postgresql/plans");
        assert!(url.never_uses_tls() && !PostgresUrl::parse("postgres://db").unwrap().never_uses_tls());
        assert_eq!(url.config.get_application_name(), Some("gateway"));
        assert_eq!(PostgresUrl::parse("postgres://gw:12/hidden@db/plans").unwrap().to_string(), "postgres://db/plans");
    }

    #[test]
    fn the_options_of_the_url_come_between_those_of_the_gateway() {
        let url = PostgresUrl::parse("postgres://db/plans?options=-c%20statement_timeout%3D5000").unwrap();
        let all = "-c statement_timeout=2000 -c lock_timeout=1000 -c statement_timeout=5000 -c default_transaction_read_only=on";
        assert_eq!(url.config.get_options(), Some(all));
    }

    #[test]
    fn tls_is_as_the_url_says() {
        for (mode, tls) in SSL_MODES {
            let url = PostgresUrl::parse(&format!("postgres://db/plans?sslmode={mode}&sslrootcert=a.pem")).unwrap();
            assert_eq!((url.tls, url.root_certificates), (tls, Some(PathBuf::from("a.pem"))));
        }
        let system = PostgresUrl::parse("postgres://db/plans?sslrootcert=system").unwrap();
        assert_eq!((system.tls, system.root_certificates), (PostgresTls::IfOffered, None));
    }

    #[test]
    fn what_means_nothing_is_refused_and_the_password_is_not_shown() {
        for (url, part) in [
            ("mysql://db/plans", "postgres://"),
            ("postgres://", "no host"),
            ("postgres:///plans", "no host"),
            ("postgres://gw:secret@db:99999/plans", "port"),
            ("postgres://gw:secret@db/plans?sslmode=verify-ca", "verify-full"),
            ("postgres://gw:secret@db/plans?sslcert=a.pem", "sslrootcert"),
            ("postgres://gw:secret@db/plans?target_session_attrs=any", "application_name"),
            ("postgres://gw:secret@d b/plans", "d b"),
        ] {
            let error = PostgresUrl::parse(url).unwrap_err();
            assert!(error.contains(part) && !error.contains("secret"), "{url}: {error}");
        }
    }
}
