//! The token for an admin listener. It never comes from the command line, which other users of the machine can see.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use http::HeaderValue;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::base::byte_order_mark::without_mark;
use crate::config::regular_file;

pub const TOKEN_VARIABLE: &str = "GATEWAY_ADMIN_TOKEN";

/// For the file of the token: a mounted file system may not answer.
const READ_LIMIT: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenSource {
    None,
    Environment(HeaderValue),
    /// Read for each request, so that operators can replace the token.
    File(PathBuf),
}

impl TokenSource {
    /// The file if there is one, else the value of [`TOKEN_VARIABLE`].
    ///
    /// # Errors
    /// When the value cannot be sent in a header. The text does not show the value.
    pub fn new(file: Option<PathBuf>, variable: Option<std::ffi::OsString>) -> Result<Self, String> {
        if let Some(file) = file {
            return Ok(Self::File(file));
        }
        let Some(value) = variable.filter(|value| !value.is_empty()) else { return Ok(Self::None) };
        let bearer = value.to_str().and_then(bearer);
        bearer.map(Self::Environment).ok_or_else(|| format!("the token of {TOKEN_VARIABLE} cannot be sent in a header"))
    }

    /// The value of Authorization; `None` if there is no token.
    ///
    /// # Errors
    /// When the file has no token that can be sent.
    pub(super) async fn authorization(&self) -> io::Result<Option<HeaderValue>> {
        match self {
            Self::None => Ok(None),
            Self::Environment(value) => Ok(Some(value.clone())),
            Self::File(path) => {
                let path = path.clone();
                let read = timeout(READ_LIMIT, spawn_blocking(move || regular_file::read(&path))).await;
                let bytes = read.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?.map_err(io::Error::other)??;
                let value = std::str::from_utf8(without_mark(&bytes)).ok().and_then(bearer);
                value.map(Some).ok_or_else(|| io::Error::other("it has no token that can be sent in a header"))
            }
        }
    }
}

/// `None` if no configuration could have this token.
fn bearer(token: &str) -> Option<HeaderValue> {
    let token = token.trim_ascii();
    let is_token = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
    let mut value = is_token.then(|| HeaderValue::try_from(format!("Bearer {token}")).ok()).flatten()?;
    value.set_sensitive(true);
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_token_comes_from_the_file_or_else_from_the_environment() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, "of-the-file\n").unwrap();
        let variable = |text: &str| Some(text.into());
        let sent = async |source: TokenSource| source.authorization().await.unwrap();
        let both = TokenSource::new(Some(file.clone()), variable("of-the-variable")).unwrap();
        assert_eq!(sent(both).await.unwrap(), "Bearer of-the-file");
        let one = TokenSource::new(None, variable("of-the-variable")).unwrap();
        assert!(!format!("{one:?}").contains("of-the-variable"), "it is not shown");
        assert_eq!(sent(one).await.unwrap(), "Bearer of-the-variable");
        assert_eq!(sent(TokenSource::new(None, variable("")).unwrap()).await, None);
        assert_eq!(sent(TokenSource::new(None, None).unwrap()).await, None);

        let error = TokenSource::new(None, variable("se\ncret")).unwrap_err();
        assert!(error.contains(TOKEN_VARIABLE) && !error.contains("cret"), "{error}");
        std::fs::write(&file, "two words").unwrap();
        for path in [file, folder.path().to_owned(), folder.path().join("none"), "/dev/zero".into()] {
            assert!(TokenSource::File(path.clone()).authorization().await.is_err(), "{}", path.display());
        }
    }
}
