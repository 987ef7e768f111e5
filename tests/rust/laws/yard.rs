//! A small yard to show laws on: 4 tokens per block, audited after every verb, and at rest at the end.

use crate::verbs::Verbs as _;
use blockyard_core::{
    Answer, Begun, Cache, Cells, Chain, Config, Error, EvictionPolicy, Extras, Filling, HostCopies,
    KeyHash, Lease, Loading, MAX_TIERS, Namespace, Outcome, Parked, Plan, Probe, Request,
    Retention, Seals, Stats, Stop, Tier, TierStats, View,
};

/// Tokens per block.
pub(crate) const SIZE: u64 = 4;

pub(crate) const KINDS: [EvictionPolicy; 3] = [
    EvictionPolicy::Recency,
    EvictionPolicy::Learned,
    EvictionPolicy::Heap,
];

/// Those that take hints by the word, and do not ask how often a block was used.
pub(crate) const OBEYING: [EvictionPolicy; 2] = [EvictionPolicy::Recency, EvictionPolicy::Heap];

pub(crate) struct Yard {
    pub(crate) cache: Cache,
    spare: std::cell::Cell<u32>,
    ends_busy: std::cell::Cell<bool>,
}

/// By tier, and nothing on the others.
pub(crate) fn on(tiers: [u32; 2]) -> [u32; MAX_TIERS] {
    let mut all = [0; MAX_TIERS];
    all[..2].copy_from_slice(&tiers);
    all
}

/// So many slots to use on the device and the host, and one null slot.
pub(crate) fn config(device: u32, host: u32) -> Config {
    Config {
        block_size: SIZE as u32,
        slots: vec![device + 1, host],
        null_slots: 1,
        ..Config::default()
    }
}

/// The same with slots on a third tier too.
pub(crate) fn three(device: u32, host: u32, disk: u32) -> Config {
    Config {
        slots: vec![device + 1, host, disk],
        ..config(device, host)
    }
}

/// A yard of this configuration for each of these orders.
pub(crate) fn each_of<const N: usize>(
    kinds: [EvictionPolicy; N],
    config: Config,
) -> impl Iterator<Item = Yard> {
    kinds.into_iter().map(move |policy| {
        Yard::of(Config {
            policy,
            ..config.clone()
        })
    })
}

/// The same where the oldest goes first, and copies on the host last.
pub(crate) fn by_age_of(config: Config) -> impl Iterator<Item = Yard> {
    let host_copies = Some(HostCopies::Last);
    each_of(
        KINDS,
        Config {
            host_copies,
            ..config
        },
    )
}

/// Tokens that nothing of another name shares.
pub(crate) fn text(name: u32, blocks: u64) -> Vec<u32> {
    tokens(name, blocks * SIZE)
}

pub(crate) fn tokens(name: u32, count: u64) -> Vec<u32> {
    (0..count as u32).map(|at| name * 100_000 + at).collect()
}

/// The text and one token more, so that all its blocks may be shared.
pub(crate) fn and_one(text: &[u32]) -> Vec<u32> {
    [text, &[7]].concat()
}

pub(crate) fn cat(first: &[u32], second: &[u32]) -> Vec<u32> {
    [first, second].concat()
}

impl Yard {
    pub(crate) fn new(device: u32, host: u32) -> Self {
        Self::of(config(device, host))
    }

    pub(crate) fn of(config: Config) -> Self {
        let cache = Cache::new(config, KeyHash::default(), &Namespace::default());
        Self {
            cache: cache.expect("a good configuration"),
            spare: std::cell::Cell::new(0),
            ends_busy: std::cell::Cell::new(false),
        }
    }

    /// Nothing that is counted or linked contradicts what is held.
    pub(crate) fn sound(&self) {
        if let Some(violation) = self.cache.audit() {
            panic!("{violation}");
        }
    }

    fn then<T>(&self, value: T) -> T {
        self.sound();
        value
    }

    pub(crate) fn chain(&self, text: &[u32]) -> Chain {
        let mut chain = self.cache.chain(Extras::default()).expect("no media");
        chain.extend(text).expect("it makes its own keys");
        chain
    }

    /// A begin with nothing left out.
    pub(crate) fn ask(
        &self,
        text: &[u32],
        reserve: u64,
        load: u32,
        filling: Filling,
    ) -> Result<Answer, Error> {
        let chain = self.chain(text);
        let answer = self.cache.lock().begin(&Request {
            keys: chain.keys(),
            tokens: chain.tokens(),
            reserve,
            load,
            filling,
        });
        self.then(answer)
    }

    /// A begin that stops at a block in flight.
    pub(crate) fn stop(&self, text: &[u32], load: u32) -> (Lease, Begun) {
        match self.ask(text, 0, load, Filling::Stop) {
            Ok(Answer::Begun(begun)) => (self.cache.handle(begun.lease, self.chain(text)), begun),
            other => panic!("it should have begun: {other:?}"),
        }
    }

    pub(crate) fn begin_reserving(
        &self,
        text: &[u32],
        reserve: u64,
    ) -> Result<(Lease, Begun), Error> {
        let begun = self.cache.begin(self.chain(text), reserve, u32::MAX)?;
        Ok(self.then(begun.expect("nothing is in flight")))
    }

    pub(crate) fn begin(&self, text: &[u32]) -> (Lease, Begun) {
        self.begin_reserving(text, 0).expect("there is room")
    }

    /// Begins, loads and computes a sequence, and publishes what is full of it.
    pub(crate) fn run(&self, text: &[u32]) -> Lease {
        let (lease, begun) = self.begin(text);
        self.land(&begun.plans);
        self.seal(&lease, text.len() as u64);
        lease
    }

    pub(crate) fn seal(&self, lease: &Lease, computed: u64) -> u64 {
        let sealed = self.cache.seal(&[(lease, computed)]);
        self.then(sealed.expect("it may be sealed"))
    }

    pub(crate) fn finish(&self, lease: Lease) {
        self.finish_as(lease, Retention::Ordinary);
    }

    pub(crate) fn finish_as(&self, lease: Lease, retention: Retention) {
        self.cache.finish(lease, retention).expect("it is ours");
        self.sound();
    }

    /// Leaves a text's full blocks published and idle.
    pub(crate) fn publish(&self, text: &[u32]) {
        self.finish(self.run(text));
    }

    /// Leaves a text's blocks on the nearest lower tier alone.
    pub(crate) fn publish_below(&self, text: &[u32]) {
        let lease = self.run(text);
        let blocks = text.len() as u32 / SIZE as u32;
        self.land(&[self.demote_lease(&lease, blocks)]);
        self.finish(lease);
        let idle = self.device().idle as u32;
        self.squeeze(idle);
        let [device, host, disk, _] = self.hits(text);
        assert_eq!((device, host + disk), (0, blocks));
    }

    pub(crate) fn probe(&self, text: &[u32]) -> Probe {
        let chain = self.chain(text);
        let probe = self.cache.lock().probe(chain.keys());
        self.then(probe)
    }

    /// Blocks of a text per tier.
    pub(crate) fn hits(&self, text: &[u32]) -> [u32; 4] {
        self.probe(text).hits
    }

    pub(crate) fn on_device(&self, text: &[u32]) -> u32 {
        self.hits(text)[0]
    }

    /// Makes the device evict so many blocks, which are free afterwards.
    pub(crate) fn squeeze(&self, blocks: u32) {
        let before = self.stats().counters.evicted[0];
        self.spare.set(self.spare.get() + 1);
        let need = self.device().free + u64::from(blocks);
        if blocks > 0 {
            let (lease, _) = self.begin(&text(20_000 + self.spare.get(), need));
            self.finish(lease);
        }
        let after = self.stats().counters.evicted[0];
        assert_eq!(after - before, u64::from(blocks), "exactly the deficit");
    }

    pub(crate) fn demote(&self, blocks: u32) -> Option<Plan> {
        self.demote_from(Tier::DEVICE, blocks)
    }

    /// Copies a tier's next victims down.
    pub(crate) fn demote_from(&self, tier: Tier, blocks: u32) -> Option<Plan> {
        let plan = self.cache.lock().demote(tier, blocks);
        self.then(plan)
    }

    /// Copies the next victims down.
    pub(crate) fn copy_down(&self, blocks: u32) {
        let plan = self.demote(blocks).expect("something to copy");
        assert_eq!(plan.len() as u32, blocks);
        self.land(&[plan]);
    }

    /// Copies a running sequence's blocks down, the root first.
    pub(crate) fn demote_lease(&self, lease: &Lease, blocks: u32) -> Plan {
        let plan = self.cache.lock().demote_lease(lease.id(), blocks);
        self.then(plan.expect("it runs").expect("there is something to copy"))
    }

    pub(crate) fn land(&self, plans: &[Plan]) {
        self.cache.landed(plans).expect("they are ours");
        self.sound();
    }

    /// Reports that only so many leading blocks of a plan are intact, or the fence of one overdue.
    pub(crate) fn fail(&self, plan: &Plan, good: u32) {
        self.report(Outcome::failed(plan.flight, good));
    }

    /// The first bad block failed its checksum.
    pub(crate) fn corrupt(&self, plan: &Plan, good: u32) {
        self.report(Outcome::corrupt(plan.flight, good));
    }

    fn report(&self, outcome: Outcome) {
        let ended = self.cache.lock().commit(&[outcome], None);
        assert_eq!(ended, Ok(1));
        self.sound();
    }

    /// A plan's deadline passes.
    pub(crate) fn overdue(&self, plan: &Plan) {
        assert_eq!(self.cache.lock().mark_unknown(plan.flight), Ok(true));
        self.sound();
    }

    pub(crate) fn grow(&self, lease: &Lease, more: u64) -> bool {
        let mut unserved = vec![];
        let grown = self
            .cache
            .lock()
            .grow(&[lease.id()], |_| more, &mut unserved);
        grown.expect("it runs");
        self.then(unserved.is_empty())
    }

    pub(crate) fn park(&self, lease: Lease, computed: u64) -> Parked {
        match self.cache.park(lease, computed) {
            Ok(parked) => self.then(parked),
            Err((_, error)) => panic!("it should have parked: {error}"),
        }
    }

    /// Parks a resume that came back incomplete, of which nothing more was computed.
    pub(crate) fn park_again(&self, lease: Lease) -> Parked {
        let tokens = lease.tokens();
        self.park(lease, tokens)
    }

    /// Copies up to `blocks` blocks of a prefix up to the device, from one tier below.
    pub(crate) fn promote(&self, prompt: &[u32], blocks: u32) -> Option<Plan> {
        let mut plans = self.promote_to(prompt, blocks, Tier::DEVICE);
        assert!(plans.len() < 2, "one run");
        plans.pop()
    }

    /// Copies up to `blocks` blocks of a prefix up to a tier, a plan for each run.
    pub(crate) fn promote_to(&self, prompt: &[u32], blocks: u32, to: Tier) -> Vec<Plan> {
        let chain = self.chain(prompt);
        let plans = self.cache.lock().promote(chain.keys(), blocks, to);
        self.then(plans.expect("there is room"))
    }

    pub(crate) fn demote_parked(&self, parked: &Parked, blocks: u32) -> Option<Plan> {
        let plan = self.cache.lock().demote_parked(parked.id(), blocks, None);
        self.then(plan.expect("it is parked"))
    }

    /// Moves what is kept above a tier to it.
    pub(crate) fn move_parked(&self, parked: &Parked, blocks: u32, to: Tier) -> Option<Plan> {
        let plan = self
            .cache
            .lock()
            .demote_parked(parked.id(), blocks, Some(to));
        self.then(plan.expect("it is parked"))
    }

    /// Parks a text whose blocks are kept on these tiers below the device, and nowhere else.
    pub(crate) fn park_on(&self, text: &[u32], tiers: &[Tier]) -> Parked {
        let parked = self.park(self.run(text), text.len() as u64);
        let move_one = |_: &Tier| self.move_parked(&parked, 1, Tier::DISK).expect("room");
        // Deepest first, and each passes over what is on its way.
        let plans: Vec<Plan> = tiers.iter().map(move_one).collect();
        for (plan, &tier) in plans.iter().zip(tiers.iter().rev()) {
            self.fail(plan, u32::from(tier == Tier::DISK));
        }
        self.land(self.demote_parked(&parked, u32::MAX).as_slice());
        self.squeeze(tiers.len() as u32);
        parked
    }

    /// Leaves a text's blocks idle on these tiers below the device, and nowhere else.
    pub(crate) fn scatter(&self, text: &[u32], tiers: &[Tier]) {
        self.abandon(self.park_on(text, tiers));
        let count = |tier| tiers.iter().filter(|&&own| own == tier).count() as u32;
        let probe = self.probe(text);
        assert_eq!(probe.hits[1..3], [count(Tier::HOST), count(Tier::DISK)]);
    }

    /// Makes the host evict so many blocks, by copies down of blocks of other names.
    pub(crate) fn squeeze_host(&self, blocks: u32) {
        let before = self.stats().counters.evicted[1];
        self.spare.set(self.spare.get() + 1);
        let need = self.host().free as u32 + blocks;
        let lease = self.run(&text(30_000 + self.spare.get(), need.into()));
        self.land(&[self.demote_lease(&lease, need)]);
        self.finish(lease);
        assert_eq!(self.stats().counters.evicted[1] - before, u64::from(blocks));
    }

    pub(crate) fn resume(&self, parked: Parked) -> (Lease, Begun) {
        match self.cache.resume(parked, 0) {
            Ok(resumed) => self.then(resumed),
            Err((_, error)) => panic!("it should have resumed: {error:?}"),
        }
    }

    pub(crate) fn abandon(&self, parked: Parked) {
        self.cache.lock().abandon(parked.id()).expect("it is ours");
        parked.spend();
        drop(parked);
        self.sound();
    }

    pub(crate) fn broken(&self, parked: &Parked) -> bool {
        let view = self.cache.lock().view_parked(parked.id());
        view.expect("it is parked").broken
    }

    pub(crate) fn view(&self, lease: &Lease) -> View {
        self.cache.lock().view(lease.id()).expect("it runs")
    }

    /// A lease's device slots, in order, also while it loads.
    pub(crate) fn table(&self, lease: &Lease) -> Vec<u32> {
        let mut table = vec![0; self.view(lease).blocks as usize];
        let width = table.len();
        let written = self.cache.lock().block_tables(
            &[lease.id()],
            width,
            Cells::All,
            Loading::Joined,
            |cells| cells.copy_to(&mut table),
        );
        written.expect("it runs");
        self.then(table)
    }

    /// Writes into an engine's row what is new in a lease's table since the last time.
    pub(crate) fn write_changed(&self, lease: &Lease, row: &mut [u32]) {
        let changed = self.cache.lock().block_tables(
            &[lease.id()],
            row.len(),
            Cells::Changed,
            Loading::Joined,
            |cells| cells.copy_to(row),
        );
        changed.expect("it runs");
        self.sound();
    }

    pub(crate) fn stats(&self) -> Stats {
        self.cache.lock().stats()
    }

    pub(crate) fn device(&self) -> TierStats {
        self.stats().tiers[0]
    }

    pub(crate) fn host(&self) -> TierStats {
        self.stats().tiers[1]
    }

    pub(crate) fn disk(&self) -> TierStats {
        self.stats().tiers[2]
    }

    pub(crate) fn resize(&self, tier: Tier, slots: u32) {
        let resized = self.cache.lock().resize(tier, slots);
        self.then(resized).expect("it fits");
    }

    /// The test ends while something is held or on its way.
    pub(crate) fn ends_busy(&self) {
        self.ends_busy.set(true);
    }

    /// Nothing is held, promised or in flight.
    pub(crate) fn at_rest(&self) {
        let stats = self.stats();
        for tier in &stats.tiers {
            assert_eq!(tier.free + tier.idle, tier.capacity, "{tier:?}");
            assert_eq!((tier.promised, tier.takeable), (0, tier.idle), "{tier:?}");
        }
        assert_eq!((stats.leases, stats.parked, stats.flights), (0, 0, 0));
        self.sound();
    }
}

/// Every test ends with an audit, and with nothing held or on its way but where it says so.
impl Drop for Yard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        if self.ends_busy.get() {
            self.sound();
        } else {
            self.at_rest();
        }
    }
}

pub(crate) fn one(begun: &Begun) -> &Plan {
    match &begun.plans[..] {
        [plan] => plan,
        plans => panic!("one plan, not {}", plans.len()),
    }
}

pub(crate) fn room(error: Error) -> (u64, u64, u64, u64) {
    match error {
        Error::NoRoom {
            need,
            free,
            evictable,
            promised,
            ..
        } => (need, free, evictable, promised),
        error => panic!("no room was expected: {error}"),
    }
}

pub(crate) fn in_flight(probe: &Probe) -> bool {
    matches!(probe.stop, Stop::Filling(_))
}

/// Gathers what a seal or a park of this lease may publish.
pub(crate) fn sealing(lease: &Lease, computed: u64) -> Result<Seals, Error> {
    let mut seals = Seals::default();
    seals.add(lease, computed)?;
    Ok(seals)
}
