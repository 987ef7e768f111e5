//! A batch: leases that are looked up once and then step together.

use super::cache::Cache;
use super::lease::{Lease, Seals};
use super::shared::{Keys, Known, Shared};
use crate::base::sync::{Arc, MutexGuard};
use crate::base::{Error, LeaseId, Result};
use crate::keys::Before;
use crate::state::{Growth, State, Stepped};

/// The rows of a running batch. It refuses a row whose lease has ended since.
#[derive(Debug)]
pub struct Batch {
    shared: Arc<Shared>,
    ids: Vec<LeaseId>,
    keys: Vec<Arc<Keys>>,
    /// The row that is the first whose keys the engine makes.
    ready: Option<usize>,
}

impl Cache {
    /// A batch without rows.
    pub fn batch(&self) -> Batch {
        Batch {
            shared: Arc::clone(self.shared()),
            ids: Vec::new(),
            keys: Vec::new(),
            ready: None,
        }
    }
}

impl Batch {
    /// The leases, row by row.
    pub fn ids(&self) -> &[LeaseId] {
        &self.ids
    }

    /// Whether the cache has made it.
    pub fn is_of(&self, cache: &Cache) -> bool {
        Arc::ptr_eq(&self.shared, cache.shared())
    }

    /// Blocks that `more` tokens would complete in a row, to judge the work of an append.
    pub fn keys_made_by(&self, row: usize, more: usize) -> usize {
        self.keys[row].lock().chain.keys_made_by(more)
    }

    /// Adds rows behind the others.
    ///
    /// # Errors
    /// `Spent`, `Foreign`; `Argument` for a lease that has a row already. No row is added then.
    pub fn add<'a>(
        &mut self,
        cache: &Cache,
        leases: impl Iterator<Item = &'a Lease>,
    ) -> Result<()> {
        let before = self.ids.len();
        for lease in leases {
            if let Err(error) = cache.check_lease(lease) {
                self.truncate(before);
                return Err(error);
            }
            self.ids.push(lease.id());
            self.keys.push(Arc::clone(lease.keys()));
        }
        if let Some(twice) = self.find_twice() {
            self.truncate(before);
            let help = "it is in the batch twice: give it one row";
            return Err(Error::argument("lease", twice.number(), help));
        }
        self.find_ready();
        Ok(())
    }

    /// Takes rows out; those behind them move up.
    pub fn remove(&mut self, gone: impl Fn(usize) -> bool) {
        let mut row = 0..;
        self.ids
            .retain(|_| row.next().is_some_and(|row| !gone(row)));
        let mut row = 0..;
        self.keys
            .retain(|_| row.next().is_some_and(|row| !gone(row)));
        self.find_ready();
    }

    fn truncate(&mut self, rows: usize) {
        self.ids.truncate(rows);
        self.keys.truncate(rows);
    }

    fn find_ready(&mut self) {
        self.ready = self.keys.iter().position(|keys| keys.are_ready());
    }

    fn find_twice(&self) -> Option<LeaseId> {
        let mut ids = self.ids.clone();
        ids.sort_unstable();
        let pair = ids.windows(2).find(|pair| pair[0] == pair[1])?;
        Some(pair[0])
    }

    /// Appends `count(row)` of the tokens to each row, as [`Lease::append`] does, and gathers the keys of
    /// its computed blocks. What it has appended is taken back unless [`Appended::step`] succeeds.
    ///
    /// # Errors
    /// `Argument` when the engine makes the keys of a row, or more is computed than appended; `Memory`.
    /// Nothing is appended then.
    pub fn append<C: Fn(usize) -> usize>(
        &self,
        tokens: &[u32],
        count: C,
        computed: impl Fn(usize) -> u64,
    ) -> Result<Appended<'_, C>> {
        if let Some(ready) = self.ready {
            self.keys[ready].lock().chain.check_extend()?;
        }
        // In a step that decodes, one row in so many completes a block.
        let few = 1 + self.keys.len() / 8;
        let mut appended = Appended {
            batch: self,
            step: self.shared.next_step(),
            count,
            before: Vec::with_capacity(few),
            seals: Seals::with_capacity(few),
            keep: false,
        };
        let mut rest = tokens;
        for (row, keys) in self.keys.iter().enumerate() {
            let split = rest.split_at_checked((appended.count)(row));
            let (own, others) = split.ok_or_else(|| not_counted(tokens))?;
            rest = others;
            let mut known = keys.sound()?;
            if known.chain.fill(own) {
                known.step = appended.step;
            } else {
                known = appended.complete(row, known, own)?;
            }
            let computed = computed(row);
            if known.computes_more(computed)? {
                let lease = self.ids[row];
                appended.seals.gather(row, lease, &known, computed);
            }
        }
        if rest.is_empty() {
            Ok(appended)
        } else {
            Err(not_counted(tokens))
        }
    }
}

#[cold]
fn not_counted(tokens: &[u32]) -> Error {
    let help = "the counts of the rows add up to the tokens";
    Error::argument("tokens", tokens.len(), help)
}

/// Tokens that a step has appended; they are taken back if the yard refuses the step.
#[derive(Debug)]
pub struct Appended<'a, C: Fn(usize) -> usize> {
    batch: &'a Batch,
    /// The number by which it knows what it has appended.
    step: u64,
    count: C,
    /// Rows of which blocks were completed.
    before: Vec<(usize, Before)>,
    seals: Seals,
    keep: bool,
}

impl<'a, C: Fn(usize) -> usize> Appended<'a, C> {
    /// Appends tokens that complete a block of a row, or that have no room there yet.
    fn complete(
        &mut self,
        row: usize,
        known: MutexGuard<'a, Known>,
        tokens: &[u32],
    ) -> Result<MutexGuard<'a, Known>> {
        let since = known.chain.tokens() + tokens.len() as u64;
        let before = known.chain.before(tokens.len());
        let mut known = self.batch.keys[row].append(known, tokens)?;
        if let Some(before) = before {
            self.before.push((row, before));
        }
        // Otherwise another thread has appended to it meanwhile, and nothing is taken back.
        if known.chain.tokens() == since {
            known.step = self.step;
        }
        Ok(known)
    }

    /// Rows, and blocks that may be published: to judge the work.
    pub fn blocks(&self) -> usize {
        self.batch.ids.len() + self.seals.blocks()
    }

    /// The rest of the step, in the yard: [`State::decode_step`].
    ///
    /// # Errors
    /// As that.
    pub fn step(
        &mut self,
        state: &mut State,
        growth: &Growth<impl Fn(usize) -> u64>,
    ) -> Result<Stepped> {
        let seals = self.seals.sealings();
        let done = state.decode_step(&self.batch.ids, &seals, growth)?;
        drop(seals);
        self.seals.read_sealed(state);
        self.keep = true;
        Ok(done)
    }
}

/// Outside the yard: its lock comes behind those of the keys.
impl<C: Fn(usize) -> usize> Drop for Appended<'_, C> {
    fn drop(&mut self) {
        let keys = &self.batch.keys;
        if self.keep {
            return self.seals.remember_keys(|row| &keys[row]);
        }
        for row in (0..keys.len()).rev() {
            let before = self.before.pop_if(|before| before.0 == row);
            let mut known = keys[row].lock();
            // Where another thread has appended behind them, they stay, as they would without a step.
            if known.step == self.step {
                let before = before.map(|before| before.1);
                known.chain.take_back((self.count)(row), before);
            }
        }
    }
}
