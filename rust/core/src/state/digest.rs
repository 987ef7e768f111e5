//! The digest: one number of all that decides about answers, so that replicas of the yard that were
//! fed the same calls can be compared after every step.
//!
//! Arrays are taken by index and lists as their links, so that nothing depends on an address or a
//! capacity. Every word is mixed in by a step that no other word undoes: where one word alone
//! differs, so do the digests. Numbers are little endian; two builds need not agree.

use super::State;
use crate::stats::Counters;
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
            parked,
            tickets,
            flights,
            held,
            counters,
            fresh,
            failures,
            ghosts,
            in_flight,
            path: _,
            loose: _,
            ahead: _,
            nodes: _,
            tags: _,
            parkings,
            headroom,
            done,
            climbed: _,
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
        (
            counters, fresh, failures, ghosts, in_flight, parkings, headroom, done,
        )
            .hash(&mut digest);
        digest.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Answer, Config, Filling, Request, Sealing, WritePolicy};
    use super::State;
    use crate::evict::{Evict, EvictionPolicy, Place};
    use crate::id::{Class, FlightId, Id, Key, LeaseId, Link, Retention, Tier};
    use crate::pool::Hold;
    use crate::record::Running;
    use crate::trie::Uses;
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
        let outcome = [(plan.flight, 2, false)];
        state.commit(&outcome, None).expect("it is in flight");
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
        };
        let parked = state.park(&row, None).expect("the host has room");
        state
            .demote_parked(parked, 2)
            .expect("it is parked")
            .expect("two");
        run(&mut state, 5, 2);
        state.promise(4, Tier::DEVICE).expect("there is room");
        state.dispatch();
        assert_eq!(state.audit(), None);
        state
    }

    const DEAD: Id = Id {
        index: 7,
        generation: NonZeroU32::MIN,
    };

    fn lease(state: &mut State) -> &mut Running {
        let running = state.leases.iter().next().map(|(lease, _)| lease);
        &mut state.leases[running.expect("one runs")]
    }

    type Change = (&'static str, fn(&mut State));

    const CHANGES: &[Change] = &[
        ("config.retries", |s| s.config.retries += 1),
        ("config.write", |s| s.config.write = WritePolicy::Through),
        ("config.recompute", |s| s.config.recompute = false),
        ("config.speeds", |s| {
            s.config.speeds = Some(crate::cost::Speeds::default());
        }),
        ("a node's key", |s| s.trie[0].key.0[31] ^= 1),
        ("a node's parent", |s| s.trie[0].parent = Some(DEAD)),
        ("a node's copy", |s| {
            s.trie.residency_mut(2, 1).slot = Some(Link::to(9));
        }),
        ("a node's children", |s| {
            s.trie.residency_mut(0, 0).children += 1;
        }),
        ("a node's busy children", |s| {
            s.trie.residency_mut(0, 1).busy += 1;
        }),
        ("a node's epoch", |s| s.trie[0].epoch += 1),
        ("a node's keeps", |s| s.trie[0].keeps += 1),
        ("a node's class", |s| s.trie[0].class = Class::Retained),
        ("a node's uses", |s| s.trie[0].uses = Uses::Repeated),
        ("the trie's epoch", |s| s.trie.end_epoch()),
        ("a new node", |s| {
            s.trie.add(None);
        }),
        ("a slot's hold", |s| {
            s.tiers[0].pool.cell_mut(1).hold = Hold::Quarantined;
        }),
        ("a host slot's hold", |s| {
            s.tiers[1].pool.cell_mut(1).hold = Hold::Quarantined;
        }),
        ("a slot's node", |s| {
            s.tiers[0].pool.cell_mut(1).node = Some(Link::to(3));
        }),
        ("a slot's readers", |s| {
            s.tiers[0].pool.cell_mut(1).readers += 1;
        }),
        ("a limit", |s| {
            s.tiers[1].pool.set_limit(19);
        }),
        ("the free list", |s| {
            let (one, two) = (s.tiers[0].pool.pop_free(), s.tiers[0].pool.pop_free());
            one.into_iter()
                .chain(two)
                .for_each(|slot| s.tiers[0].pool.push_free(slot));
        }),
        ("the order", |s| {
            let (slot, class) = (s.tiers[0].order.victim().expect("idle"), Class::Ordinary);
            let evictability = s.evictability_of(0, slot);
            let order = &mut s.tiers[0].order;
            order.remove(slot);
            order.insert(slot, class, Place::Back, evictability);
        }),
        ("what is promised", |s| s.tiers[0].ledger.promise(1)),
        ("what is promised below", |s| s.tiers[1].ledger.promise(1)),
        ("what is takeable", |s| s.tiers[0].ledger.set_takeable(1)),
        ("a lease's table", |s| lease(s).table.swap(0, 1)),
        ("a lease's tokens", |s| lease(s).tokens += 1),
        ("a lease's promise", |s| lease(s).limit += 1),
        ("a lease's reserve", |s| lease(s).reserve_limit += 1),
        ("a lease's sealed blocks", |s| lease(s).sealed -= 1),
        ("a lease's shown cells", |s| lease(s).shown += 1),
        ("a lease's loads", |s| lease(s).loading += 1),
        ("a lease that ended", |s| {
            lease(s).ended = Some(Retention::Ordinary);
        }),
        ("a lease number", |s| {
            let index = s.leases.insert(Running::default());
            s.leases.remove(index);
        }),
        ("a parked path", |s| {
            s.parked[0].path.pop();
        }),
        ("a parked count", |s| s.parked[0].computed -= 1),
        ("a parked block's failures", |s| {
            s.parked[0].failures.push((0, 1));
        }),
        ("a broken keep", |s| s.parked[0].broken = true),
        ("the order of parking", |s| s.parked[0].order += 1),
        ("a ticket's blocks", |s| s.tickets[0].blocks += 1),
        ("a ticket's tier", |s| s.tickets[0].tier = Tier::HOST),
        ("a flight's moves", |s| s.flights[0].moves.reverse()),
        ("a flight's purpose", |s| {
            s.flights[0].purpose = crate::flight::Purpose::Nothing;
        }),
        ("a flight's deadline", |s| s.flights[0].overdue = true),
        ("a flight's dispatch", |s| s.flights[0].waits = Some(1)),
        ("a step to wait for", |s| s.held[0].step += 1),
        ("slots held back", |s| drop(s.held.pop())),
        ("what was counted", |s| s.counters.evicted[0] += 1),
        ("what was published", |s| s.fresh.push_back(s.trie.id(0))),
        ("what is in flight", |s| s.in_flight[1] += 1),
        ("how many were parked", |s| s.parkings += 1),
        ("the headroom", |s| s.headroom += 1),
        ("the last step done", |s| s.done = Some(3)),
    ];

    #[test]
    fn each_kind_of_change_changes_the_digest_and_no_two_alike() {
        for policy in [EvictionPolicy::Recency, EvictionPolicy::Heap] {
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
        through.fresh.swap(0, 1);
        assert_ne!(before, through.digest());
        let ghosts = |keys: [Key; 2]| {
            let mut state = state(EvictionPolicy::Recency, WritePolicy::SecondTouch);
            let ghosts = state.ghosts.as_mut().expect("second touch");
            for key in &keys {
                ghosts.remember(key);
            }
            state.digest()
        };
        // Of 32 buckets both are in one, where the younger stands first.
        let one = key(7, 0);
        let near = (0..255)
            .map(|block| key(8, block))
            .find(|other| crate::index::mix(other) >> 59 == crate::index::mix(&one) >> 59)
            .expect("one in 32");
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
            index: 0,
            generation: NonZeroU32::MIN,
        });
        assert_eq!(state.mark_unknown(late), Ok(false));
        assert_eq!(state.digest(), before);
    }
}
