//! The records of running and parked sequences, of tickets and of holds: what they hold. The handles are in
//! `api/lease.rs`.

use crate::base::{HoldingIx, LeaseId, LeaseIx, Link, NodeIx, ParkedIx, SlotIx, TicketIx, Tier};
use crate::collections::{Record, lends_link};
use crate::evict::Hints;

/// A running sequence. What every step looks at comes first: it is in one line of the cache.
#[derive(Hash, Debug, Default)]
#[repr(C)]
pub(crate) struct Running {
    pub(crate) link: Option<Link<LeaseIx>>,
    /// Table cells that `block_tables` has written already.
    pub(crate) shown: u32,
    /// Device slots of its blocks, in order.
    pub(crate) table: Vec<SlotIx>,
    /// Token positions it has, or asked, slots for.
    pub(crate) tokens: u64,
    pub(crate) phase: Phase,
    /// Blocks up to which growth is promised.
    pub(crate) limit: u32,
    /// Blocks up to which growth was promised at the start: what a trim promises again.
    pub(crate) reserve_limit: u32,
    /// Leading blocks that are published or stand beside the published one.
    pub(crate) sealed: u32,
    /// Leading tokens whose KV was there at the start, once its flights have landed.
    pub(crate) cached: u64,
    pub(crate) epoch: u32,
    /// How often it was trimmed: what was computed behind the cut before is not any more.
    pub(crate) trims: u32,
}

/// Where a sequence is in its life. It stands for the parked sequence that it `resumes` until the
/// blocks of that have come whole.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) enum Phase {
    /// It may run.
    #[default]
    Running,
    /// It may run when this many flights have landed.
    Loading {
        flights: u32,
        resumes: Option<ParkedIx>,
    },
    /// A load of its resume did not come whole: the engine recomputes, or parks it again.
    Short { resumes: ParkedIx },
    /// Its handle is spent; it is released when this many flights have landed.
    Ended {
        flights: u32,
        resumes: Option<ParkedIx>,
        hints: Hints,
    },
}

/// What is known of a sequence before its blocks have slots.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start {
    /// Token positions to have slots for.
    pub(crate) tokens: u64,
    /// Blocks up to which growth is promised.
    pub(crate) limit: u32,
    /// Leading blocks that are published.
    pub(crate) sealed: u32,
    /// Leading tokens whose KV is there, or will be.
    pub(crate) cached: u64,
    pub(crate) epoch: u32,
}

impl Running {
    /// A sequence without a table, so that its flights can name it; [`Self::start`] completes it.
    pub(crate) fn new(start: Start) -> Self {
        Self {
            tokens: start.tokens,
            limit: start.limit,
            reserve_limit: start.limit,
            sealed: start.sealed,
            cached: start.cached,
            epoch: start.epoch,
            ..Self::default()
        }
    }

    /// Gives it its table. It waits for its flights, if it has any, and runs otherwise.
    pub(crate) fn start(&mut self, table: Vec<SlotIx>, flights: usize, resumes: Option<ParkedIx>) {
        self.table = table;
        if flights > 0 {
            let flights = flights as u32;
            self.phase = Phase::Loading { flights, resumes };
        }
    }

    /// Whether its blocks are on their way.
    pub(crate) fn is_loading(&self) -> bool {
        matches!(self.phase, Phase::Loading { .. })
    }

    /// Flights that it waits for.
    pub(crate) fn loading(&self) -> u32 {
        match self.phase {
            Phase::Loading { flights, .. } | Phase::Ended { flights, .. } => flights,
            Phase::Running | Phase::Short { .. } => 0,
        }
    }

    /// One flight less is in flight for it. Returns how many still are.
    pub(crate) fn flight_ends(&mut self) -> u32 {
        match &mut self.phase {
            Phase::Loading { flights, .. } | Phase::Ended { flights, .. } => {
                *flights -= 1;
                *flights
            }
            Phase::Running | Phase::Short { .. } => {
                debug_assert!(false, "it waits for no flight");
                0
            }
        }
    }

    /// The parked sequence that it stands for.
    pub(crate) fn resumes(&self) -> Option<ParkedIx> {
        match self.phase {
            Phase::Loading { resumes, .. } | Phase::Ended { resumes, .. } => resumes,
            Phase::Short { resumes } => Some(resumes),
            Phase::Running => None,
        }
    }

    pub(crate) fn is_incomplete(&self) -> bool {
        matches!(self.phase, Phase::Short { .. })
    }

    /// Whether its handle is spent.
    #[inline]
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.phase, Phase::Ended { .. })
    }

    pub(crate) fn blocks(&self) -> u32 {
        self.table.len() as u32
    }

    /// Blocks promised and not taken.
    pub(crate) fn promised(&self) -> u32 {
        self.limit.saturating_sub(self.blocks())
    }
}

/// A parked sequence.
#[derive(Hash, Debug, Default)]
pub(crate) struct Parked {
    pub(crate) link: Option<Link<ParkedIx>>,
    /// Its blocks with content, root first; the last ones may be anonymous.
    pub(crate) path: Vec<NodeIx>,
    /// Leading blocks whose device copies it still pins: the last of them has no copy below.
    pub(crate) on_device: u32,
    /// Tokens whose KV it has: frozen at the stop.
    pub(crate) computed: u64,
    /// Blocks whose copy down failed, and how often since it was parked.
    pub(crate) failures: Vec<(NodeIx, u32)>,
    /// When it was parked, among all: the youngest keep is broken first.
    pub(crate) order: u64,
    pub(crate) keep: Keep,
    /// The lease that is resuming it.
    pub(crate) lease: Option<LeaseId>,
}

/// What has become of a parked sequence's keep.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) enum Keep {
    /// It protects every block of the path.
    #[default]
    Whole,
    /// It was given up: the path is empty, and the sequence is computed again.
    Broken,
}

/// Blocks of a tier promised to a sequence that does not have them yet.
#[derive(Hash, Debug, Default)]
pub(crate) struct Ticket {
    link: Option<Link<TicketIx>>,
    pub(crate) tier: Tier,
    pub(crate) blocks: u32,
}

impl Ticket {
    pub(crate) fn of(tier: Tier, blocks: u32) -> Self {
        Self {
            link: None,
            tier,
            blocks,
        }
    }
}

/// Blocks that stay where they are, for a reader outside.
#[derive(Hash, Debug, Default)]
pub(crate) struct Holding {
    link: Option<Link<HoldingIx>>,
    /// Slots of its blocks, in order.
    pub(crate) table: Vec<SlotIx>,
}

impl Holding {
    pub(crate) fn of(table: Vec<SlotIx>) -> Self {
        Self { link: None, table }
    }
}

/// Slots held back for a step in flight.
#[derive(Hash, Debug)]
pub(crate) struct Held {
    pub(crate) step: u64,
    pub(crate) table: Vec<SlotIx>,
    /// Tokens that its sequence had.
    pub(crate) tokens: u64,
    pub(crate) hints: Hints,
    pub(crate) epoch: u32,
}

lends_link!(Running: LeaseIx, Parked: ParkedIx, Ticket: TicketIx, Holding: HoldingIx);
