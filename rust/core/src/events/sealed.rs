//! Blocks that a seal publishes: a path of them at once, of which most are new.

use super::{Above, Events, NUMBER, PARENT, PLACED, QUEUED, Spoken, TOKENS, number};
use crate::base::{Ix, Key, NodeIx};

impl Events {
    /// Blocks of a sequence are published, from this one of it on; what stands before the first of them, and
    /// what the sequence stands for.
    pub(crate) fn sealed(
        &mut self,
        (mut nodes, mut keys): (&[NodeIx], &[Key]),
        mut block: u32,
        mut above: Above,
        spoken: Option<Spoken<'_>>,
    ) {
        let size = self.block_size;
        if let Some(last) = nodes.iter().max().map(|node| node.at())
            && last >= self.marks.len()
        {
            self.widen(last + 1);
        }
        // Of most sequences the tokens are all there is to say.
        let plain = spoken.filter(|all| all.origin.is_none());
        while let (Some(&node), Some(key)) = (nodes.first(), keys.first()) {
            self.place(node, above);
            if !self.marks(node).has_tokens()
                && let Some(own) = spoken.and_then(|all| all.of(block, size))
            {
                self.speak(node, own);
            }
            self.stored(node);
            // The blocks behind it name it by its key.
            let plain = plain.filter(|_| !self.marks(node).has(NUMBER));
            let tokens = plain.and_then(|all| all.tokens_from(block + 1, size));
            let more = self.sealed_plain(&nodes[1..], keys, tokens.unwrap_or_default());
            above = Above::Block(match more {
                0 => self.number_of(node, key),
                _ => number(&keys[more]),
            });
            (nodes, keys) = (&nodes[more + 1..], &keys[more + 1..]);
            block += more as u32 + 1;
        }
    }

    /// Notes blocks of these tokens, each behind the block of its key, up to one that is not new or for which
    /// there is no room. Most lie in a row, as the trie gives places again in the order of paths. It looks at
    /// one more than it notes, as it is asked again behind each that is not new. Returns how many.
    fn sealed_plain(&mut self, nodes: &[NodeIx], above: &[Key], tokens: &[u32]) -> usize {
        let (size, mut done) = (self.block_size, 0);
        let most = self.room().min(tokens.len() / size).min(nodes.len());
        let places = self.marks.len().min(self.walk.cursor as usize);
        while done < most {
            let start = nodes[done].at();
            let Some(marks) = self.marks.get_mut(start..places) else {
                break;
            };
            let rest = marks.iter_mut().zip(&nodes[done..most]).zip(start..);
            let new = rest.take_while(|((marks, node), place)| {
                node.at() == *place && !marks.has(PLACED | TOKENS | QUEUED)
            });
            let run = new.map(|((marks, _), _)| marks.0 |= PARENT | TOKENS | QUEUED);
            let run = run.count();
            if run == 0 {
                break;
            }
            let parents = self.parents[start..start + run].iter_mut();
            parents
                .zip(&above[done..])
                .for_each(|(parent, key)| *parent = number(key));
            self.tokens[start * size..(start + run) * size]
                .copy_from_slice(&tokens[done * size..(done + run) * size]);
            self.queue.extend(&nodes[done..done + run]);
            done += run;
        }
        done
    }
}
