//! A yard whose device is the engine's: its blocks are numbers in plans. (E1 to E7)

use crate::yard::{KINDS, Yard, by_age_of, config, each_of, text, three, tokens};
use blockyard_core::{
    BlockCosts, Config, Error, Fetch, FlightId, MAX_RUNS, ParkedId, Plan, Probe, Result, Stop,
    Tier, Wanted,
};

const DEVICE: Tier = Tier::DEVICE;
const HOST: Tier = Tier::HOST;
const DISK: Tier = Tier::DISK;

/// Sixteen blocks of the engine, and so many slots below.
fn below(host: u32, disk: u32) -> Config {
    Config {
        slots: vec![16, host, disk],
        engine: true,
        ..three(16, host, disk)
    }
}

fn yards(host: u32, disk: u32) -> impl Iterator<Item = Yard> {
    each_of(KINDS, below(host, disk))
}

fn by_age(host: u32, disk: u32) -> impl Iterator<Item = Yard> {
    by_age_of(below(host, disk))
}

impl Yard {
    fn find(&self, text: &[u32], after: u32) -> Probe {
        let chain = self.chain(text);
        let found = self.cache.lock().find(chain.keys(), after);
        self.sound();
        found.expect("the engine's")
    }

    fn try_offload(&self, text: &[u32], ids: &[u32], first: u32) -> Result<Option<Plan>> {
        let chain = self.chain(text);
        let plan = self.cache.lock().offload(chain.keys(), ids, first);
        self.sound();
        plan
    }

    fn offload(&self, text: &[u32], ids: &[u32]) -> Plan {
        let plan = self.try_offload(text, ids, 0).expect("the engine's");
        plan.expect("there is something to copy")
    }

    /// Leaves a text's blocks on the nearest lower tier.
    fn offloaded(&self, text: &[u32], ids: &[u32]) {
        self.land(&[self.offload(text, ids)]);
    }

    fn try_fetch(&self, text: &[u32], ids: &[u32], first: u32) -> Result<Fetch> {
        let chain = self.chain(text);
        let fetched = self
            .cache
            .lock()
            .fetch(Wanted::Keys(chain.keys()), ids, first);
        self.sound();
        fetched
    }

    fn fetch(&self, text: &[u32], ids: &[u32]) -> Vec<Plan> {
        match self.try_fetch(text, ids, 0) {
            Ok(Fetch::Plans(plans)) => plans,
            other => panic!("{other:?}"),
        }
    }

    fn fetch_kept(&self, kept: ParkedId, ids: &[u32]) -> Vec<Plan> {
        let fetched = self.cache.lock().fetch(Wanted::Kept(kept), ids, 0);
        self.sound();
        match fetched {
            Ok(Fetch::Plans(plans)) => plans,
            other => panic!("{other:?}"),
        }
    }

    fn try_keep(&self, text: &[u32], ids: &[u32]) -> Result<(ParkedId, Option<Plan>)> {
        let chain = self.chain(text);
        let kept = self
            .cache
            .lock()
            .save_request(chain.keys(), ids, text.len() as u64);
        self.sound();
        kept
    }

    fn save(&self, text: &[u32], ids: &[u32]) -> (ParkedId, Option<Plan>) {
        self.try_keep(text, ids).expect("there is room")
    }

    fn fence(&self, ids: &[u32]) -> Option<FlightId> {
        self.cache.lock().must_finish(ids).expect("the engine's")
    }

    /// Tokens and blocks that are kept.
    fn left(&self, kept: ParkedId) -> (u64, u32) {
        let view = self.cache.lock().view_parked(kept).expect("kept");
        (view.computed, view.blocks)
    }

    fn let_go(&self, kept: ParkedId) {
        self.cache.lock().abandon(kept).expect("kept");
        self.sound();
    }
}

fn soon(fetched: Result<Fetch>) -> FlightId {
    match fetched {
        Ok(Fetch::Soon(flight)) => flight,
        other => panic!("{other:?}"),
    }
}

fn way(plan: &Plan) -> (Tier, Tier, &[u32], &[u32]) {
    (plan.from, plan.to, &plan.sources, &plan.destinations)
}

/// Law: E1
#[test]
fn e1_what_a_flight_reads_or_writes_is_not_written_before_it_has_ended() {
    for yard in yards(8, 0) {
        let offload = yard.offload(&text(1, 2), &[3, 4]);
        assert_eq!(yard.fence(&[2, 4]), Some(offload.flight));
        assert_eq!(yard.fence(&[2, 5]), None);
        yard.offloaded(&text(2, 1), &[5]);
        assert_eq!(
            soon(yard.try_fetch(&text(2, 1), &[3], 0)),
            offload.flight,
            "what it reads is not filled"
        );
        yard.land(&[offload]);
        assert_eq!(yard.fence(&[3, 4]), None);
        let fetch = yard.fetch(&text(1, 2), &[3, 4]).remove(0);
        assert_eq!(yard.fence(&[4]), Some(fetch.flight));
        assert_eq!(
            yard.try_offload(&text(3, 1), &[4], 0),
            Ok(None),
            "what it fills is not copied"
        );
        yard.overdue(&fetch);
        assert_eq!(yard.fence(&[4]), Some(fetch.flight), "it may write still");
        yard.fail(&fetch, 0);
        assert_eq!(yard.fence(&[4]), None);
    }
}

/// Law: E1
#[test]
fn e1_of_several_flights_the_newest_is_the_fence() {
    let yard = yards(8, 0).next().unwrap();
    let (one, two) = (
        yard.offload(&text(1, 1), &[1]),
        yard.offload(&text(2, 1), &[1]),
    );
    assert_eq!(yard.fence(&[1]), Some(two.flight));
    yard.land(&[two]);
    assert_eq!(
        yard.fence(&[1]),
        Some(one.flight),
        "the older one reads it still"
    );
    yard.land(&[one]);
    assert_eq!(yard.fence(&[1]), None);
}

/// Law: E2
#[test]
fn e2_a_block_is_found_when_it_is_whole_and_said_to_come_before() {
    for yard in yards(8, 0) {
        let prompt = text(1, 3);
        let plan = yard.offload(&prompt, &[0, 1, 2]);
        assert_eq!(way(&plan).0, DEVICE);
        assert_eq!((plan.to, yard.find(&prompt, 0).hits), (HOST, [0; 4]));
        assert_eq!(yard.find(&prompt, 0).stop, Stop::Filling(plan.flight));
        assert_eq!(
            yard.try_offload(&prompt, &[7, 8, 9], 0),
            Ok(None),
            "it is copied once"
        );
        yard.fail(&plan, 2);
        let found = yard.find(&prompt, 0);
        assert_eq!((found.hits, found.stop), ([0, 2, 0, 0], Stop::Missing));
        assert_eq!(
            yard.find(&prompt, 1).hits,
            [0, 1, 0, 0],
            "the engine has the first"
        );
        assert_eq!(yard.find(&prompt, 2).hits, [0; 4]);
        let more = yard.try_offload(&prompt, &[9], 2).unwrap().unwrap();
        assert_eq!(way(&more).2, [9]);
        yard.land(&[more]);
        assert_eq!(yard.find(&prompt, 0).hits, [0, 3, 0, 0]);
    }
}

/// Law: E2
#[test]
fn e2_what_one_request_is_brought_up_is_in_the_air_for_the_next() {
    let yard = yards(8, 0).next().unwrap();
    let prompt = text(1, 2);
    yard.offloaded(&prompt, &[0, 1]);
    let fetch = yard.fetch(&prompt, &[2, 3]).remove(0);
    assert_eq!(way(&fetch), (HOST, DEVICE, &[0, 1][..], &[2, 3][..]));
    assert_eq!(yard.find(&prompt, 0).stop, Stop::Filling(fetch.flight));
    assert_eq!(soon(yard.try_fetch(&prompt, &[4, 5], 0)), fetch.flight);
    yard.overdue(&fetch);
    assert_eq!(
        yard.find(&prompt, 0).hits,
        [0, 2, 0, 0],
        "nobody waits for it"
    );
    yard.land(&yard.fetch(&prompt, &[4, 5]));
    yard.fail(&fetch, 0);
}

#[test]
fn e2_a_find_compares_loading_with_computing_behind_what_the_engine_has() {
    // Two blocks take 100 + 110 to compute where nothing is before them, and 120 + 130 behind two.
    for (load, after, pays) in [
        (104, 0, true),
        (105, 0, false),
        (124, 2, true),
        (125, 2, false),
    ] {
        let mut block_costs = BlockCosts {
            compute: 100,
            attend: 10,
            ..BlockCosts::default()
        };
        block_costs.load[1] = load;
        let yard = Yard::of(Config {
            block_costs: Some(block_costs),
            slots: vec![16, 8],
            engine: true,
            ..config(16, 8)
        });
        let prompt = text(1, u64::from(after) + 2);
        let ids: Vec<u32> = (0..after + 2).collect();
        yard.offloaded(&prompt, &ids);
        let found = yard.find(&prompt, after);
        let (hits, stop) = if pays {
            (2, Stop::Whole)
        } else {
            (0, Stop::Slow)
        };
        assert_eq!((found.hits[1], found.stop), (hits, stop), "{load} {after}");
        yard.land(&yard.fetch(&prompt, &ids));
        let hits = yard.stats().counters.hits;
        assert_eq!(hits[1], u64::from(after) + 2, "each block is a hit");
    }
}

#[test]
fn e4_a_kept_request_of_nine_runs_comes_back_by_eight_flights_and_then_by_the_last() {
    let yard = Yard::of(Config {
        slots: vec![32, 9, 9],
        engine: true,
        ..three(32, 9, 9)
    });
    let (prompt, ids) = (text(1, 9), (0..9).collect::<Vec<u32>>());
    yard.offloaded(&prompt, &ids);
    let below = yard.demote_from(HOST, 9).expect("nine blocks go down");
    assert_eq!(below.len(), 9);
    yard.land(&[below]);
    let (kept, plan) = yard.save(&prompt, &ids);
    assert_eq!(plan, None, "all of it is below");
    // Each second one has no copy on the host any more.
    for block in (1..9).step_by(2) {
        match yard.try_fetch(&prompt, &[20], block) {
            Ok(Fetch::Plans(plans)) => yard.corrupt(&plans[0], 0),
            other => panic!("{other:?}"),
        }
    }
    let plans = yard.fetch_kept(kept, &ids);
    let tiers: Vec<Tier> = plans.iter().map(|plan| plan.from).collect();
    let turns = [HOST, DISK].into_iter().cycle();
    assert_eq!(tiers, turns.take(MAX_RUNS).collect::<Vec<_>>());
    assert!(plans.iter().all(|plan| plan.len() == 1));
    yard.land(&plans);
    let rest = yard.cache.lock().fetch(Wanted::Kept(kept), &[8], 8);
    match rest {
        Ok(Fetch::Plans(plans)) => {
            assert_eq!(plans.len(), 1, "nothing reads it still");
            yard.land(&plans);
        }
        other => panic!("{other:?}"),
    }
    yard.let_go(kept);
}

/// Law: E3
#[test]
fn e3_what_a_fetch_reads_stays_until_it_has_ended_or_nothing_it_brings_is_believed() {
    for late in [false, true] {
        for yard in yards(2, 0) {
            let prompt = text(1, 2);
            yard.offloaded(&prompt, &[0, 1]);
            let fetch = yard.fetch(&prompt, &[2, 3]);
            assert_eq!(yard.try_offload(&text(2, 2), &[5, 6], 0), Ok(None));
            if late {
                yard.overdue(&fetch[0]);
            } else {
                yard.fail(&fetch[0], 2);
            }
            let plan = yard.offload(&text(2, 2), &[5, 6]);
            assert_eq!(plan.len(), 2, "its room is taken now");
            yard.land(&[plan]);
            assert_eq!(yard.find(&prompt, 0).hits, [0; 4]);
            if late {
                let fence = yard.cache.lock().must_finish(&[2, 3]);
                assert_eq!(fence, Ok(Some(fetch[0].flight)), "it may write there");
                yard.corrupt(&fetch[0], 0);
            }
            assert_eq!(yard.find(&text(2, 2), 0).hits, [0, 2, 0, 0]);
        }
    }
}

/// Law: E3
#[test]
fn e3_what_a_late_offload_reads_may_be_written_unless_it_goes_where_it_would_be_kept() {
    for keyed in [false, true] {
        let yard = Yard::of(Config {
            engine: true,
            keyed: [false, keyed, false, false],
            ..config(8, 4)
        });
        let plan = yard.offload(&text(1, 2), &[0, 1]);
        yard.overdue(&plan);
        let fence = yard.cache.lock().must_finish(&[0, 1]);
        assert_eq!(fence, Ok(Some(plan.flight).filter(|_| keyed)));
        // Another copy reads them: that is what has to end.
        let other = yard.offload(&text(2, 2), &[0, 1]);
        let fence = yard.cache.lock().must_finish(&[0, 1]);
        assert_eq!(fence, Ok(Some(other.flight)));
        yard.land(&[other]);
        let fence = yard.cache.lock().must_finish(&[0, 1]);
        assert_eq!(fence, Ok(Some(plan.flight).filter(|_| keyed)));
        yard.fail(&plan, 2);
        assert_eq!(yard.find(&text(1, 2), 0).hits, [0; 4]);
        assert_eq!(yard.find(&text(2, 2), 0).hits, [0, 2, 0, 0]);
    }
}

/// Law: E3
#[test]
fn e3_of_an_engines_path_nothing_is_evicted_for_the_rest_of_it() {
    for yard in yards(3, 0) {
        let prompt = text(1, 4);
        yard.offloaded(&prompt[..8], &[0, 1]);
        yard.offloaded(&text(2, 1), &[9]);
        let plan = yard.try_offload(&prompt, &[2, 3], 2).unwrap().unwrap();
        assert_eq!(
            plan.len(),
            1,
            "the other text went, and no block of its own"
        );
        yard.land(&[plan]);
        assert_eq!(yard.find(&prompt, 0).hits, [0, 3, 0, 0]);
    }
}

/// Law: E4
#[test]
fn e4_a_kept_request_comes_back_with_its_tokens() {
    for yard in yards(8, 0) {
        let prompt = tokens(1, 10);
        yard.offloaded(&prompt[..4], &[7]);
        let (kept, plan) = yard.save(&prompt, &[0, 1, 2]);
        let plan = plan.unwrap();
        assert_eq!(way(&plan).2, [1, 2], "what is below is kept there");
        assert_eq!(yard.left(kept), (10, 3));
        let early = yard.cache.lock().fetch(Wanted::Kept(kept), &[4, 5, 6], 0);
        assert!(
            matches!(&early, Ok(Fetch::Plans(plans)) if plans[0].len() == 1),
            "the first is there: {early:?}"
        );
        yard.land(&[plan]);
        let Ok(Fetch::Plans(plans)) = early else {
            unreachable!()
        };
        yard.land(&plans);
        let plans = yard.fetch_kept(kept, &[4, 5, 6]);
        assert_eq!((plans.len(), plans[0].len()), (1, 3), "with its tail");
        yard.land(&plans);
        assert_eq!(yard.left(kept), (10, 3), "until the engine has it");
        yard.let_go(kept);
        assert_eq!(yard.host().pinned, 0);
    }
}

/// Law: E4
#[test]
fn e4_what_fails_cuts_a_kept_request_to_what_is_before_it() {
    for yard in yards(8, 0) {
        let prompt = tokens(1, 10);
        for (good, left) in [(2, (8, 2)), (1, (4, 1)), (0, (0, 0))] {
            let other = [&[good][..], &prompt[1..]].concat();
            let (kept, plan) = yard.save(&other, &[0, 1, 2]);
            yard.fail(&plan.unwrap(), good);
            assert_eq!(yard.left(kept).1, left.1);
            assert_eq!(
                yard.cache.lock().view_parked(kept).unwrap().broken,
                left.1 == 0
            );
            if left.1 > 0 {
                assert_eq!(yard.left(kept), left);
            }
            yard.let_go(kept);
        }
    }
}

/// Law: E4
#[test]
fn e4_two_that_share_what_is_copied_once_are_cut_together() {
    for overdue in [false, true] {
        let yard = yards(8, 0).next().unwrap();
        let (one, two) = (text(1, 3), [&text(1, 2)[..], &tokens(2, 3)[..]].concat());
        let (first, plan) = yard.save(&one, &[0, 1, 2]);
        let (second, rest) = yard.save(&two, &[3, 4, 5]);
        let (plan, rest) = (plan.unwrap(), rest.unwrap());
        assert_eq!((way(&plan).2, way(&rest).2), (&[0, 1, 2][..], &[5][..]));
        yard.land(&[rest]);
        if overdue {
            yard.overdue(&plan);
            assert_eq!((yard.left(first).1, yard.left(second).1), (0, 0));
            yard.fail(&plan, 3);
        } else {
            yard.fail(&plan, 1);
            assert_eq!((yard.left(first), yard.left(second)), ((4, 1), (4, 1)));
        }
        yard.let_go(first);
        yard.let_go(second);
    }
}

/// Law: E4
#[test]
fn e4_what_finds_no_room_on_the_host_is_kept_below_it_and_moves_there() {
    for yard in yards(3, 6) {
        let (one, plan) = yard.save(&text(1, 3), &[0, 1, 2]);
        yard.land(&[plan.unwrap()]);
        let (two, plan) = yard.save(&text(2, 3), &[3, 4, 5]);
        assert_eq!(
            way(plan.as_ref().unwrap()),
            (DEVICE, DISK, &[3, 4, 5][..], &[0, 1, 2][..])
        );
        yard.land(&[plan.unwrap()]);
        let refused = yard.try_keep(&text(3, 4), &[6, 7, 8, 9]);
        assert!(
            matches!(
                refused,
                Err(Error::NoRoom {
                    tier: HOST,
                    need: 4,
                    ..
                })
            ),
            "{refused:?}"
        );
        let moved = yard.cache.lock().demote_parked(one, 9, Some(DISK)).unwrap();
        yard.land(&[moved.unwrap()]);
        assert_eq!(
            yard.cache.lock().view_parked(one).unwrap().kept,
            [0, 0, 3, 0]
        );
        let plans = yard.fetch_kept(one, &[9, 10, 11]);
        assert_eq!(plans[0].from, HOST, "from the nearest that has it");
        yard.land(&plans);
        let (three, plan) = yard.save(&text(3, 3), &[6, 7, 8]);
        assert_eq!(plan.as_ref().unwrap().to, HOST);
        yard.land(&[plan.unwrap()]);
        yard.resize(DISK, 0);
        let broken = |kept| yard.cache.lock().view_parked(kept).unwrap().broken;
        assert_eq!(
            [one, two, three].map(broken),
            [true, true, false],
            "what lay there"
        );
        for kept in [one, two, three] {
            yard.let_go(kept);
        }
    }
}

/// Law: E5
#[test]
fn e5_a_copy_that_was_found_bad_is_dropped_and_never_offered_again() {
    for yard in yards(8, 0) {
        let prompt = tokens(1, 12);
        let (kept, plan) = yard.save(&prompt, &[0, 1, 2]);
        yard.land(&[plan.unwrap()]);
        let plan = yard.fetch(&prompt, &[4, 5, 6]).remove(0);
        yard.corrupt(&plan, 1);
        let found = yard.find(&prompt, 0);
        assert_eq!((found.hits, found.stop), ([0, 1, 0, 0], Stop::Missing));
        assert_eq!(yard.left(kept), (4, 1));
        let plans = yard.fetch(&prompt, &[4, 5, 6]);
        assert_eq!(plans[0].len(), 1, "up to it, and no further");
        yard.land(&plans);
        let again = yard.offload(&prompt, &[4, 8, 9]);
        assert_eq!(
            way(&again).2,
            [8],
            "the orphan behind it is there, and linked again"
        );
        yard.land(&[again]);
        assert_eq!(yard.find(&prompt, 0).hits, [0, 3, 0, 0]);
        yard.let_go(kept);
    }
}

/// Law: E6
#[test]
fn e6_of_a_request_that_is_gone_nothing_is_kept() {
    for yard in yards(8, 0) {
        let (kept, plan) = yard.save(&tokens(1, 6), &[0, 1]);
        yard.let_go(kept);
        let plan = plan.unwrap();
        assert_eq!(yard.fence(&[0, 1]), Some(plan.flight), "it reads still");
        yard.land(&[plan]);
        assert_eq!(
            (yard.host().pinned, yard.host().idle, yard.host().free),
            (0, 1, 7)
        );
        assert!(matches!(
            yard.cache.lock().abandon(kept),
            Err(Error::Spent { .. })
        ));
    }
}

/// Law: E7
#[test]
fn e7_the_same_steps_give_the_same_plans() {
    let steps = |yard: &Yard| {
        let mut plans = vec![yard.offload(&text(1, 3), &[0, 1, 2])];
        yard.land(&plans);
        let (kept, plan) = yard.save(&tokens(2, 9), &[3, 4, 5]);
        plans.extend(plan);
        yard.fail(&plans[1], 2);
        plans.extend(yard.fetch_kept(kept, &[9, 8]));
        plans.extend(yard.fetch(&text(1, 3), &[7, 6, 5]));
        yard.land(&plans[2..]);
        yard.let_go(kept);
        plans.push(yard.offload(&text(3, 6), &[0, 1, 2, 3, 4, 5]));
        let digest = yard.cache.lock().digest();
        (plans, digest)
    };
    for (one, other) in yards(7, 4).zip(yards(7, 4)) {
        assert_eq!(steps(&one), steps(&other));
        one.ends_busy();
        other.ends_busy();
    }
}

#[test]
fn what_the_engine_uses_is_evicted_last_and_leaf_first() {
    for yard in by_age(6, 0) {
        for name in 1..4 {
            yard.offloaded(&text(name, 2), &[0, 1]);
        }
        let (one, two) = (yard.chain(&text(1, 2)), yard.chain(&text(2, 2)));
        yard.cache
            .lock()
            .used(&[two.keys(), one.keys()], None)
            .unwrap();
        yard.sound();
        for (gone, left) in [(3, 1), (3, 0), (2, 1), (2, 0), (1, 1), (1, 0)] {
            yard.offloaded(&text(10 * gone + left, 1), &[5]);
            let hits = yard.find(&text(gone, 2), 0).hits;
            assert_eq!(hits[1], left, "of text {gone}");
        }
    }
}

#[test]
fn what_is_promised_below_is_not_taken_by_a_offload() {
    let yard = yards(3, 0).next().unwrap();
    let ticket = yard.cache.lock().promise(2, HOST).unwrap();
    let plan = yard.offload(&text(1, 3), &[0, 1, 2]);
    assert_eq!(plan.len(), 1, "the root first, as far as there is room");
    yard.land(&[plan]);
    let refused = yard.try_keep(&text(2, 2), &[3, 4]);
    assert!(
        matches!(
            refused,
            Err(Error::NoRoom {
                need: 2,
                available: 1,
                ..
            })
        ),
        "{refused:?}"
    );
    yard.cache.lock().release_ticket(ticket).unwrap();
}

#[test]
fn ids_that_are_not_the_engines_are_refused_and_nothing_is_changed() {
    let yard = yards(8, 0).next().unwrap();
    yard.offloaded(&text(1, 2), &[0, 1]);
    let before = yard.cache.lock().digest();
    let argument = |answer: Result<()>| match answer {
        Err(Error::Argument { name, value, .. }) => (name, value),
        other => panic!("{other:?}"),
    };
    let prompt = text(1, 2);
    let refused = |ids: &[u32], first| {
        let offload = argument(yard.try_offload(&prompt, ids, first).map(|_| ()));
        assert_eq!(
            argument(yard.try_fetch(&prompt, ids, first).map(|_| ())),
            offload
        );
        offload
    };
    assert_eq!(refused(&[16], 0), ("ids", "16".to_owned()));
    assert_eq!(
        refused(&[3, 3], 0),
        ("ids", "3".to_owned()),
        "it comes twice"
    );
    assert_eq!(
        refused(&[3, 4], 1),
        ("ids", "2".to_owned()),
        "more ids than blocks"
    );
    let kept = |ids: &[u32]| argument(yard.try_keep(&tokens(2, 6), ids).map(|_| ()));
    assert_eq!(kept(&[3]), ("ids", "1".to_owned()), "fewer ids than blocks");
    assert_eq!(kept(&[3, 4, 5]), ("ids", "3".to_owned()));
    assert_eq!(kept(&[3, 99]), ("ids", "99".to_owned()));
    let fence = yard.cache.lock().must_finish(&[77]).map(|_| ());
    assert_eq!(argument(fence), ("ids", "77".to_owned()));
    let after = yard.cache.lock().find(&[], 1).map(|_| ());
    assert_eq!(argument(after), ("after", "1".to_owned()));
    assert_eq!(yard.cache.lock().digest(), before);
}

#[test]
fn verbs_of_the_other_kind_are_refused() {
    let state =
        |answer: Result<()>| assert!(matches!(answer, Err(Error::State { .. })), "{answer:?}");
    let own = Yard::of(config(8, 8));
    let mut cache = own.cache.lock();
    state(cache.find(&[], 0).map(|_| ()));
    state(cache.fetch(Wanted::Keys(&[]), &[], 0).map(|_| ()));
    state(cache.offload(&[], &[], 0).map(|_| ()));
    state(cache.save_request(&[], &[0], 1).map(|_| ()));
    state(cache.must_finish(&[]).map(|_| ()));
    state(cache.used(&[], None));
    drop(cache);
    let theirs = yards(8, 0).next().unwrap();
    let chain = theirs.chain(&text(1, 2));
    let refused = theirs.ask(&text(1, 2), 0, u32::MAX, blockyard_core::Filling::Stop);
    state(refused.map(|_| ()));
    let mut cache = theirs.cache.lock();
    state(cache.resize(DEVICE, 8));
    state(cache.promote(chain.keys(), 2, DEVICE).map(|_| ()));
    assert_eq!(cache.demote(DEVICE, 4), None);
}

#[test]
fn an_id_has_one_key_in_all_rows_of_a_offload() {
    let yard = yards(8, 0).next().unwrap();
    yard.ends_busy();
    let [one, other] = [text(1, 2), text(2, 2)].map(|prompt| yard.chain(&prompt).keys().to_vec());
    let mut state = yard.cache.lock();
    let before = state.digest();
    let refused = state.offload_all(&[(&one, &[3, 4], 0), (&other, &[5, 4], 0)]);
    assert!(matches!(refused, Err(Error::Argument { name: "ids", .. })));
    assert_eq!(state.digest(), before);
    // Two requests may share a block.
    let shared = state.offload_all(&[(&one, &[3, 4], 0), (&one, &[3], 0)]);
    assert_eq!(shared.unwrap().iter().flatten().count(), 1);
    assert_eq!(state.audit(), None);
}
