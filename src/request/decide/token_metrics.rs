//! How many tokens the requests of a limit have used, by model.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::tokens::Usage;

/// The most models that are told apart: clients choose their names.
const MOST_MODELS: usize = 64;
/// The longest name of a model that is shown, in bytes.
const LONGEST_NAME: usize = 64;
/// What stands for all others, and for requests that name none.
pub const OTHER_MODELS: &str = "other";

/// The tokens of one limit, of all workers. A response ends far less often than this lock could take.
#[derive(Debug, Default)]
pub struct TokenMetrics(Mutex<BTreeMap<String, TokenCounts>>);

/// The tokens of one model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenCounts {
    /// What was used, as responses say it or as it was estimated.
    pub used: Usage,
    /// What requests were charged until their responses ended.
    pub reserved: u64,
    /// What they were charged in the end.
    pub settled: u64,
    /// The responses that did not say what they have used.
    pub estimated: u64,
    /// The streams that were cut.
    pub cut: u64,
    /// The numbers in responses that were no counts of tokens.
    pub ignored: u64,
}

impl TokenMetrics {
    /// Counts a response. Only a model that has answered is told apart from others.
    pub fn record(&self, model: Option<&[u8]>, counts: TokenCounts) {
        let name = model.and_then(|model| std::str::from_utf8(model).ok());
        let is_shown = |name: &&str| name.len() <= LONGEST_NAME && name.bytes().all(|byte| byte.is_ascii_graphic());
        let name = name.filter(is_shown).unwrap_or(OTHER_MODELS);
        let models = &mut *self.0.lock();
        let name = if models.contains_key(name) || models.len() < MOST_MODELS { name } else { OTHER_MODELS };
        let total = match models.get_mut(name) {
            Some(total) => total,
            None => models.entry(name.to_owned()).or_default(),
        };
        total.add(counts);
    }

    /// The counts of each model, by its name.
    pub fn by_model(&self) -> BTreeMap<String, TokenCounts> {
        self.0.lock().clone()
    }

    /// The counts of all models together.
    pub fn total(&self) -> TokenCounts {
        let mut total = TokenCounts::default();
        self.0.lock().values().for_each(|counts| total.add(*counts));
        total
    }
}

impl TokenCounts {
    fn add(&mut self, other: Self) {
        let Self { used, reserved, settled, estimated, cut, ignored } = other;
        self.used.input += used.input;
        self.used.cached += used.cached;
        self.used.output += used.output;
        self.reserved += reserved;
        self.settled += settled;
        self.estimated += estimated;
        self.cut += cut;
        self.ignored += ignored;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_clients_take_a_bounded_place() {
        let (metrics, one) = (TokenMetrics::default(), TokenCounts { settled: 1, ..TokenCounts::default() });
        for number in 0..1_000 {
            metrics.record(Some(format!("model-{number}").as_bytes()), one);
        }
        metrics.record(Some(b"model-1"), one);
        metrics.record(Some("x".repeat(65).as_bytes()), one);
        metrics.record(Some(b"two words"), one);
        metrics.record(None, one);
        let models = metrics.by_model();
        assert_eq!(models.len(), MOST_MODELS + 1);
        assert_eq!((models["model-1"].settled, models[OTHER_MODELS].settled), (2, 1_000 - MOST_MODELS as u64 + 3));
        assert_eq!(metrics.total().settled, 1_004);
    }
}
