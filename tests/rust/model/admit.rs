//! How sequences come in and blocks come up: begin, resume and promote of the naive yard.

use crate::verbs::table;
use crate::yard::{Block, DEVICE, HOST, InFlight, Purpose, Seq, What, Yard};
use blockyard_core::{
    Answer, Begun, Error, Filling, FlightId, Key, LeaseId, ParkedId, Plan, Request, Result,
    Retention, State, Stop,
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

/// Reader marks of a begin or a promote before their flights have a number.
fn unborn(which: u64) -> FlightId {
    FlightId::from_number(u64::MAX - which).expect("a number")
}

fn marks(from: usize, slots: impl IntoIterator<Item = u32>) -> InFlight {
    let moves = slots
        .into_iter()
        .map(|slot| (None, slot, u32::MAX))
        .collect();
    let purpose = Purpose::Down(None);
    InFlight {
        from,
        to: DEVICE,
        purpose,
        moves,
        overdue: true,
    }
}

impl Yard {
    /// Whether `need` slots can be had or promised with these blocks pinned.
    pub(crate) fn afford(&mut self, pins: &[Block], need: usize) -> Result<(), Error> {
        let table = pins
            .iter()
            .filter_map(|&block| self.ready(block, DEVICE))
            .collect();
        self.held.push((u64::MAX, table, Retention::Ordinary));
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
        let found = self.to_load(&prefix).len();
        let mut most = found.min(request.load as usize);
        if self.recompute && !self.pays(most, device) {
            most = 0;
        }
        if found > most {
            prefix.lower = prefix.lower.min(most);
            (prefix.last, prefix.stop) = (None, Stop::Slow);
            prefix.slow = found - prefix.lower;
        }
        prefix
    }

    /// Host slots of what a prefix loads, root first.
    fn to_load(&self, prefix: &Prefix) -> Vec<u32> {
        let lower = &prefix.path[prefix.device..prefix.device + prefix.lower];
        let last = prefix
            .last
            .filter(|&last| self.ready(last, DEVICE).is_none());
        let slots = lower
            .iter()
            .copied()
            .chain(last)
            .map(|block| self.ready(block, HOST));
        slots
            .map(|slot| slot.expect("a walk ends at what is filling"))
            .collect()
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
        // must leave the host's promises backed.
        let found = prefix.device + prefix.lower;
        self.link(&prefix.path[..found]);
        let marked = self.mark(&self.to_load(&prefix));
        if let Some(last) = prefix.last.filter(|_| marked >= prefix.lower) {
            self.link(&[&prefix.path[..found], &[last]].concat());
        }
        if marked < self.to_load(&prefix).len() {
            prefix.lower = prefix.lower.min(marked);
            (prefix.last, prefix.stop) = (None, Stop::Promised);
        }
        let source = prefix.last.and_then(|last| self.ready(last, DEVICE));
        self.flights.insert(unborn(1), marks(DEVICE, source));
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
        self.flights.remove(&unborn(0));
        self.flights.remove(&unborn(1));
        self.load(&prefix, begun);
    }

    /// The plans of a begin, and the rest of what it answered.
    fn load(&mut self, prefix: &Prefix, begun: &Begun) {
        let (lease, found) = (begun.lease, prefix.device + prefix.lower);
        let mut plans = begun.plans.iter();
        if prefix.lower > 0 {
            self.untake(lease, prefix.device, prefix.lower);
            let moves = self.sources(HOST, &prefix.path[prefix.device..found]);
            let purpose = Purpose::Up(lease, prefix.device);
            self.fly(plans.next().expect("a load"), HOST, DEVICE, purpose, moves);
        }
        let mut hits = [prefix.device as u32, prefix.lower as u32, 0];
        let mut cached = found as u64 * self.block_size;
        if let Some(last) = prefix.last {
            let tier = usize::from(self.ready(last, DEVICE).is_none());
            hits[tier] += 1;
            cached = self.leases[&lease].tokens - 1;
            self.untake(lease, found, 1);
            let (moves, purpose) = (
                self.sources(tier, &[last]),
                Purpose::Private(Some(lease), found),
            );
            self.fly(plans.next().expect("a copy"), tier, DEVICE, purpose, moves);
        }
        assert_eq!(plans.next(), None);
        let seq = self.leases.get_mut(&lease).expect("begun");
        (seq.loading, seq.sealed, seq.cached) = (begun.plans.len() as u32, found, cached);
        assert_eq!(
            (begun.cached, begun.hits, begun.stop),
            (cached, hits, prefix.stop)
        );
        self.settle();
    }

    fn sources(&self, tier: usize, blocks: &[Block]) -> Vec<(Option<Block>, u32)> {
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
        self.make_room(total - found);
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
        let lower = path.len() - device;
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
            loading: u32::from(lower > 0),
            ..Seq::default()
        };
        self.enter(state, begun.lease, seq, total, limit);
        self.parked.get_mut(&id).expect("parked").lease = Some(begun.lease);
        if lower > 0 {
            self.untake(begun.lease, device, lower);
            let (moves, purpose) = (
                self.sources(HOST, &path[device..]),
                Purpose::Up(begun.lease, device),
            );
            self.fly(&begun.plans[0], HOST, DEVICE, purpose, moves);
        } else {
            self.leases.get_mut(&begun.lease).expect("entered").resumed = None;
            self.end_keep(id);
        }
        let told = (begun.cached, begun.hits, begun.stop);
        assert_eq!(
            told,
            (computed, [device as u32, lower as u32, 0], Stop::Whole)
        );
        assert_eq!(begun.plans.len(), usize::from(lower > 0));
        self.settle();
    }

    pub(crate) fn promote(&mut self, keys: &[Key], blocks: usize, answer: &Result<Option<Plan>>) {
        let (path, probe) = self.walk(keys);
        let device = probe.hits[DEVICE] as usize;
        let lower = (path.len() - device).min(blocks);
        if lower == 0 {
            return assert_eq!(answer, &Ok(None));
        }
        if let Err(error) = self.need((device + lower) as u64 * self.block_size, 0) {
            return assert_eq!(answer, &Err(error));
        }
        if let Err(error) = self.afford(&path[..device], lower) {
            return assert_eq!(answer, &Err(error));
        }
        self.link(&path[..device + lower]);
        let slots = self
            .sources(HOST, &path[device..device + lower])
            .into_iter()
            .map(|step| step.1);
        let loads = self.mark(&slots.collect::<Vec<_>>());
        let Some(plan) = answer.as_ref().expect("there is room") else {
            self.flights.remove(&unborn(0));
            return assert_eq!(loads, 0);
        };
        assert_eq!(plan.len(), loads);
        // Its lease has no handle and has ended already.
        self.unnamed -= 1;
        let lease = LeaseId::from_number(self.unnamed).expect("a number");
        let table: Vec<u32> = path[..device]
            .iter()
            .filter_map(|&block| self.ready(block, DEVICE))
            .collect();
        let blocks = device + loads;
        let tokens = blocks as u64 * self.block_size;
        let seq = Seq {
            table,
            tokens,
            limit: blocks,
            sealed: blocks,
            cached: tokens,
            loading: 1,
            ended: Some(Retention::Ordinary),
            epoch: self.epoch,
            ..Seq::default()
        };
        self.leases.insert(lease, seq);
        self.settle();
        self.make_room(loads);
        self.flights.remove(&unborn(0));
        let moves = self.sources(HOST, &path[device..blocks]);
        self.fly(plan, HOST, DEVICE, Purpose::Up(lease, device), moves);
        let seq = self.leases.get_mut(&lease).expect("promoting");
        seq.table.extend(&plan.destinations);
        self.settle();
    }

    /// Reader marks on host slots, in order, as far as the host's promises stay backed: how many.
    fn mark(&mut self, slots: &[u32]) -> usize {
        let backed = |yard: &mut Self, marked: usize| {
            yard.flights
                .insert(unborn(0), marks(HOST, slots[..marked].iter().copied()));
            !yard.unbacked(HOST)
        };
        let marked = (1..=slots.len())
            .take_while(|&marked| backed(self, marked))
            .count();
        backed(self, marked);
        marked
    }
}
