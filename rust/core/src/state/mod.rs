//! Every transition of the yard, as plain `&mut self` arithmetic: no I/O, no clock, no lock. One
//! file per verb; this one holds what they share, and `transitions.rs` the moves between sets.

mod admit;
mod adopt;
mod audit;
mod begin;
mod block_table;
mod clear;
mod config;
mod copy_down;
mod decode;
mod dedup;
mod demote;
mod digest;
mod dry_run;
mod emit;
mod engine;
mod evict;
mod finish;
mod flights;
mod flush;
mod forget;
mod fork;
mod grow;
mod headroom;
mod hold;
mod holders;
mod idle;
mod keep;
mod land;
mod lose;
mod offload;
mod offload_parked;
mod orphans;
mod park;
mod paths;
mod probe;
mod promote;
mod record;
mod resize;
mod restore;
mod resume;
mod runs;
mod save;
mod seal;
mod stats;
mod ticket;
mod tier;
mod transitions;
mod view;
mod void;
mod withdraw;

pub use audit::Violation;
pub use begin::{Filling, Request};
pub use block_table::{Cells, Loading, TableCells};
pub use config::Config;
pub use decode::{Growth, NewCell, Stepped};
pub use demote::WritePolicy;
pub use dry_run::Need;
pub use engine::{Fetch, Presence, Wanted};
pub use forget::{Condemned, Forgotten};
pub use hold::{HeldPath, SlotGenerations};
pub use holders::{Holder, HolderId, Pending, Room};
pub use idle::HostCopies;
pub use probe::{Probe, Stop};
pub use runs::MAX_RUNS;
pub use seal::Sealing;
pub use stats::{Counters, Field, Kind, Stats, TierStats};
pub use view::{ParkedView, View};

pub(crate) use forget::{Lineage, Roots};
pub(crate) use tier::{TierState, Tiers};

use crate::base::{
    FlightId, Key, LeaseId, LeaseIx, MAX_TIERS, NodeIx, ParkedId, ParkedIx, Result, SlotIx, Tier,
};
use crate::collections::{Arena, Tag};
use crate::copies::{Flight, Move, Plan};
use crate::events::Events;
use crate::evict::{Ghosts, Usage, UsageTable};
use crate::tiers::{HeldSlots, Trie};
use orphans::Orphans;
use record::{Held, Holding, Parked, Running, Ticket};
use runs::Runs;
use std::collections::BTreeMap;

/// What a begin, a fork or a resume gives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Begun {
    /// The lease.
    pub lease: LeaseId,
    /// Leading tokens whose KV is there, or will be when `plans` have landed.
    pub cached: u64,
    /// Blocks found per tier, the device first.
    pub hits: [u32; MAX_TIERS],
    /// Why the prefix ended where it did.
    pub stop: Stop,
    /// Copies to make before the sequence may run.
    pub plans: Vec<Plan>,
}

/// A begin's answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// It may run, once its plans have landed.
    Begun(Begun),
    /// Part of its prefix is in flight: ask again when this flight has landed. Nothing is held.
    Soon(FlightId),
}

/// The yard: every verb of the core, by id. It is reached through [`crate::Cache::lock`].
#[derive(Debug)]
pub struct State {
    pub(crate) config: Config,
    pub(crate) trie: Trie,
    pub(crate) tiers: Tiers,
    pub(crate) leases: Arena<Running>,
    roots: Roots,
    pub(crate) parked: Arena<Parked>,
    pub(crate) tickets: Arena<Ticket>,
    pub(crate) holdings: Arena<Holding>,
    /// Slots that are held for others to read, and their generations; none before the first.
    held_slots: Option<HeldSlots>,
    pub(crate) flights: Arena<Flight>,
    pub(crate) held: Vec<Held>,
    pub(crate) counters: Counters,
    /// Blocks that were dropped from every tier, under [`WritePolicy::SecondTouch`].
    ghosts: Option<Ghosts>,
    /// What is known of the blocks' uses, as far as the policy asks for it.
    usages: UsageTable,
    /// Whether copies on the host of what the device has used since go first.
    copies_first: bool,
    /// Blocks whose copies are in the air, by the tiers that they go from and to, but for flights
    /// that are overdue.
    in_flight: [[u32; MAX_TIERS]; MAX_TIERS],
    scratch: Scratch,
    parkings: u64,
    /// Device blocks promised for the growth of the running batch, and for no lease in particular.
    headroom: u32,
    /// The most blocks that a begin has taken.
    largest: u32,
    /// The place of the running sequence that was copied down last, ahead of need.
    turn: u32,
    orphans: Orphans,
    /// The last step that the engine has done.
    done: Option<u64>,
    /// How many leases have ended their loads.
    loaded: u64,
    /// Keys whose values the stores are deleting, and by how many flights: none of them is adopted.
    deleting: BTreeMap<Key, u32>,
    /// Blocks passed on walks towards the root, counted in debug builds alone.
    climbed: u64,
    /// What a listener will be told, while there is one.
    events: Option<Box<Events>>,
}

/// What a verb fills anew before it reads it: kept, so that no verb allocates for it.
#[derive(Debug, Default)]
struct Scratch {
    /// The path that the last match found, and its runs below the device.
    path: Vec<NodeIx>,
    runs: Runs,
    /// Whether that path has orphans: a verb that uses it links them again first.
    loose: bool,
    /// The next victims.
    victims: Vec<SlotIx>,
    /// Their blocks, or those of a path on its way down.
    nodes: Vec<NodeIx>,
    /// Keys of blocks that a request has used which ends, and what is known of each.
    uses: Vec<(u64, Usage)>,
    /// The tags of the keys that are looked up next.
    tags: Vec<Tag>,
    /// Copies of a path that land together.
    run: Vec<Move>,
}

impl State {
    pub(crate) fn new(config: Config) -> Result<Self> {
        config.fits(None)?;
        let tiers = (0..config.slots.len())
            .map(|tier| TierState::new(&config, Tier(tier)))
            .collect::<Result<Vec<_>>>()?;
        let blocks = config.resting(&config.sizes()).iter().sum();
        Ok(Self {
            usages: UsageTable::new(blocks, config.policy.asks())?,
            copies_first: config.copies_first(),
            trie: Trie::new(&config.resting(&config.sizes()))?,
            tiers: Tiers::new(tiers),
            leases: Arena::new(),
            roots: Roots::default(),
            parked: Arena::new(),
            tickets: Arena::new(),
            holdings: Arena::new(),
            held_slots: None,
            flights: Arena::new(),
            held: Vec::new(),
            counters: Counters::default(),
            ghosts: config
                .ghost_keys()
                .map(|keys| Ghosts::new(keys, config.counts_uses()))
                .transpose()?,
            in_flight: [[0; MAX_TIERS]; MAX_TIERS],
            scratch: Scratch::default(),
            parkings: 0,
            headroom: 0,
            largest: 0,
            turn: 0,
            orphans: Orphans {
                torn: config.engine,
                known: false,
            },
            done: None,
            loaded: 0,
            deleting: BTreeMap::new(),
            climbed: 0,
            events: None,
            config,
        })
    }

    pub(crate) fn blocks_of(&self, tokens: u64) -> u64 {
        tokens.div_ceil(u64::from(self.config.block_size))
    }

    /// The lease's record, or why its handle is no good.
    pub(crate) fn lease(&self, id: LeaseId) -> Result<LeaseIx> {
        let open = |lease: &Running| !lease.has_ended();
        self.leases.place_of(id.0, "lease", open)
    }

    pub(crate) fn parked(&self, id: ParkedId) -> Result<ParkedIx> {
        let open = |parked: &Parked| parked.lease.is_none();
        self.parked.place_of(id.0, "parked sequence", open)
    }

    /// Blocks of a tier that are the headroom.
    fn headroom_on(&self, tier: Tier) -> u32 {
        if tier == Tier::DEVICE {
            self.headroom
        } else {
            0
        }
    }

    /// All parked sequences, the youngest first: an order that is the same on every rank.
    fn youngest_first(&self) -> Vec<ParkedIx> {
        let parked = self.parked.iter();
        let mut parked: Vec<_> = parked.map(|(index, one)| (one.order, index)).collect();
        parked.sort_unstable_by_key(|&(order, _)| std::cmp::Reverse(order));
        parked.into_iter().map(|(_, index)| index).collect()
    }

    pub(crate) fn lease_id(&self, lease: LeaseIx) -> LeaseId {
        LeaseId(self.leases.id(lease))
    }

    /// Whether `clear` has detached it.
    pub(crate) fn detached(&self, lease: LeaseIx) -> bool {
        self.leases[lease].epoch != self.trie.epoch()
    }

    /// Counters and sizes in one reading.
    pub fn stats(&self) -> Stats {
        Stats {
            tiers: self
                .tiers
                .iter()
                .map(|tier_state| TierStats::of(tier_state.ledger()))
                .collect(),
            leases: self.leases.len() as u64,
            parked: self.parked.len() as u64,
            tickets: self.tickets.len() as u64,
            held_blocks: self.held_blocks(),
            flights: self.flights.len() as u64,
            voiding: self.voiding(),
            blocks: self.trie.len() as u64,
            epoch: u64::from(self.trie.epoch()),
            largest: u64::from(self.largest),
            counters: self.counters,
        }
    }
}
