//! Which of four orders finds most, and so decides.
//!
//! Each has a shadow cache: the blocks of the sample that a cache would hold which had this order,
//! and as many fewer slots as the sample has fewer blocks (dueling: Qureshi et al. 2007; smaller
//! caches for sampled keys: Waldspurger et al. 2015). A hit scores; scores fade, so that the duel
//! follows what the requests do now.

use crate::evict::bonus::Bonus;
use crate::evict::learned::history::{History, Use};
use crate::evict::learned::reuse::Reuse;
use crate::evict::newest::Newest;
use crate::evict::order::Order;
use crate::evict::recency::Recency;
use crate::evict::usage::Usage;

/// The orders in the duel; among equals the first wins.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Rule {
    Recency,
    Bonus,
    Learned,
    Newest,
}

impl Rule {
    const ALL: [Self; 4] = [Self::Recency, Self::Bonus, Self::Learned, Self::Newest];

    fn lists(self) -> usize {
        match self {
            Self::Recency => Recency::CLASSES,
            Self::Bonus => Bonus::CLASSES,
            Self::Learned => Reuse::CLASSES,
            Self::Newest => Newest::CLASSES,
        }
    }

    /// The list of this order for a class of the learned one.
    fn list(self, class: u8) -> u8 {
        match self {
            Self::Recency => 0,
            Self::Bonus if Reuse::again(class) => Bonus::AGAIN,
            Self::Bonus => Bonus::ONCE,
            Self::Learned => class,
            Self::Newest => Newest::STAYS,
        }
    }

    /// Of `Use::marks`: its shadow holds the block.
    fn held(self) -> u8 {
        1 << self as u8
    }
}

/// Of `Use::marks`: in the shadow of `Rule::Newest`, the block is among those that go first.
const PASSES: u8 = 1 << 4;
/// What a hit scores.
const HIT: u64 = 1 << 16;
/// The part of the scores that fades with each turnover, as a power of 2.
const FADE: u32 = 3;
/// To win, `Rule::Newest` must find this part more than recency, as a power of 2: where it is wrong
/// it costs most, and where it is right it finds far more.
const MARGIN: u32 = 3;

#[derive(Hash, Debug)]
struct Shadow {
    rule: Rule,
    /// Blocks in it.
    held: usize,
    /// For each list, a place in the history before which none of its blocks is.
    fronts: Vec<u16>,
    score: u64,
}

impl Shadow {
    fn new(rule: Rule) -> Self {
        Self {
            rule,
            held: 0,
            fronts: vec![0; rule.lists()],
            score: 0,
        }
    }

    fn list(&self, used: &Use) -> u8 {
        if self.rule == Rule::Newest && used.is(PASSES) {
            Newest::PASSES
        } else {
            self.rule.list(used.class)
        }
    }

    /// The oldest use in a list, and where it is.
    fn front<'a>(&mut self, list: usize, history: &'a History) -> Option<(usize, &'a Use)> {
        let from = usize::from(self.fronts[list]);
        let mut rest = history.uses().iter().enumerate().skip(from);
        let front = rest
            .find(|(_, used)| used.is(self.rule.held()) && usize::from(self.list(used)) == list);
        let at = front.map_or(history.uses().len(), |(at, _)| at);
        self.fronts[list] = at as u16;
        front
    }
}

#[derive(Hash, Debug)]
pub(crate) struct Duel {
    shadows: [Shadow; 4],
    /// Slots of a shadow.
    room: usize,
    /// Sampled uses since the scores faded.
    uses: usize,
    winner: Rule,
    recency: Recency,
    bonus: Bonus,
    newest: Newest,
}

impl Duel {
    /// The list of the learned order, behind those of `Reuse`, for what goes first.
    pub(crate) const PASSES: u8 = Reuse::CLASSES as u8;

    /// For a cache of so many slots, with shadows of so much room.
    pub(crate) fn new(slots: usize, room: usize) -> Self {
        Self {
            shadows: Rule::ALL.map(Shadow::new),
            room,
            uses: 0,
            winner: Rule::Recency,
            recency: Recency,
            bonus: Bonus::of(slots),
            newest: Newest::default(),
        }
    }

    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.shadows
            .iter()
            .map(|shadow| size_of_val(&*shadow.fronts))
            .sum()
    }

    /// The list at whose back a block stands that becomes idle now.
    pub(crate) fn class(&self, usage: Usage) -> u8 {
        if self.winner == Rule::Newest && self.newest.class(usage) == Newest::PASSES {
            Self::PASSES
        } else {
            Reuse::class(usage)
        }
    }

    /// The worth of the front of a list, by the order that wins.
    pub(crate) fn value(&self, reuse: &Reuse, class: u8, age: u32) -> u32 {
        if class == Self::PASSES {
            self.newest.value(Newest::PASSES, age)
        } else {
            self.value_by(self.winner, reuse, self.winner.list(class), age)
        }
    }

    fn value_by(&self, rule: Rule, reuse: &Reuse, list: u8, age: u32) -> u32 {
        match rule {
            Rule::Recency => self.recency.value(list, age),
            Rule::Bonus => self.bonus.value(list, age),
            Rule::Learned => reuse.value(list, age),
            Rule::Newest => self.newest.value(list, age),
        }
    }

    /// The cache has evicted a block, so it is full.
    pub(crate) fn evicted(&mut self) {
        self.newest.evicted(Newest::STAYS);
    }

    /// A sampled block is used, and its last use had these marks. Returns those of this use; then
    /// `settle` is due.
    pub(crate) fn used(&mut self, before: u8) -> u8 {
        let mut marks = 0;
        for shadow in &mut self.shadows {
            let held = shadow.rule.held();
            marks |= held;
            if before & held == held {
                shadow.score += HIT;
            } else {
                if shadow.rule == Rule::Newest && shadow.held == self.room {
                    marks |= PASSES;
                }
                shadow.held += 1;
            }
        }
        marks
    }

    /// Each shadow evicts what is too much for it; then the scores decide.
    pub(crate) fn settle(&mut self, history: &mut History, reuse: &Reuse, now: u32) {
        for at in 0..self.shadows.len() {
            while self.shadows[at].held > self.room {
                self.evict(at, history, reuse, now);
            }
        }
        self.uses += 1;
        if self.uses >= self.room {
            self.uses = 0;
            for shadow in &mut self.shadows {
                shadow.score -= shadow.score >> FADE;
            }
        }
        let recency = self.shadows[0].score;
        self.winner = Rule::Recency;
        let mut best = recency;
        for shadow in &self.shadows {
            let margin = if shadow.rule == Rule::Newest {
                recency >> MARGIN
            } else {
                0
            };
            if shadow.score.saturating_sub(margin) > best {
                best = shadow.score;
                self.winner = shadow.rule;
            }
        }
    }

    fn evict(&mut self, at: usize, history: &mut History, reuse: &Reuse, now: u32) {
        let rule = self.shadows[at].rule;
        let mut least = None;
        for list in 0..rule.lists() {
            if let Some((place, used)) = self.shadows[at].front(list, history) {
                let age = now.wrapping_sub(used.stamp);
                let worth = (
                    self.value_by(rule, reuse, list as u8, age),
                    u32::MAX - age,
                    place,
                );
                least = Some(least.map_or(worth, |least| worth.min(least)));
            }
        }
        let shadow = &mut self.shadows[at];
        if let Some((.., place)) = least {
            history.unmark(place, rule.held());
        }
        shadow.held -= 1;
    }

    /// Makes room in a full history. What is dropped from it leaves the shadows. `cursors` are
    /// those of others.
    pub(crate) fn compact(&mut self, history: &mut History, cursors: &mut [u16]) {
        let mut held = self.shadows.each_ref().map(|shadow| shadow.held);
        let [a, b, c, d] = &mut self.shadows;
        let fronts = &mut [&mut a.fronts, &mut b.fronts, &mut c.fronts, &mut d.fronts];
        let mut all = fronts.each_mut().map(|fronts| fronts.as_mut_slice());
        let [a, b, c, d] = &mut all;
        history.compact(&mut [a, b, c, d, cursors], |used| {
            for (held, rule) in held.iter_mut().zip(Rule::ALL) {
                *held -= usize::from(used.is(rule.held()));
            }
        });
        for (shadow, held) in self.shadows.iter_mut().zip(held) {
            shadow.held = held;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Duel, Rule};
    use crate::evict::learned::history::History;
    use crate::evict::learned::reuse::Reuse;
    use crate::evict::usage::{Hint, Usage};

    const SLOTS: usize = 64;

    /// Plays the uses of keys, each with its class, and returns the duel.
    fn played(uses: impl Iterator<Item = (u32, u8)>) -> Duel {
        let mut history = History::new(SLOTS).expect("there is memory");
        let mut duel = Duel::new(SLOTS, history.shadow());
        let mut reuse = Reuse::new();
        for (now, (key, class)) in (1..).zip(uses) {
            if history.is_full() {
                duel.compact(&mut history, reuse.cursors());
            }
            let before = history.last(key).map_or(0, |at| history.end(at).marks);
            let marks = duel.used(before);
            history.push(key, now, class, marks);
            duel.settle(&mut history, &reuse, now);
            for shadow in &duel.shadows {
                let held = shadow.rule.held();
                let marked = history.uses().iter().filter(|used| used.is(held)).count();
                assert_eq!(marked, shadow.held);
                assert!(marked <= SLOTS);
            }
        }
        duel
    }

    #[test]
    fn where_all_find_the_same_recency_wins() {
        assert_eq!(played((0..2000).map(|at| (at, 0))).winner, Rule::Recency);
        assert_eq!(
            played((0..2000).map(|at| (at % 60, 0))).winner,
            Rule::Recency
        );
    }

    #[test]
    fn newest_first_wins_a_loop_and_lets_what_is_computed_pass() {
        let mut duel = played((0..3000).map(|at| (at % 200, 0)));
        assert_eq!(duel.winner, Rule::Newest);
        let computed = Usage::told(1, 0, false, Hint::None);
        assert_eq!(duel.class(computed), Reuse::class(computed));
        duel.evicted();
        assert_eq!(duel.class(computed), Duel::PASSES);
        let found = Usage::told(computed.uses(), computed.length(), true, computed.hint());
        assert_eq!(duel.class(found), Reuse::class(found));
        let reuse = Reuse::new();
        assert!(duel.value(&reuse, Duel::PASSES, 0) < duel.value(&reuse, 0, 1 << 30));
    }

    #[test]
    fn the_bonus_wins_where_a_set_that_changes_is_used_beside_a_flood() {
        let again = Reuse::class(Usage::told(2, 0, false, Hint::None));
        let uses = (0..6000).map(|at: u32| {
            if at.is_multiple_of(3) {
                (at / 3 % 30 + at / 600 * 30, again)
            } else {
                (1000 + at, 0)
            }
        });
        let duel = played(uses);
        assert_eq!(duel.winner, Rule::Bonus);
        let reuse = Reuse::new();
        assert_eq!(
            duel.value(&reuse, again, SLOTS as u32 + 9),
            duel.value(&reuse, 0, 9)
        );
    }

    #[test]
    fn the_duel_follows_a_change() {
        // So long that its score, if it stayed, would never be reached.
        let uses = (0..12_000).map(|at| (at % 200, 0));
        let then = (0..3000).map(|at: u32| (1000 + at / 2 + at % 2 * 20, 0));
        assert_eq!(played(uses.chain(then)).winner, Rule::Recency);
    }
}
