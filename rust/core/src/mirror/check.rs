//! The mirror's part of the audit: with what it has not heard yet, it knows what the yard has (O1).

use super::{Mirror, NAMED, Place, SALTED, Salts, tellable};
use crate::base::Ix;
use crate::events::{Told, Word};

/// A block that a listener must know: its place, the number of its key, and the tiers where it may be
/// read, a bit for each.
pub(crate) type Known = (u32, u64, u8);

/// What is known of a place, as far as the audit looks.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Seen {
    /// The number of its key; `None`: it was never named.
    key: Option<u64>,
    tiers: u8,
}

impl Mirror {
    /// Compares what it knows, and will know once it has heard what is pending, with what there is.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub(crate) fn check(&self, pending: Option<&Told>, there_is: &[Known]) -> Result<(), String> {
        for (at, &place) in self.places.iter().enumerate() {
            self.check_told(at as u32, place)?;
        }
        let mut seen: Vec<Seen> = self.places.iter().map(seen_of).collect();
        if let Some(told) = pending {
            hear(told, &mut seen);
        }
        for &(at, key, tiers) in there_is {
            let found = seen.get_mut(at as usize).map(std::mem::take);
            let found = found.unwrap_or_default();
            if found.key != Some(key) {
                return Err(format!("a listener has another block in place {at}"));
            }
            check_tiers(at, found.tiers, tiers)?;
        }
        let mut rest = seen.iter().enumerate();
        rest.try_for_each(|(at, seen)| check_tiers(at as u32, seen.tiers, 0))
    }

    /// A block is told where it is, if it may be told, and nowhere else.
    fn check_told(&self, at: u32, place: Place) -> Result<(), String> {
        let hidden = place.flags & SALTED != 0 && self.salts == Salts::Hide;
        let mut right = place.tiers;
        if hidden || !tellable(place) {
            right = 0;
        }
        let waiting = self.waiting.get(&place.above);
        if waiting.is_some_and(|waiting| waiting.contains(&at)) {
            right &= !1;
        }
        if place.told != right {
            let told = place.told;
            return Err(format!(
                "place {at} was told on tiers {told:#b}, and should be on {right:#b}"
            ));
        }
        Ok(())
    }
}

fn check_tiers(at: u32, found: u8, right: u8) -> Result<(), String> {
    if found == right {
        return Ok(());
    }
    Err(format!(
        "a listener knows place {at} on tiers {found:#b}, and it is on {right:#b}"
    ))
}

fn seen_of(place: &Place) -> Seen {
    Seen {
        key: (place.flags & NAMED != 0).then_some(place.key),
        tiers: place.tiers,
    }
}

/// Follows what is pending, as far as the audit looks.
fn hear(told: &Told, seen: &mut Vec<Seen>) {
    let mut names = told.names.iter();
    let at = |seen: &mut Vec<Seen>, place: u32| {
        let at = place as usize;
        if at >= seen.len() {
            seen.resize(at + 1, Seen::default());
        }
        at
    };
    let name = |seen: &mut Vec<Seen>, place: u32, key: u64| {
        let at = at(seen, place);
        if seen[at].key != Some(key) {
            seen[at] = Seen {
                key: Some(key),
                tiers: 0,
            };
        }
    };
    for &word in &told.words {
        match word {
            Word::Named => {
                if let Some(one) = names.next() {
                    name(seen, one.node.get(), one.key);
                }
            }
            Word::Ready(node, tier) => {
                let at = at(seen, node.get());
                seen[at].tiers |= 1 << tier.0;
            }
            Word::Gone(node, tier) => {
                let at = at(seen, node.get());
                seen[at].tiers &= !(1 << tier.0);
            }
            Word::Cleared => forget(seen),
            Word::Lost { names: before } => {
                forget(seen);
                for one in names.by_ref().take(before as usize) {
                    name(seen, one.node.get(), one.key);
                }
            }
        }
    }
}

fn forget(seen: &mut [Seen]) {
    for seen in seen {
        seen.tiers = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Clears, Mirror, Salts};
    use crate::base::{Ix, NodeIx};
    use crate::events::{Above, Batch, NO_TOKENS, Name, Tier8, Told, Word};

    fn told(key: u64, words: &[Word]) -> Told {
        let node = NodeIx::new(2);
        let above = Above::Root;
        let from = NO_TOKENS;
        let mut told = Told::default();
        told.words = words.to_vec();
        told.names = std::collections::VecDeque::from([Name {
            node,
            key,
            above,
            from,
        }]);
        told
    }

    #[test]
    fn the_audit_finds_what_a_listener_was_not_told_and_what_was_told_it_in_vain() {
        let node = NodeIx::new(2);
        let mut mirror = Mirror::new(4, Salts::Hide, Clears::All, 8);
        let pending = told(7, &[Word::Named, Word::Ready(node, Tier8(1))]);
        for (there_is, right) in [
            (vec![(2, 7, 2)], true),
            (vec![(2, 7, 3)], false),
            (vec![(2, 8, 2)], false),
            (vec![(3, 7, 2)], false),
            (vec![], false),
        ] {
            let found = mirror.check(Some(&pending), &there_is);
            assert_eq!(found.is_ok(), right, "{there_is:?}: {found:?}");
        }
        assert!(mirror.check(None, &[(2, 7, 2)]).is_err(), "not heard yet");
        mirror.follow(&pending, &[], &mut Batch::new(0.0));
        assert_eq!(mirror.check(None, &[(2, 7, 2)]), Ok(()));
        let gone = told(7, &[Word::Gone(node, Tier8(1))]);
        assert!(mirror.check(Some(&gone), &[(2, 7, 2)]).is_err(), "gone");
        assert_eq!(mirror.check(Some(&gone), &[]), Ok(()));
    }
}
