//! The members of responses that mean something to the gateway, by their names.

use super::report::Field;

/// What a member is, by its name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Member {
    #[default]
    Other,
    /// An object with the usage.
    Usage,
    /// The same of Gemini.
    UsageMetadata,
    /// An object in the usage that says what is in the input.
    Details,
    Field(Field),
    /// What an event may have a message in.
    Message,
    /// What an event may have a whole response in.
    Response,
    Choices,
    Candidates,
    /// Why the answer has finished, of Anthropic.
    StopReason,
    /// The same of others.
    FinishReason,
    Object,
    /// The model that has answered.
    Model,
    /// What an event is.
    Type,
    /// Whether a response of OpenAI is complete.
    Status,
    /// Why the provider has failed.
    Error,
    /// The number of an event of OpenAI.
    SequenceNumber,
    /// New text.
    Delta,
    /// Text that may have been there before.
    Text,
    /// What is no text, though it stands in text.
    Metadata,
    /// What has no text in it, wherever it stands.
    NoText,
}

impl Member {
    pub(super) fn of(name: &[u8]) -> Self {
        match name {
            b"usage" => Self::Usage,
            b"usageMetadata" => Self::UsageMetadata,
            b"prompt_tokens_details" | b"input_tokens_details" => Self::Details,
            b"prompt_tokens" | b"promptTokenCount" => Self::Field(Field::Prompt),
            b"input_tokens" => Self::Field(Field::Input),
            b"cached_tokens" | b"cachedContentTokenCount" => Self::Field(Field::CachedPart),
            b"cache_read_input_tokens" => Self::Field(Field::CacheRead),
            b"cache_creation_input_tokens" => Self::Field(Field::CacheCreation),
            b"toolUsePromptTokenCount" => Self::Field(Field::ToolUse),
            b"completion_tokens" | b"output_tokens" | b"candidatesTokenCount" => Self::Field(Field::Output),
            b"thoughtsTokenCount" => Self::Field(Field::Thoughts),
            b"total_tokens" | b"totalTokenCount" => Self::Field(Field::Total),
            b"message" => Self::Message,
            b"response" => Self::Response,
            b"choices" => Self::Choices,
            b"candidates" => Self::Candidates,
            b"stop_reason" => Self::StopReason,
            b"finish_reason" | b"finishReason" => Self::FinishReason,
            b"object" => Self::Object,
            b"model" | b"modelVersion" => Self::Model,
            b"type" => Self::Type,
            b"status" => Self::Status,
            b"error" => Self::Error,
            b"sequence_number" => Self::SequenceNumber,
            b"delta" => Self::Delta,
            b"content" | b"text" | b"arguments" | b"reasoning_content" | b"reasoning" | b"thinking"
            | b"partial_json" | b"refusal" | b"input" | b"args" | b"transcript" | b"completion" | b"generated_text" => {
                Self::Text
            }
            b"id" | b"role" | b"name" | b"signature" | b"call_id" | b"tool_call_id" | b"tool_use_id"
            | b"stop_sequence" | b"thoughtSignature" | b"mimeType" | b"data" | b"encrypted_content" => Self::Metadata,
            b"embedding" | b"embeddings" | b"logprobs" | b"b64_json" => Self::NoText,
            _ => Self::Other,
        }
    }
}

/// What the strings in a value count as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Class {
    /// Text only if there is none of the others.
    #[default]
    Plain,
    Text,
    Delta,
    NoText,
}

impl Class {
    /// That of a member in a value of this class.
    pub(super) fn of(self, member: Member) -> Self {
        match member {
            Member::Delta => self.max(Self::Delta),
            Member::Text => self.max(Self::Text),
            Member::Metadata
            | Member::StopReason
            | Member::FinishReason
            | Member::Object
            | Member::Model
            | Member::Type
            | Member::Status
                if self != Self::Plain =>
            {
                Self::NoText
            }
            Member::NoText => Self::NoText,
            _ => self,
        }
    }
}
