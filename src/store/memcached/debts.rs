//! What this process has admitted and Memcached has not confirmed, bucket by bucket.

use smallvec::SmallVec;

/// All debts of one cell.
#[derive(Debug, Default)]
pub(super) struct Debts(SmallVec<[Debt; 2]>);

/// What is owed to one counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Debt {
    pub(super) place: usize,
    pub(super) bucket: u64,
    /// How much; 0 where the counter is only to be told, because Memcached has lost it; less to give something back.
    pub(super) amount: i64,
    /// How much of it was sent without an answer: it may have arrived.
    pub(super) doubt: i64,
}

impl Debt {
    /// Whether this is owed to the counter of that bucket.
    pub(super) fn is_for(&self, place: usize, bucket: u64) -> bool {
        (self.place, self.bucket) == (place, bucket)
    }
}

/// A cost as it is owed; less than 0 it is given back.
pub(super) fn signed(cost: u64) -> i64 {
    i64::try_from(cost).unwrap_or(i64::MAX)
}

impl Debts {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether something was sent without an answer.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.0.iter().any(|debt| debt.doubt > 0)
    }

    pub(super) fn of(&self, place: usize, bucket: u64) -> Option<&Debt> {
        self.0.iter().find(|debt| debt.is_for(place, bucket))
    }

    /// Owes `amount` more.
    pub(super) fn owe(&mut self, place: usize, bucket: u64, amount: i64) {
        let debt = self.entry(place, bucket);
        debt.amount = debt.amount.saturating_add(amount);
    }

    /// Owes again what was sent without an answer. What was given back so stays given: to take it twice could let too
    /// much pass.
    pub(super) fn doubt(&mut self, place: usize, bucket: u64, amount: i64) {
        if amount >= 0 {
            let debt = self.entry(place, bucket);
            debt.amount = debt.amount.saturating_add(amount);
            debt.doubt = debt.doubt.saturating_add(amount);
        }
    }

    /// Ends the doubt: what was in doubt is owed no more if it `arrived`. Returns what is owed then.
    pub(super) fn settle(&mut self, place: usize, bucket: u64, arrived: impl FnOnce(Debt) -> bool) -> i64 {
        let Some(at) = self.0.iter().position(|debt| debt.is_for(place, bucket)) else { return 0 };
        let debt = &mut self.0[at];
        if debt.doubt == 0 {
            return debt.amount;
        }
        if arrived(*debt) {
            debt.amount -= debt.doubt;
        }
        debt.doubt = 0;
        let left = debt.amount;
        if left == 0 {
            self.0.remove(at);
        }
        left
    }

    /// What can be sent: what is in doubt has to be asked for first.
    pub(super) fn certain(&self) -> impl Iterator<Item = &Debt> {
        self.0.iter().filter(|debt| debt.doubt == 0)
    }

    /// What could be sent has been.
    pub(super) fn sent(&mut self) {
        self.retain(|debt| debt.doubt > 0);
    }

    /// Drops what `matters` to nobody any more.
    pub(super) fn retain(&mut self, matters: impl Fn(&Debt) -> bool) {
        self.0.retain(|debt| matters(debt));
    }

    fn entry(&mut self, place: usize, bucket: u64) -> &mut Debt {
        let at = self.0.iter().position(|debt| debt.is_for(place, bucket)).unwrap_or_else(|| {
            self.0.push(Debt { place, bucket, amount: 0, doubt: 0 });
            self.0.len() - 1
        });
        &mut self.0[at]
    }
}
