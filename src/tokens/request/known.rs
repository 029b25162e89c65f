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
        let each = |(meaning, members): (Known, &'static str)| members.split(' ').map(move |member| (meaning, member));
        let meant = || Known::ALL.into_iter().flat_map(each);
        let known: Vec<Pointer> = meant().filter_map(|(_, member)| member.parse().ok()).collect();
        let all = Pointers::new(keys.iter().chain(&known));
        let mut by_place = vec![None; all.places.len()];
        for ((meaning, _), place) in meant().zip(&all.ends[keys.len()..]) {
            by_place[*place] = Some(meaning);
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
        self.known.iter().zip(self.all.ends[self.keys..].iter().copied())
    }

    pub(super) fn keys(&self) -> &[usize] {
        &self.all.ends[..self.keys]
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
    /// The members with each meaning. Google's servers accept both spellings of each name.
    const ALL: [(Self, &str); 9] = [
        (
            Self::MaxOutput,
            "/max_tokens /max_completion_tokens /max_output_tokens /max_tokens_to_sample /max_new_tokens /max_gen_len \
             /maxTokens /maxOutputTokens /n_predict /num_predict /options/num_predict /parameters/max_tokens \
             /parameters/max_new_tokens /parameters/maxOutputTokens /sampling_params/max_tokens \
             /sampling_params/max_new_tokens /inferenceConfig/maxTokens /inferenceConfig/max_new_tokens \
             /textGenerationConfig/maxTokenCount /generationConfig/maxOutputTokens \
             /generationConfig/max_output_tokens /generation_config/maxOutputTokens \
             /generation_config/max_output_tokens",
        ),
        (
            Self::Choices,
            "/n /n_cmpl /best_of /num_return_sequences /sampling_params/n /sampling_params/best_of /parameters/n \
             /parameters/best_of /parameters/num_return_sequences /parameters/candidateCount /candidateCount \
             /generationConfig/candidateCount /generationConfig/candidate_count /generation_config/candidateCount \
             /generation_config/candidate_count",
        ),
        (Self::Prompts, "/prompt /prompts /prompt_embeds /text /input_ids /inputs /instances"),
        (Self::FirstMessage, "/messages/0"),
        (Self::Requests, "/requests"),
        (Self::Stream, "/stream"),
        (Self::Background, "/background /batch/inputConfig /batch/input_config"),
        (Self::Options, "/stream_options"),
        (Self::IncludeUsage, "/stream_options/include_usage"),
    ];
}
