//! How a yard is built, and what its bookkeeping takes.

use super::{HostCopies, WritePolicy};
use crate::base::{Boot, Error, Group, Id, MAX_TIERS, NodeIx, Result, Tier, YardId, memory};
use crate::copies::BlockCosts;
use crate::evict::{Children, EvictionPolicy, Ghosts, UsageTable};
use crate::tiers::{Cell, Trie};

/// Slots that a tier may have: block tables are int32, and list heads need a few numbers.
pub(super) const MOST_SLOTS: u32 = i32::MAX as u32 - 16;

/// Ghosts that a yard may have: 4 bytes each, or 2.
const MOST_GHOSTS: u32 = 1 << 30;

/// Slots of the device that are kept free ahead of need where the configuration does not say how many:
/// one in so many, and no more than that. Of a larger share replays lose more than 0.1 % of all hits.
const SPARE: u32 = 512;

/// So many may be kept free of any device, and of a larger one a slot in so many.
const FEW_SPARE: u32 = 8;
const SPARE_SHARE: u32 = 64;

/// How a yard is built; the same on every rank.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is an option by itself, and all of them go together"
)]
pub struct Config {
    /// Tokens per block.
    pub block_size: u32,
    /// Slots per tier, the device first. A lower tier may have none.
    pub slots: Vec<u32>,
    /// Leading device slots that pad block tables and are never given out.
    pub null_slots: u32,
    /// Whether the engine gives out the blocks of the device itself: they are numbers in plans then,
    /// and none is given out, filled or evicted here.
    pub engine: bool,
    /// Whether each block stands on the one before it in its row. Only where the device is an engine's it
    /// may not: rows are sets of blocks then, each on the root, and a kept set that loses a block is
    /// broken whole.
    pub linked: bool,
    /// Eviction policy of every tier.
    pub policy: EvictionPolicy,
    /// When copies on the host of what the device has too are evicted; `None`: as suits the policy.
    pub host_copies: Option<HostCopies>,
    /// What is copied down from the device ahead of need.
    pub write: WritePolicy,
    /// The same of each tier below the device; where none is given, the next victims.
    pub writes_below: Vec<WritePolicy>,
    /// Keys of dropped blocks to remember. `None`: for [`WritePolicy::SecondTouch`] four per slot, of 4
    /// bytes each; for the learned order 1.75, of 2 bytes; else none, and no miss counts as of an
    /// evicted block.
    pub ghosts: Option<u32>,
    /// Slots of the device that a step keeps free ahead of need; `None`: one in 512, and 512 at most.
    pub spare: Option<u32>,
    /// Gates the loads of begins; `None`: every load is taken.
    pub block_costs: Option<BlockCosts>,
    /// Whether the engine can recompute KV that was lost. A decode-only instance may not.
    pub recompute: bool,
    /// Whether blocks are written to the tier `remote`: else it has nothing but what was adopted.
    pub remote_writes: bool,
    /// How often a failed copy down is tried again. After that, the keep of a kept block is broken,
    /// and no copy of another block is made ahead of need any more.
    pub copy_retries: u32,
    /// Groups of layers; only 1 is supported.
    pub groups: u8,
    /// The group of layers whose blocks these are: its plans name it.
    pub group: Group,
    /// Tiers that must know the keys of their blocks: the plans that touch them carry them. The
    /// device cannot be one.
    pub keyed: [bool; MAX_TIERS],
    /// What its plans name it.
    pub yard: YardId,
    /// The upper half of its slots' generations: another one in each start of the process.
    pub boot: Boot,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            block_size: 16,
            slots: Vec::new(),
            null_slots: 1,
            engine: false,
            linked: true,
            policy: EvictionPolicy::Recency,
            host_copies: None,
            write: WritePolicy::OnEvict,
            writes_below: Vec::new(),
            ghosts: None,
            spare: None,
            block_costs: None,
            recompute: true,
            remote_writes: true,
            copy_retries: 3,
            groups: 1,
            group: Group(0),
            keyed: [false; MAX_TIERS],
            yard: YardId(0),
            boot: Boot::default(),
        }
    }
}

impl Config {
    /// The null slots of a tier: the device alone has some; all of one that is the engine's.
    pub(crate) fn null_slots_of(&self, tier: Tier) -> u32 {
        match (tier, self.engine) {
            (Tier::DEVICE, false) => self.null_slots,
            (Tier::DEVICE, true) => self.slots[0],
            _ => 0,
        }
    }

    /// What is copied down from a tier ahead of need.
    #[inline]
    pub(crate) fn write_of(&self, tier: Tier) -> WritePolicy {
        match tier.at().checked_sub(1) {
            None => self.write,
            Some(below) => self.writes_below.get(below).copied().unwrap_or_default(),
        }
    }

    /// Whether blocks that are used again go down from any tier, so that ghosts say which they are.
    #[inline]
    pub(super) fn counts_uses(&self) -> bool {
        let second = WritePolicy::SecondTouch;
        self.write == second || self.writes_below.contains(&second)
    }

    /// Bytes of what came to a tier of that many slots last, where it is told in that order.
    fn fresh_bytes(&self, tier: Tier, slots: usize) -> usize {
        match self.write_of(tier) {
            WritePolicy::Through => slots * size_of::<Id<NodeIx>>(),
            _ => 0,
        }
    }

    /// Whether a yard of this configuration can be made where so much memory is there, in bytes;
    /// `None`: as much as the system grants.
    ///
    /// # Errors
    /// `Argument` and `Unsupported`, naming the value; `Memory` with what the bookkeeping takes, all
    /// of which is made at once. What leases and flights take later is not in it.
    pub fn fits(&self, there: Option<u64>) -> Result<()> {
        check(self)?;
        let ghosts = self
            .ghost_keys()
            .map_or(0, |keys| Ghosts::bytes(keys, self.counts_uses())) as u64;
        let bytes = self.bytes(&self.sizes()) + ghosts;
        memory::ask(bytes, there, "the bookkeeping of so many slots")
    }

    /// How many slots of a device of so many are kept free ahead of need; none of an engine's own.
    #[inline]
    pub(super) fn spare_of(&self, room: u32) -> u32 {
        match self.spare {
            _ if self.engine => 0,
            None => SPARE.min(room / SPARE),
            Some(spare) => spare.min(most_spare(room)),
        }
    }

    /// Whether copies on the host of what the device has used since go first.
    pub(crate) fn copies_first(&self) -> bool {
        let own = self.host_copies == Some(HostCopies::First);
        own || (self.host_copies.is_none() && self.policy.asks().learns())
    }

    /// How a tier's order keeps children in front of their parents: where copies of what the device has go
    /// first, such a copy may go before its children.
    pub(crate) fn children_on(&self, tier: Tier) -> Children {
        if self.copies_first() && tier == Tier::HOST {
            Children::Tracked
        } else {
            Children::InOrder
        }
    }

    /// Blocks that a tier holds together with those above it, where the tiers have these sizes.
    pub(crate) fn room_of(tier: Tier, slots: &[usize]) -> usize {
        slots[..=tier.at()].iter().sum()
    }

    /// Bytes of the bookkeeping of tiers of these sizes, without the ghosts, which a resize leaves
    /// as they are.
    pub(crate) fn bytes(&self, slots: &[usize]) -> u64 {
        let each = size_of::<Cell>() + self.policy.bytes();
        let each = each + UsageTable::bytes(self.policy.asks());
        let fresh = (0..slots.len()).map(|tier| self.fresh_bytes(Tier(tier), slots[tier]));
        let fresh = fresh.sum::<usize>();
        let trie = Trie::bytes(&self.resting(slots));
        (slots.iter().sum::<usize>() * each + trie + fresh) as u64
    }

    /// Slots per tier, of these, in which a block may rest: none of those that are an engine's.
    pub(crate) fn resting(&self, slots: &[usize]) -> Vec<usize> {
        let mut resting = slots.to_vec();
        if self.engine {
            resting[Tier::DEVICE.at()] = 0;
        }
        resting
    }

    pub(super) fn sizes(&self) -> Vec<usize> {
        self.slots.iter().map(|&slots| slots as usize).collect()
    }

    /// How many keys are remembered, if any are.
    pub(super) fn ghost_keys(&self) -> Option<u32> {
        let all = self.sizes().iter().sum::<usize>();
        // The learned order loses a point of hits on short traces with one per slot, and gains none with
        // four.
        let own = if self.counts_uses() {
            4 * all
        } else {
            all + all / 4 * 3
        };
        let keys = self.ghosts.map_or(own, |ghosts| ghosts as usize);
        let keys = keys.min(MOST_GHOSTS as usize) as u32;
        let asked = self.ghosts.is_some() || self.counts_uses();
        ((asked || self.policy.asks().learns()) && keys > 0).then_some(keys)
    }
}

/// The most slots that a device of so many may keep free.
fn most_spare(slots: u32) -> u32 {
    FEW_SPARE.max(slots / SPARE_SHARE)
}

fn check(config: &Config) -> Result<()> {
    if config.block_size == 0 {
        return Err(Error::argument("block_size", 0, "must be >= 1"));
    }
    if config.groups != 1 {
        return Err(Error::Unsupported {
            what: "groups",
            value: u64::from(config.groups),
            help: "only one group of layers works so far; use one cache per group",
        });
    }
    if !config.linked && !config.engine {
        let help =
            "blocks of a device of its own stand on each other: give engine=, or linked=True";
        return Err(Error::argument("linked", false, help));
    }
    if config.keyed[Tier::DEVICE.at()] {
        let help = "the device names its blocks by slot alone: name tiers below it";
        return Err(Error::argument("keyed", Tier::DEVICE.name(), help));
    }
    if config.slots.is_empty() || config.slots.len() > MAX_TIERS {
        let help = "give the slots of one tier or more, the device first, and of three at most";
        return Err(Error::argument("tiers", config.slots.len(), help));
    }
    let device = config.slots[0];
    if device <= config.null_slots && !config.engine {
        let help = "must be more than the null slots";
        return Err(Error::argument("device", device, help));
    }
    if let Some(&slots) = config.slots.iter().find(|&&slots| slots > MOST_SLOTS) {
        return Err(Error::argument(
            "slots",
            slots,
            "a tier has at most 2,147,483,631 blocks",
        ));
    }
    check_spare(config)?;
    if let Some(ghosts) = config.ghosts.filter(|&ghosts| ghosts > MOST_GHOSTS) {
        let help = "at most 1,073,741,824 keys are remembered; leave it out for four per slot";
        return Err(Error::argument("ghosts", ghosts, help));
    }
    Ok(())
}

fn check_spare(config: &Config) -> Result<()> {
    let spare = config.spare.unwrap_or_default();
    if config.engine && spare > 0 {
        let help = "an engine that gives out its blocks itself frees them itself: leave it out";
        return Err(Error::argument("spare", spare, help));
    }
    let most = most_spare(config.slots[0]);
    if spare > most {
        let value = format!("{spare}, where at most {most} may be");
        let help =
            "a slot that is kept free caches no block: keep a 64th of the device free at most";
        return Err(Error::argument("spare", value, help));
    }
    Ok(())
}
