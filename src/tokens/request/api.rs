//! Which API the path of a request names, and which maxima of output its servers know. Servers ignore other names.

/// An API of language models.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Api {
    Chat,
    Completions,
    Responses,
    Messages,
    /// Gemini's.
    GenerateContent,
    /// Gemini's.
    Embeddings,
    #[default]
    Other,
}

impl Api {
    pub fn of(path: &str) -> Self {
        let path = path.trim_end_matches('/').as_bytes();
        let ends = |with: &str| {
            let end = path.len().checked_sub(with.len()).and_then(|at| path.get(at..));
            end.is_some_and(|end| end.eq_ignore_ascii_case(with.as_bytes()))
        };
        let known = [
            ("/chat/completions", Self::Chat),
            ("/completions", Self::Completions),
            ("/responses", Self::Responses),
            ("/messages", Self::Messages),
            ("generateContent", Self::GenerateContent),
            ("embedContent", Self::Embeddings),
            ("embedContents", Self::Embeddings),
        ];
        known.into_iter().find(|(end, _)| ends(end)).map_or(Self::Other, |(_, api)| api)
    }

    /// Whether all of its servers obey this maximum.
    pub(super) fn knows(self, maximum: Maximum) -> bool {
        match self {
            Self::Chat => matches!(maximum, Maximum::Tokens | Maximum::CompletionTokens),
            Self::Completions | Self::Messages => maximum == Maximum::Tokens,
            Self::Responses => maximum == Maximum::OutputTokens,
            Self::GenerateContent => maximum == Maximum::Generation,
            // Servers of other APIs may ignore any of them.
            Self::Embeddings | Self::Other => false,
        }
    }
}

/// The maxima of output in the APIs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Maximum {
    Tokens,
    CompletionTokens,
    OutputTokens,
    /// In the `generationConfig`.
    Generation,
}

/// Tells which maximum the last name is, in exactly the spelling of its API.
#[derive(Debug, Default)]
pub(super) struct LastName {
    pub(super) maximum: Option<Maximum>,
    is_in_config: bool,
}

impl LastName {
    /// A name with a meaning, in the outermost object, or in an object directly in that.
    #[inline(never)]
    pub(super) fn read(&mut self, name: Option<&[u8]>, is_outermost: bool) {
        let name = name.unwrap_or_default();
        self.maximum = match name {
            b"max_tokens" if is_outermost => Some(Maximum::Tokens),
            b"max_completion_tokens" if is_outermost => Some(Maximum::CompletionTokens),
            b"max_output_tokens" if is_outermost => Some(Maximum::OutputTokens),
            b"max_output_tokens" | b"maxOutputTokens" if self.is_in_config => Some(Maximum::Generation),
            _ => None,
        };
        if is_outermost {
            self.is_in_config = matches!(name, b"generationConfig" | b"generation_config");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_its_api() {
        for (path, api) in [
            ("/v1/chat/completions", Api::Chat),
            ("/openai/deployments/d/Chat/Completions//", Api::Chat),
            ("/v1/completions", Api::Completions),
            ("/completions", Api::Completions),
            ("/v1/responses/", Api::Responses),
            ("/v1/messages", Api::Messages),
            ("/v1/messages/batches", Api::Other),
            ("/v1beta/models/m:streamGenerateContent", Api::GenerateContent),
            ("/v1beta/models/m:generatecontent", Api::GenerateContent),
            ("/v1beta/models/m:batchEmbedContents", Api::Embeddings),
            ("/v1/chat/{what}", Api::Other),
            ("/completion", Api::Other),
            ("é/", Api::Other),
            ("", Api::Other),
        ] {
            assert_eq!(Api::of(path), api, "{path}");
        }
    }
}
