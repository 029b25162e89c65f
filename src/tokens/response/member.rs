//! The members of responses with a meaning to the gateway, by their names, and the texts of those that are kept.

use smallvec::SmallVec;

use super::report::UsageField;

/// The longest text of a member that is kept, in bytes. A longer one becomes empty.
const LONGEST: usize = 256;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Member {
    #[default]
    Other,
    /// An object with the usage.
    Usage,
    /// Gemini's object with the usage.
    UsageMetadata,
    /// An object in the usage with details of the input.
    Details,
    Field(UsageField),
    /// Contains the message of an event.
    Message,
    /// Contains the whole response of an event.
    Response,
    Choices,
    Candidates,
    /// Which of several answers it is.
    Index,
    /// Contains the choices of some servers.
    Output,
    /// Why the answer has finished, from Anthropic.
    StopReason,
    /// Why the answer has finished, from others.
    FinishReason,
    Object,
    Model,
    /// The type of an event.
    Type,
    /// Whether a response of OpenAI is complete.
    Status,
    Error,
    SequenceNumber,
    /// New text.
    Delta,
    /// Text that may have occurred before.
    Text,
    /// Not text, though it stands in text.
    Metadata,
    /// Contains no text, wherever it stands.
    NoText,
}

impl Member {
    pub(super) fn of(name: &[u8]) -> Self {
        match name {
            b"usage" => Self::Usage,
            b"usageMetadata" => Self::UsageMetadata,
            b"prompt_tokens_details" | b"input_tokens_details" => Self::Details,
            b"prompt_tokens" | b"promptTokenCount" => Self::Field(UsageField::Prompt),
            b"input_tokens" => Self::Field(UsageField::Input),
            b"cached_tokens" | b"cachedContentTokenCount" => Self::Field(UsageField::CachedPart),
            b"cache_read_input_tokens" => Self::Field(UsageField::CacheRead),
            b"cache_creation_input_tokens" => Self::Field(UsageField::CacheCreation),
            b"toolUsePromptTokenCount" => Self::Field(UsageField::ToolUse),
            b"completion_tokens" | b"output_tokens" | b"candidatesTokenCount" => Self::Field(UsageField::Output),
            b"thoughtsTokenCount" => Self::Field(UsageField::Thoughts),
            b"total_tokens" | b"totalTokenCount" => Self::Field(UsageField::Total),
            b"message" => Self::Message,
            b"response" => Self::Response,
            b"choices" => Self::Choices,
            b"index" => Self::Index,
            b"candidates" => Self::Candidates,
            b"output" => Self::Output,
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

/// How the strings in a value count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Class {
    /// Text only if there is none of the other classes.
    #[default]
    Plain,
    Text,
    Delta,
    NoText,
}

impl Class {
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

/// A text that mostly needs no allocation.
pub(super) type ShortText = SmallVec<[u8; 32]>;

/// Keeps the text of a string with a meaning, such as the name of a model, as it arrives.
#[derive(Default)]
pub(super) struct KeptString {
    /// The member whose value the string is; `None` if no string is kept.
    member: Option<Member>,
    text: ShortText,
}

impl KeptString {
    /// Begins a string, which is kept if a member is given.
    pub(super) fn begin(&mut self, member: Option<Member>) {
        self.member = member;
        self.text.clear();
    }

    #[inline]
    pub(super) fn push(&mut self, part: &[u8]) {
        if self.member.is_some() {
            if self.text.len() + part.len() <= LONGEST {
                self.text.extend_from_slice(part);
            } else {
                self.begin(None);
            }
        }
    }

    #[inline]
    pub(super) fn has_begun(&self) -> bool {
        self.member.is_some()
    }

    /// Ends the string. Returns it if it is kept and not empty.
    pub(super) fn end(&mut self) -> Option<(Member, ShortText)> {
        let member = self.member.take()?;
        Some((member, std::mem::take(&mut self.text))).filter(|(_, text)| !text.is_empty())
    }
}
