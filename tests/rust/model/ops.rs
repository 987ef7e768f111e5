//! What is done: operations name what they touch by a number modulo what there is, so that a
//! script still means something when parts of it are left out.

use blockyard_core::{
    BlockCosts, EvictionPolicy, Hints, HostCopies, MAX_TIERS, NextUse, Priority, Retention, Tier,
    WritePolicy,
};
use proptest::collection::vec;
use proptest::prelude::*;
use std::fmt;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) block_size: u32,
    /// It has so many tiers, of these sizes.
    pub(crate) tiers: usize,
    pub(crate) slots: [u32; MAX_TIERS],
    pub(crate) null: u32,
    pub(crate) policy: EvictionPolicy,
    pub(crate) host_copies: Option<HostCopies>,
    pub(crate) recompute: bool,
    pub(crate) retries: u32,
    pub(crate) writes: [WritePolicy; MAX_TIERS],
    pub(crate) block_costs: Option<BlockCosts>,
}

impl Setup {
    /// Slots of the device that are kept free: none in some.
    pub(crate) fn spare(&self) -> u32 {
        (self.slots[0] + self.block_size) % 5 * 2
    }

    /// Tiers that keep what they have under its key: some, of some sizes.
    pub(crate) fn keyed(&self) -> [bool; MAX_TIERS] {
        let mut keyed = self
            .slots
            .map(|slots| (slots + self.block_size).is_multiple_of(3));
        keyed[0] = false;
        // Nothing is adopted by slot: most stores are keyed.
        keyed[Tier::REMOTE.0] = self.tiers > Tier::REMOTE.0 && !self.slots[3].is_multiple_of(11);
        keyed
    }
}

/// One run of equal tokens per block, 0 or 1 by the bits of `path`, and a partial block of `tail`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prompt {
    pub(crate) path: u32,
    pub(crate) blocks: u8,
    pub(crate) tail: u8,
}

/// A mistake in a restore: none in most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slip {
    None,
    SlotTwice,
    SlotBeyond,
    KeyTwice,
    NoKey,
    Lengths,
    Circle,
    Device,
}

/// A row of a decode step: its lease, tokens, what is computed then, and growth.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepRow {
    pub(crate) lease: u8,
    pub(crate) tokens: u8,
    pub(crate) computed: u8,
    pub(crate) grow: u8,
}

/// Numbers are of a lease, a parked sequence or a flight where they come first.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    /// With tokens of reserve, most loads, and whether to wait for what is in flight.
    Begin(Prompt, u8, u8, bool),
    /// A prompt used once only, which takes all there is, and blocks more; it is kept, or ended at
    /// once.
    Fill(u8, bool),
    /// So many tokens of this run.
    Append(u8, u8, u8),
    /// Rows of a lease and tokens.
    Grow(Vec<(u8, u8)>),
    /// A decode step of rows; whether the cells of tables are new, and whether none is refused.
    Step(Vec<StepRow>, bool, bool),
    /// Tokens to cut.
    Trim(u8, u8),
    /// Rows of a lease and what of it is computed.
    Seal(Vec<(u8, u8)>),
    /// What is computed, tokens of reserve.
    Fork(u8, u8, u8),
    /// With hints, and whether a step is in flight.
    Finish(Vec<u8>, Hints, bool),
    /// What is computed, and whether a step is in flight.
    Park(u8, u8, bool),
    /// With more tokens, and tokens of reserve.
    Resume(u8, u8, u8),
    Abandon(u8),
    Demote(u8),
    DemoteLease(u8, u8),
    DemoteParked(u8, u8),
    Promote(Prompt, u8),
    /// Outcomes: a flight, its good blocks, whether the first bad one is corrupt.
    Land(Vec<(u8, u8, bool)>),
    Unknown(u8),
    /// An outcome, or a deadline, of a flight that has ended.
    Late(u8, bool),
    /// Some verb with a spent handle.
    Stale(u8, u8),
    /// The steps are done, but for so many of the last.
    Done(u8),
    Clear,
    Resize(u8, u8),
    /// The slots of a tier from the first one on, each so many behind the one before.
    Withdraw(u8, u8, u8),
    /// The blocks of a prompt from this one on, with all that stands on them; or that of another tenant's
    /// prompts, and by force or not.
    Forget(Prompt, u8, bool),
    /// So many blocks of a prompt are said to be in a store; at this place stands another prompt's.
    Adopt(Prompt, u8, u8),
    /// The names of a prompt's blocks from this one on.
    DropNames(Prompt, u8),
    /// The contents of all tiers, but for those below the device with a bit here.
    Lose(u8),
    DropLease(u8),
    DropParked(u8),
    /// Blocks for a request that does not run yet.
    Promise(u8),
    Release(u8),
    /// A begin with a ticket: tokens of reserve, and whether to wait for what is in flight.
    Redeem(u8, Prompt, u8, bool),
    /// A resume with a ticket, and tokens of reserve.
    RedeemParked(u8, u8, u8),
    DropTicket(u8),
    /// At most so many blocks of a prompt, for others to read.
    Hold(Prompt, u8),
    EndHold(u8),
    DropHold(u8),
    /// Blocks of the host for a sequence about to be parked.
    PromiseBelow(u8),
    /// A park with a ticket: what is computed, and whether a step is in flight.
    RedeemParking(u8, u8, u8, bool),
    /// Blocks for the growth of the running batch.
    Headroom(u8),
    /// Of these leases.
    Dedup(Vec<u8>),
    /// Slots that are kept free.
    Spare,
    /// The next victims of a tier.
    DemoteFrom(u8, u8),
    /// What a dispatch copies ahead from a tier: its watermark, and whether that grows.
    Ahead(u8, u8, bool),
    /// What a clean stop copies to a tier: at most so many blocks.
    WriteDown(u8, u8),
    /// A parked sequence to a tier: at most so many blocks.
    Rehome(u8, u8, u8),
    /// At most so many blocks, to a tier below the device.
    Lift(Prompt, u8, u8),
    /// A tier below the device, and its slots.
    ResizeOn(u8, u8),
    PromiseOn(u8, u8),
    /// Blocks of a tier below the device that an earlier run has left: one of a prompt, or all.
    Restore(u8, Vec<(Prompt, u8)>, Slip),
    /// All that is in flight lands, and is good.
    LandAll,
    /// A prompt is brought to the device, and a block that comes from the host is corrupt; flights
    /// land in their order, or the other way round.
    Spoil(Prompt, u8, bool),
}

fn prompts() -> impl Strategy<Value = Prompt> {
    let path = prop_oneof![3 => Just(0), 2 => Just(0b100), 1 => any::<u8>()];
    let path = path.prop_map(u32::from);
    let tail = prop_oneof![Just(0), 0..4_u8];
    (path, 0..8_u8, tail).prop_map(|(path, blocks, tail)| Prompt { path, blocks, tail })
}

const RETENTIONS: [Retention; 3] = [
    Retention::SessionEnded,
    Retention::Ordinary,
    Retention::Retain,
];

/// What else is said of a request's future: in how long it is used again, its priority, and how many
/// blocks are used until it has outlived its time.
type Said = (Option<u64>, Option<u64>, Option<u32>);

/// An eviction order, the place of host copies, and what is said where a request ends: drawn last, so that
/// many scripts of kept seeds stay as they were.
#[derive(Clone, Debug)]
struct Orders {
    policy: Option<EvictionPolicy>,
    host_copies: Option<HostCopies>,
    said: Vec<Said>,
}

fn orders() -> impl Strategy<Value = Orders> {
    let policy = prop::option::of(prop_oneof![
        Just(EvictionPolicy::Recency),
        Just(EvictionPolicy::Heap),
        Just(EvictionPolicy::Learned),
    ]);
    let copies = prop_oneof![
        2 => Just(None),
        1 => Just(Some(HostCopies::First)),
        1 => Just(Some(HostCopies::Last)),
    ];
    let next_use = prop::option::of(0..3_000_000_u64);
    let priority = prop::option::of(prop_oneof![(0..=100_u64).boxed(), Just(35).boxed()]);
    let ttl = prop::option::of(0..60_u32);
    let said = prop::option::weighted(0.7, vec((next_use, priority, ttl), 1..12));
    (policy, copies, said).prop_map(|(policy, host_copies, said)| Orders {
        host_copies: host_copies.filter(|_| policy.is_some()),
        policy,
        said: said.unwrap_or_default(),
    })
}

impl Orders {
    fn of(&self, setup: &mut Setup, ops: &mut [Op]) {
        setup.policy = self.policy.unwrap_or(setup.policy);
        setup.host_copies = self.host_copies;
        let ends = ops.iter_mut().filter_map(|op| match op {
            Op::Finish(_, hints, _) => Some(hints),
            _ => None,
        });
        for (hints, &(next_use, priority, ttl)) in ends.zip(self.said.iter().cycle()) {
            hints.next_use = next_use.map(NextUse::in_millis);
            hints.priority = priority.map(|priority| Priority::new(priority).expect("at most 100"));
            hints.ttl = ttl;
        }
    }
}

fn ops() -> impl Strategy<Value = Op> {
    let any8 = any::<u8>;
    let reserve = prop_oneof![2 => Just(0), 1 => 0..10_u8];
    let load = prop_oneof![4 => Just(255), 1 => 0..3_u8];
    let computed = || prop_oneof![Just(255), any::<u8>()];
    let good = prop_oneof![2 => Just(255), 1 => 0..4_u8];
    let in_flight = || prop::bool::weighted(0.2);
    prop_oneof![
        48 => (prompts(), reserve, load, any::<bool>()).prop_map(|(a, b, c, d)| Op::Begin(a, b, c, d)),
        14 => (0..2_u8, in_flight()).prop_map(|(a, b)| Op::Fill(a, b)),
        24 => (any8(), 0..8_u8, 0..2_u8).prop_map(|(a, b, c)| Op::Append(a, b, c)),
        30 => vec((any8(), 0..10_u8), 1..4).prop_map(Op::Grow),
        6 => (any8(), 0..12_u8).prop_map(|(a, b)| Op::Trim(a, b)),
        48 => vec((any8(), computed()), 1..3).prop_map(Op::Seal),
        18 => (any8(), computed(), 0..6_u8).prop_map(|(a, b, c)| Op::Fork(a, b, c)),
        48 => (vec(any8(), 1..3), 0..3_u8, in_flight()).prop_map(|(a, b, c)| Op::Finish(a, RETENTIONS[b as usize].into(), c)),
        30 => (any8(), computed(), in_flight()).prop_map(|(a, b, c)| Op::Park(a, b, c)),
        18 => (any8(), 0..6_u8, 0..6_u8).prop_map(|(a, b, c)| Op::Resume(a, b, c)),
        6 => any8().prop_map(Op::Abandon),
        30 => (0..6_u8).prop_map(Op::Demote),
        12 => (any8(), 0..6_u8).prop_map(|(a, b)| Op::DemoteLease(a, b)),
        18 => (any8(), 0..6_u8).prop_map(|(a, b)| Op::DemoteParked(a, b)),
        12 => (prompts(), 0..6_u8).prop_map(|(a, b)| Op::Promote(a, b)),
        66 => vec((any8(), good, any::<bool>()), 1..3).prop_map(Op::Land),
        6 => any8().prop_map(Op::Unknown),
        6 => (any8(), any::<bool>()).prop_map(|(a, b)| Op::Late(a, b)),
        3 => (any8(), 0..6_u8).prop_map(|(a, b)| Op::Stale(a, b)),
        6 => (0..3_u8).prop_map(Op::Done),
        1 => Just(Op::Clear),
        3 => (0..2_u8, 2..28_u8).prop_map(|(a, b)| Op::Resize(a, b)),
        1 => (0..2_u8, 0..9_u8, 2..9_u8).prop_map(|(a, b, c)| Op::Withdraw(a, b, c)),
        6 => any8().prop_map(Op::DropLease),
        6 => any8().prop_map(Op::DropParked),
    ]
}

fn tickets() -> impl Strategy<Value = Op> {
    let any8 = any::<u8>;
    prop_oneof![
        5 => (0..14_u8).prop_map(Op::Promise),
        1 => any8().prop_map(Op::Release),
        4 => (any8(), prompts(), 0..10_u8, any::<bool>())
            .prop_map(|(a, b, c, d)| Op::Redeem(a, b, c, d)),
        2 => (any8(), any8(), 0..6_u8).prop_map(|(a, b, c)| Op::RedeemParked(a, b, c)),
        1 => any8().prop_map(Op::DropTicket),
    ]
}

fn tickets_below() -> impl Strategy<Value = Op> {
    let any8 = any::<u8>;
    let computed = prop_oneof![Just(255), any::<u8>()];
    prop_oneof![
        4 => (0..10_u8).prop_map(Op::PromiseBelow),
        5 => (any8(), any8(), computed, prop::bool::weighted(0.2))
            .prop_map(|(a, b, c, d)| Op::RedeemParking(a, b, c, d)),
        1 => any8().prop_map(Op::Release),
    ]
}

fn of_holds() -> impl Strategy<Value = Op> {
    let prompts = prop_oneof![1 => prompts(), 2 => tall()];
    let most = prop_oneof![3 => Just(40), 1 => 0..6_u8];
    prop_oneof![
        6 => (prompts, most).prop_map(|(a, b)| Op::Hold(a, b)),
        5 => any::<u8>().prop_map(Op::EndHold),
        1 => any::<u8>().prop_map(Op::DropHold),
    ]
}

fn headroom() -> impl Strategy<Value = Op> {
    prop_oneof![1 => Just(0), 4 => 1..20_u8].prop_map(Op::Headroom)
}

fn dedups() -> impl Strategy<Value = Op> {
    vec(any::<u8>(), 1..4).prop_map(Op::Dedup)
}

fn setups() -> impl Strategy<Value = Setup> {
    let host = prop_oneof![1 => Just(0), 9 => 1..25_u32];
    let sizes = (2..5_u32, 6..25_u32, host, 0..2_u32);
    let kinds = (any::<bool>(), prop::bool::weighted(0.8), 0..3_u32);
    (sizes, kinds).prop_map(|(sizes, (heap, recompute, retries))| {
        let (block_size, device, host, null) = sizes;
        let mut slots = [0; MAX_TIERS];
        (slots[0], slots[1]) = (device + null, host);
        Setup {
            block_size,
            tiers: 2,
            slots,
            null,
            policy: if heap {
                EvictionPolicy::Heap
            } else {
                EvictionPolicy::Recency
            },
            host_copies: None,
            recompute,
            retries,
            writes: [WritePolicy::OnEvict; MAX_TIERS],
            block_costs: None,
        }
    })
}

fn writes() -> impl Strategy<Value = WritePolicy> {
    prop_oneof![
        Just(WritePolicy::OnEvict),
        Just(WritePolicy::Through),
        Just(WritePolicy::SecondTouch)
    ]
}

fn policies() -> impl Strategy<Value = (WritePolicy, Option<BlockCosts>)> {
    let block_costs =
        (0..30_u64, 0..20_u64, 0..4_u64).prop_map(|(load, compute, attend)| BlockCosts {
            load: [load; MAX_TIERS],
            compute,
            attend,
        });
    (writes(), prop::option::of(block_costs))
}

/// What is more than a device and a host: half of the setups have it.
#[derive(Clone, Debug)]
struct Deep {
    tiers: usize,
    /// A host that is smaller, so that more goes on.
    host: Option<u32>,
    slots: [u32; 3],
    load: [u64; 3],
    writes: [WritePolicy; 3],
    /// Blocks of a prompt that lies on two tiers by turns when the script begins: these are lost on
    /// the upper one.
    scattered: Option<Vec<u8>>,
}

impl Deep {
    fn of(self, setup: Setup) -> Setup {
        let tiers = self.tiers;
        let mut setup = Setup { tiers, ..setup };
        if tiers == 1 {
            setup.slots[1] = 0;
        }
        if let Some(host) = self.host.filter(|_| tiers > 2) {
            setup.slots[1] = host;
        }
        for tier in 2..tiers {
            setup.slots[tier] = self.slots[tier - 2];
            setup.writes[tier - 1] = self.writes[tier - 2];
            if let Some(block_costs) = &mut setup.block_costs {
                block_costs.load[tier] = self.load[tier - 2];
            }
        }
        if self.scattered.is_some() && tiers > 2 {
            for slots in &mut setup.slots[..3] {
                *slots = u32::from(TALL) + *slots / 4;
            }
        }
        setup
    }

    /// What a script begins with.
    fn prologue(&self) -> Vec<Op> {
        let Some(lost) = self.scattered.as_ref().filter(|_| self.tiers > 2) else {
            return Vec::new();
        };
        let prompt = Prompt {
            path: 0,
            blocks: TALL - 2,
            tail: 1,
        };
        let all = vec![(0, u8::MAX, false)];
        let mut ops = vec![
            Op::Restore(2, vec![(prompt, 255)], Slip::None),
            Op::Lift(prompt, 40, 1),
            Op::Land(all),
        ];
        ops.extend(lost.iter().map(|&at| Op::Spoil(prompt, at, at % 2 > 0)));
        ops.push(Op::Fill(0, false));
        ops
    }
}

/// Blocks of the tallest prompts, and of a device that has room for one.
const TALL: u8 = 18;

fn deep() -> impl Strategy<Value = Deep> {
    // Most have the tiers that are shipped.
    let tiers = prop_oneof![1 => Just(1), 25 => Just(2), 22 => Just(3), 4 => Just(MAX_TIERS)];
    let size = prop_oneof![1 => Just(0), 9 => 1..40_u32];
    let slots = prop::array::uniform3(size);
    let load = prop::array::uniform3(0..60_u64);
    let host = prop_oneof![1 => Just(None), 1 => (1..8_u32).prop_map(Some)];
    let writes = prop::array::uniform3(writes());
    let scattered = prop::option::weighted(0.3, vec(any::<u8>(), 0..7));
    let drawn = (tiers, host, slots, load, writes, scattered);
    drawn.prop_map(|(tiers, host, slots, load, writes, scattered)| Deep {
        tiers,
        host,
        slots,
        load,
        writes,
        scattered,
    })
}

fn tall() -> impl Strategy<Value = Prompt> {
    let path = prop_oneof![4 => Just(0), 2 => Just(0b100), 1 => any::<u32>()];
    (path, 0..TALL - 1).prop_map(|(path, blocks)| Prompt {
        path,
        blocks,
        tail: 1,
    })
}

/// What matters where there is more than one tier below the device.
fn moves() -> impl Strategy<Value = Op> {
    let any8 = any::<u8>;
    let tier = || 1..=MAX_TIERS as u8;
    let some = || prop_oneof![2 => 0..6_u8, 1 => Just(40)];
    let good = prop_oneof![2 => Just(255), 1 => 0..4_u8];
    let on = prop_oneof![1 => Just(0), 4 => 1..28_u8];
    prop_oneof![
        10 => (0..MAX_TIERS as u8, some()).prop_map(|(a, b)| Op::DemoteFrom(a, b)),
        6 => (any8(), tier(), some()).prop_map(|(a, b, c)| Op::Rehome(a, b, c)),
        6 => (tall(), tier(), some()).prop_map(|(a, b, c)| Op::Lift(a, b, c)),
        6 => tall().prop_map(|a| Op::Begin(a, 0, 255, false)),
        10 => vec((any8(), good, any::<bool>()), 1..3).prop_map(Op::Land),
        1 => (tier(), on).prop_map(|(a, b)| Op::ResizeOn(a, b)),
        1 => (tier(), 0..9_u8, 1..9_u8).prop_map(|(a, b, c)| Op::Withdraw(a, b, c)),
        1 => (tier(), 0..10_u8).prop_map(|(a, b)| Op::PromiseOn(a, b)),
        2 => (tall(), any8(), any::<bool>()).prop_map(|(a, b, c)| Op::Spoil(a, b, c)),
        3 => Just(Op::LandAll),
        2 => Just(Op::Fill(0, false)),
        1 => any8().prop_map(Op::Unknown),
    ]
}

fn restores() -> impl Strategy<Value = Op> {
    let slip = prop_oneof![
        12 => Just(Slip::None),
        1 => Just(Slip::SlotTwice),
        1 => Just(Slip::SlotBeyond),
        1 => Just(Slip::KeyTwice),
        1 => Just(Slip::NoKey),
        1 => Just(Slip::Lengths),
        1 => Just(Slip::Circle),
        1 => Just(Slip::Device),
    ];
    let rows = vec((tall(), any::<u8>()), 0..24);
    (1..=MAX_TIERS as u8, rows, slip).prop_map(|(a, b, c)| Op::Restore(a, b, c))
}

#[derive(Clone)]
pub(crate) struct Script {
    pub(crate) setup: Setup,
    pub(crate) ops: Vec<Op>,
}

/// Short: what matters of a script that fails is printed by the test, and its seed is kept.
impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} operations on {:?}", self.ops.len(), self.setup)
    }
}

pub(crate) fn script(steps: usize) -> impl Strategy<Value = Script> {
    let ops = vec(ops(), steps / 2..steps);
    // What is drawn last leaves the scripts of kept seeds as they were.
    let tickets = vec((any::<prop::sample::Index>(), tickets()), 0..steps / 8);
    let below = vec(
        (any::<prop::sample::Index>(), tickets_below()),
        0..steps / 8,
    );
    let headroom = vec((any::<prop::sample::Index>(), headroom()), 0..steps / 8);
    let dedups = vec((any::<prop::sample::Index>(), dedups()), 0..steps / 8);
    let moves = vec((any::<prop::sample::Index>(), moves()), 0..steps / 3);
    let first = prop_oneof![2 => Just(vec![]), 1 => vec(restores(), 1..4)];
    let late = prop::option::weighted(0.1, (any::<prop::sample::Index>(), restores()));
    let deep = (deep(), moves, first, late);
    let spares = vec(any::<prop::sample::Index>(), 0..steps / 16);
    let drawn = (
        setups(),
        ops,
        policies(),
        tickets,
        below,
        headroom,
        dedups,
        (deep, orders()),
        spares,
    );
    drawn.prop_map(
        |(
            setup,
            mut ops,
            (write, block_costs),
            tickets,
            below,
            headroom,
            dedups,
            (deep, orders),
            spares,
        )| {
            let (deep, moves, first, late) = deep;
            let mut setup = Setup {
                block_costs,
                ..setup
            };
            setup.writes[0] = write;
            let prologue = deep.prologue();
            let first = if prologue.is_empty() { first } else { prologue };
            let mut setup = deep.of(setup);
            let more = tickets.into_iter().chain(below);
            for (at, op) in more.chain(headroom).chain(dedups) {
                ops.insert(at.index(ops.len()), op);
            }
            // With a host alone most of them do nothing.
            let few = if setup.tiers > 2 {
                moves.len()
            } else {
                moves.len() / 8
            };
            for (at, op) in moves.into_iter().take(few).chain(late) {
                ops.insert(at.index(ops.len()), op);
            }
            for at in spares {
                ops.insert(at.index(ops.len()), Op::Spare);
            }
            ops.splice(..0, first);
            orders.of(&mut setup, &mut ops);
            Script { setup, ops }
        },
    )
}

/// The same, and at random moments single slots below the device are withdrawn.
pub(crate) fn withdrawals(steps: usize) -> impl Strategy<Value = Script> {
    let slot = (1..MAX_TIERS as u8, 0..24_u8);
    let lost = vec((any::<prop::sample::Index>(), slot), 1..steps / 8);
    (script(steps), lost).prop_map(|(Script { setup, mut ops }, lost)| {
        for (at, (tier, slot)) in lost {
            ops.insert(at.index(ops.len()), Op::Withdraw(tier, slot, u8::MAX));
        }
        Script { setup, ops }
    })
}

/// The same, and at random moments something is forgotten.
pub(crate) fn forgets(steps: usize) -> impl Strategy<Value = Script> {
    let prompts = prop_oneof![1 => prompts(), 1 => tall()];
    let named = (prompts, any::<u8>(), prop::bool::weighted(0.4));
    let gone = vec((any::<prop::sample::Index>(), named), 1..steps / 8);
    (script(steps), gone).prop_map(|(Script { setup, mut ops }, gone)| {
        for (at, (prompt, first, force)) in gone {
            ops.insert(at.index(ops.len()), Op::Forget(prompt, first, force));
        }
        Script { setup, ops }
    })
}

/// The same with many holds, and what ends them.
pub(crate) fn holds(steps: usize) -> impl Strategy<Value = Script> {
    let prompts = prop_oneof![1 => prompts(), 1 => tall()];
    let more = prop_oneof![
        12 => of_holds(),
        2 => (prompts, any::<u8>(), any::<bool>()).prop_map(|(a, b, c)| Op::Forget(a, b, c)),
        1 => (Just(0), 4..40_u8).prop_map(|(a, b)| Op::Resize(a, b)),
        1 => Just(Op::Lose(0)),
    ];
    let more = vec((any::<prop::sample::Index>(), more), steps / 8..steps / 3);
    (script(steps), more).prop_map(|(Script { setup, mut ops }, more)| {
        for (at, op) in more {
            ops.insert(at.index(ops.len()), op);
        }
        Script { setup, ops }
    })
}

/// The same with a store: blocks are said to be there, and are forgotten.
pub(crate) fn stores(steps: usize) -> impl Strategy<Value = Script> {
    let prompts = || prop_oneof![1 => prompts(), 2 => tall()];
    let twist = prop_oneof![3 => Just(u8::MAX), 1 => 0..6_u8];
    let adopt = (prompts(), prop_oneof![Just(40), 0..9_u8], twist);
    let more = prop_oneof![
        8 => adopt.prop_map(|(a, b, c)| Op::Adopt(a, b, c)),
        2 => (prompts(), any::<u8>()).prop_map(|(a, b)| Op::DropNames(a, b)),
        1 => (prompts(), any::<u8>(), any::<bool>()).prop_map(|(a, b, c)| Op::Forget(a, b, c)),
        3 => (any::<u8>(), 3..5_u8, 0..9_u8).prop_map(|(a, b, c)| Op::Rehome(a, b - 1, c)),
        3 => tall().prop_map(|a| Op::Begin(a, 0, 255, false)),
    ];
    let more = vec((any::<prop::sample::Index>(), more), steps / 8..steps / 3);
    let names = prop_oneof![1 => 1..9_u32, 2 => 9..40_u32];
    let host = prop_oneof![1 => Just(None), 1 => (0..6_u32).prop_map(Some)];
    (script(steps), more, names, host).prop_map(|(Script { setup, mut ops }, more, names, host)| {
        let mut setup = setup;
        setup.tiers = MAX_TIERS;
        setup.slots[Tier::REMOTE.0] = names;
        setup.slots[1] = host.unwrap_or(setup.slots[1]);
        for (at, op) in more {
            ops.insert(at.index(ops.len()), op);
        }
        Script { setup, ops }
    })
}

/// The same, and sequences decode.
pub(crate) fn decodes(steps: usize) -> impl Strategy<Value = Script> {
    let computed = prop_oneof![4 => Just(255), 2 => any::<u8>(), 1 => 253..255_u8];
    let grow = prop_oneof![4 => 0..3_u8, 1 => 0..20_u8];
    let row = (any::<u8>(), 0..6_u8, computed, grow);
    let row = row.prop_map(|(lease, tokens, computed, grow)| StepRow {
        lease,
        tokens,
        computed,
        grow,
    });
    let step = (vec(row, 1..6), any::<bool>(), any::<bool>());
    let more = vec((any::<prop::sample::Index>(), step), steps / 4..steps / 2);
    (script(steps), more).prop_map(|(Script { setup, mut ops }, more)| {
        for (at, (rows, tables, safe)) in more {
            ops.insert(at.index(ops.len()), Op::Step(rows, tables, safe));
        }
        Script { setup, ops }
    })
}

/// The same, and at random moments the memory of a rank is lost, but for some tiers below the device.
pub(crate) fn losses(steps: usize) -> impl Strategy<Value = Script> {
    let lost = vec((any::<prop::sample::Index>(), any::<u8>()), 1..steps / 20);
    (script(steps), lost).prop_map(|(Script { setup, mut ops }, lost)| {
        for (at, kept) in lost {
            ops.insert(at.index(ops.len()), Op::Lose(kept));
        }
        Script { setup, ops }
    })
}

/// The same, and copies ahead go by whole paths, as a dispatch makes them; now and then all is written down
/// as at a clean stop.
pub(crate) fn stops(steps: usize) -> impl Strategy<Value = Script> {
    let tier = || 0..MAX_TIERS as u8 - 1;
    let ahead = (tier(), 0..9_u8, any::<bool>()).prop_map(|(a, b, c)| Op::Ahead(a, b, c));
    let down = (1..MAX_TIERS as u8, 1..40_u8).prop_map(|(a, b)| Op::WriteDown(a, b));
    let more = prop_oneof![6 => ahead, 1 => down];
    let more = vec((any::<prop::sample::Index>(), more), steps / 8..steps / 4);
    (script(steps), more).prop_map(|(Script { setup, mut ops }, more)| {
        for op in &mut ops {
            // What a name copies has no prefix with it, nor looks at what a path was cut off at.
            if let Op::Demote(most) | Op::DemoteFrom(0, most) = *op {
                *op = Op::Ahead(0, most, most % 2 > 0);
            } else if let Op::DemoteFrom(from, most) = *op {
                *op = Op::Ahead(from, most, most % 2 > 0);
            }
        }
        for (at, op) in more {
            ops.insert(at.index(ops.len()), op);
        }
        Script { setup, ops }
    })
}
