//! Deletes: keys that every store is to forget. One is done when each store has answered; until then it is
//! tried again.

use blockyard_disk::Key;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

/// Keys of one call.
const AT_ONCE: usize = 256;

/// Keys for a thread to delete in one store.
#[derive(Clone, Debug)]
pub(crate) struct Erasure {
    pub(crate) number: u64,
    pub(crate) store: usize,
    pub(crate) keys: Arc<[Key]>,
}

#[derive(Debug)]
struct Open {
    keys: Vec<Key>,
    /// Keys that each store has not said to be deleted.
    undone: Vec<usize>,
}

#[derive(Debug)]
pub(crate) struct Erasures {
    /// Of each store, what waits for a thread, and until when.
    waiting: Vec<VecDeque<(Erasure, Option<Instant>)>>,
    open: BTreeMap<u64, Open>,
    /// Keys that are not done, and in how many deletes.
    keys: HashMap<Key, usize>,
}

/// Whether a delete is not to wait for a time.
fn is_due(retry: Option<Instant>, now: Instant) -> bool {
    retry.is_none_or(|retry| now >= retry)
}

impl Erasures {
    pub(crate) fn new(stores: usize) -> Self {
        Self {
            waiting: vec![VecDeque::new(); stores],
            open: BTreeMap::new(),
            keys: HashMap::new(),
        }
    }

    /// Takes keys, of which there is at least one.
    pub(crate) fn submit(&mut self, number: u64, keys: &[Key]) {
        for part in keys.chunks(AT_ONCE) {
            let part: Arc<[Key]> = part.into();
            for (store, waiting) in self.waiting.iter_mut().enumerate() {
                let keys = Arc::clone(&part);
                let task = Erasure {
                    number,
                    store,
                    keys,
                };
                waiting.push_back((task, None));
            }
        }
        for &key in keys {
            *self.keys.entry(key).or_default() += 1;
        }
        let undone = vec![keys.len(); self.waiting.len()];
        let keys = keys.to_vec();
        self.open.insert(number, Open { keys, undone });
    }

    /// The next keys for a thread, of those that are not to wait, of stores that are open.
    pub(crate) fn next(
        &mut self,
        now: Instant,
        is_open: impl Fn(usize) -> bool,
        may: impl Fn(&Erasure) -> bool,
    ) -> Option<Erasure> {
        let waiting = self.waiting.iter_mut().enumerate();
        waiting
            .filter(|(store, _)| is_open(*store))
            .find_map(|(_, waiting)| {
                let place = waiting
                    .iter()
                    .position(|(task, retry)| is_due(*retry, now) && may(task))?;
                waiting.remove(place).map(|(task, _)| task)
            })
    }

    /// Those that wait for a thread, and not for a time.
    pub(crate) fn waits(&self, now: Instant) -> impl Iterator<Item = &Erasure> {
        let waiting = self.waiting.iter().flatten();
        waiting.filter_map(move |(task, retry)| is_due(*retry, now).then_some(task))
    }

    /// Takes what has become of a call; `retry` is when it is made again where it has failed, if ever. Returns
    /// how many keys are deleted where that was the last of them.
    pub(crate) fn end(
        &mut self,
        task: &Erasure,
        done: bool,
        retry: Option<Instant>,
    ) -> Option<usize> {
        let open = self.open.get_mut(&task.number)?;
        if !done {
            // Without a time nobody tries again: it is given up when the lane is closed.
            if retry.is_some() {
                self.waiting[task.store].push_back((task.clone(), retry));
            }
            return None;
        }
        open.undone[task.store] -= task.keys.len();
        let keys = open.keys.len();
        open.undone.iter().all(|&left| left == 0).then(|| {
            self.remove(task.number);
            keys
        })
    }

    fn remove(&mut self, number: u64) -> bool {
        let Some(open) = self.open.remove(&number) else {
            return false;
        };
        for key in open.keys {
            if let Some(count) = self.keys.get_mut(&key) {
                *count -= 1;
                if *count == 0 {
                    self.keys.remove(&key);
                }
            }
        }
        true
    }

    /// Whether a store has not said that a key is deleted.
    pub(crate) fn has(&self, key: &Key) -> bool {
        self.keys.contains_key(key)
    }

    /// Gives one up; returns whether it was one.
    pub(crate) fn give_up(&mut self, number: u64) -> bool {
        let is_open = self.remove(number);
        if is_open {
            for waiting in &mut self.waiting {
                waiting.retain(|(task, _)| task.number != number);
            }
        }
        is_open
    }

    pub(crate) fn is_open(&self, number: u64) -> bool {
        self.open.contains_key(&number)
    }

    /// Lets those be tried at once that wait for a time.
    pub(crate) fn hurry(&mut self) {
        for (_, retry) in self.waiting.iter_mut().flatten() {
            *retry = None;
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// All that are not done.
    pub(crate) fn open(&self) -> Vec<u64> {
        self.open.keys().copied().collect()
    }

    /// Keys that each store has not said to be deleted.
    pub(crate) fn undone(&self) -> Vec<usize> {
        let of = |store: usize| self.open.values().map(|open| open.undone[store]).sum();
        (0..self.waiting.len()).map(of).collect()
    }
}
