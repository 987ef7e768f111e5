//! Copies below are reachable: a path goes down root first, and what is dropped is its end (INV-39).

use crate::stores::yards;
use crate::yard::{KINDS, Yard, and_one, by_age_of, config, text, three};
use blockyard_core::{Answer, Config, HostCopies, Lease, Plan, Tier, WritePolicy};

const WRITES: [WritePolicy; 3] = [
    WritePolicy::OnEvict,
    WritePolicy::Through,
    WritePolicy::SecondTouch,
];

/// What each order, policy and place of copies makes of a configuration.
fn each(config: &Config, test: impl Fn(&dyn Fn() -> Yard, &str)) {
    for policy in KINDS {
        for write in WRITES {
            for copies in [HostCopies::First, HostCopies::Last] {
                let own = Config {
                    policy,
                    write,
                    writes_below: vec![write; config.slots.len() - 2],
                    host_copies: Some(copies),
                    ..config.clone()
                };
                let name = format!("{policy:?}, {write:?}, {copies:?}");
                test(&|| Yard::of(own.clone()), &name);
            }
        }
    }
}

/// Copies ahead from every tier, as a dispatch makes them; they land at once.
fn step(yard: &Yard, least: u32) -> Vec<Plan> {
    let tiers = yard.stats().tiers.len() - 1;
    let plans = (0..tiers).filter_map(|tier| yard.cache.lock().copy_ahead(Tier(tier), least, true));
    let plans: Vec<Plan> = plans.collect();
    yard.cache.lock().dispatch();
    yard.land(&plans);
    plans
}

fn run_again(yard: &Yard, prompt: &[u32]) -> u64 {
    let (lease, begun) = yard.begin(prompt);
    yard.land(&begun.plans);
    yard.seal(&lease, prompt.len() as u64);
    yard.finish(lease);
    begun.cached
}

/// Prompts in turn that all fit below, each longer than the copies that are made ahead at first.
fn rounds(yard: &Yard, prompts: u32, blocks: u64, pause: u32) -> f64 {
    let mut found = 0;
    for turn in 0..4 {
        for name in 0..prompts {
            let cached = run_again(yard, &and_one(&text(name + 1, blocks)));
            found += if turn > 1 { cached } else { 0 };
            for _ in 0..pause {
                step(yard, 2);
            }
        }
    }
    found as f64 / f64::from(2 * prompts) / (4 * blocks) as f64
}

/// Law: INV-39
#[test]
fn long_prompts_in_turn_are_found_again_where_a_tier_below_holds_them_all() {
    for slots in [config(41, 140), three(41, 0, 140), three(41, 50, 140)] {
        each(&slots, |make, name| {
            for (prompts, blocks) in [(8, 9), (6, 17)] {
                let yard = make();
                let found = rounds(&yard, prompts, blocks, 4);
                let slots = &slots.slots;
                // What was used once goes down no sooner than it is used again.
                let least = if name.contains("SecondTouch") {
                    0.7
                } else {
                    0.95
                };
                assert!(
                    found > least,
                    "{found} of {blocks} blocks, {slots:?} {name}"
                );
                assert_eq!(yard.cache.lock().unreachable(), 0, "{name}");
            }
        });
    }
}

/// Law: INV-39
#[test]
fn a_path_that_cannot_go_down_whole_goes_down_from_its_beginning() {
    each(&config(24, 64), |make, name| {
        let (yard, prompt) = (make(), text(1, 20));
        yard.publish(&prompt);
        yard.finish(yard.begin(&and_one(&prompt)).0);
        let plan = yard.cache.lock().copy_ahead(Tier::DEVICE, 5, false);
        let plan = plan.expect("four are free, and five should be");
        assert_eq!(plan.len(), 5);
        yard.land(&[plan]);
        yard.squeeze(20);
        assert_eq!(yard.hits(&prompt), [0, 5, 0, 0], "{name}");
    });
}

/// Law: INV-39
#[test]
fn what_is_named_and_leaves_a_hole_goes_first_after_the_next_dispatch_and_stays_where_it_is_linked()
{
    for again in [false, true] {
        let yard = Yard::new(8, 8);
        let (torn, whole) = (text(1, 4), text(2, 2));
        yard.publish(&torn);
        yard.copy_down(2);
        yard.publish_below(&whole);
        assert_eq!(yard.hits(&torn), [0, 0, 0, 0], "its beginning is nowhere");
        assert_eq!(yard.cache.lock().unreachable(), 2);
        yard.cache.lock().dispatch();
        if again {
            run_again(&yard, &torn);
        }
        // Room for the four that are free, and for two more.
        let lease = yard.run(&text(3, 6));
        yard.land(&[yard.demote_lease(&lease, 6)]);
        yard.finish(lease);
        let kept = if again { [0, 0, 0, 0] } else { [0, 2, 0, 0] };
        assert_eq!(yard.hits(&whole), kept, "linked again: {again}");
        assert_eq!(yard.cache.lock().unreachable(), 0);
    }
}

/// Law: INV-39
#[test]
fn what_stands_on_a_block_that_a_seal_has_linked_again_goes_first_no_more() {
    for yard in by_age_of(config(8, 4)) {
        let (torn, older) = (text(1, 4), text(2, 2));
        yard.publish(&torn);
        yard.copy_down(2);
        yard.publish_below(&older);
        yard.cache.lock().dispatch();
        assert_eq!(yard.cache.lock().unreachable(), 2, "the last two");
        // The third is computed again, and nobody asks for the fourth.
        yard.publish(&torn[..12]);
        yard.cache.lock().dispatch();
        yard.sound();
        yard.squeeze_host(1);
        assert_eq!(yard.hits(&older), [0, 1, 0, 0]);
        assert_eq!(yard.hits(&torn), [3, 1, 0, 0]);
    }
}

/// Law: INV-20, INV-20l
#[test]
fn what_was_passed_over_as_it_came_up_is_looked_at_again_when_it_has() {
    for yard in yards(8, 4, 4, 4) {
        let prompt = text(1, 2);
        yard.scatter(&prompt, &[Tier::DISK; 2]);
        let up = yard.promote_to(&prompt, 2, Tier::HOST);
        assert_eq!(yard.demote_from(Tier::DISK, 2), None, "it comes up");
        yard.land(&up);
        assert_eq!(yard.hits(&prompt), [0, 2, 0, 0]);
        let down = yard.demote_from(Tier::DISK, 2).expect("none is below");
        assert_eq!((down.to, down.len()), (Tier::REMOTE, 2));
        yard.land(&[down]);
    }
}

/// Law: INV-39
#[test]
fn what_never_comes_back_takes_little_from_what_does() {
    let yard = Yard::new(200, 300);
    let step = || step(&yard, 12);
    let chats = || (0..12).map(|name| text(100 + name, 6));
    let mut found = 0;
    for turn in 0..6 {
        for chat in chats() {
            found = if turn > 2 {
                found + run_again(&yard, &and_one(&chat))
            } else {
                run_again(&yard, &and_one(&chat));
                0
            };
            step();
        }
        run_again(&yard, &text(turn + 1, 180));
        (0..8).for_each(|_| drop(step()));
    }
    assert_eq!(found, 3 * 12 * 6 * 4, "whatever passed by in between");
}

/// Law: INV-39
#[test]
fn what_is_lost_and_what_through_did_not_write_is_counted_by_tier() {
    for write in WRITES {
        let yard = Yard::of(Config {
            write,
            ..three(8, 4, 4)
        });
        let prompt = text(1, 6);
        yard.publish(&prompt);
        yard.land(&[yard.demote_lease(&yard.begin(&and_one(&prompt)).0, 2)]);
        yard.squeeze(0);
        let counters = yard.stats().counters;
        assert_eq!((counters.dropped, counters.unwritten), ([0; 4], [0; 4]));
        yard.squeeze(6);
        let counters = yard.stats().counters;
        let unwritten = if write == WritePolicy::Through { 4 } else { 0 };
        assert_eq!(counters.dropped, [4, 0, 0, 0], "two had a copy");
        assert_eq!(counters.unwritten, [unwritten, 0, 0, 0]);
    }
}

/// Law: INV-39
#[test]
fn as_many_next_victims_have_a_copy_as_the_largest_begin_has_taken() {
    let yard = Yard::new(100, 200);
    for name in 0..10 {
        yard.publish(&text(name + 1, 10));
    }
    assert_eq!(yard.stats().largest, 10);
    run_again(&yard, &text(50, 40));
    assert_eq!(yard.stats().largest, 40);
    let copied: u32 = (0..8)
        .map(|_| {
            step(&yard, 2)
                .iter()
                .map(|plan| plan.len() as u32)
                .sum::<u32>()
        })
        .sum();
    assert!(copied >= 40, "{copied}");
    let before = yard.stats().counters.dropped[0];
    run_again(&yard, &text(51, 40));
    assert_eq!(yard.stats().counters.dropped[0], before, "nothing was lost");
}

/// Law: INV-39
#[test]
fn a_path_that_was_used_once_takes_no_more_than_its_share_of_a_full_tier_below() {
    const LONG: u64 = 264;
    for (host, share) in [(4_223, 32), (4_224, 33)] {
        let yard = Yard::new(300, host);
        yard.ends_busy();
        for name in 0..u64::from(host).div_ceil(LONG) {
            let rest = u64::from(host) - name * LONG;
            yard.publish_below(&text(name as u32 + 1, rest.min(LONG)));
        }
        assert_eq!(yard.host().free, 0);
        yard.publish(&text(50, 200));
        let plan = yard.cache.lock().copy_ahead(Tier::DEVICE, 150, false);
        assert_eq!(plan.map(|plan| plan.len()), Some(share), "of {host}");
    }
}

/// Law: INV-20d
#[test]
fn what_is_being_loaded_is_not_copied_further_down_unless_the_load_fails() {
    each(&three(8, 4, 8), |make, name| {
        for good in [false, true] {
            let (yard, prompt) = (make(), text(1, 2));
            yard.ends_busy();
            yard.publish_below(&prompt);
            let used_again = yard.begin(&and_one(&prompt)).1;
            assert_eq!(yard.demote_from(Tier::HOST, 4), None, "{name}");
            if good {
                yard.land(&used_again.plans);
            } else {
                yard.fail(&used_again.plans[0], 0);
            }
            let copied = yard.demote_from(Tier::HOST, 4).map(|plan| plan.len());
            assert_eq!(copied, (!good).then_some(2), "{name}");
        }
    });
}

/// Law: INV-39
#[test]
fn a_resume_is_followed_as_a_begin_is() {
    let yard = Yard::new(20, 20);
    yard.ends_busy();
    let lease = yard.run(&text(1, 4));
    let parked = yard.park(lease, 16);
    let before = yard.stats().largest;
    let resumed = yard.cache.lock().resume(parked.id(), &[], 40, 0);
    assert!(matches!(resumed, Ok(Answer::Begun(_))), "there is room");
    parked.spend();
    assert_eq!((before, yard.stats().largest), (4, 10));
}

/// Law: INV-39
#[test]
fn idle_lanes_take_half_of_the_device_from_a_full_tier_below_and_enough_for_begins_at_once() {
    let yard = Yard::new(101, 100);
    let idle = || (0..60).for_each(|_| drop(step(&yard, 2)));
    let prompts = |names: u32| (0..10).map(move |name| and_one(&text(names + name, 10)));
    for names in [100, 200] {
        for prompt in prompts(names) {
            run_again(&yard, &prompt);
        }
        idle();
    }
    assert_eq!(yard.host().free, 0);
    let below = |names| {
        prompts(names)
            .map(|prompt| yard.hits(&prompt)[1])
            .sum::<u32>()
    };
    assert!(below(100) >= 40, "the device has all of the others");
    let dropped = || yard.stats().counters.dropped[0];
    let before = dropped();
    let leases: Vec<_> = (0..4)
        .map(|name| yard.begin(&text(300 + name, 10)).0)
        .collect();
    assert_eq!(
        dropped(),
        before,
        "four begins at once, each as large as the largest"
    );
    for lease in leases {
        yard.finish(lease);
    }
}

/// Law: INV-39
#[test]
fn of_what_runs_a_full_tier_below_takes_what_goes_on_and_not_what_is_new() {
    let yard = Yard::new(61, 30);
    yard.ends_busy();
    let idle = || (0..40).for_each(|_| drop(step(&yard, 2)));
    let (session, new) = (text(1, 20), text(2, 10));
    run_again(&yard, &and_one(&session));
    run_again(&yard, &and_one(&session));
    yard.publish(&text(3, 10));
    idle();
    assert_eq!(yard.host().free, 0);
    let longer = text(1, 24);
    let goes_on = yard.begin(&and_one(&longer)).0;
    let begins = yard.begin(&and_one(&new)).0;
    yard.seal(&goes_on, 4 * 24 + 1);
    yard.seal(&begins, 4 * 10 + 1);
    yard.squeeze(10);
    assert_eq!(yard.hits(&text(3, 10)), [0, 10, 0, 0]);
    idle();
    let rest = |lease: &Lease| yard.cache.lock().demote_lease(lease.id(), 24);
    assert_eq!(rest(&goes_on).expect("it runs"), None, "all of it is below");
    let plan = rest(&begins)
        .expect("it runs")
        .expect("nothing of it is below");
    assert_eq!(plan.len(), 10);
}
