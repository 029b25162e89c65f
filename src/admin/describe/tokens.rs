//! A cost in tokens of language models, in words.
//!
//! Says what is reserved before the response ends, what a request costs then, and what happens to a stream that needs more.

use std::fmt;

use crate::config::{OnExhausted, TokenCost, WithoutUsage};
use crate::tokens::Weights;
use crate::tokens::response::UsagePointers;

pub(super) fn describe(f: &mut fmt::Formatter<'_>, cost: &TokenCost) -> fmt::Result {
    writeln!(f, "    a request costs the tokens that its response reports")?;
    if let Some(UsagePointers { input, output, cached, total }) = &cost.pointers {
        let named = [("input", input), ("output", output), ("cached", cached), ("total", total)];
        let shown = named.into_iter().filter_map(|(name, at)| Some(format!("{name} at {}", at.as_ref()?)));
        writeln!(f, "      {}", shown.collect::<Vec<_>>().join(", "))?;
    }
    let others = if cost.models.is_empty() { "all models" } else { "other models" };
    let models = cost.models.iter().map(|model| (model.pattern.0.as_str(), model.weights));
    for (model, Weights { input, cached, output }) in models.chain([(others, cost.weights)]) {
        writeln!(f, "      {model}: {input} for input, {cached} for cached input, {output} for output")?;
    }
    writeln!(f, "      {} tokens of output are reserved if the request names no maximum", cost.max_output)?;
    let is_reserved = cost.without_usage == WithoutUsage::Reserved;
    let unsaid = if is_reserved { "what was reserved, or its size if that is more" } else { "its size" };
    writeln!(f, "      a success that does not report its usage costs {unsaid}")?;
    writeln!(f, "      {} tokens of input are reserved for each part that is not text", cost.part)?;
    if !cost.ask_usage {
        writeln!(f, "      streams are not asked for their usage")?;
    }
    if cost.on_exhausted == OnExhausted::Cut {
        writeln!(f, "      a stream of events, or of lines or elements of JSON, is cut if there is no room for more")?;
    }
    Ok(())
}
