//! A real cache and the naive yard side by side, with what an engine holds: handles, plans, tables.

use crate::listener::Listener;
use crate::ops::{Op, Prompt, Setup};
use crate::yard::Yard;
use blockyard_core::{
    Cache, Cells, Chain, Clears, Config, Error, EvictionPolicy, Extras, FlightId, HeldBlocks,
    HostCopies, Key, KeyHash, Lease, LeaseId, Loading, Namespace, Need, Parked, Plan, Result,
    Salts, TableCells, Ticket, Tier,
};
use std::collections::BTreeMap;

/// Columns of an engine's block table.
pub(crate) const WIDTH: usize = 64;
/// Prompts that are probed after every step.
const KNOWN: usize = 24;
/// In so many acts it is compared with the naive yard, too, what a listener must know.
const CHECKED: u32 = 15;
/// Events that a ring holds which overflows now and then.
const SMALL: usize = 40;
/// More than any script drops: the model forgets none.
const GHOSTS: u32 = 1 << 12;

pub(crate) struct World {
    pub(crate) cache: Cache,
    pub(crate) yard: Yard,
    pub(crate) leases: Vec<Lease>,
    pub(crate) parked: Vec<Parked>,
    pub(crate) tickets: Vec<Ticket>,
    /// Those that have ended, too.
    pub(crate) holds: Vec<HeldBlocks>,
    pub(crate) in_flight: Vec<Plan>,
    /// Plans that were not dispatched yet.
    waiting: Vec<Plan>,
    /// Flights that have landed, and leases whose handles are spent.
    pub(crate) ended: Vec<FlightId>,
    pub(crate) spent: Vec<LeaseId>,
    /// The last step in flight, and how many prompts of `Fill` there were.
    pub(crate) step: u64,
    pub(crate) fills: u32,
    /// What a begin would answer, as it was asked just before.
    pub(crate) asked: Option<Result<Need>>,
    known: Vec<Vec<Key>>,
    /// Who is told what happens, and whether only now and then, of a ring that may be too small.
    listener: Option<Listener>,
    seldom: bool,
    acts: u32,
    /// A row of the engine's block table per lease, of which only changed cells are written.
    pub(crate) rows: BTreeMap<LeaseId, Vec<u32>>,
    /// Whether a decode step is one verb.
    pub(crate) one_verb: bool,
}

impl World {
    pub(crate) fn new(setup: &Setup) -> Self {
        let mut world = Self::deaf(setup);
        world.seldom = (setup.slots[0] + setup.block_size).is_multiple_of(3);
        let ring = if world.seldom { SMALL } else { 1 << 12 };
        let heard = world.cache.listen(ring, Salts::Hide, Clears::All);
        heard.expect("nobody else listens");
        world.listener = Some(Listener::default());
        world
    }

    /// Nobody is told anything.
    pub(crate) fn deaf(setup: &Setup) -> Self {
        let config = Config {
            block_size: setup.block_size,
            slots: setup.slots[..setup.tiers].to_vec(),
            null_slots: setup.null,
            policy: setup.policy,
            host_copies: setup.host_copies,
            write: setup.writes[0],
            writes_below: setup.writes[1..].to_vec(),
            ghosts: Some(GHOSTS),
            spare: Some(setup.spare()),
            block_costs: setup.block_costs,
            recompute: setup.recompute,
            copy_retries: setup.retries,
            keyed: setup.keyed(),
            ..Config::default()
        };
        let yard = Yard {
            block_size: u64::from(setup.block_size),
            recompute: setup.recompute,
            retries: setup.retries,
            keyed: setup.keyed(),
            null: setup.null,
            kept_free: u64::from(setup.spare()),
            tiers: setup.tiers,
            limits: setup.slots,
            first_size: setup.slots[0],
            most_fresh: setup.slots.map(|slots| slots as usize),
            writes: setup.writes,
            block_costs: setup.block_costs,
            unnamed: u64::MAX,
            policy: setup.policy,
            copies_first: match setup.host_copies {
                None => setup.policy == EvictionPolicy::Learned,
                Some(copies) => copies == HostCopies::First,
            },
            ..Yard::default()
        };
        let cache = Cache::new(config, KeyHash::default(), &Namespace::default());
        Self {
            cache: cache.expect("a good configuration"),
            yard,
            leases: Vec::new(),
            parked: Vec::new(),
            tickets: Vec::new(),
            holds: Vec::new(),
            in_flight: Vec::new(),
            waiting: Vec::new(),
            ended: Vec::new(),
            spent: Vec::new(),
            step: 0,
            fills: 0,
            asked: None,
            known: Vec::new(),
            listener: None,
            seldom: false,
            acts: 0,
            rows: BTreeMap::new(),
            one_verb: true,
        }
    }

    /// Does it in both, and compares all that can be asked. A call that is refused changes nothing.
    pub(crate) fn apply(&mut self, op: &Op) {
        let before = self.cache.lock().stats();
        let digest = self.cache.lock().digest();
        let known: Vec<FlightId> = self.in_flight.iter().map(|plan| plan.flight).collect();
        let refused = self.act(op).unwrap_or(false);
        self.yard.ease_headroom();
        assert_eq!(self.yard.surplus, 0, "more was evicted than was asked for");
        let mut stats = self.cache.lock().stats();
        if refused {
            stats.counters.no_room = before.counters.no_room;
            stats.counters.rejected = before.counters.rejected;
            assert_eq!(stats, before, "refused, and something changed");
            assert_eq!(
                self.cache.lock().digest(),
                digest,
                "the digest of what was refused"
            );
        }
        if let Some(violation) = self.cache.audit() {
            panic!("{violation}");
        }
        // A fork that was undone leaves a spent handle.
        self.leases
            .retain(|lease| self.yard.leases.contains_key(&lease.id()));
        self.yard.haunt();
        self.compare();
        self.compare_holds();
        self.listen();
        let new = |plan: &&Plan| !known.contains(&plan.flight);
        let new: Vec<Plan> = self.in_flight.iter().filter(new).cloned().collect();
        self.out_of_service(&new);
        self.waiting.extend(new);
        self.dispatch(stats.counters.flights);
    }

    /// No withdrawn slot holds a block that is found, and no plan reads or fills one. Whether they count
    /// as room, the comparison says.
    fn out_of_service(&self, new: &[Plan]) {
        let state = self.cache.lock();
        for (tier, withdrawn) in self.yard.withdrawn.iter().enumerate() {
            // What voids records names no slots.
            let copies = |plan: &&Plan| plan.from != plan.to || plan.to == Tier::DEVICE;
            let named = new.iter().filter(copies).flat_map(|plan| {
                let reads = plan.sources.iter().filter(|_| plan.from.0 == tier);
                reads.chain(plan.destinations.iter().filter(|_| plan.to.0 == tier))
            });
            for slot in named {
                assert!(
                    !withdrawn.contains(slot),
                    "a copy of slot {slot} of tier {tier}"
                );
            }
            for &slot in withdrawn {
                let found = state.holds_block(Tier(tier), slot);
                assert!(!found, "slot {slot} of tier {tier} was withdrawn");
            }
        }
    }

    /// Now and then, so that some have landed before they were dispatched.
    fn dispatch(&mut self, flights: u64) {
        if flights.is_multiple_of(3) {
            let mut waiting = std::mem::take(&mut self.waiting);
            waiting.retain(|plan| !self.ended.contains(&plan.flight));
            assert_eq!(self.cache.lock().dispatch(), waiting);
        }
    }

    /// What a listener knows is what the naive yard has: nothing over, ever, and nothing under but
    /// while all is told again. O1, O2, O3
    fn listen(&mut self) {
        self.acts += 1;
        let Some(listener) = &mut self.listener else {
            return;
        };
        if self.seldom && !self.acts.is_multiple_of(3) {
            return;
        }
        let drained = self.cache.drain(0.0, None).expect("it listens");
        listener.hear(drained.payload.as_deref());
        let told = self.cache.lock().ready_blocks();
        let mut here: Vec<_> = told
            .into_iter()
            .map(|(block, tier)| (block, tier.0))
            .collect();
        here.sort_unstable();
        let stats = self.cache.event_stats().expect("it listens");
        listener.compare(&here, drained.more || stats.unknown_tokens > 0);
        if !self.acts.is_multiple_of(CHECKED) {
            return;
        }
        // The naive yard remembers every block that ever was, so that this takes long.
        let mut naive = Vec::new();
        for (at, block) in self.yard.blocks.iter().enumerate() {
            let Some(key) = block.key.filter(|_| block.epoch == self.yard.epoch) else {
                continue;
            };
            let number = u64::from_be_bytes(*key.0.last_chunk().expect("of 32"));
            let all = (0..self.yard.tiers).filter(|&tier| self.yard.ready(at, tier).is_some());
            naive.extend(all.map(|tier| (number, tier)));
        }
        naive.sort_unstable();
        assert_eq!(here, naive, "what a listener must know");
    }

    fn compare(&mut self) {
        let mut state = self.cache.lock();
        self.yard.compare(&state.stats());
        self.yard.compare_questions(&state);
        for lease in &self.leases {
            let (id, seq) = (lease.id(), &self.yard.leases[&lease.id()]);
            let view = state.view(id).expect("it lives");
            let (sealed, promised) = (view.sealed as usize, view.promised as usize);
            let told = (
                view.cached,
                view.tokens,
                sealed,
                promised,
                view.loading,
                view.incomplete,
                view.resumed,
            );
            let promised = seq.limit.saturating_sub(seq.table.len());
            let lacks = seq.table.len() < self.yard.blocks_of(seq.tokens);
            let here = (
                seq.cached,
                seq.tokens,
                seq.sealed,
                promised,
                seq.loading,
                seq.incomplete || lacks,
                seq.resumed.is_some(),
            );
            assert_eq!(told, here, "{id:?}");
            if seq.incomplete && !self.yard.recompute {
                continue;
            }
            let row = self.rows.entry(id).or_insert_with(|| vec![u32::MAX; WIDTH]);
            let unseen = |_: TableCells<'_>| unreachable!("a refused call writes nothing");
            if seq.loading > 0 {
                let row = state.block_tables(&[id], WIDTH, Cells::All, Loading::Refuse, unseen);
                assert!(matches!(row, Err(Error::State { .. })), "{row:?}");
            }
            let write = |cells: TableCells<'_>| cells.copy_to(row);
            let written = state.block_tables(&[id], WIDTH, Cells::Changed, Loading::Joined, write);
            written.expect("it is wide enough");
            assert_eq!(row[..seq.table.len()], seq.table, "{id:?}");
        }
        for parked in &self.parked {
            let view = state.view_parked(parked.id()).expect("it is parked");
            let stay = &self.yard.parked[&parked.id()];
            let told = (
                view.computed,
                view.blocks as usize,
                view.on_device as usize,
                view.broken,
                view.kept,
            );
            let kept = self.yard.kept_on(&stay.path);
            let here = (stay.computed, stay.path.len(), stay.on_device);
            assert_eq!(told, (here.0, here.1, here.2, stay.broken, kept));
            let pending = state.pending(parked.id()).expect("it is parked");
            assert_eq!(pending, self.yard.pending(parked.id()));
        }
        for keys in &self.known {
            let (told, mut here) = (state.probe(keys), self.yard.probe(keys));
            if here.evicted == Some(false) && !self.yard.sure_ghosts() {
                here.evicted = told.evicted;
            }
            assert_eq!(told, here, "what is found of {keys:?}");
        }
        for (tier, slots) in self.yard.slots.iter().enumerate() {
            for &slot in slots.keys() {
                let block = self.yard.block_in(tier, slot);
                let here = block.is_some_and(|block| self.yard.ready(block, tier).is_some());
                let told = state.holds_block(Tier(tier), slot);
                assert_eq!(told, here, "slot {slot} of tier {tier}");
            }
        }
    }

    pub(crate) fn chain(&mut self, prompt: Prompt) -> Chain {
        let mut chain = self.cache.chain(Extras::default()).expect("no extras");
        let size = self.yard.block_size as usize;
        for block in 0..=prompt.blocks {
            let run = prompt.path >> block & 1;
            let partial = prompt.tail as usize % size;
            let count = if block < prompt.blocks { size } else { partial };
            chain.extend(&vec![run; count]).expect("tokens");
        }
        self.know(chain.keys());
        chain
    }

    /// These keys, and with them all their prefixes, are probed from now on.
    pub(crate) fn know(&mut self, keys: &[Key]) {
        self.known.retain(|known| !keys.starts_with(known));
        if self.known.len() == KNOWN {
            self.known.remove(0);
        }
        self.known.push(keys.to_vec());
    }

    /// A count of computed tokens: mostly one that the engine may name.
    pub(crate) fn computed(&self, lease: &Lease, by: u8) -> u64 {
        let view = self.cache.lock().view(lease.id()).expect("it lives");
        let most = view.tokens.min(lease.tokens());
        let sealed = u64::from(view.sealed) * self.yard.block_size;
        let found = view.cached.max(sealed).min(most);
        match by {
            255 => most,
            254 => lease.tokens(),
            253 => most / 2,
            _ => found + u64::from(by) % (most - found + 1),
        }
    }

    /// The step to wait for, if there is one in flight.
    pub(crate) fn after(&mut self, in_flight: bool) -> Option<u64> {
        self.step += u64::from(in_flight);
        in_flight.then_some(self.step)
    }
}
