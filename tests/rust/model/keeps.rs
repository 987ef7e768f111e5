//! Parked sequences of the naive yard: how they are parked, what keeps their blocks where, and how
//! these go down.

use crate::down::Copies;
use crate::names::REMOTE;
use crate::yard::{Block, DEVICE, InFlight, Purpose, Stay, What, Yard};
use blockyard_core::{
    Error, Hints, Key, LeaseId, MAX_TIERS, ParkedId, Pending, Plan, Result, State, Tier,
};

impl Yard {
    pub(crate) fn park(
        &mut self,
        id: LeaseId,
        keys: &[Key],
        computed: u64,
        after: Option<u64>,
        answer: &Result<ParkedId>,
    ) {
        let seq = self.leases[&id].clone();
        if seq.incomplete {
            // Back to where it was; or, if its keeps are gone, it will be computed again.
            let parked = *answer.as_ref().expect("it comes back");
            let again = seq.resumed.map_or(
                Stay {
                    broken: true,
                    ..Stay::default()
                },
                |old| self.parked.remove(&old).expect("kept"),
            );
            self.parked.insert(
                parked,
                Stay {
                    lease: None,
                    ..again
                },
            );
            self.leases.remove(&id);
            return self.release(&seq.table, Hints::default());
        }
        let found = seq
            .cached
            .min(seq.tokens)
            .max(seq.sealed as u64 * self.block_size);
        if seq.epoch != self.epoch || self.refuses_sealing(id, computed) || computed < found {
            return assert!(
                matches!(answer, Err(Error::State { .. } | Error::Argument { .. })),
                "{answer:?}"
            );
        }
        let blocks = self.blocks_of(computed);
        let weak = self.recompute;
        let below = self.below(DEVICE).filter(|&tier| tier != REMOTE || weak);
        let below: Vec<usize> = below.collect();
        let capacity = below.iter().map(|&tier| self.size(tier)).max();
        if capacity.is_none_or(|most| blocks as u64 > most) {
            let error = Error::TooLarge {
                tier: Tier(self.below(DEVICE).next().unwrap_or(1)),
                need: blocks as u64,
                capacity: capacity.unwrap_or(0),
            };
            return assert_eq!(answer, &Err(error));
        }
        self.seal(id, keys, computed);
        let seq = self.leases[&id].clone();
        let mut path: Vec<Block> = seq.table[..seq.sealed.min(blocks)]
            .iter()
            .filter_map(|&slot| self.block_of(slot))
            .collect();
        assert_eq!(path.len(), seq.sealed);
        let known: Vec<Block> = seq.table[..blocks]
            .iter()
            .filter_map(|&slot| self.block_of(slot))
            .collect();
        let private = blocks - known.len();
        // A store is the last that is asked.
        let (weak, strong): (Vec<usize>, Vec<usize>) =
            below.iter().partition(|&&tier| tier == REMOTE);
        let homes = [&strong, &weak].into_iter().flat_map(|tiers| {
            let each = |only| tiers.iter().map(move |&home| (home, only));
            [false, true].into_iter().flat_map(each)
        });
        let tried = homes.map(|home| self.keep_at(&known, private, home));
        let tried: Vec<Result<(usize, bool), Error>> = tried.collect();
        let Some(&home) = tried.iter().find_map(|answer| answer.as_ref().ok()) else {
            let error = tried.into_iter().find_map(Result::err);
            return assert_eq!(answer.as_ref().err(), error.as_ref());
        };
        let parked = *answer.as_ref().expect("there is room");
        for &slot in &seq.table[path.len()..blocks] {
            let block = self.block_of(slot).unwrap_or_else(|| {
                let block = self.add(None, path.last().copied());
                self.adopt(block, slot);
                block
            });
            path.push(block);
        }
        self.settle_at(&path, home);
        let lacks = |&block: &Block| !self.at_home(block);
        let on_device = path.iter().rposition(lacks).map_or(0, |at| at + 1);
        self.parkings += 1;
        let stay = Stay {
            path,
            on_device,
            computed,
            order: self.parkings,
            ..Stay::default()
        };
        self.parked.insert(parked, stay);
        self.leases.remove(&id);
        self.hold_or_release(seq.table, Hints::default(), after);
    }

    /// What is not kept yet has its home on the lowest tier that has it, or else on this one; or on
    /// this one only.
    fn settle_at(&mut self, path: &[Block], (home, only): (usize, bool)) {
        for &block in path {
            if !self.kept(block) {
                // What a store has may be lost there.
                let lowest =
                    (1..self.tiers.min(REMOTE)).rfind(|&tier| self.ready(block, tier).is_some());
                self.blocks[block].home = lowest.filter(|_| !only).unwrap_or(home);
            }
        }
    }

    /// The same answer, if what keeping these blocks takes of each tier can be had there; private ones
    /// are owed a slot each.
    fn keep_at(
        &self,
        path: &[Block],
        private: usize,
        home: (usize, bool),
    ) -> Result<(usize, bool), Error> {
        let mut then = self.clone();
        then.settle_at(path, home);
        let id = ParkedId::from_number(u64::MAX).expect("a number");
        let stay = Stay {
            path: path.to_vec(),
            ..Stay::default()
        };
        then.parked.insert(id, stay);
        for tier in 1..self.tiers {
            let cost =
                |yard: &Self| yard.promised(tier).cast_signed() - yard.takeable(tier).cast_signed();
            let private = if tier == home.0 { private as u64 } else { 0 };
            let mut need = (cost(&then) - cost(self)).cast_unsigned() + private;
            if tier == home.0 {
                // No copy of it was acknowledged, and it has no slot to be copied to.
                let new = path.iter().filter(|&&block| !self.kept(block));
                let hearsay = new.filter(|&&block| {
                    then.blocks[block].home == tier && self.is_hearsay(block, tier)
                });
                need += hearsay.count() as u64 * (self.most_fresh[tier] as u64 + 1);
            }
            if need > self.spare(tier) as u64 {
                return Err(self.no_room(tier, need, self.takeable(tier)));
            }
        }
        Ok(home)
    }

    /// Copies of a parked sequence's blocks from the device to where they belong, those of one home
    /// at a time, the deepest first.
    pub(crate) fn demote_parked(
        &mut self,
        state: &State,
        id: ParkedId,
        most: usize,
        plan: Option<&Plan>,
    ) {
        let stay = &self.parked[&id];
        let path = stay.path[..stay.on_device].iter().rev().copied();
        let path: Vec<Block> = path.collect();
        let lacks = |block: &&Block| {
            let home = self.blocks[**block].home;
            self.ready(**block, DEVICE).is_some() && self.is_owed(**block, home)
        };
        let Some(&first) = path.iter().find(lacks) else {
            return assert_eq!(plan, None, "nothing lacks a copy");
        };
        let to = self.blocks[first].home;
        let owed = path.iter().filter(lacks);
        let owed = owed.filter(|&&block| self.blocks[block].home == to);
        // It was promised, so that it always can.
        let owed = owed.count().min(most);
        assert_eq!(plan.map_or(0, Plan::len), owed, "of what tier {to} owes");
        let copies = Copies {
            from: DEVICE,
            to,
            most,
            parked: Some(id),
        };
        self.copy_down(state, &path, copies, plan);
    }

    /// A parked sequence moves to this tier: what has its home above it is copied there, the deepest
    /// first, from one tier at a time; what is there already has its home there at once.
    pub(crate) fn rehome(
        &mut self,
        state: &State,
        id: ParkedId,
        to: usize,
        most: usize,
        answer: &Result<Option<Plan>>,
    ) {
        let weak = to == REMOTE && !self.recompute;
        if to == DEVICE || to >= self.tiers || self.size(to) == 0 || weak {
            return assert!(matches!(answer, Err(Error::Argument { .. })), "{answer:?}");
        }
        let plan = answer.as_ref().expect("a tier with slots").as_ref();
        self.see_room(state, to, plan);
        let mut flight = InFlight {
            from: plan.map_or(DEVICE, |plan| plan.from.0),
            to,
            purpose: Purpose::Down(Some(id)),
            moves: Vec::new(),
            overdue: false,
            reads: true,
            hearsay: Vec::new(),
            ended: None,
        };
        let path: Vec<Block> = self.parked[&id].path.iter().rev().copied().collect();
        let mut source = None;
        for block in path {
            let (copied, home) = (flight.moves.len(), self.blocks[block].home);
            if copied == most {
                break;
            }
            if home >= to || self.filling(block, to).is_some() || self.is_hearsay(block, to) {
                continue;
            }
            if self.ready(block, to).is_some() {
                self.blocks[block].home = to;
                if self.unbacked(to) {
                    self.blocks[block].home = home;
                }
                continue;
            }
            let tier = if self.at_home(block) { home } else { DEVICE };
            if *source.get_or_insert(tier) != tier {
                continue;
            }
            let from = self.ready(block, tier).expect("it is somewhere");
            let Some((plan, &slot)) =
                plan.and_then(|plan| Some((plan, plan.destinations.get(copied)?)))
            else {
                assert!(
                    !self.has_room(block, tier, to),
                    "block {block} was passed over"
                );
                break;
            };
            assert_eq!(
                (plan.from, plan.to, plan.sources[copied]),
                (Tier(tier), Tier(to), from)
            );
            self.take(to, slot, What::Filling(Some(block)));
            self.blocks[block].slots[to] = Some(slot);
            flight.moves.push((Some(block), from, slot));
            self.flights.insert(plan.flight, flight.clone());
        }
        assert_eq!(flight.moves.len(), plan.map_or(0, Plan::len));
        self.shrink_keeps();
    }

    /// What of a parked sequence moves, and what could be evicted were its copies home ready.
    pub(crate) fn pending(&self, id: ParkedId) -> Pending {
        let stay = &self.parked[&id];
        let path = &stay.path[..stay.on_device];
        let moves = |&block: &Block| !self.at_home(block) && self.moves_to(block).is_some();
        let mut then = self.clone();
        then.parked.get_mut(&id).expect("it is parked").on_device = 0;
        for flight in then.flights.values_mut() {
            flight.moves.retain(|&(block, _, to)| {
                let moves = block.filter(|block| path.contains(block) && moves(block));
                let brings = |block| {
                    (flight.to, self.block_in(flight.to, to))
                        == (self.moves_to(block).expect("it moves"), Some(block))
                };
                !moves.is_some_and(brings)
            });
        }
        let may = then.may_go(DEVICE);
        let goes = |block: &&Block| {
            let slot = self.blocks[**block].slots[DEVICE].expect("it is on the device");
            may.contains(&slot) && self.stays(DEVICE, slot) && !moves(block)
        };
        Pending {
            moving: path.iter().filter(|block| moves(block)).count() as u32,
            alone: path.iter().filter(goes).count() as u32,
        }
    }

    /// Where a copy of a kept block is on its way that lets its device copy go: its home, or below.
    fn moves_to(&self, block: Block) -> Option<usize> {
        let mut below = self.blocks[block].home..self.tiers;
        below.find(|&tier| self.filling(block, tier).is_some())
    }

    /// A record's keeps go; anonymous blocks that no record keeps any more dissolve.
    pub(crate) fn unkeep(&mut self, id: ParkedId) {
        loop {
            let stay = self.parked.get_mut(&id).expect("parked");
            let Some(block) = stay.path.pop() else { break };
            stay.on_device = stay.on_device.min(stay.path.len());
            if self.blocks[block].key.is_some() || self.kept(block) {
                continue;
            }
            for tier in (0..MAX_TIERS).rev() {
                let Some(slot) = self.blocks[block].slots[tier].take() else {
                    continue;
                };
                match self.slots[tier][&slot] {
                    What::Filling(_) => {
                        self.slots[tier].insert(slot, What::Filling(None));
                    }
                    _ if tier == DEVICE && self.in_table(slot) => {
                        self.slots[DEVICE].insert(slot, What::Owned);
                    }
                    _ => self.give_back(tier, slot),
                }
            }
            // What has lost its last child on a tier leaves it before its own keep ends.
            self.retire();
        }
        self.settle();
    }

    pub(crate) fn end_keep(&mut self, id: ParkedId) {
        self.unkeep(id);
        self.parked.remove(&id);
    }

    pub(crate) fn break_keep(&mut self, id: ParkedId) {
        if !self.parked[&id].broken {
            self.unkeep(id);
            self.parked.get_mut(&id).expect("parked").broken = true;
        }
    }

    /// The youngest whole record that holds something on the tier: on the device any may.
    pub(crate) fn youngest(&self, tier: usize) -> Option<ParkedId> {
        let holds = |stay: &Stay| {
            tier == DEVICE
                || stay
                    .path
                    .iter()
                    .any(|&block| self.blocks[block].home == tier)
        };
        let whole = self.parked.iter();
        let whole = whole.filter(|(_, stay)| !stay.broken && holds(stay));
        whole.max_by_key(|(_, stay)| stay.order).map(|(&id, _)| id)
    }

    pub(crate) fn break_unbacked(&mut self, tier: usize) {
        while self.unbacked(tier) {
            let youngest = self
                .youngest(tier)
                .expect("a ticket never loses its backing");
            self.break_keep(youngest);
        }
    }

    /// Device copies that only held the path of a keep are let go once what is below is ready.
    pub(crate) fn shrink_keeps(&mut self) {
        let mut all: Vec<ParkedId> = self.parked.keys().copied().collect();
        all.sort_by_key(|id| id.number() as u32);
        for id in all {
            let stay = &self.parked[&id];
            let lacks = |&block: &Block| !self.at_home(block);
            let on_device = stay.path.iter().rposition(lacks).map_or(0, |at| at + 1);
            self.parked.get_mut(&id).expect("parked").on_device = on_device;
            self.settle();
        }
    }
}
