//! The shared shell under random schedules. A failure prints the seed of its schedule, and
//! `SEED=… cargo nextest run -p blockyard-core --features shuttle --test races` runs it again.

#[expect(dead_code, reason = "it uses some of them")]
mod verbs;

use blockyard_core::{
    Cache, Cells, Chain, Config, Error, EvictionPolicy, Extras, Key, KeyHash, Lease, LeaseId,
    Loading, MAX_TIERS, Namespace, Parked, Plan, Retention, State, Ticket, Tier,
};
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::atomic::{AtomicU64, Ordering};
use shuttle::sync::{Arc, RwLock};
use shuttle::thread::{JoinHandle, spawn};
use std::collections::BTreeMap;
use verbs::Verbs as _;

const SIZE: u64 = 4;

/// Runs `race` under so many schedules, or under the one of `SEED`.
fn schedules(times: usize, race: impl Fn() + Send + Sync + 'static) {
    match std::env::var("SEED") {
        Ok(seed) => {
            let seed = seed.parse().expect("SEED is a number");
            shuttle::check_random_with_seed(race, seed, 1);
        }
        // The same schedules everywhere.
        Err(_) => shuttle::check_random_with_seed(race, 7, times),
    }
}

fn cache(device: u32, host: u32) -> Cache {
    let config = Config {
        block_size: SIZE as u32,
        slots: vec![device + 1, host],
        policy: [EvictionPolicy::Recency, EvictionPolicy::Heap][thread_rng().gen_range(0..2)],
        ..Config::default()
    };
    Cache::new(config, KeyHash::default(), &Namespace::default()).expect("a good configuration")
}

fn chain(cache: &Cache, name: u32, tokens: u64) -> Chain {
    let mut chain = cache.chain(Extras::default()).expect("no media");
    let tokens: Vec<u32> = (0..tokens as u32).map(|at| name * 1000 + at).collect();
    chain.extend(&tokens).expect("it makes its own keys");
    chain
}

fn begin(cache: &Cache, name: u32, tokens: u64) -> Lease {
    let begun = cache.begin(chain(cache, name, tokens), 0, u32::MAX);
    begun
        .expect("there is room")
        .expect("nothing is in flight")
        .0
}

/// What one thread has.
#[derive(Default)]
struct Hands {
    leases: Vec<Lease>,
    parked: Vec<Parked>,
    tickets: Vec<Ticket>,
    in_flight: Vec<Plan>,
}

struct Yard {
    cache: Cache,
    /// Every lease there ever was.
    all: RwLock<Vec<LeaseId>>,
}

impl Yard {
    fn started(&self, hands: &mut Hands, lease: Lease, plans: Vec<Plan>) {
        self.all.write().expect("no panic").push(lease.id());
        hands.leases.push(lease);
        hands.in_flight.extend(plans);
    }

    /// What is counted is what is held, and no two leases hold one private slot.
    fn check(&self) {
        let all = self.all.read().expect("no panic").clone();
        let mut locked = self.cache.lock();
        assert_eq!(locked.audit(), None);
        let mut holders = BTreeMap::new();
        let mut private = Vec::new();
        for id in all {
            let Ok(view) = locked.view(id) else { continue };
            let table = table(&mut locked, id, view.blocks);
            private.extend_from_slice(&table[view.sealed as usize..]);
            for slot in table {
                *holders.entry(slot).or_insert(0) += 1;
            }
        }
        for slot in private {
            assert_eq!(holders[&slot], 1, "slot {slot} is private to one lease");
        }
    }

    /// One verb, picked by the schedule.
    #[expect(clippy::too_many_lines, reason = "a verb for each throw")]
    fn act(&self, hands: &mut Hands) {
        let mut dice = thread_rng();
        match dice.gen_range(0..11) {
            0..3 => {
                let (name, tokens) = (dice.gen_range(1..3), dice.gen_range(1..14));
                let reserve = dice.gen_range(0..2) * SIZE;
                let begun = self
                    .cache
                    .begin(chain(&self.cache, name, tokens), reserve, u32::MAX);
                match begun {
                    Ok(Some((lease, begun))) => self.started(hands, lease, begun.plans),
                    Ok(None) | Err(Error::NoRoom { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            3 => {
                if let Some(lease) = hands.leases.last() {
                    lease.append(&[9, 9, 9]).expect("it is open");
                    let mut unserved = vec![];
                    let grown = self.cache.lock().grow(&[lease.id()], |_| 3, &mut unserved);
                    grown.expect("it is open");
                }
            }
            4 => {
                if let Some(lease) = hands.leases.last() {
                    let computed = lease.tokens().min(SIZE * 2);
                    match self.cache.seal(&[(lease, computed)]) {
                        // Loading still, or it grew less than it was appended to.
                        Ok(_) | Err(Error::State { .. } | Error::Argument { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            }
            5 => {
                if let Some(lease) = hands.leases.pop() {
                    self.cache
                        .finish(lease, Retention::Ordinary)
                        .expect("it is open");
                }
            }
            6 => {
                if let Some(lease) = hands.leases.pop() {
                    let computed = lease.tokens();
                    match self.cache.park(lease, computed) {
                        Ok(parked) => hands.parked.push(parked),
                        Err((lease, _)) => hands.leases.push(lease),
                    }
                }
            }
            7 => {
                if let Some(parked) = hands.parked.pop() {
                    let plan = self.cache.lock().demote_parked(parked.id(), 2, None);
                    hands.in_flight.extend(plan.expect("it is parked"));
                    match self.cache.resume(parked, 0) {
                        Ok((lease, begun)) => self.started(hands, lease, begun.plans),
                        Err((parked, None | Some(Error::NoRoom { .. }))) => {
                            hands.parked.push(parked);
                        }
                        Err((_, Some(error))) => panic!("{error}"),
                    }
                }
            }
            8 => drop((hands.leases.pop(), hands.parked.pop(), hands.tickets.pop())),
            9 => {
                let tier = Tier(dice.gen_range(0..2));
                match hands.tickets.pop() {
                    Some(ticket) => self.cache.release(ticket).expect("it is open"),
                    None => hands.tickets.extend(self.cache.promise(2, tier).ok()),
                }
            }
            _ => {
                self.cache.landed(&hands.in_flight).expect("they are ours");
                hands.in_flight.clear();
                hands
                    .in_flight
                    .extend(self.cache.lock().demote(Tier::DEVICE, 2));
            }
        }
    }
}

fn table(state: &mut State, id: LeaseId, blocks: u32) -> Vec<u32> {
    let mut table = vec![0; blocks as usize];
    let width = table.len();
    state
        .block_tables(&[id], width, Cells::All, Loading::Joined, |cells| {
            cells.copy_to(&mut table);
        })
        .expect("it runs");
    table
}

/// Nothing is held any more.
fn at_rest(cache: &Cache) {
    let locked = cache.lock();
    assert_eq!(locked.audit(), None);
    let stats = locked.stats();
    assert_eq!((stats.leases, stats.parked, stats.flights), (0, 0, 0));
    for tier in &stats.tiers {
        assert_eq!(tier.free + tier.idle, tier.capacity, "{tier:?}");
        assert_eq!((tier.promised, tier.takeable), (0, tier.idle), "{tier:?}");
    }
}

fn mixed(threads: u32, verbs: u32) {
    let yard = Arc::new(Yard {
        cache: cache(9, 5),
        all: RwLock::default(),
    });
    let run = |_| {
        let yard = Arc::clone(&yard);
        spawn(move || {
            let mut hands = Hands::default();
            for _ in 0..verbs {
                yard.act(&mut hands);
                yard.check();
            }
            // Its handles are dropped here, beside the verbs of the others.
            hands.in_flight
        })
    };
    let threads: Vec<JoinHandle<Vec<Plan>>> = (0..threads).map(run).collect();
    for thread in threads {
        let plans = thread.join().expect("it did not panic");
        yard.cache.landed(&plans).expect("they are ours");
    }
    at_rest(&yard.cache);
}

/// Law: 4.2-14
#[test]
fn two_threads_with_all_verbs_leave_the_yard_whole() {
    schedules(30_000, || mixed(2, 12));
}

/// Law: INV-1, 4.2-14
#[test]
fn three_threads_with_all_verbs_leave_the_yard_whole() {
    schedules(20_000, || mixed(3, 10));
}

/// Law: 4.2-14
#[test]
fn handles_dropped_while_others_hold_the_lock_all_come_back() {
    schedules(20_000, || {
        let cache = cache(12, 4);
        let drops: Vec<_> = (1..4)
            .map(|name| {
                let lease = begin(&cache, name, 6);
                let ticket = cache.promise(1, Tier::DEVICE).expect("there is room");
                spawn(move || drop((lease, ticket)))
            })
            .collect();
        let other = cache.clone();
        let asking = spawn(move || {
            for _ in 0..3 {
                assert_eq!(other.lock().audit(), None);
                if let Some(locked) = other.try_lock() {
                    assert_eq!(locked.audit(), None);
                }
            }
        });
        for thread in drops.into_iter().chain([asking]) {
            thread.join().expect("it did not panic");
        }
        at_rest(&cache);
        assert_eq!(cache.lock().stats().counters.leaked, 6);
    });
}

/// Law: INV-2
#[test]
fn of_two_threads_that_end_one_lease_one_is_told_that_it_is_spent() {
    schedules(20_000, || {
        let cache = cache(12, 4);
        let lease = Arc::new(begin(&cache, 1, 8));
        let ends: Vec<_> = [true, false]
            .map(|park| {
                let (cache, lease) = (cache.clone(), Arc::clone(&lease));
                spawn(move || {
                    let sealed = cache.seal(&[(&lease, 8)]);
                    assert!(matches!(sealed, Ok(_) | Err(Error::Spent { .. })));
                    let mut locked = cache.lock();
                    if park {
                        let row = blockyard_core::Sealing {
                            lease: lease.id(),
                            computed: 8,
                            first: 0,
                            keys: &[],
                            spoken: None,
                        };
                        locked.park(&row, None).map(Some)
                    } else {
                        locked
                            .finish(&[lease.id()], Retention::Ordinary, None)
                            .map(|()| None)
                    }
                })
            })
            .into_iter()
            .map(|thread| thread.join().expect("it did not panic"))
            .collect();
        let won = ends.iter().filter(|end| end.is_ok()).count();
        assert_eq!(won, 1, "{ends:?}");
        lease.spend();
        for parked in ends.into_iter().flatten().flatten() {
            cache.lock().abandon(parked).expect("it is parked");
        }
        at_rest(&cache);
    });
}

/// Law: 4.2-14
#[test]
fn one_sequence_appended_to_by_one_thread_is_sealed_by_another() {
    schedules(20_000, || {
        let cache = cache(12, 0);
        let lease = Arc::new(begin(&cache, 1, 4));
        let mut unserved = vec![];
        let grown = cache.lock().grow(&[lease.id()], |_| 8, &mut unserved);
        grown.expect("it runs");
        let appending = {
            let lease = Arc::clone(&lease);
            spawn(move || {
                for token in 0..8 {
                    lease.append(&[token]).expect("it is open");
                }
            })
        };
        let mut sealed = 0;
        for _ in 0..3 {
            sealed += cache
                .seal(&[(&lease, lease.tokens())])
                .expect("what was appended may be computed");
        }
        appending.join().expect("it did not panic");
        sealed += cache.seal(&[(&lease, 12)]).expect("all was appended");
        assert_eq!(sealed, 3, "each block once");
        let lease = Arc::into_inner(lease).expect("the other has ended");
        cache
            .finish(lease, Retention::Ordinary)
            .expect("it is open");
        at_rest(&cache);
    });
}

/// A long append hashes beside the keys: what another thread appends meanwhile is not lost.
/// Law: 4.2-14
#[test]
fn of_a_long_and_a_short_append_at_once_neither_is_lost() {
    schedules(500, || {
        let cache = cache(4, 0);
        let lease = Arc::new(begin(&cache, 1, 4));
        let appends: Vec<_> = [2_000, 4]
            .map(|count| {
                let lease = Arc::clone(&lease);
                spawn(move || lease.append(&vec![count; count as usize]))
            })
            .into_iter()
            .collect();
        for thread in appends {
            let appended = thread.join().expect("it did not panic");
            appended.expect("it is open");
        }
        assert_eq!(lease.tokens(), 2_008);
        let (whole, mut one, mut two) = (lease.chain(), chain(&cache, 1, 4), chain(&cache, 1, 4));
        for piece in [&[2_000; 2_000][..], &[4; 4]] {
            one.extend(piece).expect("it makes its own keys");
        }
        for piece in [&[4; 4][..], &[2_000; 2_000]] {
            two.extend(piece).expect("it makes its own keys");
        }
        let keys = [one.keys(), two.keys()];
        assert!(keys.contains(&whole.keys()), "in one order or the other");
        drop(lease);
        at_rest(&cache);
    });
}

/// Refused steps take their tokens back, unless others came behind them: the keys fit those that are left.
/// Law: INV-17
#[test]
fn refused_steps_take_nothing_of_a_long_append_back() {
    schedules(4_000, || {
        let cache = cache(4, 0);
        let lease = Arc::new(begin(&cache, 1, 4));
        let act = |steps: bool| {
            let (cache, lease) = (cache.clone(), Arc::clone(&lease));
            spawn(move || {
                let mut batch = cache.batch();
                let added = batch.add(&cache, std::iter::once(&*lease));
                added.expect("it is open");
                for _ in 0..2 {
                    let count = [0, 1, 3, 5, 1_100][thread_rng().gen_range(0..5)];
                    let tokens = vec![8; count];
                    if steps {
                        // What the yard does not follow is taken back.
                        drop(batch.append(&tokens, |_| count, |_| 0).expect("it is open"));
                    } else {
                        lease.append(&tokens).expect("it is open");
                    }
                }
            })
        };
        for thread in [true, true, false].map(act) {
            thread.join().expect("it did not panic");
        }
        let mut whole = chain(&cache, 1, 4);
        whole
            .extend(&vec![8; lease.tokens() as usize - 4])
            .expect("it makes its own keys");
        whole.extend(&[7; 9]).expect("it makes its own keys");
        lease.append(&[7; 9]).expect("it is open");
        assert_eq!(lease.chain().keys(), whole.keys());
        drop(lease);
        at_rest(&cache);
    });
}

/// A seal gives the lock up between two slices; what others do to its lease then ends it there.
/// Law: 2.1-1, 4.2-14
#[test]
fn a_lease_that_ends_while_its_seal_is_half_done_leaves_the_yard_whole() {
    schedules(20_000, || {
        let cache = cache(16, 0);
        let lease = Arc::new(begin(&cache, 1, 28));
        let (other, own) = (cache.clone(), Arc::clone(&lease));
        let sealing = spawn(move || match other.seal(&[(&own, 28)]) {
            Ok(sealed) => sealed,
            Err(error) => {
                assert!(matches!(error, Error::Spent { .. }), "{error}");
                0
            }
        });
        let ended = cache
            .lock()
            .finish(&[lease.id()], Retention::Ordinary, None);
        ended.expect("it ends once");
        let sealed = sealing.join().expect("it did not panic");
        let found = cache.lock().probe(chain(&cache, 1, 28).keys()).hits[0];
        assert_eq!(u64::from(found), sealed, "all that was sealed is found");
        assert!(
            sealed == 7 || sealed % 2 == 0,
            "{sealed}: it ends between slices"
        );
        lease.spend();
        at_rest(&cache);
    });
}

/// A reader that has the generation it was told of after it has read has read what it was told of, whatever
/// released and refilled the slot meanwhile.
/// Law: INV-36a, INV-36b
#[test]
fn what_is_read_under_a_generation_is_what_was_held() {
    schedules(20_000, || {
        let cache = cache(2, 0);
        let memory: Arc<Vec<AtomicU64>> = Arc::new((0..3).map(|_| AtomicU64::new(0)).collect());
        // Writes what a text's blocks are to their slots, as an engine does.
        let compute = |name: u32| {
            let lease = begin(&cache, name, 2 * SIZE);
            for slot in table(&mut cache.lock(), lease.id(), 2) {
                memory[slot as usize].store(name.into(), Ordering::SeqCst);
            }
            cache.seal(&[(&lease, 2 * SIZE)]).expect("it is computed");
            cache.finish(lease, Retention::Ordinary).expect("it runs");
        };
        compute(1);
        let keys = chain(&cache, 1, 2 * SIZE);
        let path = cache.lock().hold_blocks(keys.keys()).expect("memory");
        let held = Arc::new(cache.handle_held(path.expect("both blocks")));
        let reads: Vec<_> = [0, 1]
            .map(|at| {
                let (held, memory) = (Arc::clone(&held), Arc::clone(&memory));
                spawn(move || {
                    let read = memory[held.slots()[at] as usize].load(Ordering::SeqCst);
                    let same = held.generation_now(at) == Some(held.generations()[at]);
                    assert!(read == 1 || !same, "another's block, of the old generation");
                    assert!(read == 1 || !held.is_held(), "another's block, and held");
                })
            })
            .into_iter()
            .collect();
        let ends = {
            let (held, cache) = (Arc::clone(&held), cache.clone());
            spawn(move || {
                if thread_rng().gen_range(0..2) == 0 {
                    cache.lock().clear();
                }
                held.release().expect("no panic");
            })
        };
        // While all is held there is no room.
        let prompt = chain(&cache, 2, 2 * SIZE);
        for _ in 0..3 {
            match cache.begin(prompt.clone(), 0, u32::MAX) {
                Ok(begun) => {
                    drop(begun);
                    compute(2);
                    break;
                }
                Err(Error::NoRoom { .. }) => assert_eq!(cache.lock().audit(), None),
                Err(error) => panic!("{error}"),
            }
        }
        for thread in reads.into_iter().chain([ends]) {
            thread.join().expect("it did not panic");
        }
        drop(held);
        at_rest(&cache);
    });
}

/// What a begin finds of a prompt whose names come and go beside it is a prefix, and is loaded whole.
/// Law: INV-4, INV-35c
#[test]
fn names_that_come_and_go_beside_a_begin_are_a_prefix_or_nothing() {
    schedules(20_000, || {
        let mut keyed = [false; MAX_TIERS];
        keyed[Tier::REMOTE.0] = true;
        let config = Config {
            block_size: SIZE as u32,
            slots: vec![12, 2, 0, 5],
            keyed,
            ..Config::default()
        };
        let cache = Cache::new(config, KeyHash::default(), &Namespace::default());
        let cache = cache.expect("a good configuration");
        let act = |act: fn(&mut State, &[Key])| {
            let cache = cache.clone();
            let chain = chain(&cache, 1, 4 * SIZE);
            spawn(move || {
                for blocks in [2, 4, 3] {
                    act(&mut cache.lock(), &chain.keys()[..blocks]);
                    assert_eq!(cache.lock().audit(), None);
                }
            })
        };
        let adopts = act(|state, keys| {
            let adopted = state.adopt(keys, None, Tier::REMOTE).expect("it is keyed");
            assert_eq!(
                adopted as usize,
                keys.len(),
                "there is room for all of one prompt"
            );
        });
        let drops = act(|state, keys| {
            let dropped = state.forget_names(&keys[1..], Tier::REMOTE);
            assert!(dropped.expect("it is keyed") < 4);
        });
        let prompt = chain(&cache, 1, 4 * SIZE + 1);
        let begun = cache.begin(prompt.clone(), 0, u32::MAX);
        let (lease, begun) = begun.expect("there is room").expect("nothing is in flight");
        let found = begun.hits[Tier::REMOTE.0] as usize;
        assert_eq!(begun.cached, found as u64 * SIZE);
        let keys = begun.plans.iter().flat_map(|plan| plan.keys.clone());
        assert_eq!(keys.collect::<Vec<Key>>(), prompt.keys()[..found]);
        cache.landed(&begun.plans).expect("ours");
        cache.finish(lease, Retention::Ordinary).expect("it runs");
        for thread in [adopts, drops] {
            thread.join().expect("it did not panic");
        }
        at_rest(&cache);
    });
}
