//! Yards with a tier of names, for blocks that shared stores have.

use crate::yard::{KINDS, Yard, config, each_of};
use blockyard_core::{
    Begun, Condemned, Config, Error, Forgotten, Key, Lease, MAX_TIERS, Plan, Tier, TierStats,
};

pub(crate) const HOST: Tier = Tier::HOST;
pub(crate) const REMOTE: Tier = Tier::REMOTE;

/// So many slots to use of each tier, and names; these are keyed.
pub(crate) fn four(device: u32, host: u32, disk: u32, names: u32) -> Config {
    let mut keyed = [false; MAX_TIERS];
    keyed[REMOTE.0] = true;
    Config {
        slots: vec![device + 1, host, disk, names],
        keyed,
        ..config(device, host)
    }
}

pub(crate) fn yards(device: u32, host: u32, disk: u32, names: u32) -> impl Iterator<Item = Yard> {
    each_of(KINDS, four(device, host, disk, names))
}

/// Yards of engines that allocate their blocks themselves, without a host.
pub(crate) fn engines(device: u32, names: u32) -> impl Iterator<Item = Yard> {
    let config = four(device, 0, 0, names);
    let engine = Config {
        engine: true,
        slots: vec![device, 0, 0, names],
        ..config
    };
    each_of(KINDS, engine)
}

pub(crate) fn keys(yard: &Yard, text: &[u32]) -> Vec<Key> {
    yard.chain(text).keys().to_vec()
}

impl Yard {
    pub(crate) fn try_adopt(&self, keys: &[Key]) -> Result<u32, Error> {
        let adopted = self.cache.lock().adopt(keys, Some(Key::NO_PARENT), REMOTE);
        self.sound();
        adopted
    }

    pub(crate) fn adopt_keys(&self, keys: &[Key]) -> u32 {
        self.try_adopt(keys).expect("it is keyed")
    }

    pub(crate) fn adopt(&self, text: &[u32]) -> u32 {
        self.adopt_keys(&keys(self, text))
    }

    pub(crate) fn begin_adopted(&self, text: &[u32]) -> (Lease, Begun) {
        self.adopt(text);
        self.begin(text)
    }

    /// Ends a load behind so many good blocks: the next one is corrupt, or was not there.
    pub(crate) fn spoil(&self, plan: &Plan, good: u32, corrupt: bool) {
        if corrupt {
            self.corrupt(plan, good);
        } else {
            self.fail(plan, good);
        }
    }

    pub(crate) fn drop_names(&self, keys: &[Key]) -> u32 {
        let dropped = self.cache.lock().forget_names(keys, REMOTE);
        self.sound();
        dropped.expect("it is keyed")
    }

    pub(crate) fn forget_all(&self, keys: &[Key], force: bool) -> Forgotten {
        let forgotten = self.cache.forget(Condemned::Keys(keys), force);
        self.sound();
        forgotten.expect("there is memory")
    }

    pub(crate) fn remote(&self) -> TierStats {
        self.stats().tiers[REMOTE.0]
    }

    pub(crate) fn names(&self) -> u32 {
        let names = self.remote();
        (names.capacity - names.free) as u32
    }

    pub(crate) fn hits_counted(&self) -> u64 {
        self.stats().counters.hits[REMOTE.0]
    }
}
