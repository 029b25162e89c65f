//! Costs in tokens: `cost = { tokens = ... }`, and `[[limits.NAME.models]]`.

use std::sync::Arc;

use super::key::pointer;
use crate::base::wildcard::Wildcard;
use crate::config::read::{Field, Section, Setting, Wrong};
use crate::config::report::{did_you_mean, quoted};
use crate::config::settings::{cost, limit, model, usage};
use crate::config::{Cost, ModelWeights, TokenCost};
use crate::tokens::Weights;
use crate::tokens::response::UsagePointers;

const USAGE: &str =
    "write tokens = \"auto\", or where responses say it: tokens = { input = \"/usage/in\", output = \"/usage/out\" }";

const MATCH: &str = "write which models: match = \"gpt-4o*\"";

/// Keys of `cost` that only a cost in tokens has.
pub(super) const KEYS: [&str; 8] = [
    cost::input.name,
    cost::cached.name,
    cost::output.name,
    cost::max_output.name,
    cost::without_usage.name,
    cost::part.name,
    cost::ask_usage.name,
    cost::on_exhausted.name,
];

/// `table` is the value of `cost`, and has `tokens`.
pub(super) fn cost(limit: &Section<'_>, table: &Section<'_>, tokens: &Field<'_>) -> Cost {
    let weights = Weights {
        input: table.read(&cost::input),
        cached: table.read(&cost::cached),
        output: table.read(&cost::output),
    };
    let models = limit.tables(&limit::models).filter_map(|section| model(section, weights)).collect();
    Cost::Tokens(Arc::new(TokenCost {
        pointers: pointers(tokens),
        weights,
        max_output: table.read(&cost::max_output),
        without_usage: table.read(&cost::without_usage),
        part: table.read(&cost::part),
        ask_usage: table.read(&cost::ask_usage),
        on_exhausted: table.read(&cost::on_exhausted),
        models,
    }))
}

/// Where a response reports its usage; `None` if it does so like the known APIs, or after an error that was reported.
fn pointers(field: &Field<'_>) -> Option<UsagePointers> {
    if field.is_text() {
        field.parse(|text| match text {
            "auto" => Ok(()),
            _ => {
                let help = did_you_mean(text, &["auto"], USAGE);
                Err(Wrong::new(format!("{} is not a value of `tokens`", quoted(text)), help))
            }
        });
        return None;
    }
    if !field.is_table() {
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
    table.close();
    Some(UsagePointers { input, cached, output, total })
}

/// One model. Weights that it does not set are those of `cost`.
fn model(section: Section<'_>, cost: Weights) -> Option<ModelWeights> {
    let pattern = section.required(&model::r#match, MATCH);
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
    section.close();
    Some(ModelWeights { pattern: Wildcard(pattern?), weights })
}
