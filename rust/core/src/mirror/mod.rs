//! The mirror: what a listener knows, kept outside the yard's lock with what the yard has not: the
//! tokens. It turns what has happened into events, and makes the snapshot for whoever comes late.
//!
//! A block is told once its tokens and its parent are known and its origin may be told; until then
//! it is counted. The mirror is as large as the trie has been: about 45 bytes a block, and its tokens.

mod check;
mod late;
mod origins;
mod runs;

use crate::base::Ix;
use crate::events::{Above, Batch, Extra, Name, Origin, Reader, Told, Word};
pub(crate) use check::Known;
use late::Foretold;
pub(crate) use late::Late;
use origins::{Origins, PLAIN, extras_of};
use runs::{Kind, Run};
use std::collections::{BTreeMap, HashMap};

/// Whether blocks with a tenant's salt are told.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Salts {
    /// They are not: to whoever heard them without it, they would be another tenant's.
    #[default]
    Hide,
    /// With their salt, to everybody who listens.
    Tell,
}

/// How listeners hear that nothing of what was told is true any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Clears {
    /// All blocks of the rank are gone.
    #[default]
    All,
    /// Each block that was told is removed: others tell of blocks of this rank, too.
    Own,
}

/// What was told, and what was not.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Heard {
    /// Blocks that were told as stored, on each tier anew.
    pub stored: u64,
    /// Blocks that were told as removed.
    pub removed: u64,
    /// Events that were dropped because nobody took them. All was told again then.
    pub lost: u64,
    /// How often all was told again.
    pub retold: u64,
    /// Blocks that came to a tier and were not told with the same batch, as their tokens were not known.
    pub untold: u64,
    /// Blocks that came to a tier and were not told, as they have a salt.
    pub hidden: u64,
    /// Blocks whose tokens are not known now, or that come after one of these.
    pub lacking: u64,
    /// Snapshots that were made.
    pub snapshots: u64,
}

#[derive(Clone, Copy, Default, Debug)]
struct Place {
    key: u64,
    number: u64,
    parent: u64,
    above: u32,
    origin: u32,
    /// A bit for each tier where it is, and for each where it was told.
    tiers: u8,
    told: u8,
    flags: u8,
}

const NAMED: u8 = 1;
const TOKENS: u8 = 2;
const ROOT: u8 = 4;
const PARENT: u8 = 8;
const MEDIA: u8 = 16;
const SALTED: u8 = 32;

const NO_PLACE: u32 = u32::MAX;

pub(crate) struct Mirror {
    block_size: u32,
    salts: Salts,
    clears: Clears,
    places: Vec<Place>,
    tokens: Vec<u32>,
    origins: Origins,
    /// What the keys of some blocks have besides.
    extras: BTreeMap<u32, Vec<Extra>>,
    /// Blocks whose tokens are not known, by their keys.
    lacking: HashMap<u64, u32>,
    foretold: Foretold,
    /// Blocks on the device that wait for the one before them to be told there.
    waiting: BTreeMap<u32, Vec<u32>>,
    /// Blocks that have come to a tier in this list, and could not be told then.
    untold: Vec<(u32, u8)>,
    run: Run,
    heard: Heard,
}

/// Shows no token and no salt.
impl std::fmt::Debug for Mirror {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mirror")
            .field("places", &self.places.len())
            .field("heard", &self.heard)
            .finish_non_exhaustive()
    }
}

impl Mirror {
    /// A mirror that remembers the tokens of so many blocks that may come.
    pub(crate) fn new(block_size: u32, salts: Salts, clears: Clears, remembers: usize) -> Self {
        Self {
            block_size,
            salts,
            clears,
            places: Vec::new(),
            tokens: Vec::new(),
            origins: Origins::new(),
            extras: BTreeMap::new(),
            lacking: HashMap::new(),
            foretold: Foretold::new(remembers),
            waiting: BTreeMap::new(),
            untold: Vec::new(),
            run: Run::default(),
            heard: Heard::default(),
        }
    }

    pub(crate) fn heard(&self) -> Heard {
        let lacking = self.lacking.len() + self.waiting.values().map(Vec::len).sum::<usize>();
        Heard {
            lacking: lacking as u64,
            ..self.heard
        }
    }

    /// Blocks whose tokens it does not know.
    pub(crate) fn lacks(&self) -> usize {
        self.lacking.len()
    }

    /// Follows what has happened, and adds it to a batch.
    pub(crate) fn follow(&mut self, told: &Told, late: &[Late], batch: &mut Batch) {
        self.heard.lost += told.lost;
        let words = told.words.len() - told.names.len().min(told.words.len());
        batch.reserve(told.names.len(), words, self.block_size);
        let mut names = told.names.iter();
        let mut staged = Reader::new(&told.tokens);
        for &word in &told.words {
            match word {
                Word::Named => {
                    if let Some(name) = names.next() {
                        self.name(name, &mut staged, batch);
                    }
                }
                Word::Ready(node, tier) => self.ready(node.get(), tier.0, batch),
                Word::Gone(node, tier) => self.gone(node.get(), tier.0, batch),
                Word::Cleared => self.forget_tiers(batch),
                Word::Lost { names: before } => {
                    self.heard.retold += u64::from(told.lost > 0);
                    self.forget_tiers(batch);
                    for name in names.by_ref().take(before as usize) {
                        self.name(name, &mut staged, batch);
                    }
                    // Those that are there still are named again.
                    self.lacking.clear();
                }
            }
        }
        for late in late {
            self.describe(late, batch);
        }
        self.flush(batch);
        for (at, tier) in std::mem::take(&mut self.untold) {
            let place = self.places[at as usize];
            self.heard.untold += u64::from(place.tiers & !place.told & 1 << tier != 0);
        }
    }

    fn forget_tiers(&mut self, batch: &mut Batch) {
        if self.clears == Clears::Own {
            let order = self.parents_first();
            for tier in 0..8 {
                for &at in order.iter().rev() {
                    self.gone(at, tier, batch);
                }
            }
        }
        self.flush(batch);
        for place in &mut self.places {
            (place.tiers, place.told) = (0, 0);
        }
        self.waiting.clear();
        self.lacking.clear();
        if self.clears == Clears::All {
            batch.cleared();
        }
    }

    fn name(&mut self, name: &Name, staged: &mut Reader<'_>, batch: &mut Batch) {
        let at = name.node.get();
        self.make_place(at);
        let known = self.places[at as usize];
        if known.flags & NAMED == 0 || known.key != name.key {
            self.rename(at, name.key, batch);
        }
        let above = match name.above {
            Above::Block(above, key) => {
                let place = self.places.get(above.get() as usize);
                let known = place.filter(|above| above.flags & NAMED != 0 && above.key == key);
                Some((above.get(), known.map_or(key, |above| above.number), PARENT))
            }
            Above::Root => Some((NO_PLACE, 0, ROOT)),
            // What was before it stays what it was.
            Above::Unknown => None,
        };
        let place = &mut self.places[at as usize];
        let told = tellable(*place);
        if let Some((above, parent, flag)) = above {
            place.above = above;
            // A key says its whole prefix: what stands before a block that was told stays what it was, by the
            // number that it was told by. The block above may not have its own number yet.
            if !told {
                place.parent = parent;
                place.flags = place.flags & !(ROOT | PARENT) | flag;
            }
        }
        if place.flags & TOKENS == 0 {
            if let Some((tokens, row, block)) = staged.block(name.from, self.block_size as usize) {
                self.set_tokens(at, tokens, row, block);
            } else {
                self.lacking.insert(name.key, at);
            }
            self.complete_early(at, name.key);
        }
        if !told {
            self.store_all(at, batch);
        }
    }

    fn make_place(&mut self, at: u32) {
        let places = at as usize + 1;
        if places > self.places.len() {
            self.places.resize(places, Place::default());
            self.tokens.resize(places * self.block_size as usize, 0);
        }
    }

    /// Another block has the place.
    fn rename(&mut self, at: u32, key: u64, batch: &mut Batch) {
        for tier in bits(self.places[at as usize].told) {
            self.gone(at, tier, batch);
        }
        let place = &mut self.places[at as usize];
        let (before, flags, origin) = (place.key, place.flags, place.origin);
        *place = Place {
            key,
            number: key,
            above: NO_PLACE,
            flags: NAMED,
            ..Place::default()
        };
        self.origins.release(origin);
        if flags & MEDIA != 0 {
            self.extras.remove(&at);
        }
        if !self.waiting.is_empty() {
            self.waiting.remove(&at);
        }
        if flags & NAMED != 0 && flags & TOKENS == 0 && self.lacking.get(&before) == Some(&at) {
            self.lacking.remove(&before);
        }
    }

    fn set_tokens(&mut self, at: u32, tokens: &[u32], origin: &Origin, block: u32) {
        let size = self.block_size as usize;
        let start = at as usize * size;
        self.tokens[start..start + size].copy_from_slice(tokens);
        let (mut flags, mut own) = (TOKENS, PLAIN);
        if let Some(origin) = origin {
            own = self.origins.hold(origin, self.salts);
            let first = u64::from(block) * u64::from(self.block_size);
            let extras = extras_of(origin, first..first + u64::from(self.block_size));
            if origin.salt.is_some() {
                flags |= SALTED;
            }
            if !extras.is_empty() {
                flags |= MEDIA;
                self.extras.insert(at, extras);
            }
        }
        let place = &mut self.places[at as usize];
        place.flags |= flags;
        place.origin = own;
        let key = place.key;
        if self.lacking.get(&key) == Some(&at) {
            self.lacking.remove(&key);
        }
    }

    fn ready(&mut self, at: u32, tier: u8, batch: &mut Batch) {
        self.make_place(at);
        let place = &mut self.places[at as usize];
        if place.tiers & 1 << tier == 0 {
            place.tiers |= 1 << tier;
            if place.flags & TOKENS == 0 {
                self.lacking.insert(place.key, at);
            }
            self.store(at, tier, batch);
        }
    }

    fn gone(&mut self, at: u32, tier: u8, batch: &mut Batch) {
        let Some(place) = self.places.get_mut(at as usize) else {
            return;
        };
        let bit = 1 << tier;
        let was_told = place.told & bit != 0;
        place.tiers &= !bit;
        place.told &= !bit;
        let (number, key) = (place.number, place.key);
        if !was_told {
            let lacks = place.flags & TOKENS == 0 && place.tiers == 0;
            if lacks && self.lacking.get(&key) == Some(&at) {
                self.lacking.remove(&key);
            }
            return;
        }
        if self.run.kind != Kind::Removed || self.run.tier != tier {
            self.flush(batch);
            (self.run.kind, self.run.tier) = (Kind::Removed, tier);
        }
        self.run.numbers.push(number);
        self.heard.removed += 1;
    }

    /// A block may be told from here on, on all tiers where it is.
    fn store_all(&mut self, at: u32, batch: &mut Batch) {
        let place = self.places[at as usize];
        if !tellable(place) {
            return;
        }
        for tier in bits(place.tiers & !place.told) {
            self.store(at, tier, batch);
        }
    }

    /// Tells a block, and on the device those that have waited for it.
    fn store(&mut self, at: u32, tier: u8, batch: &mut Batch) {
        let (mut one, mut next) = (Some(at), Vec::new());
        while let Some(at) = one.or_else(|| next.pop()) {
            one = None;
            let place = self.places[at as usize];
            if place.tiers & !place.told & 1 << tier == 0 {
                continue;
            }
            if !tellable(place) {
                self.untold.push((at, tier));
                continue;
            }
            if place.flags & SALTED != 0 && self.salts == Salts::Hide {
                self.heard.hidden += 1;
                continue;
            }
            if tier == 0 && self.waits(place) {
                self.untold.push((at, tier));
                let waiting = self.waiting.entry(place.above).or_default();
                if !waiting.contains(&at) {
                    waiting.push(at);
                }
                continue;
            }
            self.write(at, tier, batch);
            self.places[at as usize].told |= 1 << tier;
            if tier == 0 && !self.waiting.is_empty() {
                next.extend(self.waiting.remove(&at).into_iter().flatten());
            }
        }
    }

    /// Whether the block before this one is on the device and was not told: a router would drop what
    /// comes after it.
    fn waits(&self, place: Place) -> bool {
        let above = self.places.get(place.above as usize);
        above.is_some_and(|above| {
            place.flags & PARENT != 0 && above.number == place.parent && above.told & 1 == 0
        })
    }
}

/// The tiers of a set, the fastest first.
fn bits(mut set: u8) -> impl Iterator<Item = u8> {
    std::iter::from_fn(move || {
        let tier = set.trailing_zeros() as u8;
        set &= set.checked_sub(1)?;
        Some(tier)
    })
}

/// Whether all is known that an event must say.
fn tellable(place: Place) -> bool {
    place.flags & TOKENS != 0 && place.flags & (ROOT | PARENT) != 0
}
