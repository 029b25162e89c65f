//! What a request to a language model costs: `cost = { tokens = ... }`, with the weights of its models in
//! `[[limits.NAME.models]]`.

use super::bytes::CountedBytes;
use super::keys as limit;
use crate::base::wildcard::Wildcard;
use crate::config::key::pointer;
use crate::config::kinds::{flag, number, shaped, text, weight, words};
use crate::config::read::{Field, Section, Setting, Shape, Wrong, tables};
use crate::config::report::did_you_mean;
use crate::limit::{MAX_BYTES, MAX_QUOTA};
use crate::tokens::response::UsagePointers;
use crate::tokens::{Weight, Weights};

const USAGE: &str =
    "write tokens = \"auto\", or where responses say it: tokens = { input = \"/usage/in\", output = \"/usage/out\" }";

const MATCH: &str = "write which models: match = \"gpt-4o*\"";

/// Keys of `cost` that only a cost in tokens has.
pub(super) const KEYS: [&str; 7] = [
    cost::input.name,
    cost::cached.name,
    cost::output.name,
    cost::max_output.name,
    cost::without_usage.name,
    cost::part.name,
    cost::ask_usage.name,
];

/// The cost is computed from the tokens that the response reports as used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenCost {
    /// Where a response reports its usage; `None` if it does so like OpenAI, Anthropic and Gemini.
    pub pointers: Option<UsagePointers>,
    pub weights: Weights,
    pub max_output: u64,
    pub without_usage: WithoutUsage,
    pub part: u64,
    pub ask_usage: bool,
    pub on_exhausted: OnExhausted,
    /// Models with other weights; the first match counts.
    pub models: Vec<ModelWeights>,
}

/// What a successful response costs if it never reports its usage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WithoutUsage {
    /// What was reserved, or what has passed if that is more.
    #[default]
    Reserved,
    /// What has passed.
    Size,
}

/// What happens to a stream that needs more than was reserved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnExhausted {
    /// Continues, and is charged past the quota.
    #[default]
    Finish,
    /// Ends when there is no room for more.
    Cut,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelWeights {
    /// For the names of the models.
    pub pattern: Wildcard,
    pub weights: Weights,
}

impl TokenCost {
    pub fn weights(&self, model: Option<&[u8]>) -> Weights {
        self.model(model).map_or(self.weights, |one| one.weights)
    }

    /// The model with its own weights; `None` for all other names. Case is ignored, because some providers ignore it, and a
    /// client must not get other weights by changing the case.
    pub fn model(&self, name: Option<&[u8]>) -> Option<&ModelWeights> {
        name.and_then(|name| self.models.iter().find(|one| one.pattern.matches_ignoring_case(name)))
    }
}

tables! {
    /// A cost that a header or the response of a language model contains, or that is the size of bodies.
    cost "`cost`" {
        /// The request header with the cost.
        request_header: () = text() => "x-cost";
        /// The response header with the cost.
        response_header: () = text() => "x-cost";
        /// For `response_header`: the cost that is charged until the response arrives. For `bytes`: the size that is reserved
        /// at once of a body whose length is not known, by default `"64KiB"`.
        reserve: () = shaped(Shape::Or(&[Shape::Number(1, MAX_QUOTA), Shape::Size(1..=MAX_BYTES)])), 1;
        /// Charges the bytes of bodies that pass: of the `"response"`, of the `"request"`, or of `"both"`. Rates are then
        /// sizes (docs/bytes.md).
        bytes: CountedBytes = words(&CountedBytes::WORDS) => "response";
        /// Charges the number of items if the body is a JSON array, such as a batch of JSON-RPC or GraphQL, otherwise 1.
        elements: bool = flag() => true;
        /// Charges the tokens that a language model reports: `"auto"` for OpenAI, Anthropic and Gemini; for other APIs,
        /// where they report them.
        tokens: () = shaped(Shape::Or(&[Shape::Values("[\"auto\"]"), Shape::Table(&usage::TABLE)])) => "auto";
        /// For `tokens`: the cost of an input token.
        input: Weight = weight(), 1;
        /// For `tokens`: the cost of an input token that the provider read from its cache.
        cached: Weight = weight(), 1;
        /// For `tokens`: the cost of an output token.
        output: Weight = weight(), 1;
        /// For `tokens`: the output tokens to reserve if the request names no maximum.
        max_output: u64 = number(1, MAX_QUOTA), 4096;
        /// For `tokens`: what a success without a usage costs: `"reserved"` what was reserved, or what has passed if that is
        /// more; `"size"` its size. The same holds if the client goes away before the usage comes.
        without_usage: WithoutUsage = words(&[("reserved", WithoutUsage::Reserved), ("size", WithoutUsage::Size)]), "reserved";
        /// For `tokens`: the input tokens to reserve for each part of a request that is not text, such as a picture, and for
        /// each reference to earlier content.
        part: u64 = number(1, MAX_QUOTA), 1000;
        /// For `tokens`: asks for the usage of streams. With `false`, the gateway does not change requests.
        ask_usage: bool = flag(), true;
        /// For `tokens` and `bytes`: what happens to a stream that needs more than was reserved: `"finish"` lets it go on and
        /// charges it past the quota, `"cut"` ends it if there is no room. In tokens a stream is events, lines of JSON, or a
        /// JSON array without a length; in bytes it is any body without a length, any body if clients share the limit, and any
        /// tunnel.
        on_exhausted: OnExhausted = words(&[("finish", OnExhausted::Finish), ("cut", OnExhausted::Cut)]), "finish";
    }

    /// Where a response reports its tokens, as JSON pointers (RFC 6901). In a stream, the greatest number of all events
    /// counts.
    usage "`tokens`" {
        /// The input tokens.
        input: () = text() => "/usage/in";
        /// The output tokens.
        output: () = text() => "/usage/out";
        /// The input tokens that came from a cache.
        cached: () = text() => "/usage/cached";
        /// All tokens. The output is at least this total less the input.
        total: () = text() => "/usage/total";
    }

    /// A model with weights of its own; absent ones are as in `cost`.
    model {
        /// The model's name in the request or in the response, whichever costs more; `*` stands for any text, and case
        /// does not matter.
        r#match: () = text().required() => "gpt-4o*";
        /// The cost of an input token.
        input: Weight = weight() => 2.5;
        /// The cost of an input token that the provider read from its cache.
        cached: Weight = weight() => 1.25;
        /// The cost of an output token.
        output: Weight = weight() => 10;
    }
}

/// `table` is the value of `cost`, and has `tokens`.
pub(super) fn read(limit: &Section<'_>, table: &Section<'_>, tokens: &Field<'_>) -> TokenCost {
    let weights = Weights {
        input: table.read(&cost::input),
        cached: table.read(&cost::cached),
        output: table.read(&cost::output),
    };
    let models = limit.tables(&limit::models).filter_map(|section| model(&section, weights)).collect();
    TokenCost {
        pointers: pointers(tokens),
        weights,
        max_output: table.read(&cost::max_output),
        without_usage: table.read(&cost::without_usage),
        part: table.read(&cost::part),
        ask_usage: table.read(&cost::ask_usage),
        on_exhausted: table.read(&cost::on_exhausted),
        models,
    }
}

/// Where a response reports its usage; `None` if it does so like the known APIs, or after an error that was reported.
fn pointers(field: &Field<'_>) -> Option<UsagePointers> {
    if field.value.is_str() {
        field.parse(|text| match text {
            "auto" => Ok(()),
            _ => {
                let help = did_you_mean(text, &["auto"], USAGE);
                Err(Wrong::not(text, "a value of `tokens`", help))
            }
        });
        return None;
    }
    if !field.value.is_table() {
        field.mistyped("\"auto\" or a table", USAGE);
        return None;
    }
    let table = field.section(usage::TABLE.title, &usage::TABLE)?;
    let at = |key: &Setting<()>| table.field(key).and_then(|field| field.parse(pointer));
    let [input, cached, output, total] = [&usage::input, &usage::cached, &usage::output, &usage::total].map(at);
    let is_given = |key: &Setting<()>| table.field(key).is_some();
    let is_enough = is_given(&usage::total) || is_given(&usage::input) && is_given(&usage::output);
    if !is_enough {
        field.report("`tokens` needs both `input` and `output`, or `total`", USAGE);
    }
    Some(UsagePointers { input, cached, output, total })
}

/// One model. Weights that it does not set are those of `cost`.
fn model(section: &Section<'_>, cost: Weights) -> Option<ModelWeights> {
    let pattern = section.needed(&model::r#match);
    let pattern = pattern.and_then(|field| {
        field.parse(|text| match text {
            "" => Err(Wrong::new("`match` is empty, so no model matches", MATCH)),
            _ => Ok(text.to_owned()),
        })
    });
    let weights = Weights {
        input: section.given(&model::input).unwrap_or(cost.input),
        cached: section.given(&model::cached).unwrap_or(cost.cached),
        output: section.given(&model::output).unwrap_or(cost.output),
    };
    Some(ModelWeights { pattern: Wildcard(pattern?), weights })
}
