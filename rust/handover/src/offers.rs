//! Offers of the prefill side: which blocks are held for whom, and for how long. It is arithmetic alone: no lock,
//! no socket, and time comes from outside. An offer ends by the clock of this side, whatever the other one does.
//! INV-36d

use blockyard_disk::{Clock, Key};
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The name of an offer: 128 random bits.
pub type OfferId = [u8; 16];

/// Blocks that one offer may have.
pub const MOST_BLOCKS: usize = 65_536;

/// Readers that one offer may have had.
const MOST_READERS: usize = 256;

/// Offers that have ended, of which it is remembered why.
const MOST_ENDED: usize = 1024;

/// Blocks that a yard keeps where they are.
pub trait Hold: Send + Sync + Debug {
    /// Whether it still holds: no slot of it has been given to another.
    fn is_held(&self) -> bool;

    /// The generation that the slot of block `at` has now, after what was read from it before this call.
    fn generation(&self, at: usize) -> Option<u64>;

    /// Ends it: raises the generations, then lets the slots go. Twice is once.
    fn release(&self);
}

/// What an offer has: the blocks of one path, in their order.
#[derive(Clone, Debug)]
pub struct Held {
    /// The key of each block.
    pub keys: Arc<[Key]>,
    /// The key of the block before each.
    pub parents: Arc<[Key]>,
    /// Where it is.
    pub slots: Arc<[u32]>,
    /// The generation of that slot.
    pub generations: Arc<[u64]>,
    /// What keeps them there.
    pub hold: Arc<dyn Hold>,
}

/// Why an offer has ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum End {
    /// All of its readers are done, or have refused.
    Done,
    /// The lease of its last reader was not renewed in time.
    Lease,
    /// No reader has come in time.
    Unread,
    /// The yard has cleared or forgotten its blocks, or lost their memory.
    Cleared,
    /// This side closes.
    Closed,
    /// Its room was needed.
    Room,
    /// Its request was aborted.
    Aborted,
}

impl End {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Done,
        Self::Lease,
        Self::Unread,
        Self::Cleared,
        Self::Closed,
        Self::Room,
        Self::Aborted,
    ];

    /// What its readers are told.
    pub fn told(self) -> Gone {
        match self {
            Self::Cleared => Gone::Cleared,
            Self::Room => Gone::NoRoom,
            _ => Gone::Ended,
        }
    }
}

/// Why an offer, or a block of it, is not to be had.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Gone {
    /// It has ended, or never was.
    Ended,
    /// Its blocks were cleared or forgotten.
    Cleared,
    /// It was another process that has offered it.
    Reset,
    /// The room was needed.
    NoRoom,
    /// It was promised, and its blocks are on their way to where they are offered.
    Soon,
}

/// Why an offer was not taken by this side.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refused {
    /// It has no block, or too many.
    #[error("an offer of {0} blocks: it has 1 to {MOST_BLOCKS}")]
    Blocks(usize),
    /// Its lists are not equally long.
    #[error(
        "{keys} keys, {parents} parents, {slots} slots and {generations} generations: pass as many"
    )]
    Rows {
        /// Keys.
        keys: usize,
        /// Parents.
        parents: usize,
        /// Slots.
        slots: usize,
        /// Generations.
        generations: usize,
    },
    /// Two of its blocks have one key.
    #[error("block {0} of the offer has the key of an earlier one: a path has each key once")]
    Twice(usize),
    /// Another one that is open has the same name.
    #[error("this offer is open already: give each one 16 random bytes of its own")]
    Open,
}

/// Blocks for a reader.
#[derive(Clone, Debug)]
pub struct Taken {
    /// All blocks of the offer.
    pub held: Held,
    /// The first that the reader wants.
    pub first: usize,
    /// How long its lease is; `renew` begins it again.
    pub lease: Duration,
}

/// What an offer is at now.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Holding {
    /// Its name.
    pub id: OfferId,
    /// Its blocks.
    pub blocks: usize,
    /// How long it has been held.
    pub age: Duration,
    /// Readers whose lease runs.
    pub readers: usize,
    /// After how long it ends where nothing comes.
    pub left: Duration,
}

/// What offers have come to.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Tally {
    /// Offers that are open.
    pub held: usize,
    /// Their blocks.
    pub blocks: usize,
    /// Offers that were made.
    pub made: u64,
    /// Those that have ended, by [`End::ALL`].
    pub ended: [u64; 7],
}

#[derive(Debug)]
struct Offer {
    held: Held,
    since: Instant,
    /// Until when each reader has its lease; `None` once it has ended, and then for good.
    readers: BTreeMap<u64, Option<Instant>>,
}

impl Offer {
    /// Why it has ended by now.
    fn due(&self, now: Instant, unread: Duration) -> Option<End> {
        let runs = |lease: &Option<Instant>| lease.is_some_and(|until| now < until);
        if !self.held.hold.is_held() {
            Some(End::Cleared)
        } else if self.readers.is_empty() {
            (now >= self.since + unread).then_some(End::Unread)
        } else {
            (!self.readers.values().any(runs)).then_some(End::Lease)
        }
    }

    /// When it ends where nothing comes.
    fn until(&self, unread: Duration) -> Instant {
        let last = self.readers.values().flatten().max();
        last.copied().unwrap_or(self.since + unread)
    }
}

/// Offers, each with its readers and their leases. Dropped, it lets go of the holds without a word.
#[derive(Debug)]
pub struct Offers {
    open: BTreeMap<OfferId, Offer>,
    /// Those that were promised, and since when.
    promised: BTreeMap<OfferId, Instant>,
    /// Offers in the order in which they came.
    order: VecDeque<OfferId>,
    ended: VecDeque<(OfferId, Gone)>,
    lease: Duration,
    unread: Duration,
    clock: Clock,
    tally: Tally,
}

impl Offers {
    /// None yet.
    ///
    /// # Arguments
    /// `lease` is how long a reader has from one `renew` to the next, and `unread` how long an offer waits for its
    /// first reader.
    pub fn new(lease: Duration, unread: Duration) -> Self {
        Self {
            open: BTreeMap::new(),
            promised: BTreeMap::new(),
            order: VecDeque::new(),
            ended: VecDeque::new(),
            lease,
            unread,
            clock: Clock::new(),
            tally: Tally::default(),
        }
    }

    /// Promises an offer, whose blocks are on their way: who takes it meanwhile is told to ask again.
    pub fn promise(&mut self, id: OfferId, now: f64) -> Result<(), Refused> {
        self.sweep(now);
        if self.open.contains_key(&id) || self.promised.contains_key(&id) {
            return Err(Refused::Open);
        }
        self.tally.made += 1;
        self.promised.insert(id, self.clock.now());
        Ok(())
    }

    /// Whether an offer was promised, and has neither come nor ended.
    pub fn is_promised(&self, id: &OfferId) -> bool {
        self.promised.contains_key(id)
    }

    /// Offers blocks: from now on they are held until the offer ends.
    pub fn offer(&mut self, id: OfferId, held: Held, now: f64) -> Result<(), Refused> {
        self.sweep(now);
        let (keys, parents) = (held.keys.len(), held.parents.len());
        let (slots, generations) = (held.slots.len(), held.generations.len());
        if !(1..=MOST_BLOCKS).contains(&keys) {
            return Err(Refused::Blocks(keys));
        }
        if (parents, slots, generations) != (keys, keys, keys) {
            return Err(Refused::Rows {
                keys,
                parents,
                slots,
                generations,
            });
        }
        let mut seen = HashSet::with_capacity(keys);
        if let Some(again) = held.keys.iter().position(|key| !seen.insert(key)) {
            return Err(Refused::Twice(again));
        }
        if self.open.contains_key(&id) {
            return Err(Refused::Open);
        }
        self.tally.made += u64::from(self.promised.remove(&id).is_none());
        self.tally.held += 1;
        self.tally.blocks += keys;
        let offer = Offer {
            held,
            since: self.clock.now(),
            readers: BTreeMap::new(),
        };
        self.open.insert(id, offer);
        self.order.push_back(id);
        Ok(())
    }

    /// Gives a reader a lease, and says what it may read. A lease that has ended does not come back.
    pub fn take(
        &mut self,
        id: &OfferId,
        reader: u64,
        first: usize,
        now: f64,
    ) -> Result<Taken, Gone> {
        self.sweep(now);
        let until = self.clock.now() + self.lease;
        let Some(offer) = self.open.get_mut(id) else {
            return Err(self.why(id));
        };
        if !offer.readers.contains_key(&reader) && offer.readers.len() >= MOST_READERS {
            return Err(Gone::NoRoom);
        }
        match offer.readers.entry(reader).or_insert(Some(until)) {
            None => return Err(Gone::Ended),
            renewed => *renewed = Some(until),
        }
        let held = offer.held.clone();
        Ok(Taken {
            first: first.min(held.keys.len()),
            held,
            lease: self.lease,
        })
    }

    /// What a reader whose lease runs may read.
    pub fn read(&mut self, id: &OfferId, reader: u64, now: f64) -> Result<Held, Gone> {
        self.sweep(now);
        let Some(offer) = self.open.get(id) else {
            return Err(self.why(id));
        };
        match offer.readers.get(&reader) {
            Some(Some(_)) => Ok(offer.held.clone()),
            _ => Err(Gone::Ended),
        }
    }

    /// Begins the lease of a reader again, if it runs.
    pub fn renew(&mut self, id: &OfferId, reader: u64, now: f64) {
        self.sweep(now);
        let until = self.clock.now() + self.lease;
        let offer = self.open.get_mut(id);
        if let Some(Some(lease)) = offer.and_then(|offer| offer.readers.get_mut(&reader)) {
            *lease = until;
        }
    }

    /// A reader needs the offer no more.
    pub fn done(&mut self, id: &OfferId, reader: u64, now: f64) {
        self.sweep(now);
        let offer = self.open.get_mut(id);
        if let Some(lease) = offer.and_then(|offer| offer.readers.get_mut(&reader)) {
            *lease = None;
            self.end_if_read(id, End::Done);
        }
    }

    /// A reader will not take the offer, or needs it no more. One that has not come counts as come.
    pub fn refuse(&mut self, id: &OfferId, reader: u64, now: f64) {
        self.sweep(now);
        let Some(offer) = self.open.get_mut(id) else {
            if self.is_promised(id) {
                self.end(id, End::Done);
            }
            return;
        };
        if offer.readers.len() < MOST_READERS || offer.readers.contains_key(&reader) {
            offer.readers.insert(reader, None);
        }
        self.end_if_read(id, End::Done);
    }

    /// Ends an offer whose readers have come and gone.
    fn end_if_read(&mut self, id: &OfferId, why: End) {
        let is_read = self.open.get(id).is_some_and(|offer| {
            !offer.readers.is_empty() && offer.readers.values().all(Option::is_none)
        });
        if is_read {
            self.end(id, why);
        }
    }

    /// Ends an offer; returns whether it was open, or promised. Its generations are raised, then its slots go.
    pub fn end(&mut self, id: &OfferId, why: End) -> bool {
        if let Some(offer) = self.open.remove(id) {
            offer.held.hold.release();
            self.order.retain(|other| other != id);
            self.tally.held -= 1;
            self.tally.blocks -= offer.held.keys.len();
        } else if self.promised.remove(id).is_none() {
            return false;
        }
        self.tally.ended[why as usize] += 1;
        if self.ended.len() == MOST_ENDED {
            self.ended.pop_front();
        }
        self.ended.push_back((*id, why.told()));
        true
    }

    /// Ends all offers; returns how many there were.
    pub fn end_all(&mut self, why: End) -> usize {
        let ids: Vec<OfferId> = self
            .order
            .iter()
            .chain(self.promised.keys())
            .copied()
            .collect();
        ids.iter().filter(|id| self.end(id, why)).count()
    }

    /// Ends the oldest offer, as its room is needed.
    pub fn end_oldest(&mut self) -> Option<OfferId> {
        let id = self.order.front().copied()?;
        self.end(&id, End::Room);
        Some(id)
    }

    /// Takes what time it is, in seconds of any clock, and ends what is due: each lease at its own time.
    ///
    /// # Returns
    /// How many offers have ended.
    pub fn sweep(&mut self, now: f64) -> usize {
        self.clock.turn(now);
        let (now, unread) = (self.clock.now(), self.unread);
        let mut due = Vec::new();
        for (&id, offer) in &mut self.open {
            if let Some(why) = offer.due(now, unread) {
                due.push((id, why));
            }
            for lease in offer.readers.values_mut() {
                // One that has run out stays so, even where another reader keeps the offer.
                *lease = lease.filter(|&until| now < until);
            }
        }
        let late = self
            .promised
            .iter()
            .filter(|&(_, &since)| now >= since + unread);
        due.extend(late.map(|(&id, _)| (id, End::Unread)));
        due.iter().filter(|(id, why)| self.end(id, *why)).count()
    }

    /// Whether a sweep at this time would end nothing.
    pub fn is_quiet(&self, now: f64) -> bool {
        let mut clock = self.clock;
        clock.turn(now);
        let mut offers = self.open.values();
        offers.all(|offer| offer.due(clock.now(), self.unread).is_none())
    }

    /// Why an offer that is not open is not to be had.
    pub fn why(&self, id: &OfferId) -> Gone {
        if self.is_promised(id) {
            return Gone::Soon;
        }
        let mut ended = self.ended.iter().rev();
        ended
            .find(|(other, _)| other == id)
            .map_or(Gone::Ended, |&(_, gone)| gone)
    }

    /// Whether an offer is open.
    pub fn is_open(&self, id: &OfferId) -> bool {
        self.open.contains_key(id)
    }

    /// What they have come to.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// What is held, the oldest first.
    pub fn holding(&self) -> Vec<Holding> {
        let now = self.clock.now();
        let offers = self.order.iter();
        let offers = offers.filter_map(|id| Some((id, self.open.get(id)?)));
        offers
            .map(|(&id, offer)| Holding {
                id,
                blocks: offer.held.keys.len(),
                age: now.saturating_duration_since(offer.since),
                readers: offer.readers.values().flatten().count(),
                left: offer.until(self.unread).saturating_duration_since(now),
            })
            .collect()
    }
}
