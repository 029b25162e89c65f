//! Reads `--config`: the source of the configuration, and the place of the copy of a remote one.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::base::units;
use crate::process::{ConfigSource, ReadOnce, Remote};

/// The environment variable with a bearer token for the server of the configuration.
pub(super) const TOKEN_VARIABLE: &str = "GATEWAY_CONFIG_TOKEN";

/// How often to ask a URL, by default.
const EVERY: Duration = Duration::from_secs(10);

#[derive(Debug, Default, clap::Args)]
pub(super) struct Options {
    /// How often to ask a URL for a new configuration, 1s to 1d [default: 10s].
    #[arg(long, value_name = "DURATION", value_parser = every)]
    pub(super) config_every: Option<Duration>,

    /// The folder for certificates that an authority issues, and for the last good configuration from a URL, for starts
    /// while its server is away [default: that of systemd, or ~/.local/state/gateway].
    #[arg(long, global = true, value_name = "FOLDER")]
    pub(super) state_dir: Option<PathBuf>,

    /// Read the configuration again when one of its files changes. SIGHUP does so at any time.
    #[arg(long)]
    pub(super) watch: bool,
}

fn every(text: &str) -> Result<Duration, String> {
    let every = units::duration(text).map_err(|error| format!("{error}: write it like 10s or 5m"))?;
    if (Duration::from_secs(1)..=Duration::from_secs(86_400)).contains(&every) {
        Ok(every)
    } else {
        Err("it is 1s to 1d".to_owned())
    }
}

/// The source with this name: a path, `-` for standard input, a URL, or `env:NAME` for a variable with one of these. The error
/// is the problem, without secrets.
pub(super) fn named(name: OsString, options: &Options) -> Result<ConfigSource, String> {
    let name = match name.to_str().and_then(|name| name.strip_prefix("env:")) {
        None => name,
        Some(variable) => {
            let is_name = !variable.is_empty() && !variable.contains(['=', '\0']);
            let value = is_name.then(|| env::var_os(variable)).flatten().filter(|value| !value.is_empty());
            value.ok_or_else(|| format!("there is no environment variable {variable:?} for the configuration"))?
        }
    };
    let url = name.to_str().filter(|text| has_scheme(text));
    let Some(url) = url else {
        if options.config_every.is_some() {
            return Err("--config-every is for a URL: with --watch, files are read again when they change".to_owned());
        }
        let path = PathBuf::from(name);
        let once = if path == Path::new("-") { Some(ReadOnce::standard_input()) } else { ReadOnce::pipe(&path) };
        return match once {
            Some(once) if options.watch => {
                Err(format!("--watch is for files: {} can be read once only, and not reloaded", once.name()))
            }
            Some(once) => Ok(ConfigSource::Once(Arc::new(once))),
            None => Ok(ConfigSource::Path(path)),
        };
    };
    if options.watch {
        return Err("--watch is for files: a URL is asked again as --config-every says".to_owned());
    }
    let token = match env::var(TOKEN_VARIABLE) {
        Ok(token) => Some(token).filter(|token| !token.is_empty()),
        Err(env::VarError::NotPresent) => None,
        Err(env::VarError::NotUnicode(_)) => return Err(format!("{TOKEN_VARIABLE} is not valid UTF-8")),
    };
    let state = state(options);
    let remote = Remote::new(url, token.as_deref(), options.config_every.unwrap_or(EVERY), state.as_deref());
    let remote = remote.map_err(|why| format!("the URL of the configuration cannot be used: {why}"))?;
    Ok(ConfigSource::Remote(Arc::new(remote)))
}

/// Whether the text is a URL (`https://...`), not a path.
fn has_scheme(text: &str) -> bool {
    let is_scheme = |scheme: &str| !scheme.is_empty() && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric());
    text.split_once("://").is_some_and(|(scheme, _)| is_scheme(scheme))
}

/// The folder for what outlives the process.
pub(super) fn state(options: &Options) -> Option<PathBuf> {
    options.state_dir.clone().or_else(|| state_folder(|variable| env::var_os(variable)))
}

/// The folder of systemd, or that of the user.
fn state_folder(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let folder = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    // systemd separates several folders by colons.
    let of_service = variable("STATE_DIRECTORY").and_then(|list| {
        let paths: Vec<_> = env::split_paths(&list).collect();
        paths.into_iter().find(|path| path.is_absolute())
    });
    of_service
        .or_else(|| Some(folder("XDG_STATE_HOME")?.join("gateway")))
        .or_else(|| Some(folder("HOME")?.join(".local/state/gateway")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_between_polls_is_bounded() {
        assert_eq!(["1s", "10s", "5m", "1d"].map(|text| every(text).unwrap().as_secs()), [1, 10, 300, 86_400]);
        for text in ["0s", "999ms", "2d", "10", "", "-1s"] {
            assert!(every(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_folder_for_state_is_that_of_the_service_or_of_the_user() {
        let folder = |variables: &[(&str, &str)]| {
            let found = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
            state_folder(found).map(|path| path.to_str().unwrap().to_owned())
        };
        let (service, user, home) = (("STATE_DIRECTORY", "/a:/b"), ("XDG_STATE_HOME", "/x"), ("HOME", "/h"));
        assert_eq!(folder(&[service, user, home]).unwrap(), "/a");
        assert_eq!(folder(&[("STATE_DIRECTORY", ":/b")]).unwrap(), "/b");
        assert_eq!(folder(&[("STATE_DIRECTORY", ""), user, home]).unwrap(), "/x/gateway");
        assert_eq!(folder(&[("XDG_STATE_HOME", "relative"), home]).unwrap(), "/h/.local/state/gateway");
        assert_eq!(folder(&[("HOME", "")]), None);
        assert_eq!(folder(&[]), None);
    }

    #[test]
    fn paths_and_urls_are_told_apart() {
        let options = Options::default;
        for path in ["gateway.toml", "/etc/gateway", "./env:x", "a/b://c", "https:/a", "://a"] {
            assert!(matches!(named(path.into(), &options()), Ok(ConfigSource::Path(_))), "{path}");
        }
        for url in ["https://conf.test/g.toml", "https://u:p@conf.test:8443/?q", "http://127.0.0.1:1/"] {
            assert!(matches!(named(url.into(), &options()), Ok(ConfigSource::Remote(_))), "{url}");
        }
        for wrong in ["http://conf.test/", "ftp://conf.test/", "https://", "env:", "env:NOT_SET_ANYWHERE", "env:a=b"] {
            assert!(named(wrong.into(), &options()).is_err(), "{wrong}");
        }
        let said = named("https://a/".into(), &Options { watch: true, ..options() }).unwrap_err();
        assert!(said.contains("--config-every"), "{said}");
        let said = named("a".into(), &Options { config_every: Some(EVERY), ..options() }).unwrap_err();
        assert!(said.contains("--watch"), "{said}");
    }
}
