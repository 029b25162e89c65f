//! The members of requests that have a meaning, to keys or to the gateway itself.

use crate::tokens::pointer::{Pointer, Pointers};

/// What to read in bodies: the targets of keys, and members with a meaning to the gateway.
#[derive(Debug)]
pub struct BodyPointers {
    pub(super) all: Pointers,
    /// How many of the pointers are those of keys. They come first.
    keys: usize,
    /// The others: members with a meaning.
    known: Vec<Pointer>,
    /// The meaning of each place.
    by_place: Vec<Option<Known>>,
    pub(super) divides: bool,
}

impl BodyPointers {
    pub fn new(keys: &[Pointer]) -> Self {
        let known: Vec<Pointer> = Known::ALL.iter().filter_map(|(_, pointer)| pointer.parse().ok()).collect();
        let all = Pointers::new(keys.iter().chain(&known));
        let mut by_place = vec![None; all.places()];
        for ((meaning, _), place) in Known::ALL.iter().zip(&all.ends()[keys.len()..]) {
            by_place[*place] = Some(*meaning);
        }
        Self { all, keys: keys.len(), known, by_place, divides: false }
    }

    /// Reads each item of a body that is an array as a document of its own, unless a pointer leads to one of the items.
    #[must_use]
    pub fn dividing(mut self) -> Self {
        self.divides = !self.all.reads_items();
        self
    }

    pub(super) fn known_at(&self, place: usize) -> Option<Known> {
        self.by_place[place]
    }

    /// The members with a meaning, and their places.
    pub(super) fn known(&self) -> impl Iterator<Item = (&Pointer, usize)> {
        self.known.iter().zip(self.all.ends()[self.keys..].iter().copied())
    }

    pub(super) fn keys(&self) -> &[usize] {
        &self.all.ends()[..self.keys]
    }
}

/// The meanings of members to the gateway.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Known {
    MaxOutput,
    /// The number of answers to each prompt.
    Choices,
    /// One prompt, or several in an array.
    Prompts,
    /// In an array of chats, the first one: an array of messages.
    FirstMessage,
    /// Requests in an array, each with a maximum of its own.
    Requests,
    Stream,
    /// The response comes later, in reply to another request.
    Background,
    Options,
    IncludeUsage,
}

impl Known {
    /// Google's servers accept both spellings of each name.
    const ALL: [(Self, &str); 53] = [
        (Self::MaxOutput, "/max_tokens"),
        (Self::MaxOutput, "/max_completion_tokens"),
        (Self::MaxOutput, "/max_output_tokens"),
        (Self::MaxOutput, "/max_tokens_to_sample"),
        (Self::MaxOutput, "/max_new_tokens"),
        (Self::MaxOutput, "/max_gen_len"),
        (Self::MaxOutput, "/maxTokens"),
        (Self::MaxOutput, "/maxOutputTokens"),
        (Self::MaxOutput, "/n_predict"),
        (Self::MaxOutput, "/num_predict"),
        (Self::MaxOutput, "/options/num_predict"),
        (Self::MaxOutput, "/parameters/max_tokens"),
        (Self::MaxOutput, "/parameters/max_new_tokens"),
        (Self::MaxOutput, "/parameters/maxOutputTokens"),
        (Self::MaxOutput, "/sampling_params/max_tokens"),
        (Self::MaxOutput, "/sampling_params/max_new_tokens"),
        (Self::MaxOutput, "/inferenceConfig/maxTokens"),
        (Self::MaxOutput, "/inferenceConfig/max_new_tokens"),
        (Self::MaxOutput, "/textGenerationConfig/maxTokenCount"),
        (Self::MaxOutput, "/generationConfig/maxOutputTokens"),
        (Self::MaxOutput, "/generationConfig/max_output_tokens"),
        (Self::MaxOutput, "/generation_config/maxOutputTokens"),
        (Self::MaxOutput, "/generation_config/max_output_tokens"),
        (Self::Choices, "/n"),
        (Self::Choices, "/n_cmpl"),
        (Self::Choices, "/best_of"),
        (Self::Choices, "/num_return_sequences"),
        (Self::Choices, "/sampling_params/n"),
        (Self::Choices, "/sampling_params/best_of"),
        (Self::Choices, "/parameters/n"),
        (Self::Choices, "/parameters/best_of"),
        (Self::Choices, "/parameters/num_return_sequences"),
        (Self::Choices, "/parameters/candidateCount"),
        (Self::Choices, "/candidateCount"),
        (Self::Choices, "/generationConfig/candidateCount"),
        (Self::Choices, "/generationConfig/candidate_count"),
        (Self::Choices, "/generation_config/candidateCount"),
        (Self::Choices, "/generation_config/candidate_count"),
        (Self::Prompts, "/prompt"),
        (Self::Prompts, "/prompts"),
        (Self::Prompts, "/prompt_embeds"),
        (Self::Prompts, "/text"),
        (Self::Prompts, "/input_ids"),
        (Self::Prompts, "/inputs"),
        (Self::Prompts, "/instances"),
        (Self::FirstMessage, "/messages/0"),
        (Self::Requests, "/requests"),
        (Self::Stream, "/stream"),
        (Self::Background, "/background"),
        (Self::Background, "/batch/inputConfig"),
        (Self::Background, "/batch/input_config"),
        (Self::Options, "/stream_options"),
        (Self::IncludeUsage, "/stream_options/include_usage"),
    ];
}
