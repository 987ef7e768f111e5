//! A yard of a further group of layers: its blocks are not linked, so that a row of them is a set. (G4, G8, G12)

use crate::yard::{KINDS, SIZE, Yard, config, each_of, text, three};
use blockyard_core::{
    Cache, Clears, Condemned, Config, Error, EvictionPolicy, Fetch, Group, HostCopies, Key,
    KeyHash, MAX_TIERS, Namespace, ParkedId, Plan, Presence, Result, Salts, Stop, Tier, Wanted,
};

const HOST: Tier = Tier::HOST;
const DISK: Tier = Tier::DISK;
const MISSING: Presence = Presence::Missing;
const READY: Presence = Presence::Ready;
const FILLING: Presence = Presence::Filling;

fn sets(policy: EvictionPolicy, host: u32, disk: u32) -> Yard {
    Yard::of(Config {
        policy,
        host_copies: Some(HostCopies::Last),
        slots: vec![16, host, disk],
        engine: true,
        linked: false,
        ..three(16, host, disk)
    })
}

fn all_sets(host: u32, disk: u32) -> impl Iterator<Item = Yard> {
    KINDS
        .into_iter()
        .map(move |policy| sets(policy, host, disk))
}

/// Keys of so many blocks of a text.
fn keys(yard: &Yard, name: u32, blocks: u64) -> Vec<Key> {
    yard.chain(&text(name, blocks)).keys().to_vec()
}

impl Yard {
    fn try_offload_set(&self, keys: &[Key], ids: &[u32]) -> Option<Plan> {
        let plan = self.cache.lock().offload(keys, ids, 0);
        self.sound();
        plan.expect("the engine's")
    }

    fn offload_set(&self, keys: &[Key], ids: &[u32]) -> Plan {
        self.try_offload_set(keys, ids).expect("there is room")
    }

    fn lay(&self, keys: &[Key]) {
        let ids: Vec<u32> = (0..keys.len() as u32).collect();
        self.land(&[self.offload_set(keys, &ids)]);
    }

    /// Where each is; a question, which changes nothing.
    fn which(&self, keys: &[Key]) -> Vec<Presence> {
        let before = self.cache.lock().digest();
        let found = self.cache.lock().which(keys).expect("the engine's");
        assert_eq!(self.cache.lock().digest(), before);
        found
    }

    fn try_keep_set(
        &self,
        keys: &[Key],
        ids: &[u32],
        tokens: u64,
    ) -> Result<(ParkedId, Option<Plan>)> {
        let kept = self.cache.lock().save_request(keys, ids, tokens);
        self.sound();
        kept
    }

    fn keep_set(&self, keys: &[Key], ids: &[u32]) -> (ParkedId, Option<Plan>) {
        let tokens = ids.len() as u64 * SIZE;
        self.try_keep_set(keys, ids, tokens).expect("there is room")
    }

    fn fetch_set(&self, what: Wanted<'_>, ids: &[u32]) -> Vec<Plan> {
        let fetched = self.cache.lock().fetch(what, ids, 0);
        self.sound();
        match fetched {
            Ok(Fetch::Plans(plans)) => plans,
            other => panic!("{other:?}"),
        }
    }

    /// Tokens and blocks of a kept set, and whether it is broken.
    fn kept_set(&self, kept: ParkedId) -> (u64, u32, bool) {
        let view = self.cache.lock().view_parked(kept).expect("kept");
        (view.computed, view.blocks, view.broken)
    }

    fn give_up(&self, kept: ParkedId) {
        self.cache.lock().abandon(kept).expect("kept");
        self.sound();
    }
}

/// Law: G4
#[test]
fn g4_each_block_of_a_set_goes_by_its_own_age_whatever_its_row_has_before_and_behind_it() {
    for yard in all_sets(3, 0) {
        let set = keys(&yard, 1, 3);
        yard.lay(&set);
        // The last is the oldest by now, then the first.
        yard.cache.lock().used(&[&set[..1]], None).expect("it is");
        yard.cache.lock().used(&[&set[1..2]], None).expect("it is");
        for (name, left) in [(2, [READY, READY, MISSING]), (3, [MISSING, READY, MISSING])] {
            yard.lay(&keys(&yard, name, 1));
            assert_eq!(yard.which(&set), left);
        }
    }
}

/// Law: G4
#[test]
fn g4_a_row_may_have_any_order_and_any_holes() {
    for yard in all_sets(8, 0) {
        let all = keys(&yard, 1, 6);
        let row = [all[5], all[2], all[4]];
        yard.lay(&row);
        assert_eq!(
            yard.which(&all),
            [MISSING, MISSING, READY, MISSING, READY, READY]
        );
        // Another row has some of them before, and others behind.
        let plan = yard.offload_set(&[all[3], all[2], all[0], all[5]], &[7, 8, 9, 10]);
        assert_eq!(plan.sources, [7, 9], "what is there is not copied again");
        yard.land(&[plan]);
        let found = yard.cache.lock().find(&all[2..], 0).expect("the engine's");
        assert_eq!((found.hits, found.stop), ([0, 4, 0, 0], Stop::Whole));
        let found = yard.cache.lock().find(&all, 0).expect("the engine's");
        assert_eq!((found.hits, found.stop), ([0, 1, 0, 0], Stop::Missing));
        let plans = yard.fetch_set(Wanted::Keys(&[all[4], all[0], all[1]]), &[1, 2, 3]);
        assert_eq!(plans[0].destinations, [1, 2], "as far as they are there");
        yard.land(&plans);
    }
}

/// Law: G4
#[test]
fn g4_of_a_set_what_cannot_be_copied_is_left_out_and_the_others_go() {
    for yard in all_sets(8, 0) {
        let (old, new) = (keys(&yard, 1, 1), keys(&yard, 2, 3));
        yard.lay(&old);
        let fetch = yard.fetch_set(Wanted::Keys(&old), &[5]);
        let twice = [new[0], new[1], new[0], new[2]];
        let plan = yard.offload_set(&twice, &[4, 5, 6, 7]);
        assert_eq!(
            plan.sources,
            [4, 7],
            "5 is being filled, and 6 has the first again"
        );
        assert_eq!(yard.which(&new), [FILLING, MISSING, FILLING]);
        yard.land(&fetch);
        yard.land(&[plan]);
        // Where room is left for one alone, one goes, and nothing that the row has already.
        let yard = sets(EvictionPolicy::Recency, 2, 0);
        let set = keys(&yard, 1, 4);
        yard.lay(&[set[3]]);
        let plan = yard.offload_set(&set, &[0, 1, 2, 3]);
        assert_eq!(plan.sources, [0]);
        yard.land(&[plan]);
        assert_eq!(yard.which(&set), [READY, MISSING, MISSING, READY]);
    }
}

/// Law: G4
#[test]
fn g4_a_kept_block_takes_its_own_slot_and_none_of_those_before_it() {
    for yard in all_sets(4, 0) {
        let set = keys(&yard, 1, 3);
        yard.lay(&set);
        let (kept, plan) = yard.keep_set(&set[2..], &[9]);
        assert_eq!((plan, yard.host().takeable), (None, 2));
        // Two that are there, and the free one.
        let other = keys(&yard, 2, 3);
        let (second, plan) = yard.keep_set(&other, &[1, 2, 3]);
        let plan = plan.expect("they are new");
        assert_eq!(plan.len(), 3);
        yard.land(&[plan]);
        assert_eq!(yard.which(&set), [MISSING, MISSING, READY]);
        assert!(matches!(
            yard.try_keep_set(&keys(&yard, 3, 1), &[4], SIZE),
            Err(Error::NoRoom { need: 1, .. })
        ));
        yard.give_up(second);
        yard.give_up(kept);
    }
}

/// Law: G4
#[test]
fn g4_a_second_copy_of_a_kept_block_makes_room_for_the_others_of_its_set() {
    for linked in [true, false] {
        let yard = Yard::of(Config {
            engine: true,
            linked,
            ..three(16, 1, 4)
        });
        let set = keys(&yard, 1, 2);
        yard.lay(&set[..1]);
        let below = yard.demote_from(HOST, 1).expect("one block");
        yard.land(&[below]);
        // It is kept on the disk. The host's copy goes for the other, unless that stands on it.
        let (kept, plan) = yard.keep_set(&set, &[0, 1]);
        let plan = plan.expect("the second is new");
        assert_eq!(plan.to, if linked { DISK } else { HOST });
        yard.land(&[plan]);
        yard.give_up(kept);
    }
}

/// Law: G4
#[test]
fn g4_a_row_of_a_set_comes_up_from_the_disk_ahead_of_its_fetch() {
    for yard in all_sets(4, 4) {
        let set = keys(&yard, 1, 5);
        let row = [set[4], set[1], set[3]];
        yard.lay(&row);
        let below = yard.demote_from(HOST, 3).expect("three blocks");
        yard.land(&[below]);
        yard.lay(&keys(&yard, 2, 4));
        assert_eq!(yard.cache.lock().probe(&row).hits, [0, 0, 3, 0]);
        let plans = yard.cache.lock().promote(&row, u32::MAX, HOST);
        let plans = plans.expect("the host has slots");
        yard.sound();
        assert_eq!(plans.iter().map(Plan::len).sum::<usize>(), 3);
        yard.land(&plans);
        assert_eq!(yard.cache.lock().probe(&row).hits, [0, 3, 0, 0]);
        assert_eq!(yard.cache.lock().probe(&set).stop, Stop::Missing);
    }
}

/// Law: G4, INV-40
#[test]
fn g4_a_clean_stop_writes_the_blocks_of_a_set_that_the_disk_lacks() {
    for yard in all_sets(4, 4) {
        let set = keys(&yard, 1, 4);
        yard.lay(&[set[3], set[1]]);
        let lacks = yard.cache.lock().unwritten(DISK).expect("there is a disk");
        assert_eq!(
            lacks.len(),
            2,
            "what was before them is nowhere, and no matter"
        );
        let (plans, _) = yard
            .cache
            .lock()
            .write_down(DISK, &lacks, &[])
            .expect("there is");
        yard.sound();
        yard.land(&plans);
        assert_eq!(yard.cache.lock().written(DISK, &set), Ok(2));
    }
}

/// Law: G4
#[test]
fn g4_a_restart_finds_sets_whatever_their_rows_name_as_parents() {
    let mut keyed = [false; MAX_TIERS];
    keyed[DISK.0] = true;
    for yard in each_of(
        KINDS,
        Config {
            keyed,
            engine: true,
            linked: false,
            ..three(16, 0, 4)
        },
    ) {
        let set = keys(&yard, 1, 4);
        let parents = [Key([0; 32]), set[0], set[3], Key::UNKNOWN];
        let rows = [0, 1, 2, 3];
        let told = yard.cache.lock().restore(DISK, &rows, &set, &parents);
        assert_eq!(told, Ok(()));
        yard.sound();
        let plan = yard.offload_set(&keys(&yard, 2, 1), &[0]);
        assert_eq!(plan.parents, [Key::NO_PARENT]);
        assert_eq!(
            plan.destinations,
            [0],
            "the oldest row goes, though another named it"
        );
        yard.land(&[plan]);
        assert_eq!(yard.which(&set), [MISSING, READY, READY, READY]);
    }
}

/// Law: G4, E2, INV-5
#[test]
fn g4_each_key_is_answered_for_by_itself() {
    for yard in all_sets(4, 4) {
        let set = keys(&yard, 1, 40);
        assert_eq!(yard.which(&[]), []);
        assert_eq!(yard.which(&set), [MISSING; 40]);
        let plan = yard.offload_set(&[set[0], set[33]], &[0, 1]);
        let expect = |first: Presence, last: Presence| {
            let found = yard.which(&set);
            assert_eq!((found[0], found[33]), (first, last));
            let others = found.iter().filter(|&&one| one == MISSING).count();
            assert_eq!(
                others,
                38 + usize::from(first == MISSING) + usize::from(last == MISSING)
            );
        };
        expect(FILLING, FILLING);
        yard.fail(&plan, 1);
        expect(READY, MISSING);
        // A copy between the tiers below changes nothing about it; one that comes up does.
        let below = yard.demote_from(HOST, 1).expect("one block");
        expect(READY, MISSING);
        yard.land(&[below]);
        let up = yard.fetch_set(Wanted::Keys(&set[..1]), &[5]);
        expect(FILLING, MISSING);
        yard.overdue(&up[0]);
        expect(READY, MISSING);
        yard.fail(&up[0], 0);
        let late = yard.offload_set(&set[33..34], &[2]);
        yard.overdue(&late);
        expect(READY, MISSING);
        yard.fail(&late, 0);
        // Twice is answered twice.
        assert_eq!(
            yard.which(&[set[0], set[1], set[0]]),
            [READY, MISSING, READY]
        );
        yard.cache.lock().clear();
        yard.sound();
        expect(MISSING, MISSING);
    }
}

/// Law: G4
#[test]
fn g4_linked_blocks_are_answered_for_by_themselves_too() {
    let yard = Yard::of(Config {
        engine: true,
        ..config(8, 4)
    });
    let all = keys(&yard, 1, 3);
    yard.land(&[yard.offload_set(&all, &[0, 1, 2])]);
    let plan = yard.offload_set(&keys(&yard, 2, 2), &[3, 4]);
    yard.land(&[plan]);
    assert_eq!(yard.which(&all), [READY, READY, MISSING]);
    let found = Yard::new(8, 8).cache.lock().which(&all);
    assert!(matches!(found, Err(Error::State { .. })), "{found:?}");
}

/// Law: G8
#[test]
fn g8_a_kept_set_has_its_partial_block_and_comes_back_whole() {
    for yard in all_sets(8, 0) {
        let set = keys(&yard, 1, 9);
        // Blocks 5 to 8, of which the last has three tokens.
        let (kept, plan) = yard
            .try_keep_set(&set[5..], &[4, 5, 6, 7], 3 * SIZE + 3)
            .expect("there is room");
        let plan = plan.expect("all are new");
        assert_eq!((plan.len(), yard.kept_set(kept)), (4, (15, 4, false)));
        assert_eq!(yard.which(&set[5..]), [FILLING, FILLING, FILLING, MISSING]);
        yard.land(&[plan]);
        let plans = yard.fetch_set(Wanted::Kept(kept), &[0, 1, 2, 3]);
        assert_eq!(plans[0].destinations, [0, 1, 2, 3]);
        yard.land(&plans);
        yard.give_up(kept);
        assert_eq!((yard.host().idle, yard.host().pinned), (3, 0));
    }
}

/// Leaves a kept set of three blocks, whose last is another's too, and says whether it was broken.
fn broken_by(yard: &Yard, breaks: impl Fn(&Yard, &[Key], &Plan)) {
    let set = keys(yard, 1, 3);
    let (kept, plan) = yard.keep_set(&set, &[0, 1, 2]);
    let (other, none) = yard.keep_set(&set[..1], &[3]);
    assert_eq!(none, None, "it is on its way");
    breaks(yard, &set, &plan.expect("all are new"));
    assert_eq!(yard.kept_set(kept), (12, 0, true), "broken as a whole");
    assert_eq!(yard.kept_set(other), (4, 1, false), "its block is there");
    assert_eq!(yard.which(&set)[0], READY, "and may be found");
    assert_eq!(yard.host().pinned, 1);
    assert_eq!(yard.stats().counters.broken, 1);
    yard.give_up(kept);
    yard.give_up(other);
}

/// Law: G8
#[test]
fn g8_a_kept_set_that_loses_a_block_is_broken_and_not_cut() {
    for policy in KINDS {
        let yard = || sets(policy, 8, 0);
        broken_by(&yard(), |yard, _, plan| yard.fail(plan, 2));
        broken_by(&yard(), |yard, _, plan| yard.fail(plan, 1));
        broken_by(&yard(), |yard, set, plan| {
            yard.land(std::slice::from_ref(plan));
            let up = yard.fetch_set(Wanted::Keys(set), &[5, 6, 7]);
            yard.corrupt(&up[0], 1);
        });
        broken_by(&yard(), |yard, _, plan| {
            yard.land(std::slice::from_ref(plan));
            let lost = &plan.destinations[2..];
            assert_eq!(yard.cache.lock().withdraw(HOST, lost), Ok(1));
            yard.sound();
        });
        broken_by(&yard(), |yard, _, plan| {
            // Where it is to come is gone before it comes.
            let lost = &plan.destinations[1..2];
            assert_eq!(yard.cache.lock().withdraw(HOST, lost), Ok(0));
            yard.sound();
            yard.fail(plan, 3);
        });
    }
}

/// Law: G8
#[test]
fn g8_a_kept_set_whose_copy_has_no_known_end_is_broken() {
    for yard in all_sets(8, 0) {
        let set = keys(&yard, 1, 3);
        let (kept, plan) = yard.keep_set(&set, &[0, 1, 2]);
        let plan = plan.expect("all are new");
        yard.overdue(&plan);
        assert_eq!(yard.kept_set(kept), (12, 0, true));
        yard.fail(&plan, 3);
        yard.give_up(kept);
    }
}

/// Law: G8, INV-42
#[test]
fn g8_whoever_keeps_any_block_of_what_is_forgotten_is_named() {
    for yard in all_sets(8, 0) {
        let set = keys(&yard, 1, 3);
        let (kept, plan) = yard.keep_set(&set, &[0, 1, 2]);
        yard.land(&[plan.expect("all are new")]);
        let forget = |force| {
            let done = yard.cache.forget(Condemned::Keys(&set[..1]), force);
            yard.sound();
            done.expect("there is memory")
        };
        assert_eq!(forget(false).kept, [kept]);
        assert_eq!(yard.kept_set(kept), (12, 3, false), "it stays");
        let done = forget(true);
        assert_eq!((done.blocks, &done.kept[..]), (1, &[kept][..]));
        assert!(yard.kept_set(kept).2);
        assert_eq!(
            yard.which(&set),
            [MISSING, READY, READY],
            "nothing stood on it"
        );
        yard.give_up(kept);
    }
}

/// Law: G12
#[test]
fn g12_plans_name_their_group_and_those_of_another_end_nothing() {
    let yard = |group| {
        Yard::of(Config {
            engine: true,
            linked: false,
            group: Group(group),
            ..config(8, 4)
        })
    };
    let (one, two) = (yard(1), yard(2));
    let set = keys(&one, 1, 2);
    let plan = one.offload_set(&set, &[0, 1]);
    let other = two.offload_set(&set, &[0, 1]);
    assert_eq!((plan.group, other.group), (Group(1), Group(2)));
    assert_eq!(Plan::from_bytes(&plan.to_bytes()).as_ref(), Ok(&plan));
    assert_eq!(one.cache.lock().check_plan(&plan), Ok(()));
    let refused = one.cache.lock().check_plan(&other).expect_err("another's");
    assert_eq!(
        refused.to_string(),
        "ending a flight of group 2 in the cache of group 1: pass it to the cache of its own group"
    );
    for (yard, plan) in [(one, plan), (two, other)] {
        yard.land(&[plan]);
    }
}

/// Law: G12
#[test]
fn g12_sets_are_refused_on_a_device_that_is_the_yards_and_to_a_listener() {
    let own = Config {
        linked: false,
        ..config(8, 4)
    };
    let made = Cache::new(own, KeyHash::default(), &Namespace::default());
    let told = made.expect_err("its blocks are linked").to_string();
    assert!(told.starts_with("linked = false: "), "{told}");
    let yard = sets(EvictionPolicy::Recency, 4, 0);
    let heard = yard.cache.listen(64, Salts::Hide, Clears::All);
    let told = heard.expect_err("its blocks name no parents").to_string();
    assert!(told.contains("listen to the cache of group 0"), "{told}");
    assert!(!yard.cache.has_listener());
}

#[test]
fn of_sets_all_that_lies_below_pays_to_load() {
    let costs = blockyard_core::BlockCosts {
        compute: 1,
        load: [1_000_000; MAX_TIERS],
        ..Default::default()
    };
    for linked in [true, false] {
        let yard = Yard::of(Config {
            engine: true,
            linked,
            block_costs: Some(costs),
            ..config(8, 4)
        });
        let set = keys(&yard, 1, 2);
        yard.lay(&set);
        let found = yard.cache.lock().find(&set, 0).expect("the engine's");
        assert_eq!(found.hits[1], if linked { 0 } else { 2 });
    }
}
