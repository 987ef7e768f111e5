//! The digest: one number of all that decides about answers, so that replicas of the yard that were
//! fed the same calls can be compared after every step.
//!
//! Arrays are taken by index and lists as their links, so that nothing depends on an address or a
//! capacity. Every word is mixed in by a step that no other word undoes: where one word alone
//! differs, so do the digests. Numbers are little endian; two builds need not agree.

use super::State;

use super::stats::Counters;
use std::hash::{Hash, Hasher};

/// For each word: xor it in, multiply by an odd number, rotate. All three can be undone, so that
/// what once differs goes on to differ under equal words.
struct Digest(u64);

impl Digest {
    fn word(&mut self, word: u64) {
        self.0 = (self.0 ^ word)
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .rotate_left(29);
    }
}

impl Hasher for Digest {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.word(u64::from_le_bytes(*word));
        }
        if !rest.is_empty() {
            let mut word = [0; 8];
            word[..rest.len()].copy_from_slice(rest);
            self.word(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, number: u8) {
        self.word(number.into());
    }

    fn write_u16(&mut self, number: u16) {
        self.word(number.into());
    }

    fn write_u32(&mut self, number: u32) {
        self.word(number.into());
    }

    fn write_u64(&mut self, number: u64) {
        self.word(number);
    }

    fn write_usize(&mut self, number: usize) {
        self.word(number as u64);
    }

    fn write_isize(&mut self, number: isize) {
        self.word(number.cast_unsigned() as u64);
    }
}

impl State {
    /// A fingerprint of the whole bookkeeping: equal after the same calls, and different where an
    /// answer could be. What a refused call may count is not in it, so that such a call leaves it
    /// as it was; nor are keys that no seal has brought here yet: the handles have them. It takes
    /// time in proportion to the yard.
    pub fn digest(&self) -> u64 {
        // By name, so that what is added to the state is not forgotten here.
        let Self {
            config,
            trie,
            tiers,
            leases,
            roots,
            parked,
            tickets,
            holdings,
            held_slots,
            flights,
            held,
            counters,
            ghosts,
            usages,
            copies_first: _,
            in_flight,
            scratch: _,
            parkings,
            headroom,
            largest,
            turn,
            orphans,
            done,
            loaded,
            deleting,
            climbed: _,
            // What is told decides nothing. O4
            events: _,
        } = self;
        let counters = Counters {
            no_room: 0,
            unserved: 0,
            late: 0,
            rejected: 0,
            ..*counters
        };
        let mut digest = Digest(0);
        (config, trie, tiers).hash(&mut digest);
        (leases, parked, tickets, flights, held).hash(&mut digest);
        for (lease, _) in leases.iter() {
            self.root_of(self.lease_id(lease)).hash(&mut digest);
        }
        (counters, ghosts, usages, in_flight, parkings).hash(&mut digest);
        (
            headroom,
            largest,
            turn,
            orphans,
            roots.ready,
            done,
            loaded,
            deleting,
        )
            .hash(&mut digest);
        (holdings, held_slots).hash(&mut digest);
        digest.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Answer, Config, Filling, Request, Sealing, WritePolicy};
    use super::State;
    use crate::base::{
        Class, FlightId, FlightIx, Id, Ix, Key, LeaseId, Link, NodeIx, ParkedIx, SlotIx, TicketIx,
        Tier,
    };
    use crate::copies::Flight;
    use crate::evict::{EvictionPolicy, Hints, InsertAt, Retention};
    use crate::state::TierState;
    use crate::state::record::{Keep, Parked, Phase, Running, Ticket};
    use crate::tiers::{Hold, Node, Uses};
    use std::num::NonZeroU32;

    fn key(name: u8, block: u8) -> Key {
        let mut key = Key::default();
        (key.0[0], key.0[1]) = (name, block + 1);
        key
    }

    fn run(state: &mut State, name: u8, blocks: u8) -> LeaseId {
        let keys: Vec<Key> = (0..blocks).map(|block| key(name, block)).collect();
        let request = Request {
            keys: &keys,
            tokens: u64::from(blocks) * 16,
            reserve: 32,
            load: u32::MAX,
            filling: Filling::Stop,
        };
        let Ok(Answer::Begun(begun)) = state.begin(&request) else {
            panic!("there is room")
        };
        let row = Sealing {
            lease: begun.lease,
            computed: request.tokens,
            first: 0,
            keys: &keys,
            spoken: None,
        };
        state.seal(&[row]).expect("it is computed");
        begun.lease
    }

    /// Something of everything.
    fn state(policy: EvictionPolicy, write: WritePolicy) -> State {
        let mut state = State::new(Config {
            slots: vec![41, 20],
            policy,
            write,
            ..Config::default()
        })
        .expect("a good configuration");
        let idle = [run(&mut state, 1, 4), run(&mut state, 2, 3)];
        let plan = state
            .demote_lease(idle[0], 2)
            .expect("it runs")
            .expect("two");
        state
            .commit(&[plan.whole()], None)
            .expect("it is in flight");
        state
            .finish(&idle, Retention::Ordinary, None)
            .expect("they run");
        let held = run(&mut state, 3, 2);
        state
            .finish(&[held], Retention::Retain, Some(9))
            .expect("it runs");
        let lease = run(&mut state, 4, 3);
        let row = Sealing {
            lease,
            computed: 48,
            first: 3,
            keys: &[],
            spoken: None,
        };
        let parked = state.park(&row, None).expect("the host has room");
        state
            .demote_parked(parked, 2, None)
            .expect("it is parked")
            .expect("two");
        run(&mut state, 5, 2);
        state.promise(4, Tier::DEVICE).expect("there is room");
        let held = state.hold_blocks(&[key(1, 0), key(1, 1)]);
        held.expect("memory").expect("they are there");
        state.dispatch();
        assert_eq!(state.audit(), None);
        state
    }

    const DEAD: fn() -> Id<NodeIx> = || Id {
        index: NodeIx::new(7),
        generation: NonZeroU32::MIN,
    };

    fn lease(state: &mut State) -> &mut Running {
        let running = state.leases.iter().next().map(|(lease, _)| lease);
        &mut state.leases[running.expect("one runs")]
    }

    fn loading(flights: u32) -> Phase {
        let resumes = None;
        Phase::Loading { flights, resumes }
    }

    type Change = (&'static str, fn(&mut State));

    fn node(state: &mut State) -> &mut Node {
        &mut state.trie[NodeIx::new(0)]
    }

    fn parked(state: &mut State) -> &mut Parked {
        &mut state.parked[ParkedIx::new(0)]
    }

    fn ticket(state: &mut State) -> &mut Ticket {
        &mut state.tickets[TicketIx::new(0)]
    }

    fn flight(state: &mut State) -> &mut Flight {
        &mut state.flights[FlightIx::new(0)]
    }

    fn device(state: &mut State) -> &mut TierState {
        &mut state.tiers[Tier::DEVICE]
    }

    fn host(state: &mut State) -> &mut TierState {
        &mut state.tiers[Tier::HOST]
    }

    const CHANGES: &[Change] = &[
        ("config.copy_retries", |s| s.config.copy_retries += 1),
        ("config.write", |s| s.config.write = WritePolicy::Through),
        ("config.spare", |s| s.config.spare = Some(1)),
        ("config.recompute", |s| s.config.recompute = false),
        ("config.remote_writes", |s| s.config.remote_writes = false),
        ("config.keyed", |s| s.config.keyed[1] = true),
        ("config.engine", |s| s.config.engine = true),
        ("config.block_costs", |s| {
            s.config.block_costs = Some(crate::copies::BlockCosts::default());
        }),
        ("a node's key", |s| node(s).key.0[31] ^= 1),
        ("a node's parent", |s| node(s).parent = Some(DEAD())),
        ("a node's copy", |s| {
            s.trie.residency_mut(NodeIx::new(2), Tier::HOST).slot = Some(Link::to(SlotIx::new(9)));
        }),
        ("a node's children", |s| {
            s.trie.residency_mut(NodeIx::new(0), Tier::DEVICE).children += 1;
        }),
        ("a node's busy children", |s| {
            s.trie.residency_mut(NodeIx::new(0), Tier::HOST).busy += 1;
        }),
        ("a node's epoch", |s| node(s).epoch += 1),
        ("a node's keeps", |s| node(s).keeps.gain()),
        ("a node's home", |s| {
            node(s).keeps = node(s).keeps.at(Tier::DISK);
        }),
        ("a node's class", |s| node(s).class = Class::Retained),
        ("a node's uses", |s| node(s).uses = Uses::Repeated),
        ("the trie's epoch", |s| s.trie.end_epoch()),
        ("a new node", |s| {
            s.trie.add(None, None);
        }),
        ("a slot's hold", |s| {
            device(s).parts().0.cell_mut(SlotIx::new(1)).hold = Hold::Quarantined;
        }),
        ("a host slot's hold", |s| {
            host(s).parts().0.cell_mut(SlotIx::new(1)).hold = Hold::Quarantined;
        }),
        ("a slot's node", |s| {
            device(s).parts().0.cell_mut(SlotIx::new(1)).node = Some(Link::to(NodeIx::new(3)));
        }),
        ("a slot's readers", |s| {
            device(s).parts().0.cell_mut(SlotIx::new(1)).readers += 1;
        }),
        ("a limit", |s| {
            host(s).parts().0.set_limit(19);
        }),
        ("the free list", |s| {
            let (one, two) = (
                device(s).parts().0.pop_free(),
                device(s).parts().0.pop_free(),
            );
            one.into_iter()
                .chain(two)
                .for_each(|slot| device(s).parts().0.push_free(slot));
        }),
        ("the order", |s| {
            let (slot, class) = (
                device(s).parts().1.victim(&|_| 0).expect("idle"),
                Class::Ordinary,
            );
            let evictability = s.evictability_of(Tier::DEVICE, slot);
            let view = s.usages.of(NodeIx::new(0));
            let order = s.tiers[Tier::DEVICE].parts().1;
            order.remove(slot);
            order.insert(slot, class, view, InsertAt::Back, evictability);
        }),
        ("what is promised", |s| device(s).promise(1)),
        ("what is promised below", |s| host(s).promise(1)),
        ("what is takeable", |s| device(s).parts().2.set_takeable(1)),
        ("a lease's table", |s| lease(s).table.swap(0, 1)),
        ("a lease's tokens", |s| lease(s).tokens += 1),
        ("a lease's promise", |s| lease(s).limit += 1),
        ("a lease's reserve", |s| lease(s).reserve_limit += 1),
        ("a lease's sealed blocks", |s| lease(s).sealed -= 1),
        ("a lease's shown cells", |s| lease(s).shown += 1),
        ("a lease's loads", |s| lease(s).phase = loading(1)),
        ("a lease's loads and more", |s| lease(s).phase = loading(2)),
        ("a lease that ended", |s| {
            lease(s).phase = Phase::Ended {
                flights: 1,
                resumes: None,
                hints: Hints::default(),
            };
        }),
        ("a lease number", |s| {
            let index = s.leases.insert(Running::default());
            s.leases.remove(index);
        }),
        ("a parked path", |s| {
            parked(s).path.pop();
        }),
        ("a parked count", |s| parked(s).computed -= 1),
        ("a parked block's failures", |s| {
            parked(s).failures.push((NodeIx::new(0), 1));
        }),
        ("a broken keep", |s| parked(s).keep = Keep::Broken),
        ("the order of parking", |s| parked(s).order += 1),
        ("a ticket's blocks", |s| ticket(s).blocks += 1),
        ("a ticket's tier", |s| ticket(s).tier = Tier::HOST),
        ("what a hold has", |s| {
            let own = s.holdings.iter().next().map(|(own, _)| own);
            s.holdings[own.expect("one")].table.pop();
        }),
        ("how often a slot is held", |s| {
            s.held_slots
                .as_mut()
                .expect("a hold")
                .hold(&[SlotIx::new(3)]);
        }),
        ("a generation", |s| {
            let slots = s.held_slots.as_mut().expect("a hold");
            slots.hold(&[SlotIx::new(3)]);
            slots.let_go(&[SlotIx::new(3)]);
        }),
        ("a flight's moves", |s| flight(s).moves.reverse()),
        ("a flight's keys", |s| {
            flight(s).keys.push(Key::default());
        }),
        ("a flight's parents", |s| {
            flight(s).parents.push(Key::UNKNOWN);
        }),
        ("a flight's purpose", |s| {
            flight(s).purpose = crate::copies::Purpose::Nothing;
        }),
        ("a flight's deadline", |s| flight(s).overdue = true),
        ("a flight's sources", |s| flight(s).reads = false),
        ("a flight's end", |s| {
            flight(s).ended = Some((1, crate::copies::End::Good));
        }),
        ("a flight's dispatch", |s| flight(s).waits = Some(1)),
        ("a flight's number", |s| flight(s).launched += 1),
        ("a step to wait for", |s| s.held[0].step += 1),
        ("slots held back", |s| drop(s.held.pop())),
        ("what was counted", |s| s.counters.evicted[0] += 1),
        ("what was published", |s| {
            let id = s.trie.id(NodeIx::new(0));
            device(s).note_fresh(id);
        }),
        ("what is in flight", |s| s.in_flight[1][0] += 1),
        ("how many were parked", |s| s.parkings += 1),
        ("the headroom", |s| s.headroom += 1),
        ("the largest begin", |s| s.largest += 1),
        ("whose turn it is", |s| s.turn += 1),
        ("whether a path is torn", |s| s.orphans.torn = true),
        ("whether there are orphans", |s| s.orphans.known = true),
        ("the last step done", |s| s.done = Some(3)),
        ("the loads that have ended", |s| s.loaded += 1),
        ("keys that stores delete", |s| {
            s.deleting.insert(key(9, 9), 1);
        }),
        ("a name by hearsay", |s| {
            host(s).take_name(Link::to(NodeIx::new(3)));
            host(s).prove(SlotIx::new(63));
        }),
        ("the same, proven", |s| {
            let name = host(s).take_name(Link::to(NodeIx::new(3)));
            host(s).prove(name.expect("a free slot"));
        }),
        ("hits that are not counted", |s| {
            flight(s).unproven.push(0);
        }),
        ("whether keys were given ready", |s| s.roots.ready = true),
        ("the root of a first block", |s| {
            s.trie.set_root(NodeIx::new(0), key(9, 9));
        }),
        ("what was forgotten in use", |s| {
            s.trie.note_forgotten(NodeIx::new(0));
        }),
        ("a lease's root", |s| {
            let running = s.leases.iter().next().map(|(lease, _)| lease);
            let id = s.lease_id(running.expect("one runs"));
            s.name_root(id, Some(key(9, 9)));
        }),
        ("whether blocks leave", |s| device(s).set_leaving(true)),
    ];

    #[test]
    fn each_kind_of_change_changes_the_digest_and_no_two_alike() {
        for policy in [
            EvictionPolicy::Recency,
            EvictionPolicy::Learned,
            EvictionPolicy::Heap,
        ] {
            let plain = state(policy, WritePolicy::OnEvict).digest();
            assert_eq!(plain, state(policy, WritePolicy::OnEvict).digest());
            let mut seen = std::collections::BTreeMap::from([(plain, "nothing")]);
            for (name, change) in CHANGES {
                let mut state = state(policy, WritePolicy::OnEvict);
                change(&mut state);
                let same = seen.insert(state.digest(), name);
                assert_eq!(same, None, "{name}, {policy:?}");
            }
        }
    }

    #[test]
    fn what_was_published_and_what_was_dropped_are_in_it_by_their_order() {
        let mut through = state(EvictionPolicy::Recency, WritePolicy::Through);
        let before = through.digest();
        let first = device(&mut through).descent.take_fresh();
        device(&mut through).note_fresh(first.expect("much was"));
        assert_ne!(before, through.digest());
        let ghosts = |keys: [Key; 2]| {
            let mut state = state(EvictionPolicy::Recency, WritePolicy::SecondTouch);
            let ghosts = state.ghosts.as_mut().expect("second touch");
            for key in &keys {
                ghosts.remember(key, 1);
            }
            state.digest()
        };
        // Of 16 buckets both are in one, where the younger stands first.
        let one = key(7, 0);
        let near = (0..255)
            .map(|block| key(8, block))
            .find(|other| {
                crate::collections::mix(other) >> 60 == crate::collections::mix(&one) >> 60
            })
            .expect("one in 16");
        assert_ne!(ghosts([one, near]), ghosts([near, one]));
        assert_ne!(ghosts([one, one]), ghosts([one, near]));
    }

    #[test]
    fn what_a_refused_call_may_count_is_not_in_it() {
        let mut state = state(EvictionPolicy::Recency, WritePolicy::OnEvict);
        let before = state.digest();
        state.reject(3);
        assert!(state.promise(40, Tier::DEVICE).is_err());
        assert!(state.promise(20, Tier::HOST).is_err());
        assert!(state.resize(Tier::DEVICE, 5).is_err());
        let late = FlightId(Id {
            index: FlightIx::new(0),
            generation: NonZeroU32::MIN,
        });
        assert_eq!(state.mark_unknown(late), Ok(false));
        assert_eq!(state.digest(), before);
    }
}
