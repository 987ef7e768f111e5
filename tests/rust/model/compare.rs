//! All that a yard can be asked, beside what the naive yard would say.

use crate::names::REMOTE;
use crate::world::World;
use crate::yard::{Block, DEVICE, Yard};
use blockyard_core::{
    Answer, Error, Hints, HolderId, MAX_TIERS, Request, Room, State, Stats, Stop, Tier,
};
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Blocks per tier that are held, and that are promised.
type Held = ([u32; MAX_TIERS], [u32; MAX_TIERS]);

impl Yard {
    pub(crate) fn compare_questions(&self, state: &State) {
        let all = 0..self.tiers;
        let pairs = all
            .clone()
            .flat_map(|from| (0..self.tiers).map(move |to| (from, to)));
        let (mut down, mut up) = (0, 0);
        for (from, to) in pairs {
            let here = self.in_flight(from, to);
            assert_eq!(
                state.in_flight(Tier(from), Tier(to)),
                Ok(here),
                "{from} to {to}"
            );
            down += if from < to { here } else { 0 };
            up += if from > to { here } else { 0 };
        }
        assert_eq!(state.blocks_in_flight(), (down, up), "in flight");
        assert_eq!(state.loaded(), self.loaded, "ended loads");
        for tier in 1..self.tiers {
            let told = state.worth_loading(Tier(tier), 3, 1);
            assert_eq!(told, self.pays(tier, 3, 1), "from tier {tier}");
        }
        for tier in all {
            let room = Room {
                free: self.free(tier) as u32,
                evictable: self.takeable(tier) as u32,
                promised: self.promised(tier) as u32,
                available: (self.spare(tier) as u64).cast_signed(),
                headroom: if tier == DEVICE {
                    self.headroom as u32
                } else {
                    0
                },
                evicted: self.evicted[tier],
            };
            assert_eq!(state.room(Tier(tier)), Ok(room));
        }
        if self.tiers < MAX_TIERS {
            let none = state.room(Tier(self.tiers));
            assert!(matches!(none, Err(Error::Argument { name: "tier", .. })));
        }
        self.compare_holders(state);
    }

    /// What of a parked sequence's blocks is where it belongs, per tier.
    pub(crate) fn kept_on(&self, path: &[Block]) -> [u32; MAX_TIERS] {
        let mut kept = [0; MAX_TIERS];
        for &block in path.iter().filter(|&&block| self.at_home(block)) {
            kept[self.blocks[block].home] += 1;
        }
        kept
    }

    fn compare_holders(&self, state: &State) {
        let on = |tier: usize, blocks: usize| {
            let mut all = [0; MAX_TIERS];
            all[tier] = blocks as u32;
            all
        };
        let leases = self.leases.values().map(|seq| {
            let blocks = seq.table.len();
            let growth = seq.limit.saturating_sub(blocks);
            (on(DEVICE, blocks), on(DEVICE, growth))
        });
        let parked = self.parked.values().map(|stay| {
            let (mut held, mut owed) = (self.kept_on(&stay.path), [0; MAX_TIERS]);
            held[DEVICE] = stay.on_device as u32;
            for &block in &stay.path {
                let home = self.blocks[block].home;
                owed[home] += u32::from(self.is_owed(block, home));
            }
            (held, owed)
        });
        let tickets = self.tickets.values();
        let tickets = tickets.map(|&(tier, blocks)| (on(DEVICE, 0), on(tier, blocks as usize)));
        let holds = self.holds.values();
        let holds = holds.map(|table| (on(DEVICE, table.len()), [0; MAX_TIERS]));
        let held = leases.chain(parked).chain(holds);
        let mut here: Vec<Held> = held.chain(tickets).collect();
        let holders = state.holders();
        let told = holders.iter().map(|holder| (holder.held, holder.promised));
        let mut told: Vec<Held> = told.collect();
        let size = |(held, promised): &Held| Reverse((held[0], promised.iter().sum::<u32>()));
        assert!(told.is_sorted_by_key(size), "the largest first");
        here.sort_unstable();
        told.sort_unstable();
        assert_eq!(told, here, "holders");
        let room = |yard: &Self| yard.free(DEVICE) + yard.takeable(DEVICE);
        let before = room(self);
        for holder in holders {
            let mut then = self.clone();
            let shared = match holder.id {
                HolderId::Lease(id) if !self.leases.contains_key(&id) => continue,
                HolderId::Lease(id) if self.leases[&id].ended.is_some() => continue,
                HolderId::Lease(id) => {
                    then.end(id, Hints::default(), None);
                    self.leases[&id].resumed.is_some()
                }
                HolderId::Parked(id)
                    if self.parked.get(&id).is_none_or(|stay| stay.lease.is_some()) =>
                {
                    assert_eq!(holder.alone, 0);
                    continue;
                }
                HolderId::Parked(id) => {
                    then.end_keep(id);
                    false
                }
                HolderId::Hold(id) => {
                    then.end_hold(id);
                    false
                }
                HolderId::Ticket(id) => {
                    let (tier, blocks) = self.tickets[&id];
                    assert_eq!(holder.promised, on(tier, blocks as usize));
                    continue;
                }
            };
            let (alone, gained) = (u64::from(holder.alone), room(&then) - before);
            assert!(
                alone == gained || ((shared || !self.flights.is_empty()) && alone < gained),
                "{:?} has {alone} alone, and its end gives {gained}",
                holder.id
            );
        }
    }

    pub(crate) fn compare(&self, stats: &Stats) {
        assert_eq!(stats.tiers.len(), self.tiers);
        for tier in 0..self.tiers {
            assert_eq!(stats.tiers[tier], self.sizes(tier), "tier {tier}");
            assert_eq!(
                stats.counters.evicted[tier], self.evicted[tier],
                "evicted from tier {tier}"
            );
        }
        assert_eq!(stats.held_blocks, self.held_blocks());
        assert_eq!(stats.counters.evicted_ahead, self.evicted_ahead);
        assert_eq!(stats.counters.slow, self.slow, "skipped as slow");
        let told = (stats.counters.hits[REMOTE], stats.counters.unproven);
        assert_eq!(told, (self.found, self.lost), "hits of stores");
        let blocks = (0..self.tiers).flat_map(|tier| self.blocks_on(tier));
        let blocks: BTreeSet<Block> = blocks.collect();
        let told = (
            stats.leases,
            stats.parked,
            stats.tickets,
            stats.flights,
            stats.blocks,
            stats.epoch,
        );
        let here = (
            self.leases.len() as u64,
            self.parked.len() as u64,
            self.tickets.len() as u64,
            self.flights.len() as u64,
            blocks.len() as u64,
            self.epoch,
        );
        assert_eq!(
            told, here,
            "leases, parked, tickets, flights, blocks, epoch"
        );
    }
}

impl World {
    /// What a begin would answer is what it answers; to ask changes nothing.
    pub(crate) fn ask(&mut self, request: &Request<'_>) {
        let mut state = self.cache.lock();
        let before = state.digest();
        let need = state.dry_run(request);
        assert_eq!(state.digest(), before, "it was only asked");
        drop(state);
        self.asked = Some(need);
    }

    pub(crate) fn compare_asked(&mut self, answer: &Result<Answer, Error>) {
        let Some(need) = self.asked.take() else {
            return;
        };
        let need = match need {
            Ok(need) => need,
            Err(error) => return assert_eq!(answer.as_ref().err(), Some(&error)),
        };
        let spare = (need.free + need.evictable).cast_signed() - need.promised.cast_signed();
        assert_eq!(need.available, spare);
        assert_eq!(
            need.fits,
            need.ever && need.waits.is_none() && need.need.cast_signed() <= spare
        );
        match answer {
            Ok(Answer::Begun(begun)) => {
                assert!(need.fits);
                let loads: u32 = begun.hits[1..].iter().sum();
                assert_eq!(need.device, begun.hits[0]);
                assert!(
                    need.loads == loads || (need.loads > loads && begun.stop == Stop::Promised)
                );
                assert!(need.stop == begun.stop || begun.stop == Stop::Promised);
            }
            Ok(Answer::Soon(flight)) => assert_eq!((need.fits, need.waits), (false, Some(*flight))),
            Err(Error::TooLarge { .. }) => assert!(!need.ever && !need.fits),
            Err(Error::NoRoom {
                need: told,
                free,
                evictable,
                promised,
                available,
                ..
            }) => {
                assert!(need.ever && !need.fits && need.waits.is_none());
                let here = (need.need, need.free, need.evictable, need.promised);
                assert_eq!((*told, *free, *evictable, *promised), here);
                assert_eq!(*available, need.available);
            }
            other => panic!("{other:?}"),
        }
    }
}
