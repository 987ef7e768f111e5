//! Every transition of the yard, as plain `&mut self` arithmetic: no I/O, no clock, no lock. One
//! file per verb; this one holds what they share, and `transitions.rs` the moves between sets.

mod admit;
mod audit;
mod begin;
mod block_table;
mod clear;
mod dedup;
mod demote;
mod digest;
mod dry_run;
mod engine;
mod evict;
mod finish;
mod flights;
mod fork;
mod grow;
mod headroom;
mod holders;
mod idle;
mod keep;
mod land;
mod park;
mod parked;
mod place;
mod probe;
mod promote;
mod resize;
mod restore;
mod resume;
mod runs;
mod seal;
mod stow;
mod stow_kept;
mod ticket;
mod tier;
mod transitions;
mod view;
mod withdraw;

pub use audit::Violation;
pub use begin::{Filling, Request};
pub use block_table::Cells;
pub use demote::WritePolicy;
pub use dry_run::Need;
pub use engine::{Fetch, Wanted};
pub use holders::{Holder, HolderId, Pending, Room};
pub use idle::HostCopies;
pub use probe::{Probe, Stop};
pub use runs::MAX_RUNS;
pub use seal::Sealing;
pub use view::{ParkedView, View};

pub(crate) use tier::{Descent, TierState, Tiers};

use crate::arena::{Arena, Found};
use crate::cost::Speeds;
use crate::error::{Error, Result};
use crate::evict::{Evict, EvictionPolicy, Policy};
use crate::flight::Flight;
use crate::ghost::Ghosts;
use crate::id::{
    FlightId, Id, LeaseId, LeaseIx, MAX_TIERS, NodeIx, ParkedId, ParkedIx, SlotIx, Tier,
};
use crate::index::Tag;
use crate::ledger::Ledger;
use crate::life::Lives;
use crate::memory;
use crate::plan::Plan;
use crate::pool::{Cell, Pool};
use crate::record::{Held, Parked, Running, Ticket};
use crate::stats::{Counters, Stats, TierStats};
use crate::trie::Trie;
use runs::Runs;

/// How a yard is built; the same on every rank.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Config {
    /// Tokens per block.
    pub block_size: u32,
    /// Slots per tier, the device first. A lower tier may have none.
    pub slots: Vec<u32>,
    /// Leading device slots that pad block tables and are never given out.
    pub null_slots: u32,
    /// Whether the engine gives out the blocks of the device itself: they are numbers in plans then,
    /// and none is given out, filled or evicted here.
    pub engine: bool,
    /// Eviction policy of every tier.
    pub policy: EvictionPolicy,
    /// When copies on the host of what the device has too are evicted; `None`: as suits the policy.
    pub host_copies: Option<HostCopies>,
    /// What is copied down from the device ahead of need.
    pub write: WritePolicy,
    /// The same of each tier below the device; where none is given, the next victims.
    pub writes_below: Vec<WritePolicy>,
    /// Keys of dropped blocks to remember, for [`WritePolicy::SecondTouch`] and the learned order; `None`: four per slot for the one, of 4 bytes
    /// each, and 1.75 of 2 bytes for the other.
    pub ghosts: Option<u32>,
    /// Gates the loads of begins; `None`: every load is taken.
    pub speeds: Option<Speeds>,
    /// Whether the engine can recompute KV that was lost. A decode-only instance may not.
    pub recompute: bool,
    /// How often a failed copy down is tried again. After that, the keep of a kept block is broken,
    /// and no copy of another block is made ahead of need any more.
    pub copy_retries: u32,
    /// Groups of layers; only 1 is supported.
    pub groups: u8,
    /// Tiers that must know the keys of their blocks: the plans that touch them carry them. The
    /// device cannot be one.
    pub keyed: [bool; MAX_TIERS],
}

impl Default for Config {
    fn default() -> Self {
        Self {
            block_size: 16,
            slots: Vec::new(),
            null_slots: 1,
            engine: false,
            policy: EvictionPolicy::Recency,
            host_copies: None,
            write: WritePolicy::OnEvict,
            writes_below: Vec::new(),
            ghosts: None,
            speeds: None,
            recompute: true,
            copy_retries: 3,
            groups: 1,
            keyed: [false; MAX_TIERS],
        }
    }
}

impl Config {
    /// The null slots of a tier: the device alone has some; all of one that is the engine's.
    pub(crate) fn null_slots_of(&self, tier: Tier) -> u32 {
        match (tier, self.engine) {
            (Tier::DEVICE, false) => self.null_slots,
            (Tier::DEVICE, true) => self.slots[0],
            _ => 0,
        }
    }

    /// What is copied down from a tier ahead of need.
    #[inline]
    pub(crate) fn write_of(&self, tier: Tier) -> WritePolicy {
        match tier.at().checked_sub(1) {
            None => self.write,
            Some(below) => self.writes_below.get(below).copied().unwrap_or_default(),
        }
    }

    /// Whether blocks that are used again go down from any tier, so that ghosts say which they are.
    #[inline]
    fn counts_uses(&self) -> bool {
        let second = WritePolicy::SecondTouch;
        self.write == second || self.writes_below.contains(&second)
    }

    /// Bytes of what came to a tier of that many slots last, where it is told in that order.
    fn fresh_bytes(&self, tier: Tier, slots: usize) -> usize {
        match self.write_of(tier) {
            WritePolicy::Through => slots * size_of::<Id<NodeIx>>(),
            _ => 0,
        }
    }

    /// Whether a yard of this configuration can be made where so much memory is there, in bytes;
    /// `None`: as much as the system grants.
    ///
    /// # Errors
    /// `Argument` and `Unsupported`, naming the value; `Memory` with what the bookkeeping takes, all
    /// of which is made at once. What leases and flights take later is not in it.
    pub fn fits(&self, there: Option<u64>) -> Result<()> {
        check(self)?;
        let ghosts = self
            .ghost_keys()
            .map_or(0, |keys| Ghosts::bytes(keys, self.counts_uses())) as u64;
        let bytes = self.bytes(&self.sizes()) + ghosts;
        memory::ask(bytes, there, "the bookkeeping of so many slots")
    }

    /// Whether copies on the host of what the device has used since go first.
    pub(crate) fn copies_first(&self) -> bool {
        let own = self.host_copies == Some(HostCopies::First);
        own || (self.host_copies.is_none() && self.policy == EvictionPolicy::Learned)
    }

    /// Blocks that a tier holds together with those above it, where the tiers have these sizes.
    pub(crate) fn room_of(&self, tier: Tier, slots: &[usize]) -> usize {
        slots[..=tier.at()].iter().sum()
    }

    /// Bytes of the bookkeeping of tiers of these sizes, without the ghosts, which a resize leaves
    /// as they are.
    pub(crate) fn bytes(&self, slots: &[usize]) -> u64 {
        let each = size_of::<Cell>() + Policy::bytes(self.policy, !self.copies_first());
        let each = each + Lives::bytes(self.policy.learns(), self.policy.weighs());
        let fresh = (0..slots.len()).map(|tier| self.fresh_bytes(Tier(tier), slots[tier]));
        let fresh = fresh.sum::<usize>();
        let trie = Trie::bytes(&self.resting(slots));
        (slots.iter().sum::<usize>() * each + trie + fresh) as u64
    }

    /// Slots per tier, of these, in which a block may rest: none of those that are an engine's.
    pub(crate) fn resting(&self, slots: &[usize]) -> Vec<usize> {
        let mut resting = slots.to_vec();
        if self.engine {
            resting[Tier::DEVICE.at()] = 0;
        }
        resting
    }

    fn sizes(&self) -> Vec<usize> {
        self.slots.iter().map(|&slots| slots as usize).collect()
    }

    /// How many keys are remembered, if any are.
    fn ghost_keys(&self) -> Option<u32> {
        let all = self.sizes().iter().sum::<usize>();
        // The learned order loses a point of hits on short traces with one per slot, and gains none with
        // four.
        let own = if self.counts_uses() {
            4 * all
        } else {
            all + all / 4 * 3
        };
        let keys = self.ghosts.map_or(own, |ghosts| ghosts as usize);
        let keys = keys.min(MOST_GHOSTS as usize) as u32;
        ((self.counts_uses() || self.policy == EvictionPolicy::Learned) && keys > 0).then_some(keys)
    }
}

impl Descent {
    /// Makes room for all that may have come to a tier of that many slots, where it is told in that
    /// order.
    pub(crate) fn reserve(&mut self, config: &Config, tier: Tier, slots: usize) -> Result<()> {
        if config.write_of(tier) != WritePolicy::Through {
            return Ok(());
        }
        let more = slots.saturating_sub(self.fresh.len());
        let had = self.fresh.try_reserve_exact(more);
        had.map_err(|_| memory::lacking::<Id<NodeIx>>("what was published last", slots))
    }
}

/// Slots that a tier may have: block tables are int32, and list heads need a few numbers.
const MOST_SLOTS: u32 = i32::MAX as u32 - 16;

/// Ghosts that a yard may have: 4 bytes each, or 2.
const MOST_GHOSTS: u32 = 1 << 30;

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
    pub(crate) parked: Arena<Parked>,
    pub(crate) tickets: Arena<Ticket>,
    pub(crate) flights: Arena<Flight>,
    pub(crate) held: Vec<Held>,
    pub(crate) counters: Counters,
    /// Blocks that were dropped from every tier, under [`WritePolicy::SecondTouch`].
    ghosts: Option<Ghosts>,
    /// What is known of the blocks' uses, as far as the policy asks for it.
    lives: Lives,
    /// Whether copies on the host of what the device has used since go first.
    copies_first: bool,
    /// Blocks whose copies are in the air, by the tiers that they go from and to, but for flights
    /// that are overdue.
    in_flight: [[u32; MAX_TIERS]; MAX_TIERS],
    /// The path that the last match found, reused so that a match allocates nothing, and its runs
    /// below the device.
    path: Vec<NodeIx>,
    runs: Runs,
    /// Whether it has orphans: a verb that uses it links them again first.
    loose: bool,
    /// The next victims and their blocks, reused likewise.
    ahead: Vec<SlotIx>,
    nodes: Vec<NodeIx>,
    /// The tags of the keys that are looked up next, likewise.
    tags: Vec<Tag>,
    parkings: u64,
    /// Device blocks promised for the growth of the running batch, and for no lease in particular.
    headroom: u32,
    /// The last step that the engine has done.
    done: Option<u64>,
    /// Blocks passed on walks towards the root, counted in debug builds alone.
    climbed: u64,
}

impl State {
    pub(crate) fn new(config: Config) -> Result<Self> {
        config.fits(None)?;
        let tiers = (0..config.slots.len())
            .map(|tier| {
                let slots = config.slots[tier];
                let null = config.null_slots_of(Tier(tier));
                let mut ledger = Ledger::default();
                ledger.enter(slots - null);
                let mut descent = Box::<Descent>::default();
                descent.reserve(&config, Tier(tier), slots as usize)?;
                let order = Policy::new(
                    config.policy,
                    slots as usize,
                    config.room_of(Tier(tier), &config.sizes()),
                    !config.copies_first() || Tier(tier) != Tier::HOST,
                )?;
                Ok(TierState {
                    pool: Pool::new(slots, null)?,
                    sorted: order.sorted(),
                    order,
                    ledger,
                    descent,
                })
            })
            .collect::<Result<Vec<_>>>()?;
        let blocks = config.resting(&config.sizes()).iter().sum();
        Ok(Self {
            lives: Lives::new(blocks, config.policy.learns(), config.policy.weighs())?,
            copies_first: config.copies_first(),
            trie: Trie::new(&config.resting(&config.sizes()))?,
            tiers: Tiers::new(tiers),
            leases: Arena::new(),
            parked: Arena::new(),
            tickets: Arena::new(),
            flights: Arena::new(),
            held: Vec::new(),
            counters: Counters::default(),
            ghosts: config
                .ghost_keys()
                .map(|keys| Ghosts::new(keys, config.counts_uses()))
                .transpose()?,
            in_flight: [[0; MAX_TIERS]; MAX_TIERS],
            path: Vec::new(),
            runs: Runs::default(),
            loose: false,
            ahead: Vec::new(),
            nodes: Vec::new(),
            tags: Vec::new(),
            parkings: 0,
            headroom: 0,
            done: None,
            climbed: 0,
            config,
        })
    }

    pub(crate) fn blocks_of(&self, tokens: u64) -> u64 {
        tokens.div_ceil(u64::from(self.config.block_size))
    }

    /// The lease's record, or why its handle is no good.
    pub(crate) fn lease(&self, id: LeaseId) -> Result<LeaseIx> {
        match self.leases.find(id.0) {
            Found::Live if !self.leases[id.at()].has_ended() => Ok(id.at()),
            Found::Never => Err(Error::Foreign {
                what: "lease",
                number: id.number(),
            }),
            _ => Err(Error::Spent {
                what: "lease",
                number: id.number(),
            }),
        }
    }

    pub(crate) fn parked(&self, id: ParkedId) -> Result<ParkedIx> {
        match self.parked.find(id.0) {
            Found::Live if self.parked[id.at()].lease.is_none() => Ok(id.at()),
            Found::Never => Err(Error::Foreign {
                what: "parked sequence",
                number: id.number(),
            }),
            _ => Err(Error::Spent {
                what: "parked sequence",
                number: id.number(),
            }),
        }
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
                .map(|tier_state| TierStats::of(&tier_state.ledger))
                .collect(),
            leases: self.leases.len() as u64,
            parked: self.parked.len() as u64,
            tickets: self.tickets.len() as u64,
            flights: self.flights.len() as u64,
            blocks: self.trie.len() as u64,
            epoch: u64::from(self.trie.epoch()),
            counters: self.counters,
        }
    }
}

fn check(config: &Config) -> Result<()> {
    if config.block_size == 0 {
        return Err(Error::argument("block_size", 0, "must be >= 1"));
    }
    if config.groups != 1 {
        return Err(Error::Unsupported {
            what: "groups",
            value: u64::from(config.groups),
            help: "only one group of layers works so far; use one cache per group",
        });
    }
    if config.keyed[Tier::DEVICE.at()] {
        let help = "the device names its blocks by slot alone: name tiers below it";
        return Err(Error::argument("keyed", Tier::DEVICE.name(), help));
    }
    if config.slots.is_empty() || config.slots.len() > MAX_TIERS {
        let help = "give the slots of one tier or more, the device first, and of three at most";
        return Err(Error::argument("tiers", config.slots.len(), help));
    }
    let device = config.slots[0];
    if device <= config.null_slots && !config.engine {
        let help = "must be more than the null slots";
        return Err(Error::argument("device", device, help));
    }
    if let Some(&slots) = config.slots.iter().find(|&&slots| slots > MOST_SLOTS) {
        return Err(Error::argument(
            "slots",
            slots,
            "a tier has at most 2,147,483,631 blocks",
        ));
    }
    if let Some(ghosts) = config.ghosts.filter(|&ghosts| ghosts > MOST_GHOSTS) {
        let help = "at most 1,073,741,824 keys are remembered; leave it out for four per slot";
        return Err(Error::argument("ghosts", ghosts, help));
    }
    Ok(())
}
