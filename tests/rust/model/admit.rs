//! How sequences come in and blocks come up: begin, resume and promote of the naive yard.

use crate::verbs::table;
use crate::yard::{Block, DEVICE, InFlight, Purpose, Seq, What, Yard};
use blockyard_core::{
    Answer, Begun, Error, Filling, FlightId, Hints, Key, LeaseId, MAX_TIERS, ParkedId, Plan,
    Request, Result, State, Stop,
};

fn slots(plan: &Plan) -> (usize, usize, Vec<(u32, u32)>) {
    let moves = plan
        .sources
        .iter()
        .copied()
        .zip(plan.destinations.iter().copied());
    (plan.from.0, plan.to.0, moves.collect())
}

/// A prefix as far as a begin uses it: its path, of which `device` blocks are shared and `lower`
/// more are loaded; the last block of a full hit, for a private copy; and why it ends.
struct Prefix {
    path: Vec<Block>,
    device: usize,
    lower: usize,
    last: Option<Block>,
    stop: Stop,
    /// Blocks that are found below and not loaded.
    slow: usize,
}

/// Reader marks on a tier, of a begin or a promote before their flights have a number.
fn unborn(tier: usize) -> FlightId {
    FlightId::from_number(u64::MAX - tier as u64).expect("a number")
}

/// A block that is copied, and the tier that it comes from.
type Load = (Block, usize);

impl Yard {
    /// Whether `need` slots can be had or promised with these blocks pinned.
    pub(crate) fn afford(&mut self, pins: &[Block], need: usize) -> Result<(), Error> {
        let table = pins
            .iter()
            .filter_map(|&block| self.ready(block, DEVICE))
            .collect();
        self.held.push((u64::MAX, table, Hints::default()));
        let fits = !self.unbacked(DEVICE) && self.spare(DEVICE) >= need;
        let evictable = self.takeable(DEVICE);
        self.held.pop();
        if fits {
            return Ok(());
        }
        Err(self.no_room(DEVICE, need as u64, evictable))
    }

    /// Puts a flight in flight whose sources are blocks on `from`, or the private slot `source`.
    pub(crate) fn fly(
        &mut self,
        plan: &Plan,
        from: usize,
        to: usize,
        purpose: Purpose,
        moves: Vec<(Option<Block>, u32)>,
    ) {
        let (told_from, told_to, told) = slots(plan);
        let sources: Vec<u32> = told.iter().map(|step| step.0).collect();
        assert_eq!(
            (told_from, told_to, sources),
            (from, to, moves.iter().map(|step| step.1).collect())
        );
        let attached = !matches!(purpose, Purpose::Private(..));
        let mut steps = Vec::new();
        for ((block, source), (_, destination)) in moves.into_iter().zip(told) {
            self.take(to, destination, What::Filling(block.filter(|_| attached)));
            if let Some(block) = block.filter(|_| attached) {
                self.blocks[block].slots[to] = Some(destination);
            }
            steps.push((block, source, destination));
        }
        let flight = InFlight {
            from,
            to,
            purpose,
            moves: steps,
            overdue: false,
            reads: true,
            hearsay: Vec::new(),
            ended: None,
        };
        assert!(self.flights.insert(plan.flight, flight).is_none());
    }

    fn prefix(&self, request: &Request<'_>) -> Prefix {
        let shared = ((request.tokens - 1) / self.block_size) as usize;
        let (path, probe) = self.walk(&request.keys[..request.keys.len().min(shared + 1)]);
        let device = (probe.hits[DEVICE] as usize).min(shared);
        let mut prefix = Prefix {
            device,
            lower: path.len().min(shared) - device,
            last: path.get(shared).copied(),
            stop: probe.stop,
            slow: 0,
            path,
        };
        let tiers: Vec<usize> = self.to_load(&prefix).iter().map(|load| load.1).collect();
        let bound = tiers.len().min(request.load as usize);
        let most = self.taken(&tiers[..bound], device);
        if tiers.len() > most {
            prefix.lower = prefix.lower.min(most);
            (prefix.last, prefix.stop) = (None, Stop::Slow);
            prefix.slow = tiers.len() - prefix.lower;
        }
        prefix
    }

    /// What a prefix loads, root first.
    fn to_load(&self, prefix: &Prefix) -> Vec<Load> {
        let lower = &prefix.path[prefix.device..prefix.device + prefix.lower];
        let all = lower.iter().copied().chain(prefix.last);
        let loads = all.map(|block| {
            let tier = self.source(block);
            (block, tier.expect("a walk ends at what is filling"))
        });
        loads.filter(|load| load.1 > DEVICE).collect()
    }

    pub(crate) fn begin(&mut self, state: &State, request: &Request<'_>, answer: &Result<Answer>) {
        if request.tokens == 0 {
            return assert!(matches!(
                answer,
                Err(Error::Argument { name: "tokens", .. })
            ));
        }
        let (total, limit) = match self.need(request.tokens, request.reserve) {
            Ok(size) => size,
            Err(error) => return assert_eq!(answer, &Err(error)),
        };
        let mut prefix = self.prefix(request);
        let waits = request.filling == Filling::Soon || !self.recompute;
        if let (Stop::Filling(flight), true) = (prefix.stop, waits) {
            return assert_eq!(answer, &Ok(Answer::Soon(flight)));
        }
        let pins = prefix.path[..prefix.device].to_vec();
        let need = limit - prefix.device;
        let copied = prefix
            .last
            .filter(|&last| self.ready(last, DEVICE).is_some());
        let with_copy: Vec<Block> = pins.iter().copied().chain(copied).collect();
        let mut room = self.afford(&with_copy, need);
        // It waits for room beside the source where it must, and where there can ever be.
        let yields = self.recompute || limit as u64 + 1 > self.size(DEVICE);
        if room.is_err() && copied.is_some() && yields {
            (prefix.last, prefix.stop) = (None, Stop::Promised);
            room = self.afford(&pins, need);
        }
        if let Err(error) = room {
            return assert_eq!(answer, &Err(error));
        }
        let Ok(Answer::Begun(begun)) = answer else {
            panic!("{answer:?}, but there is room")
        };

        self.slow += prefix.slow as u64;
        self.again.extend(&prefix.path);
        // The hits are held in every tier first, so that none of them is a victim; a reader mark
        // must leave its tier's promises backed.
        let found = prefix.device + prefix.lower;
        self.link(&prefix.path[..found]);
        let loads = self.to_load(&prefix);
        let mut marked = self.mark(&loads[..prefix.lower]);
        if let Some(last) = prefix.last.filter(|_| marked == prefix.lower) {
            self.link(&[&prefix.path[..found], &[last]].concat());
            marked += self.mark(&loads[prefix.lower..]);
            // One on the device was counted where room was looked for.
            let here = self.ready(last, DEVICE).map(|slot| (None, slot, u32::MAX));
            let marks = self.marks_on(DEVICE);
            marks.moves.extend(here);
        }
        if marked < loads.len() {
            prefix.lower = prefix.lower.min(marked);
            (prefix.last, prefix.stop) = (None, Stop::Promised);
        }
        let seq = Seq {
            table: pins[..prefix.device]
                .iter()
                .filter_map(|&block| self.ready(block, DEVICE))
                .collect(),
            tokens: request.tokens,
            epoch: self.epoch,
            ..Seq::default()
        };
        self.enter(state, begun.lease, seq, total, limit);
        self.unmark();
        self.load(&prefix, begun);
    }

    /// The plans of a begin, and the rest of what it answered.
    fn load(&mut self, prefix: &Prefix, begun: &Begun) {
        let (lease, found) = (begun.lease, prefix.device + prefix.lower);
        let loads = self.to_load(prefix);
        let (lower, last) = loads.split_at(prefix.lower);
        let last_tier = last.first().map_or(DEVICE, |load| load.1);
        let runs = begun.plans.len() - usize::from(prefix.last.is_some());
        let (runs, copy) = begun.plans.split_at(runs);
        let mut hits = self.load_runs(lease, prefix.device, lower, runs);
        let mut cached = found as u64 * self.block_size;
        if let Some(last) = prefix.last {
            hits[last_tier] += 1;
            cached = self.leases[&lease].tokens - 1;
            self.untake(lease, found, 1);
            let (moves, purpose) = (
                self.sources(last_tier, &[last]),
                Purpose::Private(Some(lease), found),
            );
            self.fly(&copy[0], last_tier, DEVICE, purpose, moves);
        }
        let seq = self.leases.get_mut(&lease).expect("begun");
        (seq.loading, seq.sealed, seq.cached) = (begun.plans.len() as u32, found, cached);
        assert_eq!(
            (begun.cached, begun.hits, begun.stop),
            (cached, hits, prefix.stop)
        );
        self.count_found(&begun.plans);
        self.settle();
    }

    /// The flights of a lease, one for each run of blocks that come from one tier; what is found on
    /// each tier by that.
    fn load_runs(
        &mut self,
        lease: LeaseId,
        device: usize,
        loads: &[Load],
        plans: &[Plan],
    ) -> [u32; MAX_TIERS] {
        let mut hits = [0; MAX_TIERS];
        hits[DEVICE] = device as u32;
        self.untake(lease, device, loads.len());
        let (mut base, mut plans) = (device, plans.iter());
        for run in loads.chunk_by(|one, other| one.1 == other.1) {
            let (tier, blocks) = (run[0].1, run.iter().map(|load| load.0));
            let moves = self.sources(tier, &blocks.collect::<Vec<_>>());
            let plan = plans.next().expect("a load of this run");
            self.fly(plan, tier, DEVICE, Purpose::Up(lease, base), moves);
            hits[tier] += run.len() as u32;
            base += run.len();
        }
        assert_eq!(plans.next(), None);
        hits
    }

    pub(crate) fn sources(&self, tier: usize, blocks: &[Block]) -> Vec<(Option<Block>, u32)> {
        let source = |&block: &Block| (Some(block), self.ready(block, tier).expect("it is there"));
        blocks.iter().map(source).collect()
    }

    /// A lease whose table starts with what was found gets new slots up to `total` blocks, and a
    /// promise up to `limit`.
    pub(crate) fn enter(
        &mut self,
        state: &State,
        lease: LeaseId,
        seq: Seq,
        total: usize,
        limit: usize,
    ) {
        let found = seq.table.len();
        self.leases.insert(
            lease,
            Seq {
                limit: found,
                ..seq
            },
        );
        self.settle();
        self.make_room(state, total - found);
        let table = table(state, self.block_size, lease);
        assert_eq!(table.len(), total);
        assert_eq!(table[..found], self.leases[&lease].table);
        for &slot in &table[found..] {
            self.take(DEVICE, slot, What::Claimed);
        }
        let seq = self.leases.get_mut(&lease).expect("entered");
        (seq.table, seq.limit, seq.reserve_limit) = (table, limit, limit);
    }

    /// New slots of a table that are destinations of a flight: `fly` takes them.
    pub(crate) fn untake(&mut self, lease: LeaseId, first: usize, count: usize) {
        for at in first..first + count {
            let slot = self.leases[&lease].table[at];
            assert_eq!(self.slots[DEVICE].remove(&slot), Some(What::Claimed));
        }
    }

    pub(crate) fn resume(
        &mut self,
        state: &State,
        id: ParkedId,
        keys: &[Key],
        tokens: u64,
        reserve: u64,
        answer: &Result<Answer>,
    ) {
        if self.parked[&id].broken {
            let (load, filling) = (u32::MAX, Filling::Soon);
            let request = Request {
                keys,
                tokens,
                reserve,
                load,
                filling,
            };
            self.begin(state, &request, answer);
            if matches!(answer, Ok(Answer::Begun(_))) {
                self.parked.remove(&id);
            }
            return;
        }
        let path = self.parked[&id].path.clone();
        if let Some(flight) = path.iter().find_map(|&block| self.filling(block, DEVICE)) {
            return assert_eq!(answer, &Ok(Answer::Soon(flight)));
        }
        let computed = self.parked[&id].computed;
        let tokens = tokens.max(computed);
        let (total, limit) = match self.need(tokens, reserve) {
            Ok(size) => size,
            Err(error) => return assert_eq!(answer, &Err(error)),
        };
        let device = path
            .iter()
            .take_while(|&&block| self.ready(block, DEVICE).is_some())
            .count();
        if let Err(error) = self.afford(&path[..device], limit - device) {
            return assert_eq!(answer, &Err(error));
        }
        let Ok(Answer::Begun(begun)) = answer else {
            panic!("{answer:?}, but there is room")
        };
        let loads = self.mark_for_resume(&path[device..]);
        let seq = Seq {
            table: path[..device]
                .iter()
                .filter_map(|&block| self.ready(block, DEVICE))
                .collect(),
            tokens,
            epoch: self.epoch,
            sealed: path
                .iter()
                .take_while(|&&block| self.blocks[block].key.is_some())
                .count(),
            cached: computed,
            resumed: Some(id),
            loading: begun.plans.len() as u32,
            ..Seq::default()
        };
        self.enter(state, begun.lease, seq, total, limit);
        self.unmark();
        self.parked.get_mut(&id).expect("parked").lease = Some(begun.lease);
        let hits = self.load_runs(begun.lease, device, &loads, &begun.plans);
        if loads.is_empty() {
            self.leases.get_mut(&begun.lease).expect("entered").resumed = None;
            self.end_keep(id);
        }
        let told = (begun.cached, begun.hits, begun.stop);
        assert_eq!(told, (computed, hits, Stop::Whole));
        self.settle();
    }

    /// Reader marks for the blocks of a parked sequence: each on the highest tier that is its home,
    /// or whose promises stay backed.
    fn mark_for_resume(&mut self, path: &[Block]) -> Vec<Load> {
        let mut loads = Vec::new();
        for &block in path {
            // The mark on its home takes nothing: it is pinned there.
            let tier = (1..self.tiers)
                .find(|&tier| self.ready(block, tier).is_some() && self.mark(&[(block, tier)]) > 0);
            loads.push((block, tier.expect("a kept block has a home")));
        }
        loads
    }

    pub(crate) fn promote(
        &mut self,
        state: &State,
        keys: &[Key],
        blocks: usize,
        answer: &Result<Vec<Plan>>,
    ) {
        let (path, probe) = self.walk(keys);
        let device = probe.hits[DEVICE] as usize;
        let lower = (path.len() - device).min(blocks);
        if lower == 0 {
            return assert_eq!(answer, &Ok(Vec::new()));
        }
        if let Err(error) = self.need((device + lower) as u64 * self.block_size, 0) {
            return assert_eq!(answer, &Err(error));
        }
        if let Err(error) = self.afford(&path[..device], lower) {
            return assert_eq!(answer, &Err(error));
        }
        self.link(&path[..device + lower]);
        let source = |&block: &Block| (block, self.source(block).expect("it was found"));
        let mut loads: Vec<Load> = path[device..device + lower].iter().map(source).collect();
        loads.truncate(self.mark(&loads));
        let plans = answer.as_ref().expect("there is room");
        if loads.is_empty() {
            self.unmark();
            return assert_eq!(plans, &[]);
        }
        // Its lease has no handle and has ended already.
        self.unnamed -= 1;
        let lease = LeaseId::from_number(self.unnamed).expect("a number");
        let table: Vec<u32> = path[..device]
            .iter()
            .filter_map(|&block| self.ready(block, DEVICE))
            .collect();
        let blocks = device + loads.len();
        let tokens = blocks as u64 * self.block_size;
        let seq = Seq {
            table,
            tokens,
            limit: blocks,
            sealed: blocks,
            cached: tokens,
            loading: plans.len() as u32,
            ended: Some(Hints::default()),
            epoch: self.epoch,
            ..Seq::default()
        };
        self.leases.insert(lease, seq);
        self.settle();
        self.make_room(state, loads.len());
        self.unmark();
        for plan in plans {
            for &slot in &plan.destinations {
                self.take(DEVICE, slot, What::Claimed);
            }
            let seq = self.leases.get_mut(&lease).expect("promoting");
            seq.table.extend(&plan.destinations);
        }
        self.load_runs(lease, device, &loads, plans);
        self.settle();
    }

    /// What reads a tier before it has a flight.
    fn marks_on(&mut self, tier: usize) -> &mut InFlight {
        let marks = InFlight {
            from: tier,
            to: DEVICE,
            purpose: Purpose::Lift,
            moves: Vec::new(),
            overdue: true,
            reads: true,
            hearsay: Vec::new(),
            ended: None,
        };
        self.flights.entry(unborn(tier)).or_insert(marks)
    }

    /// Reader marks on these, in order, as far as the promises of their tiers stay backed: how many.
    fn mark(&mut self, loads: &[Load]) -> usize {
        for (marked, &(block, tier)) in loads.iter().enumerate() {
            let slot = self.ready(block, tier).expect("it is there");
            self.marks_on(tier).moves.push((None, slot, u32::MAX));
            if self.unbacked(tier) {
                self.marks_on(tier).moves.pop();
                return marked;
            }
        }
        loads.len()
    }

    fn unmark(&mut self) {
        for tier in 0..MAX_TIERS {
            self.flights.remove(&unborn(tier));
        }
    }
}
