//! The records of running and parked sequences, and of tickets: what they hold. The handles are in
//! `lease.rs`.

use crate::arena::Record;
use crate::id::{LeaseId, LeaseIx, Link, NodeIx, ParkedIx, Retention, SlotIx, TicketIx, Tier};

/// A running sequence.
#[derive(Hash, Debug, Default)]
pub(crate) struct Running {
    pub(crate) link: Option<Link<LeaseIx>>,
    /// Device slots of its blocks, in order.
    pub(crate) table: Vec<SlotIx>,
    /// Token positions it has, or asked, slots for.
    pub(crate) tokens: u64,
    /// Blocks up to which growth is promised.
    pub(crate) limit: u32,
    /// Blocks up to which growth was promised at the start: what a trim promises again.
    pub(crate) reserve_limit: u32,
    /// Leading blocks that are published or stand beside the published one.
    pub(crate) sealed: u32,
    /// Leading tokens whose KV was there at the start, once its flights have landed.
    pub(crate) cached: u64,
    pub(crate) epoch: u32,
    /// Table cells that `block_tables` has written already.
    pub(crate) shown: u32,
    /// Flights in flight for it.
    pub(crate) loading: u32,
    /// The parked sequence it was resumed from, until its loads have landed.
    pub(crate) resumed: Option<ParkedIx>,
    /// A load of its resume did not come whole.
    pub(crate) short: bool,
    /// Its handle is spent; it is released when its flights have landed.
    pub(crate) ended: Option<Retention>,
}

impl Running {
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
    /// It lost its keeps, whole.
    pub(crate) broken: bool,
    /// The lease that is resuming it.
    pub(crate) lease: Option<LeaseId>,
}

/// Blocks of a tier promised to somebody who does not have them yet.
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

/// Slots held back for a step in flight.
#[derive(Hash, Debug)]
pub(crate) struct Held {
    pub(crate) step: u64,
    pub(crate) table: Vec<SlotIx>,
    pub(crate) retention: Retention,
    pub(crate) epoch: u32,
}

impl Record for Running {
    type Ix = LeaseIx;
    fn link(&self) -> Option<Link<LeaseIx>> {
        self.link
    }
    fn set_link(&mut self, link: Option<Link<LeaseIx>>) {
        self.link = link;
    }
}

impl Record for Parked {
    type Ix = ParkedIx;
    fn link(&self) -> Option<Link<ParkedIx>> {
        self.link
    }
    fn set_link(&mut self, link: Option<Link<ParkedIx>>) {
        self.link = link;
    }
}

impl Record for Ticket {
    type Ix = TicketIx;
    fn link(&self) -> Option<Link<TicketIx>> {
        self.link
    }
    fn set_link(&mut self, link: Option<Link<TicketIx>>) {
        self.link = link;
    }
}
