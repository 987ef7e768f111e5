//! What is in flight: the record of a plan until the end of its copies is known.

use super::plan::End;
use crate::base::{FlightIx, Id, Ix as _, Key, LeaseId, Link, NodeIx, ParkedId, SlotIx, Tier};
use crate::collections::{Record, lends_link};

/// What a flight is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) enum Purpose {
    /// A vacant record.
    #[default]
    Nothing,
    /// Copies of blocks to a tier below the device; for a parked sequence, if one asked.
    Below { parked: Option<ParkedId> },
    /// The blocks of this lease's table from `base` on, which are published when they land.
    Up { lease: LeaseId, base: u32 },
    /// One block of this lease's table that stays private: a fork's partial block, or the last
    /// block of a full hit. `None`: the lease gave it up.
    Private { lease: Option<LeaseId>, block: u32 },
    /// Copies from the blocks of an engine that gives them out itself to a tier below.
    Offload,
    /// Copies to such blocks.
    Fetch,
    /// No copies: a keyed tier drops the records of its keys, and of what stands on them.
    Void,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Move {
    /// The block that is copied; `None` for a private one.
    pub(crate) node: Option<Id<NodeIx>>,
    pub(crate) from: SlotIx,
    pub(crate) to: SlotIx,
}

#[derive(Hash, Debug, Default)]
pub(crate) struct Flight {
    link: Option<Link<FlightIx>>,
    pub(crate) from: Tier,
    pub(crate) to: Tier,
    pub(crate) purpose: Purpose,
    pub(crate) moves: Vec<Move>,
    /// The keys of the blocks when it was launched, where one of its tiers is keyed.
    pub(crate) keys: Vec<Key>,
    /// Those of their parents, where the tier that it fills is.
    pub(crate) parents: Vec<Key>,
    /// When it was opened.
    pub(crate) epoch: u32,
    /// How its copies have ended, while it waits for an earlier flight of its lease to land.
    pub(crate) ended: Option<(u32, End)>,
    /// Its deadline has passed: its destinations are quarantined until its outcome comes, which is not
    /// believed then.
    pub(crate) overdue: bool,
    /// What it reads is held for it.
    pub(crate) reads: bool,
    /// Places of the blocks that a prompt has found by unproven names, and that count as hits once they are
    /// good.
    pub(crate) unproven: Vec<u32>,
    /// Its number among all that were launched.
    pub(crate) launched: u64,
    /// The same until its plan was dispatched.
    pub(crate) waits: Option<u64>,
}

impl Flight {
    pub(crate) fn new(from: Tier, to: Tier, purpose: Purpose, epoch: u32) -> Self {
        Self {
            link: None,
            from,
            to,
            purpose,
            moves: Vec::new(),
            keys: Vec::new(),
            parents: Vec::new(),
            epoch,
            ended: None,
            overdue: false,
            reads: true,
            unproven: Vec::new(),
            launched: 0,
            waits: None,
        }
    }

    /// Blocks of its plan: those that it copies, or whose records it has voided.
    pub(crate) fn len(&self) -> usize {
        if self.purpose == Purpose::Void {
            self.keys.len()
        } else {
            self.moves.len()
        }
    }

    /// Whether its lease has given up what it brings: that is not believed, a checksum neither.
    pub(crate) fn is_given_up(&self) -> bool {
        matches!(self.purpose, Purpose::Private { lease: None, .. })
    }

    /// Source and destination of each block of its plan.
    pub(crate) fn copies(&self) -> impl Iterator<Item = (u32, u32)> {
        let voided = self.len() - self.moves.len();
        let moves = self
            .moves
            .iter()
            .map(|step| (step.from.get(), step.to.get()));
        moves.chain(std::iter::repeat_n((0, 0), voided))
    }

    /// The blocks of its moves from this one on.
    pub(crate) fn blocks_from(&self, first: usize) -> impl Iterator<Item = Id<NodeIx>> {
        let moves = self.moves.get(first..).unwrap_or_default();
        moves.iter().filter_map(|step| step.node)
    }
}

lends_link!(Flight: FlightIx);
