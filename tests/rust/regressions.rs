//! What the model has found, each as the few calls that show it.

#[expect(dead_code, reason = "it uses some of them")]
mod verbs;

use blockyard_core::{
    Answer, Begun, Cache, Chain, Config, Error, Extras, Filling, Key, KeyHash, Lease, Namespace,
    Outcome, Parked, Plan, Request, Retention, Sealing, Stop, Tier,
};
use verbs::Verbs as _;

/// Two tokens per block, no null slots.
fn cache(device: u32, host: u32, recompute: bool) -> Cache {
    let config = Config {
        block_size: 2,
        slots: vec![device, host],
        null_slots: 0,
        recompute,
        ..Config::default()
    };
    Cache::new(config, KeyHash::default(), &Namespace::default()).expect("a good configuration")
}

/// So many blocks of a text of this name.
fn text(cache: &Cache, name: u32, blocks: u32) -> Chain {
    let mut chain = cache.chain(Extras::default()).expect("no extras");
    let tokens: Vec<u32> = (0..2 * blocks).map(|at| 100 * name + at).collect();
    chain.extend(&tokens).expect("tokens");
    chain
}

fn begin(cache: &Cache, chain: &Chain) -> (Lease, Begun) {
    let request = Request {
        keys: chain.keys(),
        tokens: chain.tokens(),
        reserve: 0,
        load: u32::MAX,
        filling: Filling::Stop,
    };
    let answer = cache.lock().begin(&request);
    match answer {
        Ok(Answer::Begun(begun)) => (cache.handle(begun.lease, chain.clone()), begun),
        other => panic!("{other:?}"),
    }
}

/// A running sequence of this text, sealed as far as it is full.
fn run(cache: &Cache, chain: &Chain) -> Lease {
    let (lease, _) = begin(cache, chain);
    cache
        .seal(&[(&lease, chain.tokens())])
        .expect("nothing is in flight");
    lease
}

fn finish(cache: &Cache, lease: Lease) {
    cache.finish(lease, Retention::Ordinary).expect("it runs");
    sound(cache);
}

/// A text that is on the host alone.
fn below(cache: &Cache, name: u32, blocks: u32) -> Chain {
    let chain = text(cache, name, blocks);
    let lease = run(cache, &chain);
    let plan = cache.lock().demote_lease(lease.id(), blocks);
    land(
        cache,
        &plan.expect("it runs").expect("there is room"),
        blocks,
    );
    finish(cache, lease);
    // A request that needs the whole device.
    let device = cache.lock().stats().tiers[0].capacity as u32;
    let (other, _) = begin(cache, &text(cache, name + 50, device));
    finish(cache, other);
    assert_eq!(found(cache, &chain), [0, blocks]);
    chain
}

/// A parked sequence of one block, which has no copy below.
fn park(cache: &Cache, name: u32) -> Parked {
    let lease = run(cache, &text(cache, name, 1));
    cache
        .park(lease, 2)
        .map_err(|(_, error)| error)
        .expect("the host can promise")
}

fn land(cache: &Cache, plan: &Plan, good: u32) {
    let landed = cache
        .lock()
        .commit(&[Outcome::failed(plan.flight, good)], None);
    assert_eq!(landed, Ok(1));
    sound(cache);
}

fn found(cache: &Cache, chain: &Chain) -> [u32; 2] {
    let hits = cache.lock().probe(chain.keys()).hits;
    [hits[0], hits[1]]
}

fn sound(cache: &Cache) {
    let violation = cache.lock().audit();
    assert_eq!(violation, None);
}

/// A fork shares its parent's slots. When the parent's seal finds a block published by another,
/// the fork needs the published block as much as the parent: it stays when the parent ends.
#[test]
fn a_duplicate_that_forks_share_pins_the_published_block_for_all_of_them() {
    let cache = cache(8, 0, true);
    let (other, _) = begin(&cache, &text(&cache, 1, 1));
    let (parent, _) = begin(&cache, &text(&cache, 1, 3));
    cache.seal(&[(&other, 2)]).expect("nothing is in flight");
    finish(&cache, other);
    let (fork, _) = cache.fork(&parent, 6, 0).expect("there is room");
    assert_eq!(cache.seal(&[(&parent, 6)]), Ok(3));
    finish(&cache, parent);
    // Its duplicate of the first block, the published one, and the two behind it.
    assert_eq!(cache.lock().stats().tiers[0].pinned, 4);
    finish(&cache, fork);
    assert_eq!(cache.lock().stats().tiers[0].pinned, 0);
}

/// A host where two idle blocks are read, and a kept block is on its way to the third slot.
fn a_kept_block_in_flight(recompute: bool) -> (Cache, Parked, Plan) {
    let cache = cache(8, 6, recompute);
    let read = below(&cache, 1, 2);
    let promoted = cache.lock().promote(read.keys(), 2, Tier::DEVICE);
    assert!(promoted.is_ok_and(|plan| !plan.is_empty()));
    let parked = park(&cache, 2);
    let plan = cache.lock().demote_parked(parked.id(), 1, None);
    let plan = plan.expect("it is parked").expect("its slot is promised");
    assert_eq!(plan.destinations, [2]);
    (cache, parked, plan)
}

/// The slot retires when the copy fails: nothing backs the promise that stands again.
#[test]
fn a_kept_copy_that_fails_beyond_the_size_breaks_its_keep() {
    let (cache, parked, plan) = a_kept_block_in_flight(true);
    assert_eq!(cache.lock().resize(Tier::HOST, 2), Ok(()));
    land(&cache, &plan, 0);
    assert_eq!(cache.lock().stats().counters.broken, 1);
    drop(parked);
}

/// Where the engine cannot recompute, the resize is what gives way.
#[test]
fn a_resize_under_a_kept_copy_is_refused_where_nothing_can_be_recomputed() {
    let (cache, parked, plan) = a_kept_block_in_flight(false);
    let refused = cache.lock().resize(Tier::HOST, 2);
    assert!(
        matches!(refused, Err(Error::InUse { want: 2, .. })),
        "{refused:?}"
    );
    land(&cache, &plan, 0);
    assert_eq!(cache.lock().stats().counters.broken, 0);
    drop(parked);
}

/// The last block of a full hit comes up as a private copy: also that may show that the copy below
/// is no good.
#[test]
fn a_corrupt_copy_below_is_dropped_when_the_private_copy_of_a_full_hit_finds_it() {
    let cache = cache(8, 4, true);
    let chain = below(&cache, 1, 2);
    let (lease, begun) = begin(&cache, &chain);
    let [up, private] = &begun.plans[..] else {
        panic!("{:?}", begun.plans)
    };
    let outcomes = [
        Outcome::failed(up.flight, 1),
        Outcome::corrupt(private.flight, 0),
    ];
    assert_eq!(cache.lock().commit(&outcomes, None), Ok(2));
    sound(&cache);
    assert_eq!(cache.lock().stats().counters.corrupt, 1);
    assert_eq!(found(&cache, &chain), [1, 0]);
    finish(&cache, lease);
}

/// Breaking keeps would not have been enough: so none is broken.
#[test]
fn a_shrink_that_is_refused_breaks_no_keep() {
    let cache = cache(4, 4, true);
    let parked = park(&cache, 1);
    let (running, _) = begin(&cache, &text(&cache, 2, 3));
    let before = cache.lock().stats();
    let refused = cache.lock().resize(Tier::DEVICE, 2);
    assert!(
        matches!(refused, Err(Error::InUse { want: 2, .. })),
        "{refused:?}"
    );
    assert_eq!(cache.lock().stats(), before);
    assert_eq!(cache.lock().resize(Tier::DEVICE, 3), Ok(()));
    assert_eq!(cache.lock().stats().counters.broken, 1);
    drop(parked);
    finish(&cache, running);
}

/// A block that a walk links again may be of a higher class than all that was published above it
/// meanwhile: they rise with it, or a keep that ends would leave them before their child.
#[test]
fn what_is_linked_again_raises_the_class_of_all_above_it() {
    let cache = cache(8, 3, true);
    let chain = text(&cache, 1, 3);
    let lease = run(&cache, &chain);
    cache.finish(lease, Retention::Retain).expect("it runs");
    let plan = cache
        .lock()
        .demote(Tier::DEVICE, 1)
        .expect("the deepest block can go down");
    land(&cache, &plan, 1);
    let (whole, _) = begin(&cache, &text(&cache, 2, 8));
    finish(&cache, whole);
    // The first two blocks again, of no special class, kept on the host; the third is there still.
    let lease = run(&cache, &text(&cache, 1, 2));
    let parked = cache.park(lease, 4).map_err(|(_, error)| error);
    let parked = parked.expect("the host can promise");
    let plan = cache.lock().demote_parked(parked.id(), 2, None);
    land(
        &cache,
        &plan.expect("it is parked").expect("two are kept"),
        2,
    );
    let (whole, _) = begin(&cache, &text(&cache, 3, 8));
    finish(&cache, whole);
    assert_eq!(found(&cache, &chain), [0, 3]);
    let mut plans = cache.lock().promote(chain.keys(), 3, Tier::DEVICE);
    let plan = plans
        .as_mut()
        .expect("there is room")
        .pop()
        .expect("three are below");
    sound(&cache);
    assert_eq!(cache.lock().abandon(parked.id()), Ok(()));
    parked.spend();
    sound(&cache);
    land(&cache, &plan, 3);
    assert_eq!(found(&cache, &chain), [3, 0]);
}

/// An anonymous block that is being copied dissolves with its keep: what stands above it can be
/// taken then, and backs promises.
#[test]
fn a_shrink_counts_what_a_broken_keep_sets_free() {
    let cache = cache(8, 4, true);
    let mut chain = text(&cache, 1, 1);
    chain.extend(&[9]).expect("tokens");
    let (lease, _) = begin(&cache, &chain);
    let parked = cache.park(lease, 3).map_err(|(_, error)| error);
    let parked = parked.expect("the host can promise");
    let plan = cache.lock().demote_parked(parked.id(), 1, None);
    let plan = plan.expect("it is parked").expect("its slot is promised");
    // One block, and one promised.
    let other = text(&cache, 2, 1);
    let (other, _) = cache
        .begin(other, 2, 0)
        .expect("there is room")
        .expect("nothing is in flight");
    assert_eq!(cache.lock().resize(Tier::DEVICE, 3), Ok(()));
    sound(&cache);
    land(&cache, &plan, 1);
    finish(&cache, other);
    drop(parked);
}

/// Forks share blocks that neither has sealed: the host owes each such block one slot.
#[test]
fn a_shared_block_that_is_not_sealed_is_promised_once() {
    let cache = cache(8, 3, true);
    let (parent, _) = begin(&cache, &text(&cache, 1, 3));
    let (fork, _) = cache.fork(&parent, 6, 0).expect("there is room");
    let mut parked = Vec::new();
    for lease in [parent, fork] {
        let row = Sealing {
            lease: lease.id(),
            computed: 6,
            first: 0,
            keys: &[],
            spoken: None,
        };
        let id = cache
            .lock()
            .park(&row, None)
            .expect("three slots are enough");
        sound(&cache);
        parked.push(lease.into_parked(id));
    }
    assert_eq!(cache.lock().stats().tiers[1].promised, 3);
}

/// A copy down keeps what stands above it on the host from being taken, besides its own slot.
/// Where that is more than there is to spare, it is left out before anything is evicted for it.
#[test]
fn a_demotion_that_promises_forbid_evicts_nothing() {
    let cache = cache(8, 2, true);
    let other = below(&cache, 1, 1);
    let lease = run(&cache, &text(&cache, 2, 2));
    let plan = cache.lock().demote_lease(lease.id(), 1);
    land(&cache, &plan.expect("it runs").expect("there is room"), 1);
    let parked = park(&cache, 3);
    assert_eq!(cache.lock().demote_lease(lease.id(), 2), Ok(None));
    sound(&cache);
    assert_eq!(found(&cache, &other), [0, 1]);
    assert_eq!(cache.lock().stats().counters.evicted[1], 0);
    drop(parked);
    finish(&cache, lease);
}

/// A step that is done already holds nothing back.
#[test]
fn finishing_after_a_step_that_is_done_frees_at_once() {
    let cache = cache(4, 0, true);
    assert_eq!(cache.lock().commit(&[], Some(7)), Ok(0));
    let lease = run(&cache, &text(&cache, 1, 4));
    let ended = cache
        .lock()
        .finish(&[lease.id()], Retention::Ordinary, Some(7));
    assert_eq!(ended, Ok(()));
    lease.spend();
    assert_eq!(cache.lock().stats().tiers[0].idle, 4);
    sound(&cache);
}

/// Keys given ready may repeat a block whose parent was dropped: the walk stops there.
#[test]
fn an_orphan_that_comes_twice_in_a_path_is_a_contradiction() {
    let cache = cache(8, 8, true);
    let chain = text(&cache, 1, 3);
    let lease = run(&cache, &chain);
    finish(&cache, lease);
    let plan = cache
        .lock()
        .demote(Tier::DEVICE, 2)
        .expect("two can go down");
    land(&cache, &plan, 2);
    let (whole, _) = begin(&cache, &text(&cache, 2, 8));
    finish(&cache, whole);
    let lease = run(&cache, &text(&cache, 1, 1));
    finish(&cache, lease);
    let mut keys = chain.keys().to_vec();
    keys.push(keys[1]);
    let twice = Chain::ready(2, keys, 9).expect("one key per block");
    let probe = cache.lock().probe(twice.keys());
    assert_eq!(
        (probe.hits, probe.stop),
        ([1, 2, 0, 0], Stop::Contradiction)
    );
    let (lease, _) = begin(&cache, &twice);
    sound(&cache);
    finish(&cache, lease);
}

/// A held-back table from before a clear is still there: the cache is draining.
#[test]
fn what_a_step_in_flight_holds_is_drained_too() {
    let cache = cache(4, 0, true);
    let lease = run(&cache, &text(&cache, 1, 4));
    cache.lock().clear();
    let ended = cache
        .lock()
        .finish(&[lease.id()], Retention::Ordinary, Some(1));
    assert_eq!(ended, Ok(()));
    lease.spend();
    assert!(cache.lock().draining());
    assert_eq!(cache.lock().commit(&[], Some(1)), Ok(0));
    assert!(!cache.lock().draining());
    sound(&cache);
}

/// More copies of one block may be in flight than fit two bytes.
#[test]
fn a_block_may_be_read_by_seventy_thousand_copies() {
    let cache = cache(70_100, 0, true);
    let chain = text(&cache, 1, 1);
    let lease = run(&cache, &chain);
    finish(&cache, lease);
    let all: Vec<Lease> = (0..70_000).map(|_| begin(&cache, &chain).0).collect();
    assert_eq!(cache.lock().stats().flights, 70_000);
    sound(&cache);
    for lease in all {
        cache.finish(lease, Retention::Ordinary).expect("it runs");
    }
    sound(&cache);
}

#[test]
fn a_shared_slot_that_was_published_keeps_its_key_whatever_else_a_fork_calls_it() {
    let cache = cache(5, 0, true);
    for round in 0..20 {
        let mut state = cache.lock();
        let request = Request {
            keys: &[],
            tokens: 4,
            reserve: 0,
            load: 0,
            filling: Filling::Stop,
        };
        let Ok(Answer::Begun(parent)) = state.begin(&request) else {
            panic!("there is room");
        };
        let fork = state.fork(parent.lease, 4, 0).expect("there is room");
        let keys = [Key([2 * round + 1; 32]), Key([2 * round + 2; 32])];
        for (lease, key) in [parent.lease, fork.lease].into_iter().zip(&keys) {
            let row = Sealing {
                lease,
                computed: 2,
                first: 0,
                keys: std::slice::from_ref(key),
                spoken: None,
            };
            state.seal(&[row]).expect("computed");
            assert_eq!(state.audit(), None);
        }
        assert_eq!(state.probe(&keys[..1]).hits[0], 1);
        assert_eq!(state.probe(&keys[1..]).hits[0], 0);
        state
            .finish(&[parent.lease, fork.lease], Retention::Ordinary, None)
            .expect("live");
        assert_eq!(state.audit(), None);
    }
}
