//! What a peer is to do, and what it has: flights and their blocks, offers that were taken, leases to renew, and
//! whether the other side is asked at all. It is under the peer's one lock, and no socket is touched here.

use crate::flight::{Entry, Flying, Known, Landing, Wanted};
use crate::landed::{Answer, Bell, Counts, PeerState};
use crate::offers::OfferId;
use crate::places::Pieces;
use blockyard_disk::{Breaker, Clock, Key, Lent};
use blockyard_store::{Condition, Landed, Short};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What the thread is to say, in this order.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    Take(Box<Take>),
    Fetch(u64),
    Done {
        id: OfferId,
        reader: u64,
    },
    Refuse {
        id: OfferId,
        reader: u64,
        why: String,
    },
}

/// An offer that is to be taken, for these keys.
#[derive(Clone, Debug)]
pub(crate) struct Take {
    pub(crate) number: u64,
    pub(crate) id: OfferId,
    pub(crate) boot: u32,
    pub(crate) reader: u64,
    pub(crate) keys: Vec<Key>,
    pub(crate) first: usize,
}

/// Blocks to ask for: leading ones that a flight wants, one after the other in one offer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    pub(crate) number: u64,
    pub(crate) row: usize,
    pub(crate) count: usize,
    pub(crate) first: Wanted,
}

#[derive(Debug)]
struct Offer {
    known: Known,
    /// Each has a lease of its own there.
    readers: Vec<u64>,
}

#[derive(Debug)]
struct Lease {
    boot: u32,
    every: Duration,
    next: Instant,
}

/// A take whose answer has not come.
#[derive(Debug)]
struct Out {
    id: OfferId,
    is_wanted: bool,
}

#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a word to the thread"
)]
pub(crate) struct Desk {
    pub(crate) work: VecDeque<Work>,
    /// Takes that are out, by the caller's number.
    out: BTreeMap<u64, Out>,
    flights: BTreeMap<u64, Entry>,
    next: u64,
    offers: BTreeMap<OfferId, Offer>,
    /// Offers that have a key, and where in what is known of them.
    index: HashMap<Key, Vec<(OfferId, usize)>>,
    /// Leases until it was said that they are done.
    leases: BTreeMap<(OfferId, u64), Lease>,
    /// Whether another carrier brings the bytes, and flights that it was not told of.
    tells_begun: bool,
    begun: Vec<u64>,
    landed: Vec<Landed>,
    bell: Bell,
    answers: Vec<Answer>,
    breaker: Breaker,
    clock: Clock,
    /// Where the memory of the other side is, by its boot, for another carrier.
    pub(crate) memory: Option<(u32, Arc<[u8]>)>,
    pub(crate) why: String,
    pub(crate) counts: Counts,
    /// Whether a rest has begun of which the thread does not know yet.
    pub(crate) rest_begun: bool,
    /// Whether the connection is to be closed, as what was asked did not come in time.
    pub(crate) cut: bool,
    pub(crate) closing: bool,
    /// Whether its thread was started, and has not ended.
    pub(crate) runs: bool,
}

impl Desk {
    pub(crate) fn new(failures: u32, rest: Duration, tells_begun: bool, bell: Bell) -> Self {
        Self {
            work: VecDeque::new(),
            out: BTreeMap::new(),
            flights: BTreeMap::new(),
            next: 0,
            offers: BTreeMap::new(),
            index: HashMap::new(),
            leases: BTreeMap::new(),
            tells_begun,
            begun: Vec::new(),
            landed: Vec::new(),
            bell,
            answers: Vec::new(),
            breaker: Breaker::new(failures, rest),
            clock: Clock::new(),
            memory: None,
            why: String::new(),
            counts: Counts::default(),
            rest_begun: false,
            cut: false,
            closing: false,
            runs: false,
        }
    }

    pub(crate) fn turn(&mut self, now: f64) {
        // Else the next one to come would set the clock back to the last look.
        self.bell.look(now);
        self.catch_up();
    }

    /// Turns the clock on to the last look at the bell.
    pub(crate) fn catch_up(&mut self) {
        self.clock.turn(self.bell.now());
    }

    /// Whether what is asked fails at once.
    pub(crate) fn rests(&self) -> bool {
        self.breaker.rests(self.clock.now())
    }

    /// Takes note whether the other side has answered. Where a rest begins, all that waits fails, by the thread: it
    /// may be at the memory of a flight.
    pub(crate) fn note(&mut self, good: bool) {
        let before = self.rests();
        self.breaker.note(good, self.clock.now());
        if before || !self.rests() {
            return;
        }
        self.counts.rests += 1;
        self.rest_begun = true;
    }

    /// Why what is out ends now, in both words.
    fn failing(&self) -> (Short, &'static str) {
        if self.closing {
            (Short::GivenUp, "given up")
        } else {
            (Short::Failed, "failed")
        }
    }

    /// An offer was asked for in vain.
    pub(crate) fn fail_take(&mut self, number: u64) {
        let (_, word) = self.failing();
        self.answer(number, 0, word);
    }

    /// Lets nothing that waits go on. It is for the thread, which is at no flight then.
    pub(crate) fn fail_all(&mut self) {
        self.rest_begun = false;
        for work in mem::take(&mut self.work) {
            match work {
                Work::Take(take) => self.fail_take(take.number),
                Work::Fetch(number) => self.fail(number),
                // The lease ends without it.
                Work::Done { id, reader } | Work::Refuse { id, reader, .. } => {
                    self.said(id, reader);
                }
            }
        }
    }

    /// Is about to ask for an offer.
    pub(crate) fn takes(&mut self, take: Take) {
        let out = Out {
            id: take.id,
            is_wanted: true,
        };
        self.out.insert(take.number, out);
        self.work.push_back(Work::Take(Box::new(take)));
    }

    /// Who has asked for an offer, and has no answer yet, wants none of it: it is refused once it comes. Returns
    /// whether there was such a one.
    pub(crate) fn abandon(&mut self, id: &OfferId) -> bool {
        let mut out = self
            .out
            .values_mut()
            .filter(|out| out.id == *id && out.is_wanted);
        out.next().map(|out| out.is_wanted = false).is_some()
    }

    /// Whether somebody still wants what was asked for.
    pub(crate) fn is_wanted(&self, number: u64) -> bool {
        self.out.get(&number).is_some_and(|out| out.is_wanted)
    }

    pub(crate) fn answer(&mut self, number: u64, blocks: usize, why: impl Into<String>) {
        self.out.remove(&number);
        let why = why.into();
        self.answers.push(Answer {
            number,
            blocks,
            why,
        });
    }

    pub(crate) fn take_answers(&mut self) -> Vec<Answer> {
        mem::take(&mut self.answers)
    }

    pub(crate) fn take_landed(&mut self) -> Vec<Landed> {
        mem::take(&mut self.landed)
    }

    /// Knows blocks of an offer from now on, and renews the lease of this reader.
    pub(crate) fn learn(&mut self, id: OfferId, reader: u64, known: Known, every: Duration) {
        let lease = Lease {
            boot: known.boot,
            every,
            next: Instant::now() + every,
        };
        self.leases.insert((id, reader), lease);
        let mut readers = vec![reader];
        let mut known = known;
        if let Some(before) = self.forget(&id)
            && before.known.boot == known.boot
        {
            // Another request has it, too, and may know more of it.
            readers.splice(0..0, before.readers);
            if before.known.keys.len() > known.keys.len() {
                known = before.known;
            }
        }
        for (at, key) in known.keys.iter().enumerate() {
            self.index.entry(*key).or_default().push((id, at));
        }
        self.offers.insert(id, Offer { known, readers });
    }

    /// What is known of an offer, and its first reader here.
    pub(crate) fn known(&self, id: &OfferId) -> Option<(&Known, u64)> {
        let offer = self.offers.get(id)?;
        Some((&offer.known, *offer.readers.first()?))
    }

    fn forget(&mut self, id: &OfferId) -> Option<Offer> {
        let offer = self.offers.remove(id)?;
        for key in &offer.known.keys {
            if let Some(ids) = self.index.get_mut(key) {
                ids.retain(|(other, _)| other != id);
                if ids.is_empty() {
                    self.index.remove(key);
                }
            }
        }
        Some(offer)
    }

    /// An offer is not to be had any more.
    pub(crate) fn gone(&mut self, id: &OfferId) {
        self.leases.retain(|(other, _), _| other != id);
        if self.forget(id).is_some() {
            self.counts.gone += 1;
        }
    }

    /// Another process answers there: what the ones before have offered is gone.
    pub(crate) fn met(&mut self, boot: u32) {
        let offers = self.offers.iter();
        let old: Vec<_> = offers
            .filter(|(_, offer)| offer.known.boot != boot)
            .map(|(id, _)| *id)
            .collect();
        for id in old {
            self.gone(&id);
        }
        self.leases.retain(|_, lease| lease.boot == boot);
    }

    /// One request here needs an offer no more; returns its reader, if there is one.
    pub(crate) fn leave_offer(&mut self, id: &OfferId) -> Option<u64> {
        let offer = self.offers.get_mut(id)?;
        let reader = offer.readers.pop()?;
        if offer.readers.is_empty() {
            self.forget(id);
        }
        Some(reader)
    }

    /// It was said that a reader is done, or it is about to be.
    pub(crate) fn said(&mut self, id: OfferId, reader: u64) {
        self.leases.remove(&(id, reader));
    }

    /// All leases, of which it is said that they are done where this side closes.
    pub(crate) fn leases(&self) -> Vec<(OfferId, u64)> {
        self.leases.keys().copied().collect()
    }

    /// Leases that are to be renewed now, and when the next ones are.
    pub(crate) fn due(&mut self) -> (Vec<(OfferId, u64)>, Option<Instant>) {
        let now = Instant::now();
        let mut due = Vec::new();
        for (&lease, state) in &mut self.leases {
            if state.next <= now {
                state.next = now + state.every;
                due.push(lease);
            }
        }
        let next = self.leases.values().map(|lease| lease.next).min();
        (due, next)
    }

    /// Whether a lease is to be renewed now.
    pub(crate) fn is_due(&self) -> bool {
        let now = Instant::now();
        self.leases.values().any(|lease| lease.next <= now)
    }

    fn wanted(&self, key: &Key) -> Option<Wanted> {
        let &(id, at) = self.index.get(key)?.first()?;
        let (known, reader) = self.known(&id)?;
        Some(Wanted {
            boot: known.boot,
            id,
            reader,
            at: (known.first + at) as u32,
            slot: known.slots[at],
            generation: known.generations[at],
        })
    }

    pub(crate) fn is_offering(&self) -> bool {
        !self.index.is_empty()
    }

    /// Which of these keys an offer here has.
    pub(crate) fn has(&self, keys: &[Key]) -> Vec<bool> {
        keys.iter()
            .map(|key| self.index.contains_key(key))
            .collect()
    }

    /// Takes a flight; the blocks behind the first one that no offer here has are missing.
    pub(crate) fn submit(&mut self, keys: &[Key], memory: Arc<dyn Pieces>) -> u64 {
        let number = self.next;
        self.next += 1;
        let short = (self.closing || self.rests()).then(|| self.failing().0);
        let wanted: Vec<Wanted> = keys.iter().map_while(|key| self.wanted(key)).collect();
        let missing = (wanted.len() < keys.len()).then_some(Short::Missing);
        if wanted.is_empty() || short.is_some() {
            self.counts.missing += u64::from(short.is_none() && missing.is_some());
            self.report(Landed {
                number,
                good: 0,
                short: short.filter(|_| !keys.is_empty()).or(missing),
            });
            return number;
        }
        let entry = Entry {
            good: wanted.len(),
            flying: Arc::new(Flying {
                wanted,
                memory: Lent::new(memory),
            }),
            next: 0,
            come: 0,
            sums: Vec::new(),
            short: missing,
        };
        self.flights.insert(number, entry);
        if self.tells_begun {
            self.begun.push(number);
        }
        self.work.push_back(Work::Fetch(number));
        number
    }

    /// The next blocks to ask for of a flight: up to `most`, which lie one after the other.
    pub(crate) fn ask(&mut self, number: u64, most: usize) -> Option<Ask> {
        let entry = self.flights.get_mut(&number)?;
        let wanted = entry.flying.wanted.get(entry.next..entry.good)?;
        let first = *wanted.first()?;
        let after = |(step, one): (usize, &Wanted)| {
            one.id == first.id && one.at as usize == first.at as usize + step
        };
        let count = wanted.iter().take(most).enumerate();
        let count = count.take_while(|&one| after(one)).count();
        let row = entry.next;
        entry.next += count;
        Some(Ask {
            number,
            row,
            count,
            first,
        })
    }

    /// The flight of a block that comes, unless it has ended.
    pub(crate) fn flying(&self, number: u64) -> Option<Arc<Flying>> {
        let entry = self.flights.get(&number)?;
        Some(Arc::clone(&entry.flying))
    }

    /// Takes what has become of a block; returns whether its flight has ended by it.
    pub(crate) fn came(&mut self, number: u64, row: usize, how: Result<(), Short>) -> bool {
        match how {
            Ok(()) => {
                self.note(true);
                self.counts.got += 1;
                if let Some(entry) = self.flights.get_mut(&number) {
                    entry.come = row + 1;
                }
            }
            Err(short) => self.cut_flight(number, row, short),
        }
        self.settle(number)
    }

    /// Flights that were taken since the last call, and have not ended.
    pub(crate) fn take_begun(&mut self) -> Vec<u64> {
        let begun = mem::take(&mut self.begun).into_iter();
        begun.filter(|number| self.flies(*number)).collect()
    }

    /// Takes the sum of a block whose bytes another carrier brings.
    pub(crate) fn summed(&mut self, number: u64, row: usize, sum: u128) {
        if let Some(entry) = self.flights.get_mut(&number)
            && entry.sums.len() == row
        {
            entry.sums.push(sum);
        }
    }

    /// What is to be landed of `count` blocks of a flight from `row` on.
    pub(crate) fn landing(&self, number: u64, row: usize, count: usize) -> Landing {
        let Some(entry) = self.flights.get(&number).filter(|entry| row < entry.good) else {
            return Landing::Over;
        };
        match entry.sums.get(row..entry.good.min(row + count)) {
            Some(sums) if row == entry.come => {
                Landing::Now(Arc::clone(&entry.flying), sums.to_vec())
            }
            _ => Landing::Later,
        }
    }

    /// Lets nothing of a flight be good from a block on.
    fn cut_flight(&mut self, number: u64, row: usize, short: Short) {
        if let Some(entry) = self.flights.get_mut(&number)
            && row < entry.good
        {
            (entry.good, entry.short) = (row, Some(short));
        }
    }

    /// Reports a flight whose blocks have all come; returns whether they have.
    fn settle(&mut self, number: u64) -> bool {
        let has_ended = self
            .flights
            .get(&number)
            .is_some_and(|entry| entry.come >= entry.good);
        if has_ended {
            self.land(number);
        }
        has_ended
    }

    fn land(&mut self, number: u64) {
        if let Some(entry) = self.flights.remove(&number) {
            self.report(Landed {
                number,
                good: entry.good,
                short: entry.short,
            });
        }
    }

    fn report(&mut self, landed: Landed) {
        self.landed.push(landed);
        self.bell.ring();
    }

    /// Ends a flight as far as it has come.
    pub(crate) fn fail(&mut self, number: u64) {
        let (short, _) = self.failing();
        let come = self.flights.get(&number).map_or(0, |entry| entry.come);
        self.cut_flight(number, come, short);
        self.settle(number);
    }

    /// Whether a flight has not ended.
    pub(crate) fn flies(&self, number: u64) -> bool {
        self.flights.contains_key(&number)
    }

    /// All flights that have not ended.
    pub(crate) fn all(&self) -> Vec<u64> {
        self.flights.keys().copied().collect()
    }

    /// Takes note that the memory of a flight was left.
    ///
    /// # Arguments
    /// `late` says that the other side did not answer in time: the connection is closed, which is an end.
    pub(crate) fn left(&mut self, number: u64, late: bool) {
        if !self.flies(number) {
            return;
        }
        self.cut_flight(number, 0, Short::GivenUp);
        self.land(number);
        if late {
            self.counts.given_up += 1;
            "it does not answer in time".clone_into(&mut self.why);
            self.cut = true;
            self.note(false);
        }
    }

    pub(crate) fn state(&self) -> PeerState {
        PeerState {
            condition: if self.rests() {
                Condition::Resting
            } else if self.breaker.is_well() {
                Condition::Well
            } else {
                Condition::Trying
            },
            flying: self.flights.len(),
            offers: self.offers.len(),
            leases: self.leases.len(),
        }
    }
}
